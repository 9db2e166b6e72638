"""Cross-entropy of the target given the source, with label smoothing."""

import dataclasses
from typing import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

Sums = dict[str, tuple[jax.Array, jax.Array]]  # name -> (sum, weight), both scalars


def shift_right(tokens: jax.Array, segment_ids: jax.Array, bos_id: int) -> jax.Array:
  """Decoder inputs [B, T]: each token's predecessor in its segment, bos_id at the start."""
  before = jnp.pad(tokens, ((0, 0), (1, 0)))[:, :-1]
  segment_before = jnp.pad(segment_ids, ((0, 0), (1, 0)))[:, :-1]
  return jnp.where(segment_before == segment_ids, before, bos_id) * (segment_ids > 0)


def cross_entropy(logits: jax.Array, labels: jax.Array, label_smoothing: float):
  """Smoothed loss and plain negative log-likelihood in nats, each of the labels' shape.

  The smoothed target is (1 - eps) one-hot plus eps / V everywhere (Szegedy et al. 2015).
  """
  lse = jax.nn.logsumexp(logits, -1)
  nll = lse - jnp.take_along_axis(logits, labels[..., None], -1)[..., 0]
  return (1 - label_smoothing) * nll + label_smoothing * (lse - logits.mean(-1)), nll


@dataclasses.dataclass(frozen=True)
class Seq2Seq:
  """Teacher forcing (Vaswani et al. 2017, section 5.4)."""
  bos_id: int
  label_smoothing: float = 0.1
  logits_chunk: int = 0  # tokens whose logits are held at a time; 0 is all

  def weights(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """What the sum of each loss term is divided by: here, target tokens."""
    return {"loss": (batch["tgt_segment_ids"] > 0).sum().astype(jnp.float32)}

  def model_inputs(self, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """The batch as the model takes it."""
    return {**batch, "tgt_in": shift_right(batch["tgt"], batch["tgt_segment_ids"], self.bos_id)}

  def __call__(self, model: nn.Module, params, batch: Mapping[str, jax.Array], *, train: bool,
               rngs=None) -> Sums:
    """Sums over target tokens of `loss` (smoothed), `nll` and `accuracy`."""
    labels, segments = batch["tgt"], batch["tgt_segment_ids"]
    hidden = model.apply({"params": params}, self.model_inputs(batch), train, rngs=rngs)

    def sums(args):
      hidden, labels, weights = args
      logits = model.apply({"params": params}, hidden, method="logits")
      loss, nll = cross_entropy(logits, labels, self.label_smoothing)
      hits = logits.argmax(-1) == labels
      return jnp.stack([(x * weights).sum() for x in (loss, nll, hits)])

    weights = (segments > 0).astype(jnp.float32)
    args = hidden, labels, weights
    if self.logits_chunk:
      loss, nll, hits = jax.lax.map(jax.checkpoint(sums), _chunks(args, self.logits_chunk)).sum(0)
    else:
      loss, nll, hits = sums(args)
    total = weights.sum()
    return {"loss": (loss, total), "nll": (nll, total), "accuracy": (hits, total)}


def _chunks(args, size: int):
  """Arrays [B, T, ...] flattened to tokens and split into [n, size, ...], padded with zeros."""
  def split(x):
    x = x.reshape(-1, *x.shape[2:])
    x = jnp.pad(x, ((0, -len(x) % size), *((0, 0),) * (x.ndim - 1)))
    return x.reshape(-1, size, *x.shape[1:])
  return jax.tree.map(split, args)
