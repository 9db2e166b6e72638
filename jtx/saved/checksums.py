"""Checksums of arrays, computed where they are, and of what JSON holds."""

import functools
import json
import math
from typing import Any, Mapping
import zlib

import jax
import jax.numpy as jnp
import numpy as np

PART = 2**18  # words at a time on the host, which stay in its caches


def _digest(x: jax.Array) -> jax.Array:
  """A checksum of an array's bits and their order, `[]` uint32.

  The sum modulo 2^32 of the words, each times an odd number that grows with its index.
  An odd weight has an inverse modulo 2^32, so a change within one word always shows;
  and integer addition commutes, so the result is the same however `x` is sharded.
  """
  if x.dtype == jnp.bool_:
    words = x.astype(jnp.uint8)
  else:
    words = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * min(x.dtype.itemsize, 4)}"))
  index = jnp.zeros(words.shape, jnp.uint32)
  for axis in range(words.ndim):
    stride = jnp.uint32(math.prod(words.shape[axis + 1:]) % 2**32)
    index += stride * jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
  return jnp.sum(words.astype(jnp.uint32) * (2 * index + 1), dtype=jnp.uint32)


def _digest_here(x: np.ndarray) -> int:
  """`_digest` of an array in the memory of this process, for which no program is compiled."""
  words = np.ascontiguousarray(x).reshape(-1).view(f"uint{8 * min(x.dtype.itemsize, 4)}")
  odd = 2 * np.arange(PART, dtype=np.uint32) + 1
  total = 0
  for start in range(0, words.size, PART):
    part = words[start:start + PART].astype(np.uint32)
    weights = odd[:part.size] + np.uint32(2 * start % 2**32)
    total += int(np.dot(part, weights))
  return total % 2**32


@functools.lru_cache
def _digest_on(out_sharding: jax.sharding.Sharding | None):
  return jax.jit(_digest, out_shardings=out_sharding)


def _is_here(x: jax.Array) -> bool:
  return x.is_fully_addressable and all(d.platform == "cpu" for d in x.sharding.device_set)


def digests(arrays: Mapping[str, jax.Array]) -> dict[str, int]:
  """The checksum of every array, computed where the arrays are; waits for them."""
  # Replicated, so that every process of a multi-host run can read the result.
  replicated = next((
      jax.sharding.NamedSharding(x.sharding.mesh, jax.sharding.PartitionSpec())
      for x in arrays.values()
      if isinstance(x.sharding, jax.sharding.NamedSharding)), None)
  # One after the other: at once, they would need memory for the products of all.
  return {path: _digest_here(np.asarray(x)) if _is_here(x) else int(_digest_on(replicated)(x))
          for path, x in arrays.items()}


def crc(content: Any) -> int:
  """The CRC-32 of what JSON can hold."""
  return zlib.crc32(json.dumps(content, sort_keys=True).encode())
