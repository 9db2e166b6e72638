"""Multi-label classification of texts and images: a sigmoid and a binary cross-entropy a label."""

import dataclasses
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives import imbalance
from jtx.objectives.classify import example_weights
from jtx.objectives.rows import in_both_orders
from jtx.objectives.sums import Batch, Sums, weighted_sums
from jtx.objectives.with_lm import WithLm
from jtx.ranges import NotNegative


@dataclasses.dataclass(frozen=True)
class MultiLabel(WithLm, imbalance.Balanced):
  """Batches have `label [B, S, C]`: 1 for each label that a text or image has, and 0 for others.

  The loss of an example is the mean over labels of

    -w y log p - (1 - y) log(1 - p),  p = sigmoid(score),

  with w of `pos_weight` (PyTorch's BCEWithLogitsLoss). With `focal_gamma` the logarithms are
  multiplied by (1 - p)^gamma and p^gamma (Lin et al. 2017).
  """
  pos_weight: tuple[NotNegative | str, ...] = ()  # one a label; "balanced" is by the training data
  focal_gamma: NotNegative = 0.0  # 2 in the paper; 0 is off

  unit = "examples"  # what the loss is a mean of
  heads = frozenset({"multi_label"})  # of the model
  keys = ("label",)  # of a batch
  balanced = {"pos_weight": imbalance.of_labels}

  def __post_init__(self):
    imbalance.check_fields("pos_weight", self.pos_weight, self.focal_gamma)

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, texts or images."""
    return {"loss": example_weights(batch).sum(),
            **self.lm_weights(self.model_inputs(batch))}

  def model_inputs(self, batch: Batch) -> Batch:
    return in_both_orders(batch)

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over texts or images of `loss`, and of `accuracy`: whether all labels are right."""
    if batch["label"].ndim != 3:
      raise ConfigError("objective.name='multi_label' needs labels that do not exclude one another:"
                        " make them by the op 'multi_label', or of images by 'decode_image' with"
                        " multi_label=True")
    outputs, more = self.outputs_and_lm(model, params, self.model_inputs(batch),
                                        batch["label"].shape[1], train, rngs)  # [B, S, C]
    labels = batch["label"].astype(jnp.float32)
    logit = math.log(model.head.threshold) - math.log1p(-model.head.threshold)
    right = ((outputs >= logit) == (labels > 0)).all(-1)
    return weighted_sums(example_weights(batch), loss=self.label_loss(outputs, labels).mean(-1),
                         accuracy=jax.lax.stop_gradient(right.astype(jnp.float32))) | more

  def label_loss(self, outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """Nats [..., C] of scores and labels [..., C]."""
    there = imbalance.focal(jax.nn.log_sigmoid(outputs), self.focal_gamma)
    if self.pos_weight:
      there *= imbalance.as_array("pos_weight", self.pos_weight, outputs.shape[-1])
    absent = imbalance.focal(jax.nn.log_sigmoid(-outputs), self.focal_gamma)
    return labels * there + (1 - labels) * absent
