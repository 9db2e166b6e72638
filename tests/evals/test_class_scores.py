"""Scores of classes, labels and numbers: by hand, and against scikit-learn."""

import logging

import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.evals import class_scores
from jtx.evals.class_scores import SCORES, check, compute, outcome
from jtx.evals.classification import Classification
from jtx.evals.table import Table

RNG = np.random.default_rng(0)
NAMES = ("bad", "good", "so-so")
GOLD = RNG.integers(0, 3, 200)
LOGITS = RNG.normal(size=(200, 3)).astype(np.float32) + 1.5 * np.eye(3, dtype=np.float32)[GOLD]
CLASSES = outcome(LOGITS, GOLD, NAMES)
LABELS = outcome(LOGITS, RNG.integers(0, 2, (200, 3)), NAMES)
TWO = outcome(LOGITS[:, :2], GOLD % 2)


@pytest.fixture
def metrics():
  """Of scikit-learn, which takes seconds to import: not while tests are collected."""
  from sklearn import metrics
  return metrics


def test_probabilities_and_predictions_of_the_three_kinds():
  e = np.exp(LOGITS.astype(np.float64))
  np.testing.assert_allclose(CLASSES.probabilities, e / e.sum(1, keepdims=True), rtol=1e-12)
  np.testing.assert_array_equal(CLASSES.predictions, LOGITS.argmax(1))
  np.testing.assert_allclose(LABELS.probabilities, e / (1 + e), rtol=1e-12)
  np.testing.assert_array_equal(LABELS.predictions, LOGITS >= 0)
  half = outcome(np.array([[0.0, -1.0]]), np.array([[1, 1]]), threshold=0.25)
  np.testing.assert_array_equal(half.predictions, [[1, 1]])
  np.testing.assert_array_equal(outcome(np.zeros((1, 2)), np.array([[1, 1]])).predictions, [[1, 1]])
  numbers = outcome(np.array([[0.5], [2.0]]), np.array([1.0, 2.0]))
  assert numbers.predictions.tolist() == [0.5, 2.0] and numbers.probabilities is None


def score(name, predictions, gold):
  return SCORES[name](gold=np.array(gold), predictions=np.array(predictions))


def test_f1_of_class_one():
  # 2 hits, 3 predicted, 4 true: precision 2/3, recall 1/2.
  p, r = [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 1, 0]
  assert score("f1", p, r) == pytest.approx(4 / 7)
  assert score("precision", p, r) == pytest.approx(2 / 3) and score("recall", p, r) == 0.5
  assert score("f1", [0, 0], [0, 0]) == score("f1", [0, 1], [1, 0]) == 0.0


def test_averages_by_hand():
  # Class 0: 1 hit of 2 predicted, 2 true; 1: 1 of 2, 1 true; 2: 1 of 1, 2 true.
  p, r = [0, 1, 1, 2, 0], [0, 0, 1, 2, 2]
  f = 1 / 2, 2 / 3, 2 / 3
  assert score("macro_f1", p, r) == pytest.approx(sum(f) / 3)
  assert score("weighted_f1", p, r) == pytest.approx((2 * f[0] + f[1] + 2 * f[2]) / 5)
  assert score("micro_f1", p, r) == score("accuracy", p, r) == pytest.approx(3 / 5)
  assert score("macro_recall", p, r) == score("balanced_accuracy", p, r) == pytest.approx(2 / 3)


@pytest.mark.parametrize("found", [CLASSES, LABELS], ids=["classes", "labels"])
@pytest.mark.parametrize("average", class_scores.AVERAGES)
def test_averages_are_scikit_learns(average, found, metrics):
  gold, predictions, p, _ = found
  y = class_scores.truth(gold, 3)
  expected = {
      "f1": metrics.f1_score(gold, predictions, average=average),
      "precision": metrics.precision_score(gold, predictions, average=average),
      "recall": metrics.recall_score(gold, predictions, average=average),
      "auc": metrics.roc_auc_score(y, p, average=average),
      "average_precision": metrics.average_precision_score(y, p, average=average)}
  for name, value in expected.items():
    assert compute(f"{average}_{name}", found) == pytest.approx(value, abs=1e-12), name


