"""Classes of texts and pairs of texts, or one number of each (Devlin et al. 2019, figure 4a, b)."""

import dataclasses

import flax.linen as nn

from jtx.config import ConfigError
from jtx.objectives.cross_entropy import Sums
from jtx.objectives.texts import Batch, class_sums, text_weights, weighted_sums

LOSSES = ("cross_entropy", "squared_error")


@dataclasses.dataclass(frozen=True)
class Classify:
  """Batches have `label [B, S]`: a class, or a number for "squared_error", of each text."""
  loss: str = "cross_entropy"

  def __post_init__(self):
    if self.loss not in LOSSES:
      raise ConfigError(f"objective.loss={self.loss!r}: valid are {', '.join(LOSSES)}")

  def weights(self, batch: Batch):
    """What the sum of each loss term is divided by: here, texts."""
    return {"loss": text_weights(batch["text_segment_ids"], batch["label"].shape[1]).sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over texts of `loss` and, of classes, `accuracy`."""
    labels = batch["label"]
    outputs = model.apply({"params": params}, batch, labels.shape[1], train, rngs=rngs,
                          method="predict")  # [B, S, outputs]
    weights = text_weights(batch["text_segment_ids"], labels.shape[1])
    if self.loss == "cross_entropy":
      return class_sums(outputs, labels, weights)
    if outputs.shape[-1] != 1:
      raise ConfigError(f"objective.loss='squared_error' needs model.head.outputs=1, not"
                        f" {outputs.shape[-1]}")
    return weighted_sums(weights, loss=(outputs[..., 0] - labels) ** 2)
