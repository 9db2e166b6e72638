"""Knowledge distillation of image classifiers (Hinton et al. 2015; Touvron et al. 2020, DeiT)."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.classify import Classify, example_weights
from jtx.objectives.distances import soft_divergence
from jtx.objectives.mixing import mix
from jtx.objectives.sums import Batch, Sums, weighted_sums
from jtx.ranges import Positive, Share

KINDS = ("hard", "soft")


@dataclasses.dataclass(frozen=True)
class DistillClasses(Classify):
  """(1 - weight) times the loss of `classify`, plus weight times that against the teacher.

  "hard" takes the teacher's likeliest class as the label (DeiT, equation 3), "soft" the KL
  divergence of the softmax of scores / temperature, times temperature^2 (equation 2). The
  teacher is met by the distillation token's scores where the head has them, else by the only
  ones. Without a teacher, as in an evaluation, it is `classify`.
  """
  teacher: str = ""  # a Hugging Face folder or a workdir, of a model of the same classes
  kind: str = "hard"  # the teacher's likeliest class; or "soft", its probabilities
  weight: Share = 0.5  # of the loss against the teacher
  temperature: Positive = 3.0  # of "soft"

  def __post_init__(self):
    super().__post_init__()
    if self.lm_weight:
      raise ConfigError("objective.lm_weight is of texts, and distill_classes of images")
    if self.kind not in KINDS:
      raise ConfigError(f"objective.kind={self.kind!r}: valid are {', '.join(KINDS)}")

  def taught_by(self, model: nn.Module) -> "TaughtClasses":
    """The objective with the teacher's module; its parameters come with every call."""
    if "classes" not in model.heads:
      raise ConfigError(f"objective.teacher={self.teacher} has no head for classes")
    return TaughtClasses(**vars(self), model=model)


@dataclasses.dataclass(frozen=True)
class TaughtClasses(DistillClasses):
  """`DistillClasses` with a teacher."""
  model: nn.Module | None = None

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: images, over the weight of the term."""
    images = example_weights(batch).sum()
    terms = (("loss", super().weights(batch)["loss"], 1 - self.weight),
             ("taught_loss", images, self.weight))
    return {name: total / weight for name, total, weight in terms if weight}

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None,
               teacher: Any = None) -> Sums:
    """Sums of `classify`, and `taught_loss`.

    Args:
      model, params, batch, train, rngs: as of any objective.
      teacher: the teacher's parameters; None leaves its term out.
    """
    if teacher is None:
      return super().__call__(model, params, batch, train=train, rngs=rngs)
    batch, share = mix(self, model, batch, train, rngs)
    scores = model.apply({"params": params}, batch, train, rngs=rngs, method="scores")
    sums = self.sums(scores[:, :1], share, batch)
    taught = self.model.apply({"params": teacher}, as_taught(model, self.model, batch),
                              method="predict")
    ours = scores[:, -1:]
    if ours.shape != taught.shape:
      raise ConfigError(f"objective.teacher={self.teacher} has {taught.shape[-1]} classes, and the"
                        f" model {ours.shape[-1]}")
    if self.kind == "hard":
      loss = self.class_loss(ours, jax.nn.one_hot(taught.argmax(-1), taught.shape[-1]))
    else:
      loss = soft_divergence(taught, ours, self.temperature)
    return sums | weighted_sums(example_weights(batch), taught_loss=loss)


def as_taught(model: nn.Module, teacher: nn.Module, batch: Batch) -> Batch:
  """A batch as the teacher takes it, whose pixels may be normalised by other numbers."""
  if "image" not in batch:
    return batch
  ours, theirs = model.image, teacher.image
  pixels = ours.normalize(batch["image"]) * jnp.array(ours.std) + jnp.array(ours.mean)
  return {**batch, "image": (pixels - jnp.array(theirs.mean)) / jnp.array(theirs.std)}
