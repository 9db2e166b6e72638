"""Weighted sums over a batch, of which losses and metrics are made, and their averages."""

from typing import Any, Mapping

import jax
import jax.numpy as jnp
import numpy as np

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight), both scalars


def text_weights(segment_ids: jax.Array, num_texts: int) -> jax.Array:
  """[B, S] float32: 1 for the texts that a row [B, T] has, whose segments are 1, 2, ..."""
  number = segment_ids.max(-1, keepdims=True)
  return (jnp.arange(num_texts) < number).astype(jnp.float32)


def weighted_sums(weights: jax.Array, **values: jax.Array) -> Sums:
  """name -> (sum of weight times value, sum of weights)."""
  total = weights.sum()
  return {name: (jnp.sum(value * weights), total) for name, value in values.items()}


def class_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
  """Sums of `loss`, the cross-entropy in nats, and `accuracy`.

  Args:
    logits: [..., C] float32.
    labels: [...] int; where the weight is 0 they may be anything.
    weights: [...].
  """
  labels = jnp.where(weights > 0, labels, 0)
  nll = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1)[..., 0]
  hits = (logits.argmax(-1) == labels).astype(jnp.float32)
  return weighted_sums(weights, loss=nll, accuracy=jax.lax.stop_gradient(hits))


def cross_entropy(logits: jax.Array, labels: jax.Array, label_smoothing: float):
  """Smoothed loss and plain negative log-likelihood in nats, each of the labels' shape.

  The smoothed target is (1 - eps) one-hot plus eps / V everywhere (Szegedy et al. 2015).
  """
  lse = jax.nn.logsumexp(logits, -1)
  nll = lse - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
  if not label_smoothing:
    return nll, nll
  return (1 - label_smoothing) * nll + label_smoothing * (lse - logits.mean(-1)), nll


def logit_sums(logits: jax.Array, labels: jax.Array, weights: jax.Array,
               label_smoothing: float = 0.0) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
  """Weighted sums of the smoothed loss, and of the likelihood and hits, which have no gradient.

  A token counts as right where no other has a larger logit.

  Args:
    logits: [..., V] float32.
    labels: [...] int, of any value where the weight is 0.
    weights: [...].
    label_smoothing: between 0 and 1.
  """
  labels = jnp.where(weights > 0, labels, 0)
  loss, nll = cross_entropy(logits, labels, label_smoothing)
  # Ten times the speed of an argmax on CPU.
  hits = jnp.take_along_axis(logits, labels[..., None], -1)[..., 0] >= logits.max(-1)
  total = lambda x: jnp.sum(x * weights)
  return total(loss), jax.lax.stop_gradient((total(nll), total(hits)))


def summarize(sums: Mapping[str, Any]) -> dict[str, float]:
  """Averages of metrics, sum over weight in float64; those of no weight are left out.

  Args:
    sums: by name a pair (sum, weight), or an array of them `[2]`.
  """
  pairs = {name: np.asarray(pair, np.float64) for name, pair in sums.items()}
  return {name: float(total / weight) for name, (total, weight) in pairs.items() if weight != 0}
