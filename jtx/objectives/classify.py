"""Classification or regression of texts, pairs of texts and images.

Devlin et al. 2019, figure 4a, b; Dosovitskiy et al. 2020, section 4.1.
"""

import dataclasses
import functools
from typing import Any, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.imbalance import Balanced, as_array, check_fields, focal, of_classes
from jtx.objectives.mixing import mix
from jtx.objectives.rows import in_both_orders
from jtx.objectives.sums import Batch, Sums, text_weights, weighted_sums
from jtx.objectives.with_lm import WithLm
from jtx.ranges import NotNegative, Rate

LOSSES = ("cross_entropy", "sigmoid", "squared_error")


@dataclasses.dataclass(frozen=True)
class Classify(WithLm, Balanced):
  """Batches have `label [B, S]`: a class, or a number for "squared_error", of each text or image.

  "sigmoid" tells every class from all others (Beyer et al. 2020). Smoothing by s gives each of C
  classes s / C of the target. Images of a batch may be mixed with their neighbours: see
  `jtx.objectives.mixing`; each one's labels are then those of two, by weight. With weights of
  classes the loss is the mean that they weigh, sum(w nll) / sum(w), as PyTorch's CrossEntropyLoss.
  """
  loss: str = "cross_entropy"  # of `LOSSES`: or "sigmoid", or of numbers "squared_error"
  label_smoothing: Rate = 0.0  # s: each of C classes gets s / C of the target
  mixup: NotNegative = 0.0  # of images: alpha of the Beta distribution; 0 is off
  cutmix: NotNegative = 0.0  # the same; with both, half of the images get each
  # One a class; "balanced" is by the training data
  class_weights: tuple[NotNegative | str, ...] = ()
  focal_gamma: NotNegative = 0.0  # of the focal loss: see `imbalance.focal`; 0 is off

  unit = "examples"  # what the loss is a mean of, if classes weigh the same
  heads = frozenset({"classes"})  # of the model
  keys = ("label",)  # of a batch
  balanced = {"class_weights": of_classes}

  def __post_init__(self):
    if self.loss not in LOSSES:
      raise ConfigError(f"objective.loss={self.loss!r}: valid are {', '.join(LOSSES)}")
    check_fields("class_weights", self.class_weights, self.focal_gamma)
    if self.loss == "squared_error" and (self.label_smoothing or self.mixup or self.cutmix):
      raise ConfigError("objective.loss='squared_error' is of numbers: label_smoothing, mixup and"
                        " cutmix go with classes")
    if self.class_weights and self.loss != "cross_entropy" or (
        self.focal_gamma and self.loss == "squared_error"):
      raise ConfigError("objective.class_weights goes with loss='cross_entropy', and focal_gamma"
                        f" with classes, not loss={self.loss!r}")

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: texts or images, or what their classes weigh."""
    return {"loss": self.loss_weights(batch).sum(),
            **self.lm_weights(self.model_inputs(batch))}

  def units(self, sums: Mapping[str, Any]) -> float:
    """Texts or images, whatever their classes weigh."""
    return sums["accuracy" if self.class_weights else "loss"][1]

  def loss_weights(self, batch: Batch) -> jax.Array:
    """[B, S] float32: of each text or image the weight of its class, 0 where there is none."""
    weights = example_weights(batch)
    if not self.class_weights:
      return weights
    of_class = as_array("class_weights", self.class_weights, len(self.class_weights))
    return weights * of_class[jnp.where(weights > 0, batch["label"], 0)]

  def model_inputs(self, batch: Batch) -> Batch:
    return in_both_orders(batch)

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over texts or images of `loss` and, of classes, `accuracy`."""
    if batch["label"].ndim != 2:
      raise ConfigError("objective.name='classify' needs one class an example, and these have"
                        " labels that do not exclude one another: for them is 'multi_label'")
    if self.loss == "squared_error":
      outputs, more = self.outputs(model, params, batch, train, rngs)
      if outputs.shape[-1] != 1:
        raise ConfigError(f"objective.loss='squared_error' needs model.head.outputs=1, not"
                          f" {outputs.shape[-1]}")
      error = (outputs[..., 0] - batch["label"]) ** 2
      return weighted_sums(example_weights(batch), loss=error) | more
    batch, share = mix(self, model, batch, train, rngs)
    outputs, more = self.outputs(model, params, batch, train, rngs)
    return self.sums(outputs, share, batch) | more

  def outputs(self, model: nn.Module, params, batch: Batch, train: bool,
              rngs) -> tuple[jax.Array, Sums]:
    """[B, S, outputs], and what is added to the task's loss."""
    return self.outputs_and_lm(model, params, self.model_inputs(batch), batch["label"].shape[1],
                               train, rngs)

  def sums(self, outputs: jax.Array, share: jax.Array | float, batch: Batch) -> Sums:
    """Sums of `loss` and `accuracy`.

    Of a mixed image the class with the larger share is the right one.

    Args:
      outputs: [B, S, C].
      share: of each label [B, S]; what is left of 1 is the share of the label before it.
      batch: with `label`.
    """
    labels = jnp.where(example_weights(batch) > 0, batch["label"], 0)
    targets = jax.nn.one_hot(labels, outputs.shape[-1])
    if not isinstance(share, float):
      share = share[..., None]
      targets = share * targets + (1 - share) * jnp.roll(targets, 1, 0)
    smooth = self.label_smoothing
    shares = (1 - smooth) * targets + smooth / targets.shape[-1]
    hits = (outputs.argmax(-1) == targets.argmax(-1)).astype(jnp.float32)
    if self.class_weights:
      shares *= as_array("class_weights", self.class_weights, outputs.shape[-1])
    sums = weighted_sums(example_weights(batch), loss=self.class_loss(outputs, shares),
                         accuracy=jax.lax.stop_gradient(hits))
    return sums | {"loss": (sums["loss"][0], self.loss_weights(batch).sum())}

  def class_loss(self, outputs: jax.Array, shares: jax.Array) -> jax.Array:
    """Nats [...] of scores [..., C], given the share of each class."""
    nats = functools.partial(focal, gamma=self.focal_gamma)
    if self.loss == "sigmoid":
      return jnp.sum(shares * nats(jax.nn.log_sigmoid(outputs))
                     + (1 - shares) * nats(jax.nn.log_sigmoid(-outputs)), -1)
    return jnp.sum(shares * nats(jax.nn.log_softmax(outputs)), -1)


def example_weights(batch: Batch) -> jax.Array:
  """[B, S] float32: 1 for the texts, or the image, that a row has."""
  if "real" in batch:
    return batch["real"].astype(jnp.float32)
  return text_weights(batch["text_segment_ids"], batch["label"].shape[1])
