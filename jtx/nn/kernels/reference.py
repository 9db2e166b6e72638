"""Attention in plain JAX, on every platform: float32 logits and softmax, masks materialised."""

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp

from jtx.nn import masks
from jtx.nn.dropout import dropout


class Score(NamedTuple):
  """How well a key answers a query."""
  # Queries [B, T, K, G, H], keys [B, S, K, H], a parameter [K, G, H] or None -> [B, K, G, T, S]
  logits: Callable[[jax.Array, jax.Array, jax.Array | None], jax.Array]
  vector: bool = False  # has a parameter, a vector a head
  scaled: bool = False  # by `scale`, H^-0.5 where that is not set


def dot(q, k, vector):
  """q . k (Luong et al. 2015; Vaswani et al. 2017)."""
  return jnp.einsum("btkgh,bskh->bkgts", q, k, preferred_element_type=jnp.float32)


def additive(q, k, vector):
  """vector . tanh(q + k) (Bahdanau et al. 2014)."""
  hidden = jnp.tanh(q[:, :, None] + k[:, None, :, :, None])  # [B, T, S, K, G, H]
  return jnp.einsum("btskgh,kgh->bkgts", hidden, vector, preferred_element_type=jnp.float32)


SCORES: dict[str, Score] = {
    "dot": Score(dot, scaled=True),
    "additive": Score(additive, vector=True),
}


def attend(q, k, v, *, mask, rows, bias, q_index, k_index, scale, soft_cap, score, score_vector,
           dropout_rate, dropout_key, return_weights):
  """Arguments and results as in `jtx.nn.attend`."""
  B, T, N, H = q.shape
  S, K = k.shape[1:3]
  grouped = K, N // K, H
  vector = None if score_vector is None else score_vector.reshape(grouped)
  logits = SCORES[score].logits(q.reshape(B, T, *grouped), k, vector)
  if SCORES[score].scaled:
    logits *= H**-0.5 if scale is None else scale
  logits = logits.reshape(B, N, T, S)
  if soft_cap is not None:
    logits = soft_cap * jnp.tanh(logits / soft_cap)
  if bias is not None:
    logits += bias
  allowed = masks.materialize(mask, T, S, rows, q_index, k_index)
  weights = masked_softmax(logits, allowed)
  weights = dropout(weights, dropout_rate, dropout_key)
  # Heads first, then moved: asked for "btkgh", XLA on CPU takes ten times as long over few queries.
  out = jnp.einsum("bkgts,bskh->bkgth", weights.reshape(B, K, N // K, T, S).astype(v.dtype), v)
  out = jnp.moveaxis(out.reshape(B, N, T, v.shape[-1]), 1, 2)
  return (out, weights) if return_weights else out


def masked_softmax(logits: jax.Array, allowed: jax.Array | None) -> jax.Array:
  """Softmax over the last axis; zeros, with zero gradient, where nothing is allowed."""
  if allowed is None:
    return jax.nn.softmax(logits, -1)
  # A large number in place of infinity: its gradient is then zero, never 0 * inf.
  weights = jax.nn.softmax(jnp.where(allowed, logits, -1e30), -1)
  return jnp.where(allowed.any(-1, keepdims=True), weights, 0)
