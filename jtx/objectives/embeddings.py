"""Vectors of several texts of an example, each by itself, for losses of sentence embeddings."""

import itertools

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


def fields_of(batch: Batch) -> list[str]:
  """The names of the fields, a text of each example in each."""
  return numbered(batch, STEM)


def texts_of(batch: Batch) -> Batch:
  """The texts of all fields as those of a larger batch [F * B, T], field after field.

  Rows of shorter fields are padded.
  """
  fields = fields_of(batch)
  longest = max(batch[field].shape[1] for field in fields)
  keys = {key: field for field in fields for key in batch
          if key == field or key.startswith(f"{field}_")}
  pad = lambda x: jnp.pad(x, ((0, 0), (0, longest - x.shape[1]), *((0, 0),) * (x.ndim - 2)))
  return stacked({key: pad(batch[key]) for key in keys}, fields)


def pairs_of(batch: Batch, like: str) -> jax.Array:
  """[B, S] float32: 1 for the pairs that a row has; `like` is a key of [B, S] numbers."""
  return text_weights(batch[f"{FIRST}_segment_ids"], batch[like].shape[1])


def unit_vectors(model: nn.Module, params, batch: Batch, num_texts: int, *, train: bool,
                 rngs) -> list[jax.Array]:
  """The head's vectors of each field, at length 1: [B, S, D], or [B, T, D] of tokens.

  The model runs once for neighbouring fields with rows of one length.
  """
  vectors = []
  length = lambda field: batch[field].shape[1]
  for i, (_, group) in enumerate(itertools.groupby(fields_of(batch), length)):
    group = list(group)
    keys = {name: jax.random.fold_in(key, i) if i else key for name, key in (rngs or {}).items()}
    outputs = model.apply({"params": params}, stacked(batch, group), num_texts, train, rngs=keys,
                          method="predict")
    vectors += jnp.split(unit(outputs.astype(jnp.float32)), len(group))
  return vectors


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
