"""The global order of examples: shuffled epochs over sources, and random generators by name."""

import functools
from typing import Sequence
import zlib

import numpy as np

from jtx.errors import ConfigError


def rng(seed: int, *path: str | int) -> np.random.Generator:
  """A generator that is a function of the seed and of what it is for."""
  words = [zlib.crc32(p.encode()) if isinstance(p, str) else p for p in path]
  return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))


def mixture_sizes(sizes: Sequence[int], weights: Sequence[float], smoothing: float | None,
                  limit: int = 0) -> list[int]:
  """How many examples of each source an epoch of sum(sizes) examples has.

  Args:
    sizes: of the sources.
    weights: one a source, need not sum to 1; empty is by size.
    smoothing: s takes sources by size^s instead (multilingual BERT uses 0.7). It is 1/T for the
      temperature T of Raffel et al. 2020, section 3.5.2.
    limit: sources count as no larger than this, the paper's K; 0 is as large as they are.

  Raises:
    ConfigError: weights beside another, or of another number, negative, or all 0.
  """
  if weights and (smoothing is not None or limit):
    raise ConfigError("data.weights excludes data.smoothing and data.size_limit")
  if weights and (len(weights) != len(sizes) or not 0 < sum(weights) < np.inf or min(weights) < 0):
    raise ConfigError(f"data.weights={tuple(weights)}: needs a weight of 0 or more for each of the"
                      f" {len(sizes)} sources")
  power = 1.0 if smoothing is None else smoothing
  share = np.array(weights or [min(n, limit or n) ** power for n in sizes], float)
  exact = share / share.sum() * sum(sizes)
  counts = np.floor(exact).astype(int)
  # What rounding down left over goes to the largest remainders.
  counts[np.argsort(counts - exact, kind="stable")[:sum(sizes) - counts.sum()]] += 1
  return counts.tolist()


class Order:
  """The endless stream of examples: epoch after epoch, each shuffled.

  An epoch takes `counts[s]` examples of source s, which go through that source's own
  permutations in turn, so a source of weight 2 is seen twice where others are seen once.
  """

  def __init__(self, sizes: Sequence[int], counts: Sequence[int], seed: int):
    self.sizes, self.counts, self.seed = list(sizes), list(counts), seed
    self.starts = np.cumsum([0, *sizes])
    self.epoch = functools.lru_cache(2)(self._epoch)

  def __reduce__(self):
    return Order, (self.sizes, self.counts, self.seed)

  def _epoch(self, epoch: int) -> np.ndarray:
    """Example numbers of one epoch in order."""
    parts = []
    for s, (size, count) in enumerate(zip(self.sizes, self.counts)):
      first = epoch * count
      rounds = range(first // size, -(-(first + count) // size))
      draws = [rng(self.seed, "source", s, r).permutation(size) for r in rounds]
      if draws:
        skip = first - rounds[0] * size
        parts.append(self.starts[s] + np.concatenate(draws)[skip:skip + count])
    return rng(self.seed, "epoch", epoch).permutation(np.concatenate(parts))

  def examples(self, start: int, stop: int) -> np.ndarray:
    """Example numbers at places start to stop of the stream."""
    size = sum(self.counts)
    parts = []
    for epoch in range(start // size, -(-stop // size)):
      low = epoch * size
      parts.append(self.epoch(epoch)[max(start - low, 0):stop - low])
    return np.concatenate(parts)
