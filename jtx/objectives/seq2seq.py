"""Sequence-to-sequence loss: cross-entropy of the target given the source, label-smoothed."""

import dataclasses
from typing import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn.shift import shift_right
from jtx.objectives.cross_entropy import token_sums
from jtx.objectives.sums import Sums
from jtx.ranges import CountOrNone, NotNegative, Rate, SizeOrNone


@dataclasses.dataclass(frozen=True)
class Seq2Seq:
  """Teacher forcing (Vaswani et al. 2017, section 5.4)."""
  bos_id: CountOrNone  # token that starts a target's inputs; unset, the tokenizer's
  label_smoothing: Rate = 0.1  # e: each of V tokens gets e / V of the target
  z_loss: NotNegative = 0.0  # weight of log(Z)^2, such as T5's 1e-4; 0 is off
  logits_chunk: SizeOrNone = 0  # tokens whose logits are held at a time; 0 is all

  unit = "tokens"  # what the loss is a mean of
  heads = frozenset({"seq2seq"})  # of the model
  keys = ("src", "tgt")  # of a batch

  def counted(self, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Which target tokens count: [B, T] bool."""
    return batch["tgt_segment_ids"] > 0

  def weights(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The divisor of each loss term's sum: here, target tokens."""
    return {"loss": self.counted(batch).sum().astype(jnp.float32)}

  def model_inputs(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The batch as the model takes it."""
    return {**batch, "tgt_in": shift_right(batch["tgt"], batch["tgt_segment_ids"], self.bos_id)}

  def __call__(self, model: nn.Module, params, batch: Mapping[str, jax.Array], *, train: bool,
               rngs=None) -> Sums:
    """Sums over target tokens of `loss` (smoothed), `nll` and `accuracy`."""
    hidden = model.apply({"params": params}, self.model_inputs(batch), train, rngs=rngs)
    head = lambda hidden: model.apply({"params": params}, hidden, method="logits")
    weights = self.counted(batch).astype(jnp.float32)
    return token_sums(head, hidden, batch["tgt"], weights, self.label_smoothing, self.logits_chunk,
                      self.z_loss)
