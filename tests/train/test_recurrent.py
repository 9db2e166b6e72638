"""Recurrent translators in the train loop: on a mesh, and resumed."""

import shutil

import jax
import numpy as np
import pytest

from configs import common, rnn
from jtx.train import loop
from tests.helpers import losses

MESH = {"data": 2, "fsdp": 2, "tensor": 2}


def tiny(**edits):
  config = rnn.get_config("tiny")
  config.evals, config.log_every, config.steps, config.checkpoint.every = {}, 1, 4, 2
  return common.apply(config, edits).lock()


@pytest.mark.slow
def test_a_mesh_and_a_run_that_was_ended_give_the_same_losses(tmp_path):
  """With attention and dropout; what is resumed is equal bit for bit."""
  whole, resumed, spread = (str(tmp_path / name) for name in ("whole", "resumed", "spread"))
  loop.run(tiny(), whole, jax.devices()[:1])
  shutil.copytree(whole, resumed)
  shutil.rmtree(f"{resumed}/checkpoints/4")
  loop.run(tiny(), resumed, jax.devices()[:1])
  assert losses(resumed) == losses(whole) and len(losses(whole)) == 4
  loop.run(tiny(mesh=MESH), spread, jax.devices())
  np.testing.assert_allclose(*([v for _, v in losses(w)] for w in (whole, spread)), rtol=1e-5)
