"""Retrieval by vectors of tokens and by words, against float64."""

import collections
import math
import types

import numpy as np
import pytest

from jtx.data.ops.finetune import EncodeEach
from jtx.evals.embeddings import Vectors
from jtx.evals.retrieval import Bm25, LateInteraction
from tests.evals.test_embeddings import task_of

QUERIES = ["red fish", "Blue, blue!", "a whale", "..."]
TEXTS = ["the red fish", "a blue bird and a blue fish", "two birds", "red red bird"]
PAIRS = [{"a": query, "b": text} for query, text in zip(QUERIES, TEXTS)]


@pytest.mark.parametrize("k1,b", [(1.2, 0.75), (0.9, 0.0)])
def test_bm25_is_the_formula(k1, b, monkeypatch):
  """Robertson and Zaragoza 2009, equation 3.15, with Lucene's idf; words that none has count 0."""
  monkeypatch.setattr("jtx.evals.ranks.CELLS", 5)  # one query at a time
  words = [text.split() for text in TEXTS]
  holders = collections.Counter(word for text in words for word in set(text))
  mean = sum(map(len, words)) / len(words)

  def score(query, text):
    total = 0.0
    for word in query:
      idf = math.log(1 + (len(words) - holders[word] + 0.5) / (holders[word] + 0.5))
      times = text.count(word)
      total += idf * times / (times + k1 * (1 - b + b * len(text) / mean))
    return total

  asked = [["red", "fish"], ["blue", "blue"], ["a", "whale"], []]
  expected = np.array([[score(query, text) for text in words] for query in asked])
  parts = list(Bm25(("x",), k1=k1, b=b).scores(None, None, QUERIES, TEXTS))
  assert [part for part, _ in parts] == [slice(i, i + 1) for i in range(4)]
  np.testing.assert_allclose(np.concatenate([x for _, x in parts]), expected, rtol=1e-5)


def test_bm25_ranks_a_split():
  found = dict(Bm25(("x",), depths=(1, 2))(task_of({"x": PAIRS}), None))
  rows = list(found.pop("predictions"))
  # By its "a" the third finds the second's text; the fourth has no word, and all are equal.
  assert found["recall_at_1"] == 0.5 and found["queries"] == found["passages"] == 4
  assert [row["prediction"] for row in rows[:3]] == [TEXTS[0], TEXTS[1], TEXTS[1]]
  assert [row["correct"] for row in rows] == [True, True, False, False]
  assert rows[0]["negative_0"] == TEXTS[3] and rows[3]["scores"] == {"bm25": 0.0}


def test_bm25_of_texts_without_words():
  [(part, scores)] = Bm25(("x",)).scores(None, None, QUERIES, ["...", "!"])
  assert part.start == 0 and scores.shape == (4, 2) and (scores == 0).all()


def letters(texts):
  """Each letter of a text is a token, and its vector of length 3 is by its place in "abc"."""
  return [3 * np.eye(3, dtype=np.float32)[["abc".index(c) for c in text]] for text in texts]


@pytest.fixture
def by_letters(monkeypatch):
  """An embedder whose tokens are letters, with what it was asked for."""
  asked = []

  class Embedder(Vectors):

    def __init__(self, task, params):
      super().__init__(task, params)
      self.predictor = lambda examples: letters(
          ["".join("abc"[i] for i in e["text"]) for e in examples])

  def encode(tokenizer, texts, second, length):
    assert second is None
    asked.append([text[:length] for text in texts])
    ids = [np.array(["abc".index(c) for c in text]) for text in asked[-1]]
    return [{"text": x, "text_types": 0 * x} for x in ids]

  monkeypatch.setattr("jtx.evals.retrieval.Vectors", Embedder)
  monkeypatch.setattr("jtx.evals.embeddings.encode", encode)
  return asked


def by_letters_of(split, **op):
  """The task of a model of letters."""
  task = task_of({"x": split})
  task.data.ops = [EncodeEach(texts=("a", "b"), max_length=9, **op)]
  task.data.tokenizers = {"text": types.SimpleNamespace(mask_id=2)}
  task.data.lengths, task.mesh = {"max_length": 9}, None
  task.model = types.SimpleNamespace(longest=None, head=types.SimpleNamespace(pool="none"))
  return task


@pytest.mark.parametrize("cells", [2**24, 64])
def test_late_interaction_ranks_by_the_tokens_of_a_query(cells, by_letters, monkeypatch):
  """All at once, and in parts of few queries and texts."""
  monkeypatch.setattr("jtx.evals.ranks.CELLS", cells)
  monkeypatch.setattr("jtx.evals.retrieval.CELLS", cells)
  split = [{"a": "ab", "b": "aab"}, {"a": "cc", "b": "bca"}, {"a": "aac", "b": "ac"},
           {"a": "b", "b": "ccc"}]
  found = dict(LateInteraction(("x",), depths=(1, 4))(by_letters_of(split), None))
  rows = list(found.pop("predictions"))
  texts = [e["b"] for e in split]
  for e, row in zip(split, rows):
    scores = [sum(c in text for c in e["a"]) for text in texts]
    best = int(np.argmax(scores))
    assert row["prediction"] == texts[best] and row["correct"] == (texts[best] == e["b"])
    assert row["scores"] == {"late_interaction": pytest.approx(scores[best])}
  assert by_letters == [[e["a"] for e in split], texts]
  assert found["recall_at_1"] == 0.5  # "aac" finds "bca", and "b" finds "aab"


def test_queries_are_cut_and_filled_up_with_masks(by_letters):
  """c is the mask, of which "ab" gets two."""
  split = [{"a": "ab", "b": "aab"}, {"a": "ababc", "b": "abc"}]
  op = dict(query_length=4, fill=True)
  first, second = dict(LateInteraction(("x",))(by_letters_of(split, **op), None))["predictions"]
  assert first["prediction"] == "abc" and first["scores"] == {"late_interaction": 4.0}
  assert second["prediction"] == "aab" and second["scores"] == {"late_interaction": 4.0}
  assert by_letters == [["ab", "abab"], ["aab", "abc"]]
