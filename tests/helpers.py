"""What tests of several files share."""

import contextlib
import importlib
import json
import pathlib
import subprocess
import sys

from absl import flags
import numpy as np
import pytest

from configs import nmt_numbers

ROOT = pathlib.Path(__file__).absolute().parent.parent


def tiny_config(**edits):
  """`nmt_numbers` at tiny size, with what a test wants changed."""
  from configs import common
  config = nmt_numbers.get_config("tiny")
  config.evals = {}
  config.model.block.dropout = 0.1
  config.log_every = 1
  config.steps = 10
  config.checkpoint.every = 5
  common.apply(config, edits)
  return config.lock()


def logged(workdir) -> list[dict]:
  """The lines of metrics.jsonl that have a loss."""
  lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
  return [line for line in map(json.loads, lines) if "loss" in line]


def losses(workdir) -> list[tuple[int, float]]:
  return [(line["step"], line["loss"]) for line in logged(workdir)]


def one_fast(first, *others) -> list:
  """Parameters of a test, of which only the first belongs to the fast tests."""
  return [first, *(pytest.param(value, marks=pytest.mark.slow) for value in others)]


@contextlib.contextmanager
def command(name: str):
  """The entry point `experiments.NAME`; its flags, which others define too, are taken back."""
  before = set(flags.FLAGS)
  module = importlib.import_module(f"experiments.{name}")
  try:
    yield module
  finally:
    flags.FLAGS.unparse_flags()
    for flag in set(flags.FLAGS) - before:
      delattr(flags.FLAGS, flag)
    del sys.modules[module.__name__]


def chi_square(counts, expected=None):
  """Standard deviations by which the counts are less even than chance makes them."""
  counts = np.asarray(counts, float)
  expected = counts.mean() if expected is None else expected
  freedom = len(counts) - 1
  return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


def assert_share(count, total, p, errors=3):
  """That `count` of `total` is what draws of probability p give, within standard errors."""
  assert abs(count - p * total) <= errors * np.sqrt(total * p * (1 - p))


def compiled(*args) -> tuple[subprocess.CompletedProcess, dict | list | None]:
  """`experiments.compile` as it ended, and the report of its last line."""
  command = [sys.executable, "-m", "experiments.compile", *args]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  return done, json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
