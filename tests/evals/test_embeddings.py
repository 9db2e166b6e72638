"""Rankings by hand, and evaluators of embeddings on vectors that are given."""

import types

import numpy as np
import pytest

from jtx.data.ops.finetune import EncodeEach
from jtx.errors import ConfigError, DataError
from jtx.evals import ranks
from jtx.evals.embeddings import Similarity
from jtx.evals.retrieval import Retrieval

ANGLES = {"q": 0.0, "r": 90.0, "near": 10.0, "far": 80.0, "middle": 40.0, "other": -50.0}


@pytest.fixture(autouse=True)
def given(monkeypatch):
  """Vectors by the angles of texts."""
  angles = lambda texts: np.deg2rad([ANGLES[t] for t in texts])
  vectors = lambda texts, queries: np.stack([np.cos(angles(texts)), np.sin(angles(texts))], -1)
  for module in ("embeddings", "retrieval"):
    monkeypatch.setattr(f"jtx.evals.{module}.Vectors", lambda task, params: vectors)


def task_of(splits):
  data = types.SimpleNamespace(
      ops=[EncodeEach(texts=("a", "b"))],
      examples=lambda specs: [{"id": i, **e} for i, e in enumerate(splits[specs[0]])])
  return types.SimpleNamespace(data=data)


def test_ranks_and_their_scores():
  scores = np.array([[0.9, 0.5, 0.7, 0.5], [0.1, 0.2, 0.3, 0.4]])
  found = ranks.ranks_of(scores, [[3, 2], [0]])
  assert [r.tolist() for r in found] == [[2, 4], [4]]  # of the two 0.5 the first is better
  told = dict(ranks.ranking_scores(found, (1, 3)))
  gain = 1 / np.log2(3) / (1 + 1 / np.log2(3))
  assert told == pytest.approx({"recall_at_1": 0, "recall_at_3": 0.25, "mrr_at_3": 0.25,
                                "ndcg_at_3": gain / 2})
  assert ranks.ndcg(np.array([1, 2, 3]), 2) == 1.0


def test_similarity_is_a_correlation_with_the_scores():
  split = [{"a": "q", "b": "near", "s": "5"}, {"a": "q", "b": "middle", "s": "3.5"},
           {"a": "r", "b": "other", "s": "1"}]
  found = dict(Similarity(("x",), gold="s")(task_of({"x": split}), None))
  cosines = np.cos(np.deg2rad([10, 40, 140]))
  assert found["spearman"] == pytest.approx(1)
  assert found["pearson"] == pytest.approx(np.corrcoef(cosines, [5, 3.5, 1])[0, 1])
  rows = list(found["predictions"])
  assert rows[1] == {"id": 1, "second": "middle", "gold": 3.5,
                     "prediction": pytest.approx(cosines[1])}


def test_retrieval_among_all_texts_of_the_split_and_a_corpus(monkeypatch):
  """q has two relevant texts, the first and third nearest; r has one, the second nearest."""
  split = [{"a": "q", "b": "near"}, {"a": "q", "b": "other"}, {"a": "r", "b": "middle"}]
  task = task_of({"x": split, "more": [{"b": "far"}, {"b": "near"}]})
  monkeypatch.setattr("jtx.evals.ranks.CELLS", 5)  # one query at a time
  found = dict(Retrieval(("x",), corpus=("more",), depths=(1, 2))(task, None))
  rows = list(found.pop("predictions"))
  two = 1 / np.log2(3)
  assert found == pytest.approx({
      "recall_at_1": 0.25, "recall_at_2": 0.75, "mrr_at_2": 0.75, "queries": 2, "passages": 4,
      "ndcg_at_2": (1 / (1 + two) + two) / 2})
  assert [(row["prediction"], row["correct"], row["negative_0"]) for row in rows] == [
      ("near", True, "middle"), ("near", True, "middle"), ("far", False, "far")]
  assert rows[2]["scores"] == {"cosine": pytest.approx(np.cos(np.deg2rad(10)))}
  *_, (_, records) = Retrieval(("x",), negatives=9)(task_of({"x": split}), None)
  assert {k: v for k, v in next(records).items() if k.startswith("neg")} == {"negative_0": "middle"}


def test_what_can_not_be_evaluated():
  data = task_of({"x": [{"a": "q", "b": "near", "s": "good"}, {"a": "q"}]}).data
  for evaluator, message in (
      (Similarity(("x",), gold="s"), "x: example 1 has no text 'b'; it has a"),
      (Similarity(("x",), ("a", "a"), gold="s"), "x: example 0 has s='good', which is no score"),
      (Similarity(("x",), ("a", "a"), gold="t"), "x: example 0 has no 't', the score of its pair"),
      (Retrieval(("x",), ("a", "c")), "x: example 0 has no text 'c'; it has a, b, s")):
    with pytest.raises(DataError, match=message):
      evaluator.check_data(data)
  with pytest.raises(ConfigError, match="texts=\\('a',\\) must name the two texts"):
    Retrieval(("x",), ("a",))
  with pytest.raises(ConfigError, match="depths of retrieval must name one"):
    Retrieval(("x",), depths=())
