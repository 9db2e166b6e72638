"""Which vector of a text a head reads."""

import jax
import jax.numpy as jnp

POOLS = ("first", "last", "before_last", "mean", "none")


def pool(kind: str, hidden: jax.Array, segment_ids: jax.Array, positions: jax.Array,
         num_texts: int) -> jax.Array:
  """The token that `kind` names or the mean of each text of a row: [B, T, D] to [B, S, D].

  Texts that a row does not have are zeros.
  """
  chosen = segment_ids[:, None] == jnp.arange(1, num_texts + 1)[:, None]  # [B, S, T]
  if kind == "first":
    chosen &= positions[:, None] == 0
  if kind in ("last", "before_last"):
    places = jnp.where(chosen, positions[:, None], -1)
    chosen &= positions[:, None] == places.max(-1, keepdims=True) - (kind == "before_last")
  chosen = chosen.astype(jnp.float32)
  total = jnp.einsum("bst,btd->bsd", chosen, hidden.astype(jnp.float32))
  return (total / jnp.maximum(chosen.sum(-1, keepdims=True), 1)).astype(hidden.dtype)
