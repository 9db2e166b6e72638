"""Token classification: a tag a word, predicted at its first token (Devlin et al. 2019, 5.3)."""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp

from jtx.objectives.sums import Batch, Sums, class_sums
from jtx.objectives.with_lm import WithLm


@dataclasses.dataclass(frozen=True)
class Tag(WithLm):
  """Batches have `tags [B, T]`, -1 at tokens that carry none."""

  unit = "tags"  # what the loss is a mean of
  heads = frozenset({"tags"})  # of the model
  keys = ("text", "tags")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, tags."""
    return {"loss": tagged(batch).sum(), **self.lm_weights(batch)}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over tagged tokens of `loss` and `accuracy`."""
    outputs, more = self.outputs_and_lm(model, params, batch, 1, train, rngs)
    return class_sums(outputs, batch["tags"], tagged(batch)) | more


def tagged(batch: Batch):
  """[B, T] float32: 1 at tokens that carry a tag."""
  return ((batch["tags"] >= 0) & (batch["text_segment_ids"] > 0)).astype(jnp.float32)
