"""Layers against float64 NumPy, and their initialisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import activations, layers
from jtx.nn.layers import FfnConfig, NormConfig
from jtx.parallel.sharding import logical_axes, unbox


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(actual, desired, tol=1e-5):
  np.testing.assert_allclose(np.asarray(actual, np.float64), desired, rtol=tol, atol=tol)


def redraw(params):
  """Every parameter random: fresh biases are zeros and scales ones, which hide mistakes."""
  leaves, tree = jax.tree.flatten(unbox(params))
  return tree.unflatten([normal(i, *x.shape) for i, x in enumerate(leaves)])


def test_dense_contracts_the_last_axes():
  x = normal(0, 2, 5, 3, 4)
  module = layers.Dense((6, 7), ("heads", "kv", "embed", "mlp"), num_in=2)
  boxed = module.init(jax.random.key(0), x)["params"]
  assert logical_axes(boxed) == {"kernel": ("heads", "kv", "embed", "mlp"),
                                 "bias": ("embed", "mlp")}
  params = redraw(boxed)
  close(module.apply({"params": params}, x),
        np.einsum("btnh,nhde->btde", x, params["kernel"]) + params["bias"], 1e-4)


def test_dense_computes_in_its_dtype_from_float32_parameters():
  x = normal(0, 2, 4)
  module = layers.Dense((3,), ("embed", "mlp"), dtype=jnp.bfloat16)
  params = unbox(module.init(jax.random.key(0), x)["params"])
  assert all(p.dtype == jnp.float32 for p in jax.tree.leaves(params))
  assert module.apply({"params": params}, x).dtype == jnp.bfloat16


@pytest.mark.parametrize("num_in, shape, fans", [
    (1, (64, 8, 16), (64, 128)), (2, (8, 16, 64), (128, 64))])
def test_glorot_sees_all_heads(num_in, shape, fans):
  kernel = layers.kernel_init(None, num_in, 3)(jax.random.key(0), shape)
  bound = math.sqrt(6 / sum(fans))
  assert 0.98 * bound < np.abs(kernel).max() <= bound
  np.testing.assert_allclose(kernel.std(), bound / math.sqrt(3), rtol=0.03)


def test_normal_kernels_have_the_standard_deviation_that_is_asked_for():
  kernel = np.asarray(layers.kernel_init(0.02, 1, 2)(jax.random.key(0), (400, 500)), np.float64)
  assert kernel.std() == pytest.approx(0.02, rel=0.01)
  assert abs(kernel.mean()) < 2e-4
  assert (np.abs(kernel) > 0.04).mean() == pytest.approx(0.0455, rel=0.05)  # as of a normal


def test_embed_and_its_transpose():
  module = layers.Embed(7, 4, init_std=0.5)
  boxed = module.init(jax.random.key(0), jnp.array([[1]]))["params"]
  assert logical_axes(boxed) == {"embedding": ("vocab", "embed")}
  table = unbox(boxed)["embedding"]
  tokens = jnp.array([[3, 0], [6, 3]])
  np.testing.assert_array_equal(module.apply({"params": unbox(boxed)}, tokens), table[tokens])
  x = normal(1, 2, 3, 4)
  close(module.apply({"params": unbox(boxed)}, x, method="attend"), x @ np.asarray(table).T)
  wide = layers.Embed(400, 100, init_std=0.5).init(jax.random.key(0), tokens)["params"]
  np.testing.assert_allclose(unbox(wide)["embedding"].std(), 0.5, rtol=0.02)


@pytest.mark.parametrize("kind, use_bias", [
    ("layernorm", True), ("layernorm", False), ("rmsnorm", True)])
def test_norms(kind, use_bias):
  x = 3 + 2 * normal(0, 2, 3, 8)
  module = NormConfig(kind=kind, eps=0.1, bias=use_bias).make("n")
  params = redraw(module.init(jax.random.key(0), x)["params"])
  assert ("bias" in params) == (kind == "layernorm" and use_bias)
  y = np.float64(x)
  if kind == "layernorm":
    y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 0.1)
  else:
    y = y / np.sqrt((y**2).mean(-1, keepdims=True) + 0.1)
  close(module.apply({"params": params}, x), y * params["scale"] + params.get("bias", 0))


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_norms_of_bfloat16_are_computed_in_float32(kind):
  x = jnp.asarray(100 + normal(0, 4, 64), jnp.bfloat16)  # bfloat16 sums would lose the variance
  module = NormConfig(kind=kind).make("n")
  params = module.init(jax.random.key(0), x)
  low = module.apply(params, x)
  assert low.dtype == jnp.bfloat16
  close(low, module.apply(params, x.astype(jnp.float32)), 1e-2)


@pytest.mark.parametrize("name, formula", [
    ("relu", lambda x: max(x, 0)),
    ("relu2", lambda x: max(x, 0)**2),
    ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    ("gelu_tanh",
     lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
    ("gelu_sigmoid", lambda x: x / (1 + math.exp(-1.702 * x))),
    ("silu", lambda x: x / (1 + math.exp(-x))),
    ("tanh", math.tanh),
])
def test_activations(name, formula):
  x = np.linspace(-5, 5, 41, dtype=np.float32)
  close(activations.activate(name, jnp.asarray(x)), [formula(float(v)) for v in x], 2e-6)


def test_every_activation_is_covered():
  assert set(activations.ACTIVATIONS) == {"relu", "relu2", "gelu", "gelu_tanh", "gelu_sigmoid",
                                     "silu", "tanh"}


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
def test_feed_forward(gated, use_bias):
  x = normal(0, 2, 3, 4)
  module = layers.FeedForward(FfnConfig(dim=6, gated=gated, bias=use_bias))
  p = redraw(module.init(jax.random.key(0), x)["params"])
  dense = lambda name, y: y @ p[name]["kernel"].astype(np.float64) + p[name].get("bias", 0)
  h = np.maximum(dense("gate" if gated else "in", x), 0)
  close(module.apply({"params": p}, x), dense("out", h * dense("in", x) if gated else h), 1e-4)


def test_feed_forward_dropout_is_of_the_hidden_activations():
  x = jnp.ones((1, 1, 4))
  module = layers.FeedForward(FfnConfig(dim=6, bias=False, dropout=0.5))
  params = {"in": {"kernel": jnp.ones((4, 6))}, "out": {"kernel": jnp.eye(6, 4)}}
  out = module.apply({"params": params}, x, True, rngs={"dropout": jax.random.key(0)})
  assert set(np.unique(out)) == {0.0, 8.0}
  np.testing.assert_array_equal(module.apply({"params": params}, x), 4.0)


@pytest.mark.parametrize("call, message", [
    (lambda: activations.activate("gelo", jnp.ones(1)), "activation='gelo': did you mean 'gelu'"),
    (lambda: NormConfig(kind="batchnorm"), "norm.kind='batchnorm'"),
    (lambda: layers.compute_dtype("float16"), "dtype='float16'"),
])
def test_errors(call, message):
  with pytest.raises(ConfigError, match=message):
    call()


def test_compute_dtype():
  assert layers.compute_dtype("auto") == jnp.float32  # the tests run on CPU
  assert layers.compute_dtype("bfloat16") == jnp.bfloat16
