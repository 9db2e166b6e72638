"""GELU, biases and norms against float64, and their gradients against autodiff of the formulas."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import numerics


def gelu(x):
  return np.array([0.5 * v * math.erfc(-v / math.sqrt(2)) for v in x])


def test_gelu_of_bfloat16_is_off_by_less_than_its_digits():
  """All 2^16 numbers: no farther than rounding, the fit and the tangent's own error take it."""
  bits = jnp.arange(2**16, dtype=jnp.uint16)
  x = jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)
  x = np.asarray(x[jnp.isfinite(x)], np.float64)
  found = np.asarray(numerics.gelu(jnp.asarray(x, jnp.bfloat16)).astype(jnp.float32), np.float64)
  expected = gelu(x)
  # Half of the last of 8 bits; numbers below float32's normal ones are flushed.
  assert (np.abs(found - expected) <= np.abs(expected) * 2**-8 + 5e-6).all()


def test_gelus_slope_in_bfloat16():
  x = np.linspace(-9, 9, 4001)
  x = np.asarray(jnp.asarray(x, jnp.bfloat16).astype(jnp.float32), np.float64)
  found = jax.vmap(jax.grad(numerics.gelu))(jnp.asarray(x, jnp.bfloat16)).astype(jnp.float32)
  density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
  expected = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x]) + x * density
  assert np.abs(np.asarray(found) - expected).max() < 2**-8 + 2e-5  # half a digit above 1


def test_gelu_of_float32_is_the_error_functions():
  x = np.linspace(-9, 9, 4001)
  np.testing.assert_allclose(numerics.gelu(jnp.asarray(x, jnp.float32)), gelu(x), atol=5e-7)


def formula(x, scale, epsilon, centered):
  if centered:
    x = x - x.mean(-1, keepdims=True)
  return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + epsilon) * scale


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_a_norm_and_its_gradients(platform, centered, mean, monkeypatch):
  monkeypatch.setattr(numerics, "platform", lambda: platform)
  random = np.random.default_rng(0)
  x, g = random.normal(mean, 2.0, (2, 5, 48)), random.normal(size=(2, 5, 48))
  scale = random.normal(size=48)
  with jax.enable_x64(True):
    expected, way_back = jax.vjp(lambda x, s: formula(x, s, 1e-5, centered), x, scale)
    expected = jax.device_get((expected, *way_back(g)))
  wide = lambda x: jnp.asarray(x, jnp.float32)
  found, way_back = jax.vjp(
      lambda x, s: numerics.normalized(x, s, 1e-5, centered), wide(x), wide(scale))
  for a, b in zip((found, *way_back(wide(g))), expected, strict=True):
    # What x itself loses in float32 is of the size of its mean.
    assert np.abs(a - b).max() < 3e-6 * (1 + mean) * np.abs(b).max()


def test_a_norm_of_bfloat16_loses_no_more_than_its_input():
  """The variance is taken in one pass: no worse than in float32, of the numbers that came."""
  random = np.random.default_rng(1)
  for mean in (0.0, 1.0, 20.0, -100.0):
    x = jnp.asarray(random.normal(mean, 1.0, (64, 512)), jnp.bfloat16)
    with jax.enable_x64(True):
      expected = jax.device_get(formula(np.asarray(x.astype(jnp.float32), np.float64), 1.0, 1e-6,
                                        True))
    found = numerics.normalized(x, jnp.ones(512), 1e-6, True)
    assert np.abs(found - expected).max() < 1e-5 * (1 + mean**2 / 10)


def test_a_product_on_chips_is_that_of_a_cpu(monkeypatch):
  """With its gradients, for kernels of several axes; on a CPU, where x is large, too."""
  random = np.random.default_rng(2)
  normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  x, kernel, bias, g = normal(3, 7, 4, 5), normal(4, 5, 2, 6), normal(2, 6), normal(3, 7, 2, 6)
  found = {}
  for name, platform, large in (("cpu", "cpu", x.size + 1), ("tpu", "tpu", 0), ("gpu", "gpu", 0),
                                ("large", "cpu", 0)):
    monkeypatch.setattr(numerics, "platform", lambda: platform)
    monkeypatch.setattr(numerics, "LARGE", large)
    out, way_back = jax.vjp(lambda *args: numerics.product(*args, 2), x, kernel, bias)
    found[name] = jax.device_get((out, *way_back(g)))
  for name in ("tpu", "gpu", "large"):
    for a, b in zip(found[name], found["cpu"], strict=True):
      assert a.shape == b.shape
      np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_product_of_fewer_outputs_turns_the_smaller_side():
  """The kernel's gradient is autodiff's; of x, which is 4 times as large, nothing is turned."""
  random = np.random.default_rng(4)
  normal = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  x, kernel, g = normal(8, 512, 128), normal(128, 32), normal(8, 512, 32)
  assert x.size >= numerics.LARGE
  way_back = jax.jit(
      lambda x, kernel, g: jax.vjp(lambda *a: numerics.product(*a, None, 1), x, kernel)[1](g))
  found = way_back(x, kernel, g)
  for a, b in zip(found, jax.vjp(jnp.matmul, x, kernel)[1](g), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3)
  text = way_back.lower(x, kernel, g).compile().as_text()
  # The second has its sides exchanged, too: its columns lie together.
  assert " f32[32,128]{1,0} dot(" in text or " f32[128,32]{0,1} dot(" in text


@pytest.mark.parametrize("platform", ["cpu", "tpu", "gpu"])
def test_the_gradient_of_a_bias_is_summed_in_float32(platform, monkeypatch):
  """In bfloat16 a sum of 4,096 numbers near 1 would stop at 256."""
  monkeypatch.setattr(numerics, "platform", lambda: platform)
  g = jnp.asarray(np.random.default_rng(3).uniform(0.5, 1.5, (8, 512, 4)), jnp.bfloat16)
  _, way_back = jax.vjp(numerics.add_bias, jnp.zeros_like(g), jnp.zeros(4, jnp.bfloat16))
  d_x, d_bias = jax.jit(way_back)(g)
  assert (d_x == g).all() and d_bias.dtype == jnp.bfloat16
  expected = np.asarray(g, np.float64).sum((0, 1))
  np.testing.assert_allclose(np.asarray(d_bias, np.float64), expected, rtol=2**-8)


def test_the_gradient_of_a_large_product_copies_nothing(monkeypatch):
  """Of several axes of rows the compiler would copy what it contracts, transposed."""
  x = jnp.ones((4, 1024, 64))
  assert x.size >= numerics.LARGE
  squares = lambda kernel, x: jnp.square(numerics.product(jnp.sin(x), kernel, None, 1)).sum()
  copies = {}
  for large in (numerics.LARGE, x.size + 1):
    monkeypatch.setattr(numerics, "LARGE", large)
    program = jax.jit(jax.grad(lambda *args: squares(*args))).lower(jnp.ones((64, 8, 8)), x)
    copies[large] = program.compile().as_text().count(" copy(")
  assert copies == {2**18: 0, x.size + 1: 2}
