"""A language model of characters from its config to a workdir that others open again."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs import common, shakespeare
import jtx
from jtx.data.tokenizers.characters import Characters
from jtx.errors import DataError, Preempted
from jtx.saved import speaking
from jtx.saved.folder import open_saved
from jtx.train import loop
from tests.helpers import logged, losses, run_command

TEXT = ("To be, or not to be: that is the question.\n" * 20
        + "Whether 'tis nobler in the mind.\n" * 4)


def config_of(folder, **edits):
  (folder / "input.txt").write_text(TEXT)
  c = shakespeare.get_config(f"text={folder}/input.txt")
  common.apply(c, {"model.stack": common.TINY_STACK, "steps": 4, "batch_size": 4, "log_every": 1,
                   "checkpoint.every": 2, "optim.schedule.warmup": 1.0,
                   "data.ops[2].lengths": (32,), "evals.val.context": 32, "evals.val.stride": 8})
  return common.apply(c, edits).lock()


def run(config, workdir, **limits):
  return loop.run(config, str(workdir), jax.devices()[:1], **limits)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  folder = tmp_path_factory.mktemp("characters")
  return folder, run(config_of(folder), folder / "run")


@pytest.mark.slow
def test_all_of_the_last_tenth_is_evaluated(trained):
  _, results = trained
  held_out = TEXT[len(TEXT) * 9 // 10:]
  assert results["val/tokens"] == len(held_out) - 1
  assert results["val/nats_per_character"] == pytest.approx(
      results["val/nll"] * (len(held_out) - 1) / len(held_out))
  assert results["val/bits_per_byte"] == pytest.approx(
      results["val/nats_per_character"] / np.log(2))


def test_the_workdir_brings_its_tokenizer(trained, capsys):
  folder, results = trained
  tokenizer = jtx.load_tokenizer(str(folder / "run"))
  seen = TEXT[:len(TEXT) * 9 // 10]
  assert isinstance(tokenizer, Characters) and tokenizer.characters == "".join(sorted(set(seen)))
  model, params = jtx.load_pretrained(str(folder / "run"))
  assert model.vocab_size == tokenizer.vocab_size
  assert params["embed"]["embedding"].shape[0] == tokenizer.vocab_size
  run_command("evaluate", f"--workdir={folder}/run")
  again = json.loads(capsys.readouterr().out.splitlines()[-1])
  assert again["val/nll"] == pytest.approx(results["val/nll"], rel=1e-6)


def test_a_prompt_begins_as_the_texts_of_training_did(trained):
  folder, _ = trained
  generate = jtx.Generator(str(folder / "run"), max_new_tokens=3)
  tokenizer = generate.generator.tokenizer
  prompt, = generate.generator.prompts(["To"])
  assert prompt.tolist() == tokenizer.encode("To").tolist()
  assert len(generate(["To be"])[0]) <= 3
  saved = open_saved(str(folder / "run"))
  with saved.config.unlocked():
    saved.config.data.ops[0].begin = True
  assert speaking.begin_ids(saved) == (tokenizer.bos_id,)
  own = dataclasses.replace(generate.generator.limits, begin_ids=None)
  generate.generator.limits = own
  assert generate.generator.prompts(["To"])[0].tolist() == [1, *prompt]


@pytest.mark.parametrize("begin", [False, True])
def test_a_prompt_begins_the_same_without_the_run(begin, trained, tmp_path):
  saved = open_saved(str(trained[0] / "run"))
  with saved.config.unlocked():
    saved.config.data.ops[0].begin = begin
  jtx.save_pretrained(str(tmp_path / "made"), *saved.load(), format="jtx", like=saved)
  made = open_saved(str(tmp_path / "made"))
  assert speaking.begin_ids(made) == ((saved.tokenizer().bos_id,) if begin else ())


@pytest.mark.slow
def test_a_run_in_pieces_is_that_in_one(trained, tmp_path):
  for _ in range(8):
    try:
      run(config_of(tmp_path), tmp_path / "pieces", max_seconds=1e-6)
      break
    except Preempted:
      continue
  assert losses(tmp_path / "pieces") == losses(trained[0] / "run")


@pytest.mark.slow
def test_accumulated_gradients_are_those_of_the_whole_batch(tmp_path):
  found = []
  for accumulate in (1, 2):
    config = config_of(tmp_path, **{"model.stack.block.dropout": 0.0,
                                    "optim.accumulate": accumulate})
    run(config, tmp_path / f"run_{accumulate}")
    found.append([loss for _, loss in losses(tmp_path / f"run_{accumulate}")])
  np.testing.assert_allclose(*found, rtol=1e-4)


def test_an_unknown_character_names_the_file(tmp_path):
  config = config_of(tmp_path, **{"tokenizer.kind.unknown": False})
  (tmp_path / "input.txt").write_text(TEXT + "ß")
  with pytest.raises(DataError, match=r"input.txt:characters\[90%:\]: op tokenize: example 0 has"
                     r" characters that the tokenizer does not know: 'ß' \(U\+00DF\)"):
    run(config, tmp_path / "run")


@pytest.mark.slow
def test_a_mixture_of_experts_is_trained_and_goes_on_with_prompts(tmp_path):
  config = config_of(tmp_path, **{"model.stack.block.ffn.experts.number": 4})
  run(config, tmp_path / "run")
  line = logged(tmp_path / "run")[-1]
  # A token takes 2 of the 4, and all layers together as many as their tokens are.
  assert sum(line[f"expert_load/{i}"] for i in range(4)) == pytest.approx(4)
  assert line["expert_balance"] >= 0.9 and line["loss"] == line["nll"]
  generate = jtx.Generator(str(tmp_path / "run"), max_new_tokens=8).generator
  prompt, = generate.prompts(["To be"])
  (said,), = generate([prompt])
  ids = np.array([*prompt, *said.tokens], np.int32)[None]
  batch = {"text": ids, "text_segment_ids": np.ones_like(ids),
           "text_positions": np.arange(ids.size, dtype=np.int32)[None]}
  scores = generate.model.apply({"params": generate.params}, batch, method=lambda model, batch:
                                model.logits(model(batch, False)))
  best = np.argmax(scores[0], -1)[len(prompt) - 1:]
  assert list(said.tokens) == best[:len(said.tokens)].tolist() and len(said.log_probs) > 0
