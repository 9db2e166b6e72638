"""Dropout (Srivastava et al. 2014) whose random bits cost little."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError


class Dropout(nn.Module):
  """Sets a share `rate` of the values to 0 and scales the others, so that the mean stays.

  Takes the place of `flax.linen.Dropout`, with other draws from the same stream, "dropout".
  """
  rate: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    return dropout(x, self.rate, self.make_rng("dropout") if train and self.rate else None)


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
  """`x` with a share `rate` of its values at 0 and the others divided by 1 - rate.

  Args:
    x: of any shape.
    rate: from 0 to below 1.
    key: a random key; None leaves x as it is.

  Raises:
    ConfigError: a rate out of range.
  """
  if not 0 <= rate < 1:
    raise ConfigError(f"a dropout rate of {rate} is not from 0 to below 1")
  if key is None or rate == 0:
    return x
  return jnp.where(kept(key, rate, x.shape), x / (1 - rate), 0)


def kept(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
  """bool array of a shape, in which each value is False with probability `rate`.

  The default generator of `jax.random` runs twenty rounds of a cipher for every value, which takes
  a CPU forty times as long as reading and writing the array. Here the key gives two words, each
  row (along the last axis) hashes its number with both, and a value hashes its column with those
  of its row: ten instructions. The hash is of the form of MurmurHash3's finaliser, with the
  constants that Wellons' search (hash-prospector) found to have the least bias. It is a function
  of the key and the place alone, so the mesh does not change it.
  """
  *rows, columns = shape if shape else (1,)
  row = jnp.arange(math.prod(rows), dtype=jnp.uint32).reshape(*rows, 1)
  return kept_at(words_of(key), row, jnp.arange(columns), rate).reshape(shape)


def words_of(key: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The two words, uint32 scalars, that a key gives."""
  words = jax.random.bits(key, (2,), jnp.uint32)
  return words[0], words[1]


def kept_at(words: tuple[jax.Array, jax.Array], row: jax.Array, column: jax.Array,
            rate: float) -> jax.Array:
  """`kept` at numbers of rows and columns that broadcast, wherever they are computed.

  Args:
    words: of `words_of`.
    row: uint32, along all axes but the last.
    column: of any integer type, along the last axis.
    rate: the probability of False.
  """
  a, b = (mixed(mixed(row ^ words[i]) + words[1 - i]) for i in (0, 1))
  threshold = min(round((1 - rate) * 2**32), 2**32 - 1)
  column = column.astype(jnp.uint32) * np.uint32(0x9E3779B9)
  return mixed(column + a, b) < np.uint32(threshold)


def mixed(x: jax.Array, between: jax.Array | int = 0) -> jax.Array:
  """A hash of 32 bits to 32 bits, one to one; another one for each value of `between`."""
  x = (x ^ (x >> 16)) * np.uint32(0x21F0AAAD)
  x = (x ^ (x >> 15) ^ between) * np.uint32(0x735A2D97)
  return x ^ (x >> 15)
