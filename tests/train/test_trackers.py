"""Trackers: what they get, and what is said where one can't be had."""

import importlib.util
import json

import pytest

from jtx import config_files
from jtx.errors import ConfigError
from jtx.train import trackers
from jtx.train.metrics import MetricWriter
from tests.helpers import tiny_config


class Memory:
  """A tracker in memory."""
  package = "json"
  made = []

  def __init__(self, run):
    self.run, self.got, self.closed = run, [], False
    self.id = trackers._id_of(run, "memory", lambda: f"id {len(self.made)}")
    self.made.append(self)

  def scalars(self, step, numbers):
    self.got.append((step, dict(numbers)))

  def close(self):
    self.closed = True


def test_a_tracker_gets_the_numbers_of_the_metrics(tmp_path, monkeypatch):
  monkeypatch.setitem(trackers.TRACKERS, "memory", Memory)
  monkeypatch.setattr(Memory, "made", [])
  config = tiny_config()
  for start in (0, 2):
    writer = MetricWriter(str(tmp_path), start, trackers=("memory",), config=config)
    for step in (start + 1, start + 2, start + 3):
      writer.write(step, {"loss": 1 / step, "nll": float("inf")})
    writer.close()
  first, second = Memory.made
  assert [step for step, _ in first.got] == [1, 2, 3] and [step for step, _ in second.got] == [
      3, 4, 5]
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert [(line["step"], line["loss"]) for line in lines] == [
      (step, numbers["loss"]) for step, numbers in first.got[:2] + second.got]
  assert first.got[0][1]["nll"] == float("inf")
  assert first.id == second.id == "id 0"  # the same run goes on
  assert first.closed and second.run.start == 2
  assert config_files.flatten(second.run.config)["optim.lr"] == config.optim.lr
  assert not list(tmp_path.glob("events*"))


def test_a_run_that_begins_is_not_that_of_an_earlier_start(tmp_path, monkeypatch):
  """Which may have been of another config, and failed before its first checkpoint."""
  monkeypatch.setitem(trackers.TRACKERS, "memory", Memory)
  monkeypatch.setitem(trackers.TRACKERS, "other", type("Other", (Memory,), {}))
  monkeypatch.setattr(Memory, "made", [])
  for lr in (0.1, 0.2):
    config = tiny_config(**{"optim.lr": lr})
    MetricWriter(str(tmp_path), 0, trackers=("memory", "other"), config=config).close()
  MetricWriter(str(tmp_path), 2, trackers=("memory",), config=config).close()
  assert [tracker.id for tracker in Memory.made] == ["id 0", "id 0", "id 2", "id 2", "id 2"]


@pytest.mark.parametrize("names,message", [
    (("tensorbord",), "config.trackers: there is no 'tensorbord'; did you mean 'tensorboard'"),
    (("wandb",), r"'wandb' takes the package wandb, .* pip install wandb does it"),
    (("mlflow",), r"'mlflow' takes the package mlflow, .* pip install mlflow does it"),
])
def test_trackers_that_can_not_be_had(monkeypatch, names, message):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ConfigError, match=message):
    trackers.check(names)
