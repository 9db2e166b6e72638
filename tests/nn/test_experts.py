"""Mixtures of experts against loops over experts, on meshes, and what they tell of themselves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.experts import Experts
from jtx.nn.grouped import grouped_product
from jtx.nn.kernels import grouped
from jtx.nn.layers import FfnConfig
from jtx.nn.mixture import ExpertsConfig
from jtx.nn.shapes import shapes_of
from jtx.parallel import sharding
from tests.helpers import one_fast

B, T, D, F, E = 4, 6, 8, 12, 4
X = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.float32)


def layer(**fields):
  experts = ExpertsConfig(**{"number": E, **fields.pop("experts", {})})
  return Experts(FfnConfig(**{"dim": F, "bias": False, "activation": "silu", "gated": True,
                              **fields}, experts=experts))


def drawn(module, seed=1):
  shapes = sharding.unbox(shapes_of(module.init, jax.random.key(0), X))["params"]
  random = np.random.default_rng(seed)
  return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), shapes)


def looped(module, params, x):
  """The definition: of every token its best experts, each by itself, in a loop over experts."""
  c = module.config
  scores = x @ params["router"]["kernel"]
  best = jnp.sort(scores, -1)[..., -c.experts.active:]
  weight = jnp.where(scores >= best[..., :1], jax.nn.softmax(scores), 0)
  if c.experts.normalize:
    weight /= weight.sum(-1, keepdims=True)
  out = jnp.zeros_like(x)
  for e in range(c.experts.number):
    hidden = x @ params["in_kernel"][e]
    act = jax.nn.silu(x @ params["gate_kernel"][e]) * hidden if c.gated else jax.nn.relu(hidden)
    out += weight[..., e:e + 1] * (act @ params["out_kernel"][e])
  return out


@pytest.mark.parametrize("fields", one_fast(
    dict(), dict(gated=False, activation="relu"), dict(experts=dict(active=1, normalize=False)),
    dict(experts=dict(active=4)), dict(experts=dict(number=7, active=3))), ids=str)
def test_experts_are_a_loop_over_experts(fields):
  module = layer(**fields)
  params = drawn(module)

  def with_gradients(f):
    y, back = jax.vjp(f, params, X)
    return y, back(jnp.cos(jnp.arange(y.size)).reshape(y.shape))

  ours = jax.jit(lambda: with_gradients(lambda p, x: module.apply({"params": p}, x)))()
  theirs = jax.jit(lambda: with_gradients(functools.partial(looped, module)))()
  for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6 * np.abs(b).max())


@pytest.mark.parametrize("kind", ["cpu", "tpu", "gpu"])
@pytest.mark.parametrize("sizes", [[5, 0, 70, 1], [0, 0, 0, 0], [76, 0, 0, 0], [19, 19, 19, 19],
                                   [0, 0, 3, 60], [130, 0, 200, 5]], ids=str)
def test_rows_go_through_the_kernel_of_their_group(kind, sizes):
  """Also with groups of no rows, and rows behind the last group."""
  random = np.random.default_rng(2)
  product = grouped_product if kind == "cpu" else functools.partial(grouped.product, kind=kind)
  rows, (D, F) = max(76, sum(sizes) + 9), (32, 48) if kind == "gpu" else (5, 3)
  x, kernels = random.normal(size=(rows, D)), random.normal(size=(4, D, F))
  group = np.repeat(np.arange(4), sizes)
  expected = np.zeros((rows, F))
  expected[:len(group)] = np.einsum("md,mdf->mf", x[:len(group)], kernels[group])
  dy = random.normal(size=(rows, F))
  dx, dkernels = np.zeros_like(x), np.zeros_like(kernels)
  for row, g in enumerate(group):
    dx[row] = dy[row] @ kernels[g].T
    dkernels[g] += np.outer(x[row], dy[row])
  f32 = lambda a: jnp.asarray(a, jnp.float32)
  y, back = jax.vjp(lambda x, k: product(x, k, jnp.array(sizes)), f32(x), f32(kernels))
  for a, b in zip((y, *back(f32(dy))), (expected, dx, dkernels), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-4)


def test_gradients_of_many_rows_are_summed_in_float32():
  """In bfloat16 a sum of blocks of 256 ones would stop at 65,536."""
  rows = 131_072
  x, kernels = jnp.ones((rows, 4), jnp.bfloat16), jnp.zeros((1, 4, 4), jnp.bfloat16)
  _, back = jax.vjp(lambda kernels: grouped_product(x, kernels, jnp.array([rows])), kernels)
  np.testing.assert_array_equal(back(x)[0].astype(jnp.float32), rows)


MESHES = [dict(expert=4, data=2), dict(expert=2, fsdp=2, tensor=2), dict(expert=4, context=2)]


@pytest.mark.parametrize("shape", one_fast(*MESHES), ids=str)
def test_devices_share_the_experts(shape):
  module = layer()
  params = drawn(module)
  mesh = sharding.make_mesh({"data": 1, **shape}, jax.devices()[:8])
  x = jnp.concatenate([X, X[::-1]])

  def loss(params, x):
    y, told = module.apply({"params": params}, x, mutable=["sums"])
    return (y * jnp.cos(jnp.arange(y.size)).reshape(y.shape)).mean() + told["sums"]["loss"][0], y

  run = jax.jit(jax.value_and_grad(loss, has_aux=True))
  alone = run(params, x)
  with jax.set_mesh(mesh):
    boxed = shapes_of(module.init, jax.random.key(0), x)["params"]
    placed = jax.device_put(params, sharding.param_shardings(boxed, mesh))
    assert placed["in_kernel"].addressable_shards[0].data.shape[0] == E // shape["expert"]
    together = run(placed, jax.device_put(x, sharding.batch_sharding(mesh)))
  for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * np.abs(b).max())


def test_losses_and_loads():
  """Switch's balance loss is 1 where all is even, and E / active where one expert has all."""
  module = layer(experts=dict(active=1, balance=0.5, z_loss=0.25))
  params = drawn(module)
  told = module.apply({"params": params}, X, mutable=["sums"])[1]["sums"]
  scores = np.float64(X) @ np.float64(params["router"]["kernel"])
  p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
  load = np.bincount(scores.argmax(-1).ravel(), minlength=E) / (B * T)
  balance = E * (load * p.mean((0, 1))).sum()
  z = (np.log(np.exp(scores).sum(-1)) ** 2).mean()
  np.testing.assert_allclose(told["load"][0], load * E, rtol=1e-5)
  np.testing.assert_allclose(told["balance"][0], balance, rtol=1e-5)
  np.testing.assert_allclose(told["z"][0], z, rtol=1e-5)
  np.testing.assert_allclose(told["loss"][0], 0.5 * balance + 0.25 * z, rtol=1e-5)
  # Padding is not counted.
  real = jnp.arange(T) < jnp.array([6, 3, 0, 1])[:, None]
  told = module.apply({"params": params}, X, False, real.astype(int), mutable=["sums"])[1]["sums"]
  load = np.bincount(scores.argmax(-1)[np.asarray(real)], minlength=E) / 10
  np.testing.assert_allclose(told["load"][0], load * E, rtol=1e-5)


def test_refusals():
  with pytest.raises(ConfigError, match="experts.active=5 is more than experts.number=4"):
    ExpertsConfig(number=4, active=5)
  with pytest.raises(ConfigError, match="experts.shared=1 goes with experts.number of 1 or more"):
    ExpertsConfig(shared=1)
  with pytest.raises(ConfigError, match="go with ffn.bias=False and ffn.dropout=0"):
    drawn(layer(bias=True))
