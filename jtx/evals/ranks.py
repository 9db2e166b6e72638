"""Scores of rankings: recall, reciprocal rank and discounted gain (Manning et al. 2008, chapter 8).

Relevance is yes or no. Ranks count from 1.
"""

from typing import Iterator, Sequence

import numpy as np

CELLS = 2**24  # scores of queries and texts at a time


def parts(queries: int, texts: int) -> Iterator[slice]:
  """Queries, as many at a time as there is room for their scores."""
  rows = max(1, CELLS // texts)
  return (slice(start, start + rows) for start in range(0, queries, rows))


def ranks_of(scores: np.ndarray, relevant: Sequence[Sequence[int]]) -> list[np.ndarray]:
  """The ranks of the relevant texts of each query, the best first.

  Args:
    scores: [Q, C]; of equal ones the text of the lower number is the better.
    relevant: of each query the numbers of its relevant texts, in any order.
  """
  result = []
  for row, places in zip(scores, relevant, strict=True):
    own = row[np.asarray(places)][:, None]
    before = (row > own) | ((row == own) & (np.arange(len(row)) < np.asarray(places)[:, None]))
    result.append(np.sort(before.sum(1) + 1))
  return result


def best_of(scores: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
  """The `number` best texts of each query, or all: their places and scores [Q, number]."""
  places = np.argsort(-scores, axis=-1, kind="stable")[:, :number]
  return places, np.take_along_axis(scores, places, -1)


def recall(ranks: np.ndarray, depth: int) -> float:
  """The share of a query's relevant texts among its `depth` best."""
  return float(np.mean(ranks <= depth))


def reciprocal_rank(ranks: np.ndarray, depth: int) -> float:
  """1 / rank of the best relevant text; 0 where it is not among the `depth` best."""
  return float(1 / ranks[0]) if ranks[0] <= depth else 0.0


def ndcg(ranks: np.ndarray, depth: int) -> float:
  """Discounted gain, the sum of 1 / log2(1 + rank) down to `depth`, over the most it can be.

  Jaervelin and Kekaelaeinen 2002, with the discount of Burges et al. 2005.
  """
  gain = lambda r: float(np.sum(1 / np.log2(1 + r)))
  best = np.arange(1, min(len(ranks), depth) + 1)
  return gain(ranks[ranks <= depth]) / gain(best)


def ranking_scores(ranks: Sequence[np.ndarray], depths: Sequence[int]) -> Iterator:
  """Means over queries, (name, value): recall at each of `depths`, the others at the largest."""
  mean = lambda score, depth: float(np.mean([score(r, depth) for r in ranks]))
  for depth in depths:
    yield f"recall_at_{depth}", mean(recall, depth)
  deepest = max(depths)
  yield f"mrr_at_{deepest}", mean(reciprocal_rank, deepest)
  yield f"ndcg_at_{deepest}", mean(ndcg, deepest)
