"""Scores of labels, numbers, entities and answers; shares are from 0 to 1.

All are functions of predictions and references, in this order, of the same number.
"""

import collections
import math
import re
import string
from typing import Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.errors import DataError


def accuracy(predictions: Sequence, references: Sequence) -> float:
  """The share of [N] predictions that are right."""
  p, r = _pair(predictions, references)
  return float(np.mean(p == r))


def _f1(hits: int, predicted: int, true: int) -> tuple[float, float, float]:
  """Precision, recall and F1; 0 where nothing is predicted or true."""
  return (float(hits / predicted) if predicted else 0.0, float(hits / true) if true else 0.0,
          float(2 * hits / (predicted + true)) if predicted + true else 0.0)


def matthews(predictions: Sequence[int], references: Sequence[int]) -> float:
  """Matthews' correlation of [N] classes, 0 if either has one class only.

  For any number of classes (Gorodkin 2004, "Comparing two K-category assignments by a
  K-category correlation coefficient", equation 8): the correlation of the one-hot classes.
  """
  p, r = _pair(predictions, references)
  classes = np.union1d(p, r)
  x, y = ((v[:, None] == classes).astype(np.float64) for v in (p, r))  # [N, C]
  return _correlation(x - x.mean(0), y - y.mean(0))


def pearson(predictions: Sequence[float], references: Sequence[float]) -> float:
  """Pearson's correlation of [N] numbers, 0 if either has one value only."""
  p, r = (v.astype(np.float64) for v in _pair(predictions, references))
  if np.ptp(p) == 0 or np.ptp(r) == 0:  # where rounding would leave noise
    return 0.0
  return _correlation(p - p.mean(), r - r.mean())


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
  """Of centred values."""
  scale = math.sqrt((x * x).sum() * (y * y).sum())
  return float((x * y).sum() / scale) if scale else 0.0


def spearman(predictions: Sequence[float], references: Sequence[float]) -> float:
  """Spearman's correlation of [N] numbers: Pearson's of their ranks, means where they tie."""
  from scipy import stats
  return pearson(*(stats.rankdata(v) for v in _pair(predictions, references)))


def _pair(predictions: Sequence, references: Sequence) -> tuple[np.ndarray, np.ndarray]:
  p, r = np.asarray(predictions), np.asarray(references)
  if p.shape != r.shape or p.ndim != 1 or not len(p):
    raise ValueError(f"predictions {p.shape} and references {r.shape} must be one list each, of"
                     " the same number and not empty")
  return p, r


# ----------------------------------------------------------------------------- images


def top_accuracy(outputs: np.ndarray, labels: np.ndarray, number: int) -> float:
  """Share of the [N] classes that are among the `number` best of scores [N, C].

  Of equal scores the class of the lower number is the better.
  """
  order = np.argsort(-outputs, axis=-1, kind="stable")[:, :number]
  return float((order == labels[:, None]).any(-1).mean())


def calibration_error(probabilities: np.ndarray, labels: np.ndarray, bins: int) -> float:
  """Expected calibration error (Guo et al. 2017, equation 3) of [N, C] for classes [N].

  Examples are put into equal bins by the probability of their likeliest class; of each bin the
  mean probability is compared with the share that is right, and weighted by its size.
  """
  return binned_gap(probabilities.max(-1), probabilities.argmax(-1) == labels, bins)


def binned_gap(confidence: np.ndarray, right: np.ndarray, bins: int) -> float:
  """The mean over [N] of how far the mean of a bin's probabilities is from the share right in it.

  Bins are equal parts of 0 to 1.
  """
  places = np.minimum((confidence * bins).astype(int), bins - 1)
  gaps = [abs(confidence[places == b].sum() - right[places == b].sum()) for b in range(bins)]
  return float(sum(gaps) / len(right))


def neighbour_accuracy(train: np.ndarray, train_labels: np.ndarray, test: np.ndarray,
                       labels: np.ndarray, number: int, temperature: float) -> float:
  """Accuracy of the vote of the `number` nearest of [M, D] by cosine, for [N, D].

  A neighbour's vote weighs exp(cosine / temperature) (Wu et al. 2018, section 3.4).
  """
  unit = lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)
  train, right = unit(train), 0
  classes = np.arange(max(train_labels.max(), labels.max()) + 1)
  for start in range(0, len(test), 1024):
    cosine = unit(test[start:start + 1024]) @ train.T
    nearest = np.argpartition(-cosine, number - 1, axis=1)[:, :number]
    weights = np.exp((np.take_along_axis(cosine, nearest, 1) - 1) / temperature)
    votes = (weights[..., None] * (train_labels[nearest][..., None] == classes)).sum(1)
    right += int((votes.argmax(-1) == labels[start:start + 1024]).sum())
  return right / len(test)


