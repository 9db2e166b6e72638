"""Vectors of several texts of an example, each by itself, for losses of sentence embeddings."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.numerics import unit
from jtx.objectives.rows import numbered, stacked
from jtx.objectives.sums import Batch, text_weights

STEM = "each"  # fields each_0, each_1, ... of a batch
FIRST, SECOND = f"{STEM}_0", f"{STEM}_1"
_MIX, _BASE = np.uint32(2654435761), np.uint32(0x01000193)


def texts_of(batch: Batch) -> Batch:
  """The texts of all fields as those of a larger batch [F * B, T], field after field."""
  return stacked(batch, numbered(batch, STEM))


def pairs_of(batch: Batch, like: str) -> jax.Array:
  """[B, S] float32: 1 for the pairs that a row has; `like` is a key of [B, S] numbers."""
  return text_weights(batch[f"{FIRST}_segment_ids"], batch[like].shape[1])


def unit_vectors(model: nn.Module, params, texts: Batch, num_texts: int, *, train: bool,
                 rngs) -> jax.Array:
  """The head's vectors of `texts_of`, at length 1: [F * B, S, D], or [F * B, T, D] of tokens."""
  outputs = model.apply({"params": params}, texts, num_texts, train, rngs=rngs, method="predict")
  return unit(outputs.astype(jnp.float32))


def cosines(a: jax.Array, b: jax.Array) -> jax.Array:
  """[N, D] and [M, D] at length 1 to [N, M]; in float32 on chips, too, as softmax sharpens them."""
  return jnp.einsum("nd,md->nm", a, b, precision=jax.lax.Precision.HIGHEST)


def fingerprints(texts: Batch, num_texts: int) -> jax.Array:
  """[B, S] uint32, equal for texts of the same tokens, and else by a chance of 2^-32.

  Args:
    texts: `text [B, T]` with its `_segment_ids` and `_positions`.
    num_texts: S, texts in a row.
  """
  ids, positions = texts["text"].astype(jnp.uint32), texts["text_positions"]
  powers = np.cumprod(np.full(ids.shape[1], _BASE), dtype=np.uint32)
  mixed = (ids + 1) * _MIX
  mixed = (mixed ^ (mixed >> 15)) * _MIX
  terms = mixed * jnp.asarray(powers)[positions]
  own = texts["text_segment_ids"][:, None] == jnp.arange(1, num_texts + 1)[:, None]  # [B, S, T]
  return jnp.where(own, terms[:, None], 0).sum(-1, dtype=jnp.uint32)
