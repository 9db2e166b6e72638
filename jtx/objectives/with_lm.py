"""Language modelling beside a task, as in the fine-tuning of GPT (Radford et al. 2018, 3.2)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import token_sums
from jtx.objectives.lm import next_tokens
from jtx.objectives.sums import Batch, Sums
from jtx.ranges import NotNegative


def text_means(segment_ids: jax.Array, predicted: jax.Array) -> jax.Array:
  """Weights by which a sum over tokens is one over texts of the mean over their predicted tokens.

  Args:
    segment_ids: [B, T], equal for tokens of a text.
    predicted: [B, T] bool.

  Returns:
    [B, T] float32.
  """
  same = segment_ids[:, :, None] == segment_ids[:, None]  # [B, T, T]
  number = jnp.sum(same & predicted[:, None], -1)
  return predicted / jnp.maximum(number, 1).astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithLm:
  """An objective of a task of texts, to which the prediction of their next tokens can be added.

  What is minimised is the task's loss plus `lm_weight` times `lm_loss`, the mean over texts of the
  mean over a text's tokens of -log p(token | those before it) (Radford et al. 2018, equation 5).
  Special tokens are among those that are predicted.
  """
  lm_weight: NotNegative = 0.0  # 0.5 in the paper; 0 is off

  def lm_weights(self, inputs: Batch) -> dict[str, jax.Array]:
    """The divisor of `lm_loss`, texts over its weight; `inputs` are as the model takes them."""
    if not self.lm_weight:
      return {}
    means = text_means(inputs["text_segment_ids"], next_tokens(inputs) >= 0)
    return {"lm_loss": means.sum() / self.lm_weight}

  def outputs_and_lm(self, model: nn.Module, params, inputs: Batch, num_texts: int, train: bool,
                     rngs) -> tuple[jax.Array, Sums]:
    """The head's outputs, as `predict` of the model gives them, and the sum of `lm_loss`."""
    method = _outputs_and_lm if self.lm_weight else "predict"
    found = model.apply({"params": params}, inputs, num_texts, train, rngs=rngs, method=method)
    return found if self.lm_weight else (found, {})


def _outputs_and_lm(model: nn.Module, inputs: Batch, num_texts: int, train: bool):
  """Both of one forward pass."""
  hidden = model(inputs, train)
  labels = next_tokens(inputs)
  means = text_means(inputs["text_segment_ids"], labels >= 0)
  sums = token_sums(model.logits, hidden, labels, means, 0.0)
  return model.outputs(hidden, inputs, num_texts, train), {"lm_loss": sums["loss"]}
