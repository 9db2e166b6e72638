"""Bigrams with absolute discounting against the formula, one pair at a time."""

import collections
import math

import numpy as np
import pytest

from jtx.evals import ngrams

V, D = 7, 0.75
DOCUMENTS = [[3, 4, 3, 4, 5, 3, 4, 6], [4, 3, 3, 5], [6]]


def probability(before, token):
  """By the formula of `Ngrams`, with dicts."""
  tokens = collections.Counter(t for d in DOCUMENTS for t in d)
  pairs = collections.Counter(p for d in DOCUMENTS for p in zip(d, d[1:]))
  unigram = (tokens[token] + 1) / (sum(tokens.values()) + V)
  number = sum(n for (v, _), n in pairs.items() if v == before)
  if not number:
    return unigram
  followers = sum(v == before for v, _ in pairs)
  return max(pairs[before, token] - D, 0) / number + D * followers / number * unigram


def test_every_pair_has_the_probability_of_the_formula():
  counts = ngrams.count(iter(DOCUMENTS), V)
  for before in range(V):
    row = [probability(before, token) for token in range(V)]
    assert sum(row) == pytest.approx(1)
    for token in range(V):
      result = ngrams.score(counts, np.array([before]), np.array([token]), D)
      assert result["bigram_loss"] == pytest.approx(-math.log(row[token]))
      assert result["bigram_accuracy"] == (token == int(np.argmax(row)))


def test_scores_are_means_over_hidden_tokens():
  counts = ngrams.count(iter(DOCUMENTS), V)
  before, hidden = np.array([3, 3, 4, 0]), np.array([4, 5, 3, 6])
  result = ngrams.score(counts, before, hidden, D)
  unigram = (np.bincount([t for d in DOCUMENTS for t in d], minlength=V) + 1) / (13 + V)
  assert result["unigram_loss"] == pytest.approx(-np.log(unigram[hidden]).mean())
  assert result["unigram_accuracy"] == pytest.approx((hidden == unigram.argmax()).mean())
  expected = np.mean([-math.log(probability(b, h)) for b, h in zip(before, hidden)])
  assert result["bigram_loss"] == pytest.approx(expected)


def test_the_token_before_is_the_true_one_though_it_be_hidden():
  batch = {"text": np.array([[1, 9, 9, 4, 0], [1, 5, 9, 2, 0]]),
           "mlm_positions": np.array([[1, 2, 0], [2, 0, 0]]),
           "mlm_labels": np.array([[3, 6, -1], [5, -1, -1]])}
  np.testing.assert_array_equal(ngrams.hidden_pairs(batch), [[1, 3, 5], [3, 6, 5]])
