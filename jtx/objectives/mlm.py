"""Masked language modelling, with next-sentence or sentence-order prediction (BERT, ALBERT)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import vocabulary_sums
from jtx.objectives.sums import Batch, Sums, class_sums, even_slots, text_weights
from jtx.parallel.sharding import constrain


@dataclasses.dataclass(frozen=True)
class Mlm:
  """Batches have `mlm_positions` and `mlm_labels` [B, K], labels -1 where a slot is empty.

  Where they also have `label [B, S]`, whether each text's second half is not what it should
  be, the model's head is trained to predict it (next sentence, or sentence order), and the two
  mean losses are added. Scores over the vocabulary are computed at the K places only.
  Devlin et al. 2019, section 3.1.
  """
  pairs: bool = True  # False leaves such labels alone

  unit = "masked tokens"  # what the loss is a mean of
  heads = frozenset({"mlm"})  # of the model
  keys = ("text", "mlm_positions", "mlm_labels")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: masked tokens, and texts."""
    weights = {"loss": (batch["mlm_labels"] >= 0).sum().astype(jnp.float32)}
    if self.pairs and "label" in batch:
      weights["pair_loss"] = pair_weights(batch).sum()
    return weights

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over masked tokens of `loss` and `accuracy`, over texts of `pair_loss` and its like."""
    return self.sums(model, params, batch, train, rngs)[2]

  def sums(self, model: nn.Module, params, batch: Batch, train: bool,
           rngs) -> tuple[jax.Array, jax.Array, Sums]:
    """Hidden states [B, T, D], scores of the vocabulary [B, K, V] at masked tokens, and sums."""
    batch = even_slots(batch)

    def outputs(m, batch):
      hidden, scores = hidden_and_scores(m, batch, train)
      if not self.pairs or "label" not in batch:
        return hidden, scores, None
      return hidden, scores, m.outputs(hidden, batch, batch["label"].shape[1], train)

    hidden, scores, pairs = model.apply({"params": params}, batch, rngs=rngs, method=outputs)
    labels = batch["mlm_labels"]
    sums = vocabulary_sums(scores, labels, (labels >= 0).astype(jnp.float32))
    if pairs is not None:
      of_pairs = class_sums(pairs, batch["label"], pair_weights(batch))
      sums |= {f"pair_{name}": value for name, value in of_pairs.items()}
    return hidden, scores, sums


def hidden_and_scores(model: nn.Module, batch: Batch, train: bool) -> tuple[jax.Array, jax.Array]:
  """Of a bound Encoder: hidden states [B, T, D], and scores [B, K, V] at `mlm_positions`."""
  hidden, states = model.masked_states(batch, train)
  at = jnp.take_along_axis(states, batch["mlm_positions"][..., None], 1)
  # Of long rows the scores are the largest array: each device of a context computes its share.
  return hidden, model.mlm_logits(constrain(at, "batch", "length", None))


def pair_weights(batch: Batch) -> jax.Array:
  return text_weights(batch["text_segment_ids"], batch["label"].shape[1])
