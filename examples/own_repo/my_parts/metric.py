"""A score of classes: a function of predictions and of the true classes, [N] both."""

import numpy as np

from jtx.evals.class_scores import SCORES


def worst_recall(predictions, gold):
  """Of the class that is found least often, the share that is found."""
  p, r = np.asarray(predictions), np.asarray(gold)
  return float(min((p[r == c] == c).mean() for c in np.unique(r)))


SCORES["worst_recall"] = worst_recall
