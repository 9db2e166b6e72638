"""Cross-entropy of tokens over a vocabulary, in one piece or some tokens at a time."""

from typing import Callable

import jax

from jtx.objectives.chunks import chunked
from jtx.objectives.sums import Sums, logit_sums


def token_sums(head: Callable[[jax.Array], jax.Array], hidden: jax.Array, labels: jax.Array,
               weights: jax.Array, label_smoothing: float, chunk: int = 0) -> Sums:
  """Weighted sums over tokens of `loss` (smoothed), `nll` and `accuracy`.

  Only `loss` has a gradient. What counts as right is told at `logit_sums`.

  Args:
    head: [..., D] to float32 logits [..., V]; may close over parameters.
    hidden: [B, T, D].
    labels: [B, T] int.
    weights: [B, T], 0 for padding.
    label_smoothing: between 0 and 1.
    chunk: about how many tokens' logits are held at a time, each computed once: the gradient is
      taken while they are at hand. 0 is all, and the gradient is autodiff's.
  """
  sums = lambda hidden, labels, weights: logit_sums(
      head(hidden), labels, weights, label_smoothing)
  if chunk:
    loss, (nll, hits) = chunked(sums, hidden, labels, weights, chunk)
  else:
    loss, (nll, hits) = sums(hidden, labels, weights)
  total = weights.sum()
  return {"loss": (loss, total), "nll": (nll, total), "accuracy": (hits, total)}
