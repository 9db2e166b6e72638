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
    return _untraced(_blocks, mask, num_queries, num_keys, q_block, k_block)
  except _VariesError:
    if isinstance(mask, And | Or):
      parts = (blocks(part, num_queries, num_keys, q_block, k_block) for part in (mask.a, mask.b))
      return (np.minimum if isinstance(mask, And) else np.maximum)(*parts)
    return np.full((num_queries // q_block, num_keys // k_block), PARTIAL, np.int32)


@functools.lru_cache(maxsize=64)
def most_keys(mask: Mask, num_queries: int, num_keys: int) -> int:
  """How many keys the query sees that sees most, as far as that does not vary from row to row.

  Pairs that a mask of few, such as those of global tokens, adds to another are left out.
  """
  try:
    return _untraced(_most_keys, mask, num_queries, num_keys)
  except _VariesError:
    if isinstance(mask, And | Or):
      parts = {part: most_keys(part, num_queries, num_keys) for part in (mask.a, mask.b)}
      if isinstance(mask, And):
        return min(parts.values())
      return min(sum(n for part, n in parts.items() if not part.few), num_keys)
    return num_keys


def _untraced(function, *args):
  """`function(*args)` in a thread of its own, where neither a trace nor a mesh is in scope."""
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(function, *args).result()


def _allowed(mask, first, number, num_keys):
  """bool [number, num_keys], of the queries from `first` on."""
  q, k = np.arange(first, first + number)[:, None], np.arange(num_keys)[None]
  return np.broadcast_to(np.asarray(mask(q, k, _NoRows())), (number, num_keys))


def _blocks(mask, num_queries, num_keys, q_block, k_block):
  rows = []
  for first in range(0, num_queries, q_block):
    by_block = _allowed(mask, first, q_block, num_keys).reshape(q_block, -1, k_block)
    rows.append(by_block.any((0, 2)).astype(np.int32) + by_block.all((0, 2)))
  return np.stack(rows)


def _most_keys(mask, num_queries, num_keys):
  parts = range(0, num_queries, 512)
  return max(int(_allowed(mask, first, min(512, num_queries - first), num_keys).sum(1).max())
             for first in parts)
