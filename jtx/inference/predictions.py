"""Probabilities of classes and labels from the outputs of a head."""

from typing import Any, NamedTuple, Sequence

import numpy as np

from jtx.errors import DataError


class Prediction(NamedTuple):
  label: str  # the likeliest class
  scores: dict[str, float]  # probability of each class


class Labels(NamedTuple):
  labels: list[str]  # any number of them: those whose probability is large enough
  scores: dict[str, float]  # probability of each label


def predicted(head: Any, outputs: np.ndarray, labels: Sequence[str]) -> Prediction | Labels:
  """What a head for classes, or for labels that do not exclude one another, says.

  Args:
    head: the fields of the model's head.
    outputs: logits [C].
    labels: the C names.

  Raises:
    DataError: the logits are not finite.
  """
  if not np.isfinite(outputs).all():
    raise DataError("the model gives scores that are NaN or infinite: its weights can't be used")
  if head.task != "multi_label":
    return prediction(outputs, labels)
  p = np.exp(-np.logaddexp(0, -outputs.astype(np.float64))).tolist()
  return Labels([name for name, x in zip(labels, p) if x >= head.threshold], dict(zip(labels, p)))


def prediction(outputs: np.ndarray, labels: Sequence[str]) -> Prediction:
  """Of logits [C]."""
  p = np.exp(outputs - outputs.max())
  p /= p.sum()
  return Prediction(labels[int(p.argmax())], dict(zip(labels, map(float, p))))
