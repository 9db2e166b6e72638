"""The registry of scores of classes, labels and numbers, such as macro F1 and area under the curve.

A score is a function of what its arguments are called:

  gold           [N] classes or numbers; [N, C] of 0 and 1 where labels do not exclude one another
  predictions    likewise; of classes the likeliest
  probabilities  [N, C] float64; numbers have none
  names          of the C classes or labels

A module of yours adds one by a row, `SCORES["cost"] = lambda gold, predictions: ...`.
Averages over classes, precision, recall and areas are scikit-learn's.
"""

import functools
import inspect
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from jtx.errors import ConfigError
from jtx.evals import scores
from jtx.evals.table import Table

AVERAGES = ("macro", "micro", "weighted")
BINS = 15  # of the calibration error


class Outcome(NamedTuple):
  """The predictions for a split, as scores take them."""
  gold: np.ndarray  # [N] classes or numbers, or [N, C] of 0 and 1
  predictions: np.ndarray  # likewise
  probabilities: np.ndarray | None  # [N, C]; None of numbers
  names: Sequence[str] = ()


def outcome(outputs: np.ndarray, gold: np.ndarray, names: Sequence[str] = (),
            threshold: float = 0.5) -> Outcome:
  """The outcome of a head's outputs.

  Args:
    outputs: [N, C], or [N, 1] of numbers.
    gold: [N], or [N, C] of 0 and 1, where each label has a probability of its own.
    names: of the classes or labels.
    threshold: the probability from which on such a label is predicted.
  """
  outputs = outputs.astype(np.float64)
  if gold.ndim == 2:
    p = np.exp(-np.logaddexp(0, -outputs))
    return Outcome(gold, (p >= threshold).astype(gold.dtype), p, names)
  if outputs.shape[1] == 1:
    return Outcome(gold, outputs[:, 0], None, names)
  p = np.exp(outputs - outputs.max(-1, keepdims=True))
  return Outcome(gold, outputs.argmax(-1), p / p.sum(-1, keepdims=True), names)


def truth(gold: np.ndarray, number: int) -> np.ndarray:
  """[N, C] of 0 and 1 for `number` classes."""
  return gold if gold.ndim == 2 else (gold[:, None] == np.arange(number)).astype(np.int64)


# -------------------------------------------------------------------------- the scores


def accuracy(gold: np.ndarray, predictions: np.ndarray) -> float:
  """The share of examples that are right; of labels, with all of their labels."""
  right = gold == predictions
  return float((right if right.ndim == 1 else right.all(-1)).mean())


def counted(measure: str, average: str, gold: np.ndarray, predictions: np.ndarray) -> float:
  """Precision, recall or F1; 0 where nothing is predicted or true."""
  from sklearn.metrics import precision_recall_fscore_support
  values = precision_recall_fscore_support(gold, predictions, average=average, zero_division=0)
  return float(values[("precision", "recall", "f1").index(measure)])


def ranked(measure: str, average: str, gold: np.ndarray, probabilities: np.ndarray) -> float:
  """An area under the curve of each class against the others, or their average.

  "macro" and "weighted", which weighs by the number of examples, leave out the classes for which it
  is not defined: those that no example has, and of ROC those that all have. Where none is left, it
  is NaN.
  """
  from sklearn import metrics
  score = {"auc": metrics.roc_auc_score,
           "average_precision": metrics.average_precision_score}[measure]
  is_defined = lambda y: y.any() and not (measure == "auc" and y.all())
  y = truth(gold, probabilities.shape[1])
  if average == "micro":
    y, probabilities = y.reshape(-1, 1), probabilities.reshape(-1, 1)
  places = [1] if average == "binary" else range(y.shape[1])
  places = [c for c in places if is_defined(y[:, c])]
  if not places:
    return float("nan")
  weights = y[:, places].sum(0) if average == "weighted" else None
  return float(np.average([score(y[:, c], probabilities[:, c]) for c in places], weights=weights))


def balanced_accuracy(gold: np.ndarray, predictions: np.ndarray) -> float:
  """The mean recall of the classes that examples have."""
  return float(np.mean([(predictions[gold == c] == c).mean() for c in np.unique(gold)]))


def matthews(gold: np.ndarray, predictions: np.ndarray) -> float:
  return scores.matthews(predictions, gold)


def log_loss(gold: np.ndarray, probabilities: np.ndarray) -> float:
  """Nats an example; of labels, the mean over them."""
  p = np.clip(probabilities, np.finfo(np.float64).tiny, 1)
  if gold.ndim == 1:
    return float(-np.log(p[np.arange(len(gold)), gold]).mean())
  q = np.clip(1 - probabilities, np.finfo(np.float64).tiny, 1)
  return float(-np.where(gold > 0, np.log(p), np.log(q)).mean())


def brier(gold: np.ndarray, probabilities: np.ndarray) -> float:
  """Mean squared error of the probabilities (Brier 1950), as scikit-learn scales it.

  The sum over the classes; of two classes it is that of one of them, of labels their mean.
  """
  squares = (probabilities - truth(gold, probabilities.shape[1])) ** 2
  if gold.ndim == 1 and squares.shape[1] > 2:
    return float(squares.sum(-1).mean())
  return float(squares.mean())


