"""Replaced-token detection (Clark et al. 2020, ELECTRA, section 2)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.objectives.cross_entropy import vocabulary_sums
from jtx.objectives.sums import Batch, Sums, even_slots, weighted_sums
from jtx.ranges import Positive


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
  """A generator fills masked places with samples, and the encoder tells which tokens are not real.

  Batches have `mlm_positions` and `mlm_labels` [B, K], labels -1 where a slot is empty. The loss is
  the generator's mean over masked tokens, plus `weight` times the encoder's binary cross-entropy,
  a mean over all tokens. A sample that is the token itself counts as real, and no gradient goes
  through samples. In evaluation the samples of a batch are always the same.
  """
  weight: Positive = 50.0  # lambda, of the encoder's loss

  unit = "masked tokens"  # what the loss is a mean of
  heads = frozenset({"generator", "replaced"})  # of the model
  keys = ("text", "mlm_positions", "mlm_labels")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: masked tokens, and tokens over the weight."""
    return {"loss": (batch["mlm_labels"] >= 0).sum().astype(jnp.float32),
            "replaced_loss": (batch["text_segment_ids"] > 0).sum() / self.weight}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over masked tokens of `loss` and `accuracy`, over all tokens of `replaced_loss`.

    And over all tokens of `replaced_accuracy`; `replaced_share` is what a guess has wrong.
    """
    slots, batch = batch["mlm_positions"].shape[1], even_slots(batch)

    def outputs(m, batch):
      scores = m.generated(batch, batch["mlm_positions"], train)
      key = m.make_rng("dropout") if train else jax.random.key(0)
      # Of the batch's own slots alone, so that a seed draws the same on any mesh.
      samples = jax.random.categorical(key, jax.lax.stop_gradient(scores[:, :slots]))
      samples = jnp.pad(samples, ((0, 0), (0, scores.shape[1] - slots)))
      text, replaced = replace(batch, samples)
      batch = {**batch, "text": text}
      return scores, m.outputs(m(batch, train), batch, train=train)[..., 0], replaced

    scores, logits, replaced = model.apply({"params": params}, batch, rngs=rngs, method=outputs)
    labels = batch["mlm_labels"]
    sums = vocabulary_sums(scores, labels, (labels >= 0).astype(jnp.float32))
    hits = ((logits > 0) == replaced).astype(jnp.float32)
    return sums | weighted_sums(
        (batch["text_segment_ids"] > 0).astype(jnp.float32),
        replaced_loss=jax.nn.softplus(logits) - jnp.where(replaced, logits, 0),
        replaced_accuracy=jax.lax.stop_gradient(hits), replaced_share=replaced.astype(jnp.float32))


def replace(batch: Batch, samples: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Tokens [B, T] with samples [B, K] at masked places, and where these are not the tokens hidden.

  Args:
    batch: with `text` [B, T], and `mlm_positions` and `mlm_labels` [B, K].
    samples: of any value where a slot is empty.
  """
  text, labels = batch["text"], batch["mlm_labels"]
  rows = jnp.arange(text.shape[0])[:, None]
  at = rows, jnp.where(labels >= 0, batch["mlm_positions"], text.shape[1])  # none, beyond the end
  real = text.at[at].set(labels, mode="drop")
  text = text.at[at].set(samples.astype(text.dtype), mode="drop")
  return text, text != real
