"""A run with a teacher, by config: its maps, its stages, how it goes on, and what others open."""

import json
import string

import jax
from jax.flatten_util import ravel_pytree
import numpy as np
import pytest

from configs import bert, classify, common, distil, distilbert, teaching
from jtx.config import build
from jtx.data.tokenizers.characters import Characters
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.objectives.classify import Classify
from jtx.objectives.terms import TERMS
from jtx.saved import pretrained
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from jtx.train.own import apart, together
from jtx.train.teacher import taught, with_teacher
from tests.helpers import logged
from tests.models.test_encoder import batch_of, drawn

# TinyBERT's stages, of which the last is here the last of four steps.
STAGES = {"distill.terms[3].during": (0.75, 1.0), "checkpoint.keep": 4, "checkpoint.every": 1,
          "optim.frozen": (("^encoder/layers/0/", 0.0, 0.5),), "mesh.data": 2, "mesh.fsdp": 2,
          "optim.ema": 0.5}


def student(teacher, argument="", **edits):
  """TinyBERT's losses on a task, unless the argument names others."""
  config = classify.get_config(f"tiny,teacher={teacher}{argument}")
  return common.apply(config, {"model.stack.width": 16, "log_every": 1, **edits}).lock()


@pytest.fixture
def teacher(tmp_path):
  tokenizer = Characters(string.ascii_lowercase + " '")
  config = classify.get_config("tiny").model
  common.apply(config, {"stack.num_layers": 4, "vocab_size": tokenizer.vocab_size,
                        "head.outputs": 2})
  model = build(MODELS, config)
  pretrained.save_pretrained(str(tmp_path / "teacher"), model, drawn(model, batch_of((1, 2))),
                             tokenizer, format="jtx")
  return str(tmp_path / "teacher")


def values(tree):
  return np.asarray(ravel_pytree(jax.tree.map(np.asarray, tree))[0])


@pytest.mark.slow
def test_a_run_goes_on_with_its_maps_and_is_opened_without_them(teacher, tmp_path):
  config = student(teacher, **STAGES)
  whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
  loop.run(config, whole, jax.devices()[:4])
  with pytest.MonkeyPatch.context() as patch:
    steps, save = [], loop.states.save

    def killed(checkpoints, state, program, data, stream, step, **more):
      save(checkpoints, state, program, data, stream, step, **more)
      steps.append(step)
      if step == 2:
        checkpoints.wait()
        raise KeyboardInterrupt

    patch.setattr(loop.states, "save", killed)
    with pytest.raises(KeyboardInterrupt):
      loop.run(config, parts, jax.devices()[:4])
  loop.run(config, parts, jax.devices()[:4])
  lines = [[{k: v for k, v in line.items() if not k.startswith("perf/")} for line in logged(folder)]
           for folder in (whole, parts)]
  assert lines[0] == lines[1] and len(lines[0]) == 4
  names = {"hidden_loss", "attention_loss", "embeddings_loss", "soft_loss"}
  assert all(names <= line.keys() and all(line[name] > 0 for name in names) for line in lines[0])
  assert lines[0][0]["hidden_loss"] > lines[0][-1]["hidden_loss"]  # even of so few steps

  task, params, _ = load_run(whole)
  assert type(task.objective) is Classify and "objective" not in params
  model, exported = open_saved(whole).load()
  np.testing.assert_array_equal(values(exported), values(params))
  assert model.stack.width == 16 and model.stack.num_layers == 2
  # Heads learn in the last stage alone, layer 0 from half of the run on.
  of_steps = [load_run(whole, step)[1] for step in (1, 2, 3, 4)]
  bias = [np.any(p["task_head"]["output"]["bias"]) for p in of_steps]
  kernels = [np.asarray(p["encoder"]["layers"]["attention"]["query"]["kernel"]) for p in of_steps]
  assert bias == [False, False, False, True]
  assert [[np.any(a[i] != b[i]) for a, b in zip(kernels, kernels[1:])] for i in (0, 1)] == [
      [False, True, True], [True, True, True]]
  # A student is a teacher, too: an assistant.
  objective, extra = with_teacher(taught(student(whole, ",losses=minilm"), Classify()), task.mesh)
  assert objective.model == model and objective.teacher == whole
  np.testing.assert_array_equal(values(extra["teacher"]), values(params))


def test_a_state_is_split_and_joined():
  own = {"w": 1}
  with_own = lambda a: {"a": a, "objective": own}
  for state in ({"params": with_own(2), "ema": with_own(3), "step": 0},
                {"params": {"a": 2}, "ema": {}, "step": 0}):
    split = apart(state)
    assert "objective" not in split["params"] and "objective" not in split["ema"]
    assert together(split) == state
  assert split == state  # without parameters of an objective there are no further items


def test_terms_without_a_teacher_and_a_teacher_without_terms_are_refused():
  config = common.get_config()
  assert taught(config, Classify()) == Classify()
  common.apply(config, {"distill.teacher": "folder"})
  with pytest.raises(ConfigError, match="distill.teacher=folder teaches nothing"):
    taught(config, Classify())
  with pytest.raises(ConfigError, match="losses=minilm is of a teacher"):
    classify.get_config("losses=minilm")
  common.apply(config, {"distill.teacher": "",
                        **teaching.edits("minilm", common.model("encoder"))})
  with pytest.raises(ConfigError, match="config.distill.teacher is unset, and"):
    taught(config, Classify())
  assert json.loads(config.to_json())["distill"]["terms"][0]["relations"] == ["qk", "vv"]


@pytest.mark.parametrize("config, message", [
    (lambda: distilbert.get_config("width=32,corpus=jsonl:absent"),
     "^objective.teacher is unset; it names the folder"),
    (lambda: distil.get_config("corpus=jsonl:absent"), "^config.distill.teacher is unset, and"),
    (lambda: common.apply(distil.get_config("corpus=jsonl:absent"),
                          {"distill.teacher": "nowhere"}), "^nowhere is not a directory"),
    (lambda: common.apply(bert.get_config("corpus=jsonl:absent"), {"init_from": "nowhere"}),
     "^nowhere is not a directory"),
])
def test_models_that_are_not_there_are_told_before_data_is_read(tmp_path, config, message):
  with pytest.raises(ConfigError, match=message):
    loop.run(config().lock(), str(tmp_path), jax.devices()[:1])
  assert [path.name for path in tmp_path.iterdir()] == [".lock"]


@pytest.mark.parametrize("make", [distil.get_config, distilbert.get_config])
def test_a_narrow_student_has_a_head(make):
  heads = lambda width: make(f"width={width}").model.stack.block.attention.num_heads
  assert [heads(width) for width in (32, 64, 256)] == [1, 1, 4]


@pytest.mark.parametrize("losses, names, learns_tokens", [
    ("minilm2", ["relations"], False), ("minilm2_mlm", ["soft", "relations"], True),
    ("tinybert", ["attention", "hidden", "embeddings"], False),
    ("tinybert_mlm", ["soft", "attention", "hidden", "embeddings"], True)])
def test_terms_of_layers_alone_teach_no_masked_tokens(losses, names, learns_tokens, teacher):
  config = distil.get_config(f"teacher={teacher},losses={losses}")
  assert [term.name for term in config.distill.terms] == names
  assert (config.distill.task_weight > 0) == learns_tokens
  assert all(build(TERMS, term).weight > 0 for term in config.distill.terms)