def linear_accuracy(train: np.ndarray, train_labels: np.ndarray, test: np.ndarray,
                    labels: np.ndarray, l2: float) -> float:
  """Accuracy for [N, D] of ridge regression from [M, D] to -1 and 1 for each class."""
  mean, std = train.mean(0, dtype=np.float64), train.std(0, dtype=np.float64) + 1e-5
  scale = lambda x: np.concatenate([(x - mean) / std, np.ones((len(x), 1))], 1)
  x = scale(train)
  classes = np.arange(max(train_labels.max(), labels.max()) + 1)
  targets = 2.0 * (train_labels[:, None] == classes) - 1
  if len(x) < x.shape[1]:  # the same map, by a system of as many equations as there are images
    weights = x.T @ np.linalg.solve(x @ x.T + l2 * np.eye(len(x)), targets)
  else:
    weights = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ targets)
  return float(((scale(test) @ weights).argmax(-1) == labels).mean())


# --------------------------------------------------------------------------- entities


class Entity(NamedTuple):
  kind: str
  first: int  # word
  last: int  # word


def entity_tag(tag: str) -> tuple[str, str]:
  """The prefix of a tag and the kind of its entity.

  Raises:
    DataError: a tag that is neither "O" nor "B-", "I-", "E-" or "S-" and a kind.
  """
  prefix, _, kind = tag.partition("-")
  if tag != "O" and (prefix not in ("B", "I", "E", "S") or not kind):
    raise DataError(f"tag {tag!r} marks no entity; valid are O and B-, I-, E- or S- with a kind,"
                    " and tags of other kinds are scored by their accuracy")
  return prefix, kind


def entities(tags: Sequence[str]) -> set[Entity]:
  """The entities of a sentence's tags, IOB1, IOB2 or IOBES, as conlleval reads them.

  B and S begin an entity; so do I and E after O, after another kind, and after an end (E, S).

  Raises:
    DataError: a tag that is neither "O" nor "B-", "I-", "E-" or "S-" and a kind.
  """
  found, first = set(), 0
  before, kind = "O", ""
  for i, tag in enumerate([*tags, "O"]):
    prefix, new = entity_tag(tag)
    if prefix in ("I", "E") and before in ("B", "I") and new == kind:
      before = prefix
      continue
    if before != "O":
      found.add(Entity(kind, first, i - 1))
    before, kind, first = prefix, new, i
  return found


def entity_f1(predictions: Sequence[Sequence[str]],
              references: Sequence[Sequence[str]]) -> dict[str, float]:
  """`precision`, `recall` and `f1` of whole entities, over all sentences (micro average).

  An entity is right if its kind, first and last word are (Tjong Kim Sang & De Meulder 2003,
  CoNLL-2003 shared task, cs/0306050, section 2.3).

  Args:
    predictions: tags of the words of each sentence.
    references: the same number of each.
  """
  if len(predictions) != len(references):
    raise ValueError(f"{len(predictions)} predictions for {len(references)} sentences")
  hits = predicted = true = 0
  for number, (p, r) in enumerate(zip(predictions, references)):
    if len(p) != len(r):
      raise ValueError(f"sentence {number} has {len(p)} predicted tags for {len(r)} words")
    ours, theirs = entities(p), entities(r)
    hits, predicted, true = hits + len(ours & theirs), predicted + len(ours), true + len(theirs)
  return dict(zip(("precision", "recall", "f1"), _f1(hits, predicted, true)))


# ---------------------------------------------------------------------------- answers


def normalize_answer(text: str) -> str:
  """Lower case, no ASCII punctuation, no articles a, an, the, and single spaces (SQuAD)."""
  text = "".join(c for c in text.lower() if c not in string.punctuation)
  return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_scores(prediction: str, reference: str) -> tuple[float, float]:
  """Exact match and F1 of the words of a normalised answer.

  Where either is empty, which in SQuAD 2.0 says that there is no answer, F1 is 1 if both are.
  """
  p, r = (normalize_answer(text).split() for text in (prediction, reference))
  exact = float(p == r)
  if not p or not r:
    return exact, exact
  hits = (collections.Counter(p) & collections.Counter(r)).total()
  return exact, _f1(hits, len(p), len(r))[2]


