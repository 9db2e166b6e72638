"""Span extraction: the start and the end of an answer in a text (Devlin et al. 2019, 4.2)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.sums import Batch, Sums, text_weights, weighted_sums
from jtx.objectives.with_lm import WithLm


@dataclasses.dataclass(frozen=True)
class Span(WithLm):
  """Batches have `start` and `end` [B, S]: places in a text of the answer's first and last token.

  A text without an answer has both at 0, its first token. Scores are compared within the
  text, padding and the row's other texts left out.
  """

  unit = "texts"  # what the loss is a mean of
  heads = frozenset({"span"})  # of the model
  keys = ("text", "start", "end")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, texts."""
    return {"loss": text_weights(batch["text_segment_ids"], batch["start"].shape[1]).sum(),
            **self.lm_weights(batch)}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over texts of `loss`, the mean for start and end, and `accuracy`, both being right."""
    num_texts = batch["start"].shape[1]
    outputs, more = self.outputs_and_lm(model, params, batch, num_texts, train, rngs)
    segments, positions = batch["text_segment_ids"][:, None], batch["text_positions"][:, None]
    own = segments == jnp.arange(1, num_texts + 1)[:, None]  # [B, S, T]
    nll, right = [], []
    for i, side in enumerate(("start", "end")):
      log_p = jax.nn.log_softmax(jnp.where(own, outputs[:, None, :, i], -1e30))
      label = own & (positions == batch[side][..., None])
      nll.append(-jnp.sum(jnp.where(label, log_p, 0), -1))
      right.append(jnp.any(label & (log_p >= log_p.max(-1, keepdims=True)), -1))
    hits = jax.lax.stop_gradient((right[0] & right[1]).astype(jnp.float32))
    weights = text_weights(batch["text_segment_ids"], num_texts)
    return weighted_sums(weights, loss=(nll[0] + nll[1]) / 2, accuracy=hits) | more
