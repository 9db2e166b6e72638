"""Runs that end where checkpoints get no better, and end there again after any interruption."""

import json

import jax
import pytest

from configs import common
from jtx.errors import ConfigError, Preempted
from jtx.saved import workdir as workdirs
from jtx.saved.checkpoint import Checkpointer
from jtx.train import loop
from tests.helpers import losses, tiny_config

SCORES = {1: 5.0, 2: 3.0, 3: 4.0, 4: 3.5, 5: 3.25, 6: 0.0}


@pytest.fixture
def evaluated(monkeypatch):
  """The steps that were evaluated; scores are those of SCORES."""
  steps = []

  def evaluate(task, params, evaluators, step, workdir, write):
    steps.append(step)
    numbers = {f"{name}/loss": SCORES[step] for name in evaluators}
    write(step, numbers)
    return numbers

  monkeypatch.setattr(loop, "evaluate", evaluate)
  return steps


def config_of(patience=2):
  config = tiny_config(steps=6, **{"checkpoint.every": 1, "checkpoint.keep": 1})
  with config.unlocked():
    config.evals.val = common.evaluator("loss", source=("embedded:number_words/time:val",), every=1)
    config.checkpoint.update(best="min:val/loss", patience=patience)
  return config.lock()


def test_a_run_ends_and_gives_its_best(tmp_path, evaluated, caplog):
  caplog.set_level("INFO", logger="absl")
  run = lambda: loop.run(config_of(), str(tmp_path), jax.devices()[:1])
  assert run() == {"step": 2, "val/loss": 3.0}
  assert evaluated == [1, 2, 3, 4, 2]
  assert [step for step, _ in losses(tmp_path)] == [1, 2, 3, 4]
  assert "stop     step 4, 2 checkpoints after the best" in caplog.text
  assert Checkpointer(tmp_path / "checkpoints").all_steps() == [2, 4]
  assert run() == {"step": 2, "val/loss": 3.0}  # it is complete
  assert evaluated == [1, 2, 3, 4, 2] and len(losses(tmp_path)) == 4


@pytest.mark.slow
def test_interruptions_change_nothing(tmp_path, evaluated):
  loop.run(config_of(), str(tmp_path / "whole"), jax.devices()[:1])
  assert evaluated == [1, 2, 3, 4, 2]
  evaluated.clear()
  parts = tmp_path / "parts"
  for _ in range(4):
    with pytest.raises(Preempted):
      loop.run(config_of(), str(parts), jax.devices()[:1], max_seconds=1e-6)
  found = loop.run(config_of(), str(parts), jax.devices()[:1])
  assert found == {"step": 2, "val/loss": 3.0} == json.loads((parts / "results.json").read_text())
  assert evaluated == [1, 2, 3, 4, 2]  # the fourth by the start that made no step
  assert losses(parts) == losses(tmp_path / "whole")
  # With more patience the run goes on.
  assert loop.run(config_of(patience=9), str(parts), jax.devices()[:1])["step"] == 6
  assert [step for step, _ in losses(parts)] == [1, 2, 3, 4, 5, 6]


def test_only_checkpoints_that_a_run_saves_anyway_count(tmp_path):
  config = tiny_config(**{"checkpoint.best": "max:val/accuracy", "checkpoint.patience": 2})
  checkpoints = Checkpointer(tmp_path, every=5, best="max")
  ended = lambda step: workdirs.ended(config, checkpoints, step)
  assert ended(10) and not ended(5)  # of 10
  for step, score in ((5, 0.5), (7, 0.9), (10, 0.5), (13, 0.1)):
    checkpoints.rate(step, score)
  assert not ended(13)
  checkpoints.rate(15, 0.4)
  assert ended(15)
  checkpoints.rate(20, 0.6)
  assert not ended(20)


@pytest.mark.parametrize("patience,best", [(-1, "min:val/loss"), (3, "")])
def test_patience_that_can_not_be(tmp_path, patience, best):
  config = config_of()
  config.checkpoint.update(patience=patience, best=best)
  with pytest.raises(ConfigError, match=f"config.checkpoint.patience={patience}: a number of"):
    workdirs.make_checkpoints(config, str(tmp_path))
