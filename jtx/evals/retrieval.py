"""Retrieval: texts that a query finds by vectors, by those of tokens, or by words (BM25)."""

import dataclasses
import functools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import jax
import numpy as np

from jtx.errors import ConfigError
from jtx.evals.embeddings import OfPairs, Vectors, with_texts
from jtx.evals.ranks import CELLS, best_of, parts, ranking_scores, ranks_of
from jtx.evals.task import Task
from jtx.nn.late_interaction import late_interaction
from jtx.ranges import Count, Fraction, Positive, Size


@dataclasses.dataclass(frozen=True)
class _Searches(OfPairs):
  """What evaluators of retrieval share: recall, reciprocal rank and nDCG.

  The first text of an example is a query and the second is relevant to it; a query that stands in
  several examples has as many. It is searched among all second texts of the split, each once, and
  those of `corpus`. Predictions have `negative_0` and so on, the best texts that are not relevant:
  hard negatives for training (Xiong et al. 2021).
  """
  corpus: tuple[str, ...] = ()  # sources of more texts to search, with the key of the second
  depths: tuple[Size, ...] = (1, 5, 10)  # of recall; the largest is that of the other scores
  negatives: Count = 1  # of each prediction

  score = "cosine"  # the name of what texts are ranked by

  def __post_init__(self):
    super().__post_init__()
    if not self.depths:
      raise ConfigError("evals: depths of retrieval must name one at least")

  def check_data(self, data: Any) -> None:
    super().check_data(data)
    self.passages(data, [])

  def passages(self, data: Any, examples: Sequence[Mapping[str, Any]]) -> list[str]:
    """The texts that are searched, each once."""
    _, second = self.keys_of(data)
    more = data.examples(self.corpus) if self.corpus else []
    found = [*examples, *with_texts(more, (second,), self.corpus)]
    return list(dict.fromkeys(e[second] for e in found))

  def scores(self, task: Task, params: Any, queries: Sequence[str],
             passages: Sequence[str]) -> Iterator[tuple[slice, np.ndarray]]:
    """A part of the queries after the other, with their scores [part, passages]."""
    raise NotImplementedError

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    examples, (first, second) = self.examples(task.data), self.keys_of(task.data)
    passages = self.passages(task.data, examples)
    place = {text: i for i, text in enumerate(passages)}
    relevant: dict[str, dict[int, None]] = {}
    for e in examples:
      relevant.setdefault(e[first], {})[place[e[second]]] = None
    queries, right = list(relevant), list(map(list, relevant.values()))
    ranks, found = [], {}
    for part, scores in self.scores(task, params, queries, passages):
      own = right[part]
      ranks += ranks_of(scores, own)
      most = self.negatives + max(map(len, own))
      found |= zip(queries[part], map(Found, *best_of(scores, most), own))
    yield from ranking_scores(ranks, self.depths)
    yield "queries", len(queries)
    yield "passages", len(passages)
    yield "predictions", (
        {"id": e["id"], "gold": e[second],
         **found[e[first]].record(passages, self.negatives, self.score)} for e in examples)


class Found(NamedTuple):
  """The passages that a query finds."""
  places: np.ndarray  # their numbers, the best first
  scores: np.ndarray  # of each
  relevant: list[int]  # the numbers of those that are right

  def record(self, passages: Sequence[str], negatives: int, score: str) -> dict[str, Any]:
    """The best passage, and the first `negatives` that are wrong."""
    wrong = [passages[i] for i in self.places if i not in self.relevant][:negatives]
    return {"prediction": passages[self.places[0]],
            "correct": bool(self.places[0] in self.relevant),
            "scores": {score: float(self.scores[0])},
            **{f"negative_{i}": text for i, text in enumerate(wrong)}}


@dataclasses.dataclass(frozen=True)
class Retrieval(_Searches):
  """Texts found by the cosine of their vector to that of a query (Karpukhin et al. 2020, DPR)."""

  def scores(self, task: Task, params: Any, queries: Sequence[str],
             passages: Sequence[str]) -> Iterator[tuple[slice, np.ndarray]]:
    embed = Vectors(task, params)
    first, second = embed(queries, queries=True), embed(passages, queries=False)
    for part in parts(len(first), len(second)):
      yield part, first[part] @ second.T


@dataclasses.dataclass(frozen=True)
class LateInteraction(_Searches):
  """Texts found by the sum over a query's tokens of the best cosine with one of theirs (ColBERT).

  Khattab and Zaharia 2020, equation 3. All texts are compared, and the vectors of all their tokens
  are in memory at once.
  """
  heads = frozenset({"token_embeddings"})  # of the model
  score = "late_interaction"

  def scores(self, task: Task, params: Any, queries: Sequence[str],
             passages: Sequence[str]) -> Iterator[tuple[slice, np.ndarray]]:
    embed, compare = Vectors(task, params), jax.jit(late_interaction)
    first = embed.of_tokens(queries, queries=True)
    second = embed.of_tokens(passages, queries=False)
    tokens = first.segments.shape[1] * second.segments.shape[1]
    rows = max(1, min(len(second.segments), CELLS // (16 * tokens)))  # texts at a time
    for part in parts(len(queries), rows * tokens):
      scores = [compare(*(x[part] for x in first), *(x[i:i + rows] for x in second))
                for i in range(0, len(passages), rows)]
      yield part, np.concatenate(scores, 1)


@dataclasses.dataclass(frozen=True)
class Bm25(_Searches):
  """Texts found by the words that they share with a query: the baseline of retrieval.

  BM25 with the idf of Lucene (Robertson and Zaragoza 2009; Kamphuis et al. 2020), of words in lower
  case.
  """
  k1: Positive = 1.2  # how soon further occurrences of a word count no more
  b: Fraction = 0.75  # how far scores are divided by a text's length

  heads = frozenset()  # of the model
  score = "bm25"

  def scores(self, task: Task, params: Any, queries: Sequence[str],
             passages: Sequence[str]) -> Iterator[tuple[slice, np.ndarray]]:
    import bm25s
    del task, params
    words = functools.partial(bm25s.tokenize, token_pattern=r"(?u)\w+", stopwords=None,
                              return_ids=False, show_progress=False)
    index = bm25s.BM25(k1=self.k1, b=self.b, method="lucene")
    found, asked = words(passages), words(queries)
    none = np.zeros(len(passages), np.float32)
    if any(found):
      index.index(found, show_progress=False)
    else:
      asked = [[] for _ in asked]
    for part in parts(len(asked), len(passages)):
      yield part, np.stack([index.get_scores(x) if x else none for x in asked[part]])
