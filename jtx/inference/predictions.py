"""Predictions as values: probabilities of classes and labels, tags, answers; lists of inputs."""

import reprlib
from typing import Any, NamedTuple, Sequence

import numpy as np

from jtx.errors import ConfigError, DataError


class Prediction(NamedTuple):
  label: str  # the likeliest class
  scores: dict[str, float]  # probability of each class


class Labels(NamedTuple):
  labels: list[str]  # any number of them: those whose probability is large enough
  scores: dict[str, float]  # probability of each label


class Tagged(NamedTuple):
  """The words of a text, and a tag each; None for a word that is cut off or has no token."""
  words: list[str]
  tags: list[str | None]


class Answered(NamedTuple):
  """The answer to a question."""
  answer: str  # "" where no span is one, or a run with `no_answer` says that there is none
  no_answer_score: float  # of there being none, as the scores in n_best
  n_best: list[dict[str, Any]]  # answers, best first: text, score, start and end in characters


def listed(inputs: Sequence[Any], second: Sequence[Any] | None = None) -> list[Any]:
  """Inputs as a list.

  Raises:
    DataError: they are one text, or not as many as those of `second`.
  """
  for given in (inputs, second):
    if isinstance(given, (str, bytes)):
      raise DataError(f"inputs are lists: give [{given[:20]!r}] for {given[:20]!r}")
  inputs = list(inputs)
  if second is not None and len(second) != len(inputs):
    raise DataError(f"{len(inputs)} inputs and {len(second)} second ones, of which each has one")
  return inputs


def check_counts(**counts: int | None) -> None:
  """Raises ConfigError where a size is neither None nor a whole number above 0."""
  for name, x in counts.items():
    if x is not None and (isinstance(x, bool) or not isinstance(x, int) or x < 1):
      raise ConfigError(f"{name}={x!r}: valid are whole numbers from 1")


def texts_of(inputs: Sequence[str], advice: str = "") -> list[str]:
  """Texts as a list; raises DataError as `listed`, and for one that is no text."""
  for number, text in enumerate(inputs := listed(inputs), 1):
    if not isinstance(text, str):
      raise DataError(f"input {number} is {reprlib.repr(text)}, which is not a text{advice}")
  return inputs


def firsts(inputs: Sequence[str], second: Sequence[str] | None) -> list[str]:
  """The first texts of pairs as a list, or texts without a second; both are checked likewise."""
  inputs, advice = listed(inputs, second), ""
  if second is None and all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in inputs):
    advice = "; of pairs, give the first texts in one list, and the others in another as second="
  inputs = texts_of(inputs, advice)
  texts_of(second or ())
  return inputs


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