def squad_em_f1(predictions: Mapping[str, str],
                references: Mapping[str, Sequence[str]]) -> dict[str, float]:
  """Means over questions of `exact_match` and `f1`, each the best over the references.

  SQuAD 1.1 (Rajpurkar et al. 2016, arXiv:1606.05250, section 6.1) and 2.0 (Rajpurkar et al.
  2018, arXiv:1806.03822, section 5): where a question has no answer, "" is right and all
  else is wrong. If there are both kinds of questions, their F1 is given as
  `f1_answerable` and `f1_unanswerable` too.

  Args:
    predictions: an answer to each question, by its id; those to other questions are ignored.
    references: the right answers to each question; none where it has no answer. Of those that
      normalise to nothing, "" is the right prediction where there are no others.

  Raises:
    DataError: a question has no prediction.
  """
  scores = dict(_by_question(predictions, references))
  result = {"exact_match": _mean(s.exact for s in scores.values()),
            "f1": _mean(s.f1 for s in scores.values())}
  if len({s.answerable for s in scores.values()}) == 2:
    for name, kind in (("f1_answerable", True), ("f1_unanswerable", False)):
      result[name] = _mean(s.f1 for s in scores.values() if s.answerable is kind)
  return result


class _Score(NamedTuple):
  exact: float
  f1: float
  answerable: bool


def _by_question(predictions: Mapping[str, str],
                 references: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, _Score]]:
  if not references:
    raise ValueError("no questions to score")
  for question, answers in references.items():
    if question not in predictions:
      raise DataError(f"question {question} has no prediction; \"\" says that it has no answer")
    left = [a for a in answers if normalize_answer(a)] or [""]
    pairs = [answer_scores(predictions[question], a) for a in left]
    yield question, _Score(max(p[0] for p in pairs), max(p[1] for p in pairs), bool(answers))


def _mean(values: Iterator[float]) -> float:
  return float(np.mean(list(values)))


def best_no_answer_threshold(predictions: Mapping[str, str],
                             references: Mapping[str, Sequence[str]],
                             no_answer: Mapping[str, float]) -> dict[str, float]:
  """The best scores that "no answer" above a threshold can give, as SQuAD 2.0's script has them.

  Where a question has no answer, any but "" is wrong here, also one that normalises to nothing,
  which `squad_em_f1` takes for "".

  Args:
    predictions: as for `squad_em_f1`, the best answer to each question that is not "".
    references: as for `squad_em_f1`.
    no_answer: how much the model holds each question to have no answer, by its id: a
      probability, or a difference of scores. Equal values fall on one side together.

  Returns:
    `best_exact_match` and `best_f1`, each with its `..._threshold`: a question keeps its answer
    if its value is not above it. Where no threshold beats answering nothing, it is below all
    values, and 0 if they are all above 0.

  Raises:
    DataError: a question has no prediction, or no value.
  """
  scores = dict(_by_question(predictions, references))
  for question in scores:
    if question not in no_answer:
      raise DataError(f"question {question} has no score for having no answer")
  values = np.array([no_answer[question] for question in scores], np.float64)
  order = np.argsort(values, kind="stable")
  last = np.append(values[order][1:] > values[order][:-1], True)  # of equal values
  none = min(0.0, np.nextafter(values.min(), -np.inf))
  result = {}
  for name, key in (("exact_match", "exact"), ("f1", "f1")):
    # What a question's answer gains over "no answer", which is right if there is none.
    gains = np.array([getattr(s, key) if s.answerable else -float(predictions[q] != "")
                      for q, s in scores.items()])
    totals = np.cumsum(gains[order])[last]
    best = int(totals.argmax())
    gain, threshold = max((0.0, none), (totals[best], values[order][last][best]),
                          key=lambda pair: pair[0])
    nothing = sum(not s.answerable for s in scores.values())
    result |= {f"best_{name}": float((nothing + gain) / len(scores)),
               f"best_{name}_threshold": float(threshold)}
  return result
