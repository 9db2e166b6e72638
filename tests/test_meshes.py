"""Gradients of tiny configs on a mesh of several axes are those of one device.

The loss alone tells little: where a compiler lays an array out wrongly, it is often the way back
that is wrong.
"""

import math
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx import build
from jtx.parallel import sharding
from jtx.train.layer_sums import sums_of
from tests.helpers import ROOT
from tests.test_configs import tiny_data

# Of XLA's pool. It has one for each device, and a device takes one for every exchange in which it
# waits for others: those that wait may leave none to whom they wait for.
THREADS = "64"
MESHES = (dict(data=2, tensor=2, context=2), dict(fsdp=2, tensor=4), dict(data=2, context=4))
CONFIGS = (("bert", "tiny"), ("electra", "tiny"), ("deberta", "tiny"), ("longformer", "tiny"),
           ("xlnet", "tiny"), ("modernbert", "tiny"), ("gpt", "tiny"), ("t5", "tiny"),
           ("nmt_numbers", "tiny"), ("rnn", "tiny"), ("squad", "tiny"), ("embed", "tiny"),
           ("vit", "tiny"), ("mae", "tiny"), ("packed_vit", "tiny"), ("coatnet", "tiny"),
           ("clip", "tiny"), ("elmo", "tiny"), ("bart", "tiny"), ("llama", "gemma3_1b,tiny"),
           ("tag", "tiny,entities,pack=2"), ("detr", "digits,tiny"))


def with_more_threads(test):
  """Runs a test in a process whose devices have threads enough to wait for each other."""
  environment = {key: x for key, x in os.environ.items() if not key.startswith("PYTEST")}
  done = subprocess.run(
      [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "slow", test], cwd=ROOT,
      env=environment | {"NPROC": THREADS}, capture_output=True, text=True, check=False)
  assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name, preset", CONFIGS)
def test_gradients_are_those_of_one_device(request, name, preset):
  if os.environ.get("NPROC") != THREADS:
    with_more_threads(request.node.nodeid)
    return
  config, batch, info = tiny_data(name, preset, None, 0)
  rows = len(next(iter(batch.values()))) // 4 * 4
  batch = {key: x[:rows] for key, x in batch.items()}
  model, objective = build.make_model(config, info, lambda: (0.5,) * info["head.outputs"])
  boxed = build.init_params(model, objective, batch, jax.random.key(0))
  params = jax.device_get(sharding.unbox(boxed))

  def loss(params, batch):
    sums = sums_of(objective, model, params, batch, train=True,
                   rngs={"dropout": jax.random.key(1)})
    return sum(sums[key][0] / jnp.maximum(weight, 1)
               for key, weight in objective.weights(batch).items())

  def on(sizes):
    m = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1) | sizes,
                           jax.devices()[:math.prod(sizes.values())])
    places = sharding.param_shardings(boxed, m)
    with jax.set_mesh(m):
      return jax.device_get(jax.jit(jax.value_and_grad(loss), out_shardings=(None, places))(
          jax.device_put(params, places),
          sharding.to_device(batch, rows, sharding.batch_sharding(m))))

  value, gradient = on({})
  largest = max(np.abs(g).max() for g in jax.tree.leaves(gradient))
  for sizes in MESHES:
    found, theirs = on(sizes)
    np.testing.assert_allclose(found, value, rtol=1e-4)
    jax.tree.map_with_path(lambda path, a, b: np.testing.assert_allclose(
        a, b, rtol=1e-3, atol=max(1e-3 * np.abs(b).max(), 1e-5 * largest),
        err_msg=f"{jax.tree_util.keystr(path)} on {sizes}"), theirs, gradient)