def test_scores_of_two_classes_are_of_the_second(metrics):
  gold, predictions, p, _ = TWO
  expected = {"auc": metrics.roc_auc_score(gold, p[:, 1]),
              "average_precision": metrics.average_precision_score(gold, p[:, 1]),
              "f1": metrics.f1_score(gold, predictions), "brier": metrics.brier_score_loss(
                  gold, p[:, 1])}
  for name, value in expected.items():
    assert compute(name, TWO) == pytest.approx(value, abs=1e-12), name


def test_scores_of_probabilities_are_scikit_learns(metrics):
  gold, predictions, p, _ = CLASSES
  assert compute("log_loss", CLASSES) == pytest.approx(metrics.log_loss(gold, p))
  assert compute("brier", CLASSES) == pytest.approx(metrics.brier_score_loss(gold, p))
  assert compute("matthews", CLASSES) == pytest.approx(metrics.matthews_corrcoef(gold, predictions))
  assert compute("balanced_accuracy", CLASSES) == pytest.approx(
      metrics.balanced_accuracy_score(gold, predictions))
  gold, predictions, p, _ = LABELS
  assert compute("accuracy", LABELS) == metrics.accuracy_score(gold, predictions)
  one = [(gold[:, c], p[:, c]) for c in range(3)]
  assert compute("log_loss", LABELS) == pytest.approx(np.mean([metrics.log_loss(*x) for x in one]))
  assert compute("brier", LABELS) == pytest.approx(
      np.mean([metrics.brier_score_loss(*x) for x in one]))


def test_calibration_error_of_labels_is_that_of_their_probabilities():
  # Of 10 said with 0.8, 5 are there; of 10 said with 0.1, 1 is.
  logits = np.log(np.array([[0.8 / 0.2, 0.1 / 0.9]] * 10))
  gold = np.stack([np.arange(10) < 5, np.arange(10) < 1], 1).astype(int)
  assert compute("calibration_error", outcome(logits, gold)) == pytest.approx(0.3 / 2)


def test_a_class_without_examples_counts_in_no_average_of_areas(metrics):
  found = outcome(LOGITS[GOLD < 2], GOLD[GOLD < 2])
  y, p = class_scores.truth(found.gold, 3), found.probabilities
  areas = [metrics.roc_auc_score(y[:, c], p[:, c]) for c in (0, 1)]
  assert compute("macro_auc", found) == pytest.approx(np.mean(areas))


@pytest.mark.parametrize("name", ["f1", "precision", "recall", "auc", "average_precision"])
def test_a_score_of_two_classes_needs_an_average_where_there_are_more(name):
  check(name, 2, False)
  averages = f"macro_{name}, micro_{name}, weighted_{name}"
  for multi_label, what in ((False, "3 classes"), (True, "3 labels")):
    with pytest.raises(ConfigError, match=f"evals: scores has '{name}', which is of the positive"
                       f" class of two, and there are {what}; an average over them is {averages}"):
      check(name, 3, multi_label)
    check(f"macro_{name}", 3, multi_label)


def test_scores_are_of_what_the_model_predicts():
  with pytest.raises(ConfigError, match="'accuracy', which is of classes, and the model predicts a"
                     " number; pearson, spearman are of numbers"):
    check("accuracy", 1, False)
  with pytest.raises(ConfigError, match="'matthews', which is not defined for labels that do not"):
    check("matthews", 3, True)
  with pytest.raises(ConfigError, match="'macro_f2'; did you mean 'macro_f1'"):
    Classification(("a",), scores=("macro_f2",))


