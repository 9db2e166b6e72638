"""Texts that were written for a split, and their scores."""

import types

import numpy as np
import pytest
import sacrebleu

from jtx.config import ConfigError
from jtx.errors import DataError
from jtx.evals import text_scores
from jtx.evals.texts import Texts
from jtx.evals.translation import Translation
from jtx.inference.translate import Hypothesis

GOLD = [["the cat sat on the mat"], ["a dog barked", "the dog was barking"]]
SAID = ["the cat sat on a mat ", "the dogs bark"]


def scores(names, said, gold, **options):
  return dict(Texts(("x",), scores=names, **options).score(said, gold))


def test_exact_match_is_with_any_of_the_right_texts():
  assert scores(("exact_match",), ["a ", "c", "b"], [["a"], ["b", "c"], ["B"]]) == {
      "exact_match": pytest.approx(2 / 3), "examples": 3}


def test_answers_are_scored_as_squad_does():
  # "The house!" is right; of "big red house" two of three words are those of "red house".
  found = scores(("squad",), ["The house!", "big red house"], [["a house"], ["red house", "x"]])
  assert found["squad_exact_match"] == 0.5
  assert found["squad_f1"] == pytest.approx((1 + 2 * (2 / 3) / (2 / 3 + 1)) / 2)


def test_rouge_by_hand():
  # Of the second text the stems the, dog, bark are among the four of its second reference, whose
  # pairs have one of its two; the first reference has one of its two pairs, too.
  found = scores(("rouge1", "rouge2", "rougeL"), SAID, GOLD)
  best = 2 * 1 * (3 / 4) / (1 + 3 / 4)
  assert found["rouge1"] == found["rougeL"] == pytest.approx(100 * (5 / 6 + best) / 2)
  assert found["rouge2"] == pytest.approx(100 * (3 / 5 + 1 / 2) / 2)


def test_corpus_scores_are_those_of_sacrebleu():
  found = scores(("bleu", "chrf"), SAID, GOLD)
  streams = [[g[0] for g in GOLD], [None, GOLD[1][1]]]
  assert found["bleu"] == sacrebleu.BLEU().corpus_score(SAID, streams).score > 0
  assert found["chrf"] == sacrebleu.CHRF().corpus_score(SAID, streams).score > 0
  assert "tok:13a" in found["bleu_signature"] and "nc:6" in found["chrf_signature"]


def test_numbers_are_correlated_and_what_is_none_counts_as_minus_one():
  said, gold = ["1.0", "2.0", "none", "inf"], [["1"], ["3"], ["0"], ["-2"]]
  found = scores(("pearson", "spearman"), said, gold)
  expected = np.corrcoef([1, 2, -1, -1], [1, 3, 0, -2])[0, 1]
  assert found["pearson"] == pytest.approx(expected)
  assert 0 < found["spearman"] < 1


def test_classes_by_their_texts():
  labels = ("no", "yes")
  said, gold = ["yes", "no", " yes", "maybe", "maybe"], [["yes"], ["no"], ["no"], ["no"], ["yes"]]
  found = scores(("accuracy", "f1", "matthews"), said, gold, labels=labels)
  assert found["accuracy"] == 0.4
  # "maybe" is a wrong one: 1 true positive, 2 false ones, 1 that is missing.
  assert found["f1"] == pytest.approx(2 / (2 + 2 + 1))
  three = scores(("macro_f1", "accuracy"), ["a", "b", "?"], [["a"], ["b"], ["c"]],
                 labels=("a", "b", "c"))
  assert three["accuracy"] == pytest.approx(2 / 3)  # "?" for c counts as a
  assert three["macro_f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)


def test_records_have_the_log_probability_and_not_the_score(monkeypatch):
  examples = [{"id": 3, "src": "ein", "tgt": "one"}]
  best = [Hypothesis("one", -1.0, (5,), -1.5)]
  task = types.SimpleNamespace(data=types.SimpleNamespace(examples=lambda *args: examples))
  for module, evaluator in (("texts", Texts(("x",))), ("translation", Translation(("x",)))):
    monkeypatch.setattr(f"jtx.evals.{module}.best_texts", lambda *args: best)
    told = dict(evaluator(task, None))
    record, = told["predictions"]
    assert record["scores"] == {"log_probability": -1.5} and record["correct"]
  numbers = [name for name, x in told.items() if isinstance(x, float) and name != "examples"]
  assert set(numbers) == set(Translation(("x",)).numbers)  # of the last


def test_what_can_not_be_scored():
  with pytest.raises(ConfigError, match="has 'rouge'; did you mean 'rougeL'"):
    Texts(("x",), scores=("rouge",))
  with pytest.raises(ConfigError, match="the score 'accuracy' is of classes; labels"):
    Texts(("x",), scores=("accuracy",))
  with pytest.raises(ConfigError, match="'f1', which is of the positive class of two"):
    Texts(("x",), scores=("f1",), labels=("a", "b", "c"))
  with pytest.raises(ConfigError, match="has 'auc'"):
    Texts(("x",), scores=("auc",), labels=("a", "b"))
  with pytest.raises(DataError, match="the target 'c' is none of the labels a, b"):
    scores(("accuracy",), ["a"], [["c"]], labels=("a", "b"))


def test_right_texts_of_an_example():
  evaluator = Texts(("x",), references="answers")
  assert evaluator.right({"answers": [{"text": "a"}, "b"]}) == ["a", "b"]
  assert evaluator.right({"answers": "a"}) == ["a"]
  for example in ({"id": 3}, {"id": 3, "answers": []}, {"id": 3, "answers": [2]}):
    with pytest.raises(DataError, match="example 3 has no texts 'answers'"):
      evaluator.right(example)
