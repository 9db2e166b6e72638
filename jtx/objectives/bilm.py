"""Language models of both directions: each word from those before it, and from those behind."""

import dataclasses
from typing import Any, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import token_sums
from jtx.objectives.lm import following
from jtx.objectives.sums import Batch, Sums
from jtx.ranges import SizeOrNone


def before(values: jax.Array, segment_ids: jax.Array, first: int) -> jax.Array:
  """What stands before each word in its segment, [B, W]; `first` before a segment's first."""
  return following(values[:, ::-1], segment_ids[:, ::-1], first)[:, ::-1]


@dataclasses.dataclass(frozen=True)
class BiLm:
  """The mean over predicted words, of both directions (Peters et al. 2018, section 3.1).

  A segment's first word is not predicted forward, nor its last one backward: they are the text's
  begin and end, where the op "word_targets" makes the rows.
  """
  logits_chunk: SizeOrNone = 0  # words whose logits are held at a time; 0 is all

  unit = "words"
  heads = frozenset({"bilm"})  # of the model
  keys = ("text", "text_targets")  # of a batch

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """The divisor of each loss term's sum: words but one of each segment, twice."""
    segments = batch["text_segment_ids"]  # 1, 2, ... in a row
    words = (batch["text_targets"] >= 0) & (segments > 0)
    return {"loss": 2 * (words.sum() - segments.max(-1).sum()).astype(jnp.float32)}

  def units(self, sums: Mapping[str, Any]) -> float:
    """Words, of which each is predicted in both directions."""
    return sums["loss"][1] / 2

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over predicted words of `loss`, `nll` and `accuracy`."""
    forward, backward, targets, segments = model.apply(
        {"params": params}, batch, train, rngs=rngs, method="directions")
    hidden = jnp.concatenate([forward, backward])
    labels = jnp.concatenate([following(targets, segments, -1), before(targets, segments, -1)])
    head = lambda hidden: model.apply({"params": params}, hidden, method="logits")
    return token_sums(head, hidden, labels, (labels >= 0).astype(jnp.float32), 0.0,
                      self.logits_chunk)
