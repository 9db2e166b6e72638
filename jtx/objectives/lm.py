"""Language modelling: the cross-entropy of each next token given those before it."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import token_sums
from jtx.objectives.sums import Batch, Sums
from jtx.ranges import NotNegative, Rate, SizeOrNone


def following(values: jax.Array, segment_ids: jax.Array, last: int) -> jax.Array:
  """What stands behind each token in its segment, [B, T]; `last` behind a segment's last."""
  behind = lambda x: jnp.pad(x, ((0, 0), (0, 1)))[:, 1:]
  same = (behind(segment_ids) == segment_ids) & (segment_ids > 0)
  return jnp.where(same, behind(values), last)


def next_tokens(batch: Batch) -> jax.Array:
  """The token that each place is to predict, [B, T] int32; -1 where there is none.

  It is `text_next` where the batch has it, as rows of `documents` do, and otherwise the next of
  the same segment. Of what that gives only some are predicted: with `text_answers` those with this
  flag, and with `text_prefix` those without that one.
  """
  segments = batch["text_segment_ids"]
  flagged = lambda name: following(batch[name] != 0, segments, False)
  tokens = batch.get("text_next")
  if tokens is None:
    tokens = following(batch["text"], segments, -1)
  predicted = segments > 0
  if "text_answers" in batch:
    predicted &= flagged("text_answers")
  if "text_prefix" in batch:
    predicted &= ~flagged("text_prefix")
  return jnp.where(predicted, tokens, -1)


@dataclasses.dataclass(frozen=True)
class Lm:
  """The mean over predicted tokens (Radford et al. 2018, equation 1).

  Tokens of a segment see those before them and no others. Which are predicted is told at
  `next_tokens`: all but a segment's first, answers only, or what follows a prefix that all of its
  segment see (Raffel et al. 2020, section 3.2), where the model's layers are of kind "prefix".
  """
  label_smoothing: Rate = 0.0  # e: each of V tokens gets e / V of the target
  z_loss: NotNegative = 0.0  # weight of log(Z)^2, such as 1e-4; 0 is off
  logits_chunk: SizeOrNone = 0  # tokens whose logits are held at a time; 0 is all

  unit = "tokens"  # what the loss is a mean of
  heads = frozenset({"lm"})  # of the model
  keys = ("text",)  # of a batch

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """The divisor of each loss term's sum: here, predicted tokens."""
    return {"loss": (next_tokens(batch) >= 0).sum().astype(jnp.float32)}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over predicted tokens of `loss` (smoothed, with z-loss), `nll` and `accuracy`."""
    hidden = model.apply({"params": params}, batch, train, rngs=rngs)
    head = lambda hidden: model.apply({"params": params}, hidden, method="logits")
    labels = next_tokens(batch)
    return token_sums(head, hidden, labels, (labels >= 0).astype(jnp.float32),
                      self.label_smoothing, self.logits_chunk, self.z_loss)
