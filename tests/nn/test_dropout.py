"""Dropout: its scale and gradient, and that its cheap random bits are as good as independent."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.dropout import Dropout, dropout, kept, mixed
from tests.helpers import assert_share, chi_square

SHAPES = ((200_000,), (2000, 100), (50, 4, 10, 100), (100_000, 2), (200_000, 1))


def keep(seed, rate, shape):
  return np.asarray(jax.jit(kept, static_argnums=(1, 2))(jax.random.key(seed), rate, shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_the_share_is_the_rate(shape, rate):
  mask = keep(1, rate, shape)
  assert mask.shape == shape and mask.dtype == bool
  assert_share((~mask).sum(), mask.size, rate, errors=4)


@pytest.mark.slow
def test_every_place_is_as_likely():
  """Over keys, which differ in one bit or are split off one another."""
  keys = [*(jax.random.key(i) for i in range(1000)), *jax.random.split(jax.random.key(7), 1000)]
  masks = np.asarray(jax.jit(jax.vmap(lambda key: kept(key, 0.3, (17, 60))))(jnp.stack(keys)))
  for some in (masks[:1000], masks[1000:]):
    z = (some.sum(0) - 700) / np.sqrt(1000 * 0.3 * 0.7)
    assert abs(z.mean()) < 4 / np.sqrt(z.size) and abs(z).max() < 4.5
    assert abs((z**2).mean() - 1) < 4 * np.sqrt(2 / z.size)


@pytest.mark.parametrize("shape", SHAPES)
def test_neighbours_are_independent(shape):
  """Patterns of 8 values, at strides within a row and across rows, come up equally often."""
  mask = keep(2, 0.5, shape).reshape(-1).astype(int)
  for stride in (1, 2, 3, 64, 100, 128, 1000, 1024):
    ends = mask[:mask.size // (8 * stride) * 8 * stride].reshape(-1, 8, stride)
    patterns = np.einsum("ijk,j->ik", ends, 2 ** np.arange(8))
    assert abs(chi_square(np.bincount(patterns.reshape(-1), minlength=256))) < 4.5, stride


def test_masks_of_related_keys_are_independent():
  first = jax.random.key(3)
  keys = [first, jax.random.key(4), *(jax.random.fold_in(first, i) for i in range(4)),
          jax.random.fold_in(first, 1 << 31), jax.random.split(first, (2, 3))[1, 2]]
  masks = [np.asarray(kept(key, 0.5, (500, 400))).astype(float) - 0.5 for key in keys]
  for a, b in itertools.combinations(masks, 2):
    for other in (b, b.T.reshape(a.shape), np.roll(b, 1, 0), np.roll(b, 1, 1)):
      assert abs((a * other).sum() * 4) < 4.5 * np.sqrt(a.size)


def test_rows_do_not_repeat():
  """Of a hundred thousand rows no two begin with the same 64 values."""
  rows = np.packbits(keep(5, 0.5, (100_000, 64)), axis=1)
  assert len(np.unique(rows, axis=0)) == len(rows)


def test_the_hash_is_one_to_one():
  x = jnp.arange(1 << 20, dtype=jnp.uint32)
  for between in (0, 0x12345678):
    assert len(np.unique(np.asarray(mixed(x, np.uint32(between))))) == x.size


@pytest.mark.parametrize("dtype, tolerance", [(jnp.float32, 1e-6), (jnp.bfloat16, 4e-3)])
def test_values_and_gradient(dtype, tolerance):
  x = jax.random.normal(jax.random.key(0), (30, 40), dtype)
  mask = kept(jax.random.key(6), 0.25, x.shape)
  y, vjp = jax.vjp(lambda x: dropout(x, 0.25, jax.random.key(6)), x)
  assert y.dtype == dtype
  np.testing.assert_array_equal(y == 0, ~mask)
  np.testing.assert_allclose(y.astype(jnp.float32), np.where(mask, x / 0.75, 0), rtol=tolerance)
  gradient, = vjp(jnp.ones_like(x))
  np.testing.assert_allclose(gradient.astype(jnp.float32), np.where(mask, 1 / 0.75, 0),
                             rtol=tolerance)


def test_nothing_is_dropped_without_a_key_at_rate_0_or_in_evaluation():
  x = jnp.arange(6.0)
  assert dropout(x, 0.5, None) is x
  assert dropout(x, 0.0, jax.random.key(0)) is x
  for layer, training in ((Dropout(0.5), False), (Dropout(0.0), True)):
    assert not jax.make_jaxpr(lambda x: layer.apply({}, x, training))(x).eqns
  out = Dropout(0.5).apply({}, jnp.ones(100), True, rngs={"dropout": jax.random.key(0)})
  assert set(np.unique(out)) == {0.0, 2.0}


def test_a_scalar():
  assert kept(jax.random.key(0), 0.5, ()).shape == ()


@pytest.mark.parametrize("rate", [-0.1, 1.0, 1.5, float("nan")])
def test_rates_out_of_range(rate):
  with pytest.raises(ConfigError, match=f"a dropout rate of {rate} is not from 0 to below 1"):
    dropout(jnp.ones(3), rate, jax.random.key(0))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_sharding_does_not_change_the_draws(impl):
  key = jax.random.key(8, impl=impl)
  mesh = jax.make_mesh((4, 2), ("a", "b"))
  place = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("a", None, "b"))
  x = jnp.ones((8, 6, 10))
  sharded = jax.jit(lambda x: dropout(x, 0.4, key), out_shardings=place)(jax.device_put(x, place))
  np.testing.assert_array_equal(sharded, dropout(x, 0.4, key))
