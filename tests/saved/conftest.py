"""Fixtures of the tests of checkpoints."""

import gc
import shutil

import pytest

from tests.saved.states import write


@pytest.fixture
def collect_here():
  gc.freeze()  # what earlier tests left alive need not be looked through
  yield
  gc.collect()
  gc.unfreeze()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with the checkpoints 1 and 2, to be copied."""
  run = tmp_path_factory.mktemp("written")
  write(run / "checkpoints", (1, 2))
  return run


@pytest.fixture
def run(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  return tmp_path / "run"
