"""Contrastive learning of sentence embeddings: each text finds its pair in the batch (InfoNCE).

van den Oord et al. 2018, equation 4; Gao et al. 2021 (SimCSE), equations 1 and 5.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn.late_interaction import late_interaction
from jtx.objectives.embeddings import (
    FIRST, SECOND, cosines, fields_of, fingerprints, pairs_of, texts_of, unit_vectors)
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

  Batches have fields `each_0`, `each_1`, ...: a text, its pair, and if there are more its hard
  negatives. `matched [B, S]` says by its shape how many pairs a row can have. Texts that
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
    """Sums over pairs of `loss`, `accuracy` and `similarity`, the cosine or score of a pair."""
    pairs = pairs_of(batch, "matched")
    size, number = pairs.size, pairs.shape[1]
    vectors = unit_vectors(model, params, batch, number, train=train, rngs=rngs)
    scores = self.compare(batch, vectors, number) / self.temperature  # [N, (F - 1) * N]
    prints, there = fingerprints(texts_of(batch), number).reshape(-1), pairs.reshape(-1)
    fields = scores.shape[1] // size
    allowed = _others(prints[size:2 * size], prints[size:], jnp.tile(there, fields))
    loss, found = in_batch_loss(scores, allowed)
    if self.symmetric:
      back, _ = in_batch_loss(scores[:, :size].T, _others(prints[:size], prints[:size], there))
      loss = (loss + back) / 2
    told = jax.lax.stop_gradient(dict(
        accuracy=found.astype(jnp.float32), similarity=jnp.diagonal(scores) * self.temperature))
    return weighted_sums(there, loss=loss, **told)

  def compare(self, batch: Batch, vectors: list[jax.Array], number: int) -> jax.Array:
    """The scores [N, (F - 1) * N] of the first field's texts and those of all others, N = B * S.

    Args:
      batch: with the fields.
      vectors: of the head, at length 1, of each field: [B, S, D].
      number: S.
    """
    del batch, number
    first, *others = (x.reshape(-1, x.shape[-1]) for x in vectors)
    return cosines(first, jnp.concatenate(others))


@dataclasses.dataclass(frozen=True)
class LateInteraction(Contrastive):
  """The same by the vectors of tokens (Khattab and Zaharia 2020, ColBERT, section 3.3).

  The score of two texts, in place of a cosine, is the sum over the first one's tokens of the
  highest cosine with a token of the other. The texts of a batch are the negatives, as ColBERTv2 has
  them (Santhanam et al. 2022), and the hard ones.
  """
  temperature: Positive = 1.0  # that scores are divided by

  heads = frozenset({"token_embeddings"})  # of the model

  def compare(self, batch: Batch, vectors: list[jax.Array], number: int) -> jax.Array:
    """The same scores, of vectors [B, T, D] of tokens."""
    segments = [batch[f"{field}_segment_ids"] for field in fields_of(batch)]
    return jnp.concatenate([
        late_interaction(vectors[0], segments[0], texts, own, number)
        for texts, own in zip(vectors[1:], segments[1:])], 1)


def _others(own: jax.Array, prints: jax.Array, there: jax.Array) -> jax.Array:
  """[N, M] bool: which of M texts that there are differ from the one of each row."""
  return (own[:, None] != prints) & (there > 0)
