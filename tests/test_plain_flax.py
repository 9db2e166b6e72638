"""Plain Flax models of benchmarks are the configs' models: as many parameters, and they learn."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import plain_step
from jtx.compile import aot
from jtx.errors import ConfigError


def plain_and_ours(name, arg, options, **edits):
  config = importlib.import_module(f"configs.{name}").get_config(arg)
  config.update_from_flattened_dict(edits)
  config.lock()
  return (plain_step.plain_of(config, name, "cpu:1", **options),
          aot.train_step(config, "cpu:1", **options))


# MAE's positions are a table that is not trained, which plain Flax computes.
@pytest.mark.slow
@pytest.mark.parametrize("name, arg, options, positions", [
    ("bert_base", "", dict(vocab_size=30522), 0), ("vit_b16", "", dict(outputs=1000), 0),
    ("nmt_base", "", dict(vocab_size=37000), 0), ("mae", "b", {}, 197 * (768 + 512)),
    ("modernbert", "", dict(vocab_size=50368), 0)])
def test_as_many_parameters(name, arg, options, positions):
  plain, (_, (state, *_), _) = plain_and_ours(name, arg, options)
  number = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
  assert number(plain_step.step_of(plain)[1][0]) == number(state.params) - positions


@pytest.mark.slow
@pytest.mark.parametrize("name, arg, options", [
    ("bert", "tiny", {}), ("vit_b16", "tiny", dict(outputs=10)), ("nmt_base", "tiny", {}),
    ("mae", "ti,tiny", {}), ("modernbert", "tiny", {})])
def test_steps_learn_one_batch(name, arg, options):
  """The loss of a few steps on one batch goes down from that of a guess."""
  plain, _ = plain_and_ours(name, arg, options)
  step, (params, state, batch, _) = plain_step.step_of(plain)
  random = np.random.default_rng(0)
  fill = lambda x: jnp.asarray(random.random(x.shape), x.dtype) if x.dtype == jnp.float32 else (
      jnp.asarray(random.integers(1, 2 if x.ndim == 1 else 9, x.shape), x.dtype))
  batch = jax.tree.map(fill, batch)
  params = plain.model.init(jax.random.key(0), *plain.inputs(batch, False))["params"]
  zeros = lambda x: jnp.zeros(x.shape, x.dtype)
  state, losses = jax.tree.map(zeros, state), []
  for _ in range(8):
    params, state, loss = step(params, state, batch, jax.random.key(1))
    losses.append(float(loss))
  assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_a_config_without_a_plain_model():
  with pytest.raises(ConfigError, match="no plain model of 'deit', only of bert, bert_base"):
    plain_step.plain_of(None, "deit", "cpu:1")
