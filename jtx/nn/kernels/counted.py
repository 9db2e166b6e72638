"""Attention as its products are counted, the same whichever kernel runs.

A trace of a kernel does not tell them: it passes by blocks that are empty, in loops whose length
only the data has. Within `counted()` attention is traced as products of all queries with as many
keys as the mask lets a query see at most: all of them for a causal mask, as by Chowdhery et al.
2022, appendix B, and those of the window for a local one.
"""

from collections.abc import Iterator, Sequence
import contextlib
import contextvars

import jax

from jtx.nn.kernels import blocks, reference
from jtx.nn.masks import FULL, Mask, Rows

_ACTIVE = contextvars.ContextVar("counted", default=False)


@contextlib.contextmanager
def counted() -> Iterator[None]:
  """Traces inside have products to be counted, and no numbers that mean anything."""
  token = _ACTIVE.set(True)
  try:
    yield
  finally:
    _ACTIVE.reset(token)


def active() -> bool:
  return _ACTIVE.get()


def attend(q: jax.Array, k: jax.Array, v: jax.Array, masks: Sequence[Mask],
           shares: Sequence[float]) -> jax.Array:
  """The products of attention.

  Args:
    q: [B, T, N, H].
    k: [B, S, K, H].
    v: [B, S, K, Hv].
    masks: of kinds of layers.
    shares: of all layers, those that have each.

  Returns:
    [B, T, N, Hv].
  """
  of_mask = [blocks.most_keys(mask, q.shape[1], k.shape[1]) for mask in masks]
  keys = round(sum(share * number for share, number in zip(shares, of_mask, strict=True)))
  return reference.attend(
      q, k[:, :keys], v[:, :keys], mask=FULL, rows=Rows(), bias=None, q_index=None, k_index=None,
      scale=None, soft_cap=None, score="dot", score_vector=None, dropout_rate=0.0,
      dropout_key=None, return_weights=False)
