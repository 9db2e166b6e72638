"""A run with a teacher, by config: its maps, its stages, how it goes on, and what others open."""

import json

import jax
from jax.flatten_util import ravel_pytree
import numpy as np
import pytest

from configs import classify, common, teaching
from jtx.errors import ConfigError
from jtx.objectives.classify import Classify
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from jtx.train.own import apart, together
from jtx.train.teacher import taught, with_teacher
from tests.helpers import logged

DEPTHS = {"model.stack.num_layers": 4, "model.stack.block.dropout": 0.0}
MESH = {"mesh.data": 2, "mesh.fsdp": 2, "optim.ema": 0.5}


def student(teacher, argument="", **edits):
  config = classify.get_config(f"tiny,teacher={teacher}{argument}")
  return common.apply(config, {
      "model.stack.width": 16, "log_every": 1, "checkpoint.every": 2, **MESH, **edits}).lock()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("runs") / "teacher")
  loop.run(common.apply(classify.get_config("tiny"), DEPTHS).lock(), folder)
  return folder


def values(tree):
  return np.asarray(ravel_pytree(jax.tree.map(np.asarray, tree))[0])


@pytest.mark.slow
def test_a_run_goes_on_with_its_maps_and_is_opened_without_them(teacher, tmp_path):
  config = student(teacher)  # TinyBERT's stages
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
  # A student is a teacher, too: an assistant.
  objective, extra = with_teacher(taught(student(whole, ",losses=minilm"), Classify()), task.mesh)
  assert objective.model == model and objective.teacher == whole
  np.testing.assert_array_equal(values(extra["teacher"]), values(params))


@pytest.mark.slow
def test_a_term_is_trained_in_its_stage_and_layers_are_let_go_one_by_one(teacher, tmp_path):
  folder = str(tmp_path / "run")
  edits = {"distill.task_weight": 1.0, "distill.task_during": (0.5, 1.0), "optim.ema": 0.0,
           "optim.frozen": (("^encoder/layers/0/", 0.0, 0.5), ("^objective", 0.5, 1.0)),
           "optim.optimizer": common.optimizer("sgd", momentum=0.0), "checkpoint.every": 1,
           "optim.clip_norm": 0.0, "optim.schedule": common.schedule("constant"), "steps": 3,
           "checkpoint.keep": 3}
  config = student(teacher, ",losses=distilbert", **edits)
  loop.run(config, folder, jax.devices()[:4])
  params = [load_run(folder, step)[1] for step in (1, 2, 3)]
  moved = lambda path, a, b: [not np.array_equal(x, y) for x, y in zip(*(
      np.asarray(p["encoder"]["layers"]["ffn"][path]["kernel"]) for p in (a, b)))]
  path = next(iter(params[0]["encoder"]["layers"]["ffn"]))
  assert moved(path, params[0], params[1]) == [False, True]  # of step 2, before half of the run
  assert moved(path, params[1], params[2]) == [True, True]


def test_a_state_is_split_and_joined():
  own = {"w": 1}
  for state in ({"params": {"a": 2, "objective": own}, "ema": {"a": 3, "objective": own}, "step": 0},
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
