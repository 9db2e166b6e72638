"""Scores: by hand, and against independent formulas."""

import json
import math
import os
import random

import numpy as np
import pytest

from jtx.errors import DataError
from jtx.evals import scores
from jtx.evals.scores import (
  answer_scores,
  best_no_answer_threshold,
  entities,
  entity_f1,
  normalize_answer,
  squad_em_f1,
)


def test_accuracy():
  assert scores.accuracy([1, 0, 2, 2], [1, 1, 2, 0]) == 0.5
  assert scores.accuracy(["a", "b"], ["a", "b"]) == 1.0


def test_matthews_of_two_classes_is_the_formula_of_the_four_counts():
  rng = np.random.default_rng(0)
  for _ in range(50):
    p, r = rng.integers(0, 2, (2, 12))
    tp, tn = np.sum(p & r), np.sum((1 - p) & (1 - r))
    fp, fn = np.sum(p & (1 - r)), np.sum((1 - p) & r)
    scale = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = (tp * tn - fp * fn) / scale if scale else 0.0
    assert scores.matthews(p, r) == pytest.approx(expected, abs=1e-12)


def test_matthews_of_one_class_three_classes_and_opposites():
  assert scores.matthews([1, 1, 1], [0, 1, 1]) == 0.0
  assert scores.matthews([0, 1, 2, 2], [0, 1, 2, 2]) == pytest.approx(1)
  assert scores.matthews([0, 1], [1, 0]) == pytest.approx(-1)
  # Confusion [[1, 1, 0], [0, 1, 0], [0, 1, 1]]: c = 3, s = 5, rows 2 1 2, columns 1 3 1, so
  # (3 * 5 - 7) / sqrt((25 - 11) * (25 - 9)).
  assert scores.matthews([0, 1, 1, 1, 2], [0, 0, 1, 2, 2]) == pytest.approx(8 / math.sqrt(224))


def test_pearson_and_spearman():
  # Deviations -1.5 -.5 .5 1.5 and -3 -1 -2 6 of 1 3 2 10: 13 / sqrt(5 * 50).
  assert scores.pearson([1, 2, 3, 4], [1, 3, 2, 10]) == pytest.approx(13 / math.sqrt(250))
  # Ranks 1 2 3 4 and 1 3 2 4.
  assert scores.spearman([1, 2, 3, 4], [1, 3, 2, 10]) == pytest.approx(0.8)
  # A tie has the mean rank: 1 2.5 2.5 4 against 1 2 3 4.
  assert scores.spearman([0, 5, 5, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))
  assert scores.spearman([1, 2, 3], [1, 8, 1000]) == pytest.approx(1)


@pytest.mark.parametrize("score", [scores.pearson, scores.spearman])
def test_a_constant_correlates_with_nothing(score):
  assert score([0.1] * 3, [1.0, 2.0, 3.0]) == score([1, 2, 3], [7, 7, 7]) == 0.0


@pytest.mark.parametrize("score", [scores.accuracy, scores.matthews, scores.pearson])
def test_lists_of_other_lengths_are_refused(score):
  for p, r in (([1], [1, 0]), ([], []), ([[1]], [[1]])):
    with pytest.raises(ValueError, match="of the same number and not empty"):
      score(p, r)


# --------------------------------------------------------------------------- entities


@pytest.mark.parametrize("tags, expected", [
    ("O B-x I-x O", {("x", 1, 2)}),
    ("B-x B-x", {("x", 0, 0), ("x", 1, 1)}),
    ("I-x I-x O I-x", {("x", 0, 1), ("x", 3, 3)}),  # IOB1: I begins after O
    ("B-x I-y I-y", {("x", 0, 0), ("y", 1, 2)}),  # another kind begins
    ("I-x B-x I-x", {("x", 0, 0), ("x", 1, 2)}),
    ("B-x E-x I-x", {("x", 0, 1), ("x", 2, 2)}),  # after an end
    ("S-x S-x E-x", {("x", 0, 0), ("x", 1, 1), ("x", 2, 2)}),
    ("B-x I-x E-x S-y", {("x", 0, 2), ("y", 3, 3)}),
    ("B-corporation I-group-a", {("corporation", 0, 0), ("group-a", 1, 1)}),
    ("O O", set()),
])
def test_entities(tags, expected):
  assert entities(tags.split()) == expected
  assert entities([]) == set()


def test_a_tag_of_another_kind_is_named():
  for tag in ("NOUN", "B", "B-", "X-a"):
    with pytest.raises(DataError, match=f"tag '{tag}' marks no entity; valid are O and B-"):
      entities(["O", tag])


