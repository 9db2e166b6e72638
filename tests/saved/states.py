"""States to checkpoint, for the tests of this folder."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jtx.saved.checkpoint import Checkpointer


def make_state(seed: int = 0):
  rng = np.random.default_rng(seed)
  params = {
      "embed": {"embedding": jnp.asarray(rng.normal(size=(40, 16)), jnp.float32)},
      "layers": {"kernel": jnp.asarray(rng.normal(size=(2, 16, 24)), jnp.float32),
                 "scale": jnp.asarray(rng.normal(size=(2, 16)), jnp.bfloat16)},
  }
  return {"step": jnp.int32(seed), "params": params, "opt_state": optax.adam(1e-3).init(params),
          "frozen": jnp.asarray([True, False]), "ema": {}}


def abstract(tree):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def assert_same_bits(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def write(directory, steps, **options):
  checkpoints = Checkpointer(directory, **options)
  for step in steps:
    checkpoints.save(step, make_state(step), {"saved": step})
  checkpoints.close()


def restore(run, step=None):
  checkpoints = Checkpointer(run / "checkpoints")
  try:
    return checkpoints.restore(abstract(make_state()), step)
  finally:
    checkpoints.close()
