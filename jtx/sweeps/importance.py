"""How much of a search's results each parameter explains by itself."""

from collections.abc import Sequence

import numpy as np


def explained(values: np.ndarray | Sequence[str], results: np.ndarray) -> float | None:
  """The share of the variance of the results' ranks that follows from one parameter.

  This estimates the parameter's first-order index (Sobol 1993): numbers are fitted by a parabola,
  texts by the mean of each. It is the adjusted R squared, at least 0. Ranks keep one run that
  diverged from being all that counts.

  Args:
    values: [N] of the parameter, numbers on the scale of their axis, or texts.
    results: [N] of the objective.

  Returns:
    A share from 0 to 1; None where there are too few results, or all are equal.
  """
  _, place, count = np.unique(results, return_inverse=True, return_counts=True)
  ranks = (np.cumsum(count) - (count - 1) / 2)[place]  # those that are equal share the mean rank
  numbers = np.asarray(values)
  if numbers.dtype.kind in "fiu":
    spread = np.ptp(numbers) or 1.0
    terms = np.vander((numbers - numbers.min()) / spread, 3)  # [N, 3]: square, itself, one
  else:
    terms = (numbers[:, None] == np.unique(numbers)).astype(np.float64)  # [N, choices]
  free = len(ranks) - np.linalg.matrix_rank(terms)
  total = np.square(ranks - ranks.mean()).sum()
  if free <= 0 or total == 0:
    return None
  fit = np.linalg.lstsq(terms, ranks, rcond=None)[0]
  left = np.square(ranks - terms @ fit).sum()
  return max(0.0, float(1 - left / total * (len(ranks) - 1) / free))
