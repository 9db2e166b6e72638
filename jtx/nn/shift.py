"""Decoder inputs of targets."""

import jax
import jax.numpy as jnp

LAST = -1  # in place of a token

def shift_right(tokens: jax.Array, segment_ids: jax.Array, start: int) -> jax.Array:
  """Decoder inputs [B, T]: each token's predecessor in its segment, `start` at the first.

  With LAST a segment starts with its last token, as mBART's do: the language (Liu et al. 2020).
  """
  if start == LAST:
    behind = jnp.pad(segment_ids, ((0, 0), (0, 1)))[:, 1:]
    places = jnp.where(behind != segment_ids, jnp.arange(tokens.shape[1]), tokens.shape[1])
    start = jnp.take_along_axis(tokens, jax.lax.cummin(places, axis=1, reverse=True), axis=1)
  before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
  segment_before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(segment_before == segment_ids, before, start) * (segment_ids > 0)
