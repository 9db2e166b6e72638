"""Permutation language modelling (Yang et al. 2019, XLNet, sections 2.2 and 2.3)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import vocabulary_sums
from jtx.objectives.sums import Batch, Sums


@dataclasses.dataclass(frozen=True)
class Plm:
  """The cross-entropy of tokens given those before them in an order of prediction.

  Batches have `mlm_positions` and `mlm_labels` [B, K], labels -1 where a slot is empty; the order
  is that of the slots, behind all tokens that have none. A prediction knows the place of its token,
  and what stands at the places before it in the order.
  """

  unit = "predicted tokens"  # what the loss is a mean of
  heads = frozenset({"plm"})  # of the model
  keys = ("text", "mlm_positions", "mlm_labels")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of the loss: predicted tokens."""
    return {"loss": (batch["mlm_labels"] >= 0).sum().astype(jnp.float32)}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over predicted tokens of `loss` and `accuracy`."""
    at, labels = batch["mlm_positions"], batch["mlm_labels"]
    seen = seen_in_order(at, labels >= 0, batch["text"].shape[1])
    scores = model.apply({"params": params}, {**batch, "text_pairs": seen}, at, train, rngs=rngs,
                         method="predicted")
    return vocabulary_sums(scores, labels, (labels >= 0).astype(jnp.float32))


def seen_in_order(at: jax.Array, real: jax.Array, length: int) -> jax.Array:
  """Whether the prediction of a token [B, T, 1] may depend on another [B, 1, T].

  Tokens that are not predicted are seen by all, and see no token that is.

  Args:
    at: [B, K] int, the places of the tokens that are predicted, in order.
    real: [B, K] bool, False where a slot is empty.
    length: T.
  """
  B, K = at.shape
  slot = jnp.where(real, at, length)  # none, beyond the end
  rank = jnp.zeros((B, length), jnp.int32).at[jnp.arange(B)[:, None], slot].set(
      jnp.arange(1, K + 1), mode="drop")
  return (rank[:, None] == 0) | (rank[:, None] < rank[:, :, None])
