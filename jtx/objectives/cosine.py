"""Regression of the cosine of two texts on a score (Reimers and Gurevych 2019, section 3)."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.embeddings import (
    FIRST, SECOND, fields_of, pairs_of, texts_of, unit_vectors)
from jtx.objectives.sums import Batch, Sums, weighted_sums


@dataclasses.dataclass(frozen=True)
class Cosine:
  """The mean over pairs of (cosine - label)^2; labels are best between 0 and 1.

  Batches have fields `each_0` and `each_1`, and `label [B, S]`, numbers.
  """
  unit = "pairs"  # what the loss is a mean of
  heads = frozenset({"embedding"})  # of the model
  keys = (FIRST, SECOND, "label")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, pairs."""
    return {"loss": pairs_of(batch, "label").sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    """The texts of both fields as those of a larger batch [2 * B, T], field after field.

    Raises:
      ConfigError: there are more than two fields.
    """
    if (number := len(fields_of(batch))) != 2:
      raise ConfigError(f"objective.name='cosine' compares two texts, and data.ops make {number}")
    return texts_of(batch)

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over pairs of `loss`."""
    labels = batch["label"]
    first, second = unit_vectors(model, params, batch, labels.shape[1], train=train, rngs=rngs)
    error = (jnp.sum(first * second, -1) - labels) ** 2
    return weighted_sums(pairs_of(batch, "label"), loss=error)