def calibration_error(gold: np.ndarray, probabilities: np.ndarray) -> float:
  """Expected calibration error (Guo et al. 2017, equation 3) in 15 bins.

  Of classes it is that of the likeliest one, of labels that of all their probabilities.
  """
  if gold.ndim == 1:
    return scores.calibration_error(probabilities, gold, BINS)
  return scores.binned_gap(probabilities.ravel(), gold.ravel(), BINS)


def pearson(gold: np.ndarray, predictions: np.ndarray) -> float:
  return scores.pearson(predictions, gold)


def spearman(gold: np.ndarray, predictions: np.ndarray) -> float:
  return scores.spearman(predictions, gold)


def averaged(average: str) -> dict[str, Callable[..., float]]:
  rows = {name: functools.partial(counted, name, average) for name in ("precision", "recall", "f1")}
  areas = {name: functools.partial(ranked, name, average) for name in ("auc", "average_precision")}
  return rows | areas


OF_TWO = averaged("binary")  # of the second of two classes, the positive one
OF_CLASSES = {"balanced_accuracy": balanced_accuracy, "matthews": matthews}
OF_ALL = {"accuracy": accuracy, "log_loss": log_loss, "brier": brier,
          "calibration_error": calibration_error,
          **{f"{average}_{name}": score for average in AVERAGES
             for name, score in averaged(average).items()}}
OF_NUMBERS = {"pearson": pearson, "spearman": spearman}
SCORES: dict[str, Callable[..., float]] = {**OF_TWO, **OF_CLASSES, **OF_ALL, **OF_NUMBERS}


# --------------------------------------------------------------------------- their use


def arguments(name: str) -> list[str]:
  """Which fields of an `Outcome` a score takes.

  Raises:
    ConfigError: it takes something else.
  """
  parameters = inspect.signature(SCORES[name]).parameters.values()
  wanted = [p.name for p in parameters if p.default is p.empty]
  for argument in wanted:
    if argument not in Outcome._fields:
      raise ConfigError(f"evals: the score {name!r} is a function of {argument!r}; its arguments"
                        f" may be {', '.join(Outcome._fields)}")
  return wanted


def check(name: str, number: int, multi_label: bool) -> None:
  """Raises ConfigError where a score is not of what a model predicts.

  Args:
    name: of the score.
    number: of classes or labels; 1 is a number.
    multi_label: whether labels do not exclude one another.
  """
  wanted, score = arguments(name), SCORES[name]
  numbers = number == 1 and not multi_label
  is_of = lambda table: table.get(name) is score  # and no row of the user's own
  if numbers and ("probabilities" in wanted or is_of(OF_TWO | OF_CLASSES | OF_ALL)):
    raise ConfigError(f"evals: scores has {name!r}, which is of classes, and the model predicts a"
                      f" number; {', '.join(OF_NUMBERS)} are of numbers")
  if multi_label and is_of(OF_CLASSES | OF_NUMBERS):
    raise ConfigError(f"evals: scores has {name!r}, which is not defined for labels that do not"
                      f" exclude one another; valid are {', '.join(OF_ALL)}")
  if is_of(OF_TWO) and (multi_label or number > 2):
    what = f"{number} {'labels' if multi_label else 'classes'}"
    raise ConfigError(f"evals: scores has {name!r}, which is of the positive class of two, and"
                      f" there are {what}; an average over them is"
                      f" {', '.join(f'{a}_{name}' for a in AVERAGES)}")


def compute(name: str, found: Outcome) -> float:
  """The value of a score.

  Raises:
    ConfigError: it is no number.
  """
  value: Any = SCORES[name](**{key: getattr(found, key) for key in arguments(name)})
  try:
    return float(value)
  except (TypeError, ValueError):
    raise ConfigError(f"evals: the score {name!r} is {value!r}, which is not a number") from None


def report(found: Outcome) -> Table:
  """Precision, recall and F1 of each class or label, and its support, the examples that have it."""
  from sklearn.metrics import precision_recall_fscore_support
  labels = range(len(found.names))
  values = precision_recall_fscore_support(found.gold, found.predictions, labels=labels,
                                           average=None, zero_division=0)
  rows = {name: (float(p), float(r), float(f), int(n))
          for name, p, r, f, n in zip(found.names, *values)}
  return Table(("precision", "recall", "f1", "support"), rows)


def confusion(found: Outcome) -> Table:
  """How many examples of a class, a row, are predicted as each class, a column.

  Of labels that do not exclude one another there is no such matrix: a row has the four counts of
  one label.
  """
  from sklearn import metrics
  if found.gold.ndim == 1:
    counts = metrics.confusion_matrix(found.gold, found.predictions,
                                      labels=range(len(found.names)))
    return Table(tuple(found.names), dict(zip(found.names, counts.tolist())))
  counts = metrics.multilabel_confusion_matrix(found.gold, found.predictions).reshape(-1, 4)
  return Table(("true_negatives", "false_positives", "false_negatives", "true_positives"),
               dict(zip(found.names, counts.tolist())))