def test_entity_f1_counts_whole_entities_over_all_sentences():
  references = [["B-x", "I-x", "O", "B-y"], ["O", "B-x"], ["B-y"]]
  predictions = [["B-x", "I-x", "O", "B-x"], ["B-x", "I-x"], ["B-y"]]
  # Right: x in the first and y in the last sentence; 4 predicted, 4 true.
  assert entity_f1(predictions, references) == {"precision": 0.5, "recall": 0.5, "f1": 0.5}
  assert entity_f1([["B-x", "O"]], [["B-x", "B-y"]]) == {
      "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3)}
  assert entity_f1([["O"]], [["O"]]) == {"precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_entity_f1_refuses_sentences_of_other_lengths():
  with pytest.raises(ValueError, match="sentence 1 has 1 predicted tags for 2 words"):
    entity_f1([["O"], ["O"]], [["O"], ["O", "O"]])
  with pytest.raises(ValueError, match="1 predictions for 2 sentences"):
    entity_f1([["O"]], [["O"], ["O"]])


# ---------------------------------------------------------------------------- answers


@pytest.mark.parametrize("text, expected", [
    ("The  Cat's\ta-b!", "cats ab"),
    ("A an the THE", ""),
    ("another theatre Ana", "another theatre ana"),  # articles only as words
    ("a.b.c", "abc"),  # punctuation goes first, so "a" is no word here
    ("“The” Straße — ÉTÉ", "“ ” straße — été"),  # punctuation is ASCII only
    ("日本、the 東京", "日本、 東京"),
    ("the日本", "the日本"),  # no word boundary
    ("10,000 $", "10000"),
])
def test_normalize_answer(text, expected):
  assert normalize_answer(text) == expected


@pytest.mark.parametrize("prediction, reference, exact, f1", [
    ("the cat", "Cat.", 1, 1),
    ("black cat", "the cat sat", 0, 2 * 1 / 4),
    ("cat cat dog", "cat dog dog", 0, 2 * 2 / 6),  # each repetition counts once
    ("cat cat", "cat", 0, 2 * 1 / 3),
    ("dog", "cat", 0, 0),
    ("", "cat", 0, 0),
    ("the", "", 1, 1),  # both normalise to nothing
    ("cat", "", 0, 0),
    ("été", "Été", 1, 1),
    ("e\u0301", "\u00e9", 0, 0),  # no Unicode normalisation
])
def test_answer_scores(prediction, reference, exact, f1):
  assert answer_scores(prediction, reference) == (exact, pytest.approx(f1))


def test_squad_scores_of_1000_pairs_are_the_official_ones():
  path = os.path.join(os.path.dirname(__file__), "squad_scores.json")
  with open(path, encoding="utf-8") as f:
    pairs = json.load(f)["pairs"]
  assert len(pairs) == 1000
  for prediction, references, exact, f1 in pairs:
    assert squad_em_f1({"q": prediction}, {"q": references}) == {
        "exact_match": exact, "f1": pytest.approx(f1, abs=1e-6)}, (prediction, references)
  # Of all kinds: right, partly right, wrong, and with nothing left.
  assert sum(p[2] for p in pairs) > 300 and sum(0 < p[3] < 1 for p in pairs) > 200
  assert sum(not normalize_answer(p[0]) for p in pairs) > 10


def test_squad_takes_the_best_reference_and_the_mean_over_questions():
  references = {"q1": ["black cat", "cat"], "q2": ["dog"]}
  assert squad_em_f1({"q1": "the cat", "q2": "big dog", "other": "x"}, references) == {
      "exact_match": 0.5, "f1": pytest.approx((1 + 2 / 3) / 2)}


def test_squad_2_wants_nothing_where_there_is_no_answer():
  references = {"a": ["cat"], "b": [], "c": [], "d": ["the"]}
  result = squad_em_f1({"a": "", "b": "", "c": "cat", "d": ""}, references)
  # "the" is an answer, though nothing of it is left.
  assert result == {"exact_match": 0.5, "f1": 0.5, "f1_answerable": 0.5, "f1_unanswerable": 0.5}


def test_squad_names_the_question_without_a_prediction():
  with pytest.raises(DataError, match="question q2 has no prediction"):
    squad_em_f1({"q1": "a"}, {"q1": ["a"], "q2": []})
  with pytest.raises(ValueError, match="no questions"):
    squad_em_f1({}, {})


def test_no_answer_threshold_by_hand():
  references = {"a": ["cat"], "b": [], "c": ["black dog"], "d": []}
  predictions = {"a": "cat", "b": "x", "c": "dog", "d": "y"}
  no_answer = {"a": 0.1, "b": 0.4, "c": 0.5, "d": 0.9}
  # F1 of keeping none, a, ab, abc, abcd: 2, 3, 2, 2 + 2/3, 1 + 2/3; EM: 2, 3, 2, 2, 1.
  assert best_no_answer_threshold(predictions, references, no_answer) == {
      "best_exact_match": 0.75, "best_exact_match_threshold": 0.1,
      "best_f1": 0.75, "best_f1_threshold": 0.1}
  # With b surer to have no answer than c: 2, 3, 3 + 2/3, 2 + 2/3, 1 + 2/3.
  result = best_no_answer_threshold(predictions, references, no_answer | {"b": 0.6})
  assert result["best_f1"] == pytest.approx((3 + 2 / 3) / 4)
  assert (result["best_f1_threshold"], result["best_exact_match_threshold"]) == (0.5, 0.1)


def test_no_answer_threshold_below_all_and_ties():
  references, predictions = {"a": ["cat"], "b": [], "c": []}, dict.fromkeys("abc", "cat")
  low = best_no_answer_threshold(predictions, references, {"a": 0.9, "b": 0.1, "c": 0.2})
  assert (low["best_f1"], low["best_f1_threshold"]) == (pytest.approx(2 / 3), 0.0)
  low = best_no_answer_threshold(predictions, references, {"a": 5.0, "b": -3.0, "c": -3.0})
  assert low["best_f1_threshold"] < -3 and low["best_f1_threshold"] == pytest.approx(-3)
  sure = best_no_answer_threshold(predictions, references,
                                  {"a": -1.0, "b": math.inf, "c": math.inf})
  assert (sure["best_f1"], sure["best_f1_threshold"]) == (1.0, -1.0)
  # a and b fall together: 2 + 1 - 1 is no better than none.
  tied = best_no_answer_threshold(predictions, references, {"a": 0.1, "b": 0.1, "c": 0.2})
  assert (tied["best_f1"], tied["best_f1_threshold"]) == (pytest.approx(2 / 3), 0.0)


def test_no_answer_threshold_takes_an_answer_that_normalises_to_nothing_for_one():
  """As the official script's `find_best_thresh`, whose values these are."""
  references = {"a": [], "b": ["cat"], "c": ["the"], "d": []}
  predictions = {"a": "the", "b": "cat", "c": "a", "d": "The ..."}
  # Of keeping none, a, ab, abc, abcd: 2, 1, 2, 3, 2.
  no_answer = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4}
  assert best_no_answer_threshold(predictions, references, no_answer) == {
      "best_exact_match": 0.75, "best_exact_match_threshold": 0.3,
      "best_f1": 0.75, "best_f1_threshold": 0.3}
  # Without c no threshold beats "no answer" to all: 2, 1, 2, 1.
  del references["c"]
  low = best_no_answer_threshold(predictions, references, no_answer)
  assert (low["best_f1"], low["best_f1_threshold"]) == (pytest.approx(2 / 3), 0.0)
  # "" itself is right wherever it stands: 2, 2, 3, 2.
  kept = best_no_answer_threshold(predictions | {"a": ""}, references, no_answer)
  assert (kept["best_f1"], kept["best_f1_threshold"]) == (1.0, 0.2)


def test_no_answer_threshold_is_the_best_of_all_thresholds():
  rng = random.Random(1)
  references = {str(i): rng.choice([[], ["cat"], ["black dog"]]) for i in range(60)}
  predictions = {key: rng.choice(["cat", "dog"]) for key in references}
  values = {key: round(rng.uniform(-2, 2), 1) for key in references}
  result = best_no_answer_threshold(predictions, references, values)

  def at(threshold):
    kept = {k: p if values[k] <= threshold else "" for k, p in predictions.items()}
    return squad_em_f1(kept, references)

  for name in ("exact_match", "f1"):
    every = [at(t)[name] for t in (-9.0, *values.values())]
    assert result[f"best_{name}"] == pytest.approx(max(every))
    assert at(result[f"best_{name}_threshold"])[name] == pytest.approx(max(every))


def test_no_answer_threshold_names_the_question_without_a_score():
  with pytest.raises(DataError, match="question b has no score for having no answer"):
    best_no_answer_threshold({"a": "x", "b": "x"}, {"a": [], "b": []}, {"a": 0.5})
