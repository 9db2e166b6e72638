"""What the objectives of text encoders share."""

from typing import Mapping

import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import Sums

Batch = Mapping[str, jax.Array]


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
