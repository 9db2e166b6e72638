"""The end of a run: with which checkpoint, and which evaluations a finished one still makes."""

import json
import shutil

import jax
import numpy as np
import pytest

from configs import common
from jtx.errors import ConfigError
from jtx.evals.run import evaluate, make_evaluators
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests.helpers import losses, tiny_config


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run without evaluations."""
  workdir = tmp_path_factory.mktemp("finished")
  loop.run(tiny_config(), str(workdir), jax.devices()[:1])
  return workdir


def val_loss(every=0, **edits):
  config = tiny_config(**edits)
  with config.unlocked():
    config.evals.val = common.evaluator("loss", source=("embedded:number_words/time:val",),
                                        every=every)
  return config


@pytest.mark.slow
def test_another_evaluation_of_a_finished_run_is_made(finished, tmp_path, caplog):
  caplog.set_level("INFO", logger="absl")
  workdir = tmp_path / "run"
  shutil.copytree(finished, workdir)
  read = lambda file: json.loads((workdir / file).read_text())
  before = (workdir / "config.json").read_bytes(), (workdir / "results.json").read_bytes()
  config = tiny_config(log_every=7)
  assert loop.run(config, str(workdir), jax.devices()[:1]) == {"step": 10}
  assert before == ((workdir / "config.json").read_bytes(), (workdir / "results.json").read_bytes())
  told = f"done     the run of {workdir} is complete; %s; experiments.evaluate makes others"
  assert told % "it lacks no evaluation" in caplog.messages
  more = val_loss(log_every=7)
  results = loop.run(more, str(workdir), jax.devices()[:1])
  assert told % "evaluations that it lacks are made: val" in caplog.messages
  task, params, _ = load_run(str(workdir))
  again = evaluate(task, params, make_evaluators(more), 10, str(workdir))
  assert {"step": 10, **again} == results == read("results.json") and "val/loss" in again
  kept = read("config.json")
  assert kept["evals"] == json.loads(more.to_json())["evals"] and kept["log_every"] == 1
  assert loop.run(config, str(workdir), jax.devices()[:1]) == results  # they stay
  assert read("config.json") == kept
  with pytest.raises(ConfigError, match="checkpoint.best='min:val/loss': .* is complete, and its"):
    late = val_loss(every=5, **{"checkpoint.best": "min:val/loss"})
    loop.run(late, str(workdir), jax.devices()[:1])


@pytest.mark.slow
def test_a_run_whose_checkpoints_are_gone_begins_anew_and_says_so(finished, tmp_path, caplog):
  workdir, told = tmp_path / "run", "has metrics up to step 10 and no checkpoint"
  assert told not in caplog.text
  shutil.copytree(finished, workdir)
  loop.run(tiny_config(), str(workdir), jax.devices()[:1])
  assert told not in caplog.text
  shutil.rmtree(workdir / "checkpoints")
  loop.run(tiny_config(), str(workdir), jax.devices()[:1])
  line, = (m for m in caplog.messages if told in m)
  assert line.startswith(str(workdir)) and "the run begins at step 0, and its metrics anew" in line
  assert losses(workdir) == losses(finished)


@pytest.mark.slow
def test_a_run_ends_with_its_best_checkpoint(tmp_path):
  """Its loss falls, so the highest is that of the first."""
  config = val_loss(every=2, steps=3, **{"checkpoint.every": 2, "checkpoint.best": "max:val/loss"})
  results = loop.run(config, str(tmp_path), jax.devices()[:1])
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  found = [(line["step"], line["val/loss"]) for line in lines if "val/loss" in line]
  assert [step for step, _ in found] == [2, 3, 2] and found[0] == found[2]
  assert (results["step"], results["val/loss"]) == found[0]
  steps = {step: load_run(str(tmp_path), step)[2] for step in (None, "best", "newest", 2, 3)}
  assert steps == {None: 2, "best": 2, "newest": 3, 2: 2, 3: 3}
  model, params = open_saved(str(tmp_path)).load()
  jax.tree.map(np.testing.assert_array_equal, params, load_run(str(tmp_path), 2)[1])


@pytest.mark.slow
def test_the_best_of_a_run_that_keeps_none(finished):
  with pytest.raises(ConfigError, match="step=best: the run of .* keeps no best checkpoint"):
    load_run(str(finished), "best")
  assert load_run(str(finished))[2] == load_run(str(finished), "newest")[2] == 10
