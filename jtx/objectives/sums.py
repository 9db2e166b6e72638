"""Weighted sums over a batch, of which losses and metrics are made, and their averages."""

from typing import Any, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from jtx.parallel.sharding import parts

Batch = Mapping[str, jax.Array]
Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight), both scalars


def text_weights(segment_ids: jax.Array, num_texts: int) -> jax.Array:
  """[B, S] float32: 1 for the texts that a row [B, T] has, whose segments are 1, 2, ..."""
  number = segment_ids.max(-1, keepdims=True)
  return (jnp.arange(num_texts) < number).astype(jnp.float32)


def even_slots(batch: Batch) -> Batch:
  """A batch with as many slots of `mlm_positions` and `mlm_labels` as devices can share.

  Those added are empty. Else every device of a context would have the scores of all of them.
  """
  if "mlm_labels" not in batch or not (more := -batch["mlm_labels"].shape[1] % parts("residual")):
    return batch
  pad = lambda key, value: jnp.pad(batch[key], ((0, 0), (0, more)), constant_values=value)
  return {**batch, "mlm_positions": pad("mlm_positions", 0), "mlm_labels": pad("mlm_labels", -1)}


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


def summarize(sums: Mapping[str, Any]) -> dict[str, float]:
  """Averages of metrics, sum over weight in float64; those of no weight are left out.

  Args:
    sums: by name a pair (sum, weight), or an array of them `[2]`.
  """
  pairs = {name: np.asarray(pair, np.float64) for name, pair in sums.items()}
  return {name: float(total / weight) for name, (total, weight) in pairs.items() if weight != 0}
