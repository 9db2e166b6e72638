"""Probabilities of classes from the outputs of a head."""

from typing import NamedTuple, Sequence

import numpy as np


class Prediction(NamedTuple):
  label: str  # the likeliest class
  scores: dict[str, float]  # probability of each class


def prediction(outputs: np.ndarray, labels: Sequence[str]) -> Prediction:
  """Of logits [C]."""
  p = np.exp(outputs - outputs.max())
  p /= p.sum()
  return Prediction(labels[int(p.argmax())], dict(zip(labels, map(float, p))))
