"""Multiple choice: a score a text, softmax over a question's texts (Devlin et al. 2019, 4.4)."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.sums import Batch, Sums, class_sums, text_weights


@dataclasses.dataclass(frozen=True)
class MultipleChoice:
  """Batches have fields `choice_0`, `choice_1`, ... of one length, and `label [B, S]`."""

  unit = "questions"  # what the loss is a mean of
  heads = frozenset({"choice"})  # of the model
  keys = ("choice_0", "label")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, questions."""
    return {"loss": text_weights(batch["choice_0_segment_ids"], batch["label"].shape[1]).sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    """The choices as texts of a larger batch [C * B, T], all first choices before all second."""
    number = num_choices(batch)
    lengths = {batch[f"choice_{i}"].shape[1] for i in range(number)}
    if len(lengths) != 1:
      raise ConfigError(f"data.ops: the choices of a multiple_choice objective need one length, not"
                        f" {sorted(lengths)}")
    keys = [key.removeprefix("choice_0") for key in batch if key.startswith("choice_0")]
    return {f"text{key}": jnp.concatenate([batch[f"choice_{i}{key}"] for i in range(number)])
            for key in keys}

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over questions of `loss` and `accuracy`."""
    labels, number = batch["label"], num_choices(batch)
    outputs = model.apply({"params": params}, self.model_inputs(batch), labels.shape[1], train,
                          rngs=rngs, method="predict")  # [C * B, S, 1]
    logits = jnp.moveaxis(outputs.reshape(number, *labels.shape), 0, -1)  # [B, S, C]
    return class_sums(logits, labels, text_weights(batch["choice_0_segment_ids"], labels.shape[1]))


def num_choices(batch: Batch) -> int:
  number = 0
  while f"choice_{number}" in batch:
    number += 1
  return number
