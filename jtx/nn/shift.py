"""Decoder inputs of targets."""

import jax
import jax.numpy as jnp


def shift_right(tokens: jax.Array, segment_ids: jax.Array, start: int) -> jax.Array:
  """Decoder inputs [B, T]: each token's predecessor in its segment, `start` at the first."""
  before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
  segment_before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(segment_before == segment_ids, before, start) * (segment_ids > 0)
