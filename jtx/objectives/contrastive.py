"""Contrastive learning of sentence embeddings: each text finds its pair in the batch (InfoNCE).

van den Oord et al. 2018, equation 4; Gao et al. 2021 (SimCSE), equations 1 and 5.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.embeddings import (
    FIRST, SECOND, cosines, fingerprints, pairs_of, texts_of, unit_vectors)
from jtx.objectives.sums import Batch, Sums, weighted_sums
from jtx.ranges import Positive


def in_batch_loss(scores: jax.Array, allowed: jax.Array) -> tuple[jax.Array, jax.Array]:
  """-log softmax of each row's own column, and whether that column has the highest score.

  Args:
    scores: [N, M], M >= N; column i is the right one of row i.
    allowed: [N, M] bool, the other columns that a row is told from.

  Returns:
    [N] nats, and [N] bool.
  """
  own = jnp.arange(scores.shape[0])[:, None] == jnp.arange(scores.shape[1])
  scores = jnp.where(allowed | own, scores, -jnp.inf)
  right = jnp.diagonal(scores)
  return jax.nn.logsumexp(scores, -1) - right, right >= scores.max(-1)


@dataclasses.dataclass(frozen=True)
class Contrastive:
  """The mean over pairs of -log softmax of cosine / temperature over the texts of the batch.

  Batches have fields `each_0`, `each_1`, ... of one length: a text, its pair, and if there are more
  its hard negatives. `matched [B, S]` says by its shape how many pairs a row can have. Texts that
  are told from a text's pair are the pairs and the hard negatives of all other texts of the global
  batch, on however many devices it is, and its own hard negatives; those with the tokens of its
  pair are not. With optim.accumulate they are those of a part of the batch.

  Of SimCSE without labels both fields are the same text, which two dropout masks make differ.
  """
  temperature: Positive = 0.05  # that cosines are divided by
  symmetric: bool = False  # the mean of this loss and of that of finding a text by its pair

  unit = "pairs"  # what the loss is a mean of
  heads = frozenset({"embedding"})  # of the model
  keys = (FIRST, SECOND, "matched")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, pairs."""
    return {"loss": pairs_of(batch, "matched").sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    """The texts of all fields as those of a larger batch [F * B, T], field after field."""
    return texts_of(batch)

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over pairs of `loss`, `accuracy` and `similarity`, the cosine of a pair."""
    pairs, texts = pairs_of(batch, "matched"), texts_of(batch)
    number = pairs.shape[1]
    vectors = unit_vectors(model, params, texts, number, train=train, rngs=rngs)
    size = pairs.size
    vectors = vectors.reshape(-1, vectors.shape[-1])  # [F * N, D], N = B * S
    prints, there = fingerprints(texts, number).reshape(-1), pairs.reshape(-1)
    first, others = vectors[:size], vectors[size:]
    scores = cosines(first, others) / self.temperature  # [N, (F - 1) * N]
    fields = others.shape[0] // size
    allowed = _others(prints[size:2 * size], prints[size:], jnp.tile(there, fields))
    loss, found = in_batch_loss(scores, allowed)
    if self.symmetric:
      back, _ = in_batch_loss(scores[:, :size].T, _others(prints[:size], prints[:size], there))
      loss = (loss + back) / 2
    told = jax.lax.stop_gradient(dict(
        accuracy=found.astype(jnp.float32), similarity=jnp.diagonal(scores) * self.temperature))
    return weighted_sums(there, loss=loss, **told)


def _others(own: jax.Array, prints: jax.Array, there: jax.Array) -> jax.Array:
  """[N, M] bool: which of M texts that there are differ from the one of each row."""
  return (own[:, None] != prints) & (there > 0)
