"""Scores of the next token: which are left out, which is the likeliest."""

import math

import jax
import jax.numpy as jnp

GROUP = 128  # neighbours that `largest` compares first


def penalised(logits: jax.Array, seen: jax.Array | None, penalty: float) -> jax.Array:
  """Logits [..., V] of tokens that were seen, made less likely (Keskar et al. 2019, section 4.1).

  Positive ones are divided by the penalty, negative ones are multiplied.
  """
  if seen is None:
    return logits
  return jnp.where(seen, jnp.where(logits > 0, logits / penalty, logits * penalty), logits)


def truncate(logits: jax.Array, top_k: int, top_p: float, min_p: float = 0.0) -> jax.Array:
  """Logits [..., V] with -inf for tokens outside the top k, outside the nucleus, or too rare."""
  if top_k:
    least = largest(logits, min(top_k, logits.shape[-1]))[0][..., -1:]
    logits = jnp.where(logits < least, -jnp.inf, logits)
  if top_p < 1:
    ordered = jnp.sort(logits, -1, descending=True)
    p = jax.nn.softmax(ordered)
    inside = jnp.cumsum(p, -1) - p < top_p  # the token that crosses p is kept
    least = jnp.where(inside, ordered, jnp.inf).min(-1, keepdims=True)
    logits = jnp.where(logits < least, -jnp.inf, logits)
  if min_p:
    least = logits.max(-1, keepdims=True) + math.log(min_p)
    logits = jnp.where(logits < least, -jnp.inf, logits)
  return logits


def largest(x: jax.Array, number: int) -> tuple[jax.Array, jax.Array]:
  """The `number` largest of x [..., V], largest first, and their indices: `jax.lax.top_k`.

  They stand in the `number` groups of neighbours that have the largest maxima: before a group that
  is not among them stand as many with a number each that is as large. Maxima are found many numbers
  at a time, and few are left to be sorted.
  """
  size = x.shape[-1]
  if size <= 4 * number * GROUP:
    return jax.lax.top_k(x, number)
  padded = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -size % GROUP)], constant_values=-jnp.inf)
  groups = padded.reshape(*x.shape[:-1], -1, GROUP)
  _, chosen = jax.lax.top_k(groups.max(-1), number)
  chosen = jnp.sort(chosen, -1)  # so that of equals the first wins
  left = jnp.take_along_axis(groups, chosen[..., None], -2)
  best, places = jax.lax.top_k(left.reshape(*x.shape[:-1], -1), number)
  found = jnp.take_along_axis(chosen, places // GROUP, -1)
  return best, found * GROUP + places % GROUP


def likeliest(logits: jax.Array) -> jax.Array:
  """The first token [...] with the largest of logits [..., V].

  Two passes, which a CPU computes many numbers at a time, as it does not `argmax`.
  """
  number = logits.shape[-1]
  best = jnp.where(logits == logits.max(-1, keepdims=True), jnp.arange(number), number)
  return jnp.minimum(best.min(-1), number - 1).astype(jnp.int32)  # the last where one is no number