def test_a_score_of_ones_own(monkeypatch):
  """Such as a cost of each kind of error."""
  cost = np.array([[0, 1, 1], [5, 0, 2], [1, 1, 0]])
  monkeypatch.setitem(SCORES, "cost", lambda gold, predictions: cost[gold, predictions].mean())
  monkeypatch.setitem(SCORES, "sure", lambda probabilities, names: (
      probabilities.max(1).mean() if names == NAMES else None))
  expected = np.mean([cost[g, p] for g, p in zip(GOLD, LOGITS.argmax(1))])
  results = dict(Classification(("a",), scores=("cost", "sure")).score(
      [{"label": g, "id": i} for i, g in enumerate(GOLD)], list(LOGITS), NAMES))
  assert results == {"cost": pytest.approx(expected), "examples": 200,
                     "sure": pytest.approx(CLASSES.probabilities.max(1).mean())}
  with pytest.raises(ConfigError, match="the score 'sure' is None, which is not a number"):
    compute("sure", TWO)
  monkeypatch.setitem(SCORES, "wrong", lambda y_true, y_pred: 0)
  with pytest.raises(ConfigError, match="the score 'wrong' is a function of 'y_true'; its arguments"
                     " may be gold, predictions, probabilities, names"):
    Classification(("a",), scores=("wrong",))
  with pytest.raises(ConfigError, match="'sure', which is of classes"):
    check("sure", 1, False)


def test_a_score_that_is_not_defined_is_left_out_and_told(caplog):
  examples = [{"label": 0, "id": 0}, {"label": 0, "id": 1}]
  with caplog.at_level(logging.WARNING):
    results = dict(Classification(("dev.tsv",), scores=("auc", "accuracy")).score(
        examples, list(LOGITS[:2, :2]), ("no", "yes")))
  assert results.keys() == {"accuracy", "examples"}
  assert "dev.tsv: auc is not defined, so it is left out" in caplog.text


def test_the_report_is_scikit_learns_and_the_confusion_matrix_a_table_and_a_figure(metrics):
  examples = [{"label": g, "id": i} for i, g in enumerate(GOLD)]
  results = list(Classification(("a",), report=True).score(examples, list(LOGITS), NAMES))
  theirs = metrics.classification_report(GOLD, LOGITS.argmax(1), target_names=NAMES,
                                         output_dict=True)
  tables = {name: value for name, value in results if isinstance(value, Table)}
  for name, row in tables["report"].plain().items():
    row["f1-score"] = row.pop("f1")
    assert row == pytest.approx(theirs[name])
  counts = metrics.confusion_matrix(GOLD, LOGITS.argmax(1))
  assert tables["confusion"].plain()["bad"] == dict(zip(NAMES, counts[0].tolist()))
  axes = results[-1][1].axes[0]
  np.testing.assert_allclose(axes.images[0].get_array(), counts / counts.sum(1, keepdims=True),
                             rtol=1e-6)
  assert [text.get_text() for text in axes.texts] == list(map(str, counts.flat))


def test_labels_have_four_counts_each():
  found = outcome(np.array([[1.0, -1], [1, 1], [-1, -1]]), np.array([[1, 1], [0, 1], [0, 0]]),
                  ("a", "b"))
  assert class_scores.confusion(found).plain() == {
      "a": dict(true_negatives=1, false_positives=1, false_negatives=0, true_positives=1),
      "b": dict(true_negatives=1, false_positives=0, false_negatives=1, true_positives=1)}
  assert class_scores.report(found).plain()["b"] == pytest.approx(
      dict(precision=1, recall=0.5, f1=2 / 3, support=2))


def test_a_table_is_lined_up():
  table = Table(("f1", "support"), {"bad": (0.25, 3), "so-so": (1.0, 12)})
  assert table.lines() == ["           f1  support", "bad    0.2500        3",
                           "so-so  1.0000       12"]
  large = Table(tuple(map(str, range(50))), {"a": range(50)})
  assert large.lines() == ["(1 rows and 50 columns: see results.json)"]
