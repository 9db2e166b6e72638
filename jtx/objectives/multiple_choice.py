"""Multiple choice: a score a text, softmax over a question's texts (Devlin et al. 2019, 4.4)."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jtx.objectives.rows import numbered, stacked
from jtx.objectives.sums import Batch, Sums, class_sums, text_weights
from jtx.objectives.with_lm import WithLm


@dataclasses.dataclass(frozen=True)
class MultipleChoice(WithLm):
  """Batches have fields `choice_0`, `choice_1`, ... of one length, and `label [B, S]`."""

  unit = "questions"  # what the loss is a mean of
  heads = frozenset({"choice"})  # of the model
  keys = ("choice_0", "label")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, questions."""
    return {"loss": text_weights(batch["choice_0_segment_ids"], batch["label"].shape[1]).sum(),
            **self.lm_weights(self.model_inputs(batch))}

  def model_inputs(self, batch: Batch) -> Batch:
    """The choices as texts of a larger batch [C * B, T], all first choices before all second."""
    return stacked(batch, numbered(batch, "choice"))

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over questions of `loss` and `accuracy`."""
    labels, number = batch["label"], len(numbered(batch, "choice"))
    outputs, more = self.outputs_and_lm(model, params, self.model_inputs(batch), labels.shape[1],
                                        train, rngs)  # [C * B, S, 1]
    logits = jnp.moveaxis(outputs.reshape(number, *labels.shape), 0, -1)  # [B, S, C]
    weights = text_weights(batch["choice_0_segment_ids"], labels.shape[1])
    return class_sums(logits, labels, weights) | more
