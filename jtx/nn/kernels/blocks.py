"""Blocks of pairs that a mask leaves out, so that kernels may pass them by."""

import concurrent.futures
import functools

import numpy as np

from jtx.nn.masks import And, Mask, Or

EMPTY, PARTIAL, WHOLE = range(3)  # which pairs of a block a mask allows: none, some, all


class _NoRows:
  """Stands for the rows of a batch where there is no batch."""

  def __getattr__(self, name):
    raise _VariesError


class _VariesError(Exception):
  """A mask has asked for what varies from row to row."""


@functools.lru_cache(maxsize=64)
def blocks(mask: Mask, num_queries: int, num_keys: int, q_block: int, k_block: int) -> np.ndarray:
  """What `mask` allows of every block of pairs: int32 [T / q_block, S / k_block].

  EMPTY and WHOLE are certain; what varies from row to row is PARTIAL.
  """
  try:
    # In a thread of its own neither a trace nor a mesh is in scope.
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      return thread.submit(_blocks, mask, num_queries, num_keys, q_block, k_block).result()
  except _VariesError:
    if isinstance(mask, And | Or):
      parts = (blocks(part, num_queries, num_keys, q_block, k_block) for part in (mask.a, mask.b))
      return (np.minimum if isinstance(mask, And) else np.maximum)(*parts)
    return np.full((num_queries // q_block, num_keys // k_block), PARTIAL, np.int32)


def _blocks(mask, num_queries, num_keys, q_block, k_block):
  rows = []
  for first in range(0, num_queries, q_block):
    q, k = np.arange(first, first + q_block)[:, None], np.arange(num_keys)[None]
    allowed = np.broadcast_to(np.asarray(mask(q, k, _NoRows())), (q_block, num_keys))
    by_block = allowed.reshape(q_block, -1, k_block)
    rows.append(by_block.any((0, 2)).astype(np.int32) + by_block.all((0, 2)))
  return np.stack(rows)
