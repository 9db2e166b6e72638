"""Embeddings of texts on a split: correlation of cosines with scores, and retrieval."""

import dataclasses
import math
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.data import recipes
from jtx.data.op import TOKENIZER
from jtx.data.ops.labels import number_of
from jtx.errors import ConfigError, DataError
from jtx.evals import scores
from jtx.evals.ranks import best_of, parts, ranking_scores, ranks_of
from jtx.evals.task import Task
from jtx.inference.texts import Predictor, encode, longest
from jtx.ranges import Count, CountOrNone, Size


@dataclasses.dataclass(frozen=True)
class _OfPairs:
  """What evaluators of two texts an example share; their other columns are not looked at."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  texts: tuple[str, ...] = ()  # keys of the two in an example; () is the first two of data.ops
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"embedding"})  # of the model
  keys = ()  # of a batch

  def __post_init__(self):
    if len(self.texts) not in (0, 2):
      raise ConfigError(f"evals: texts={self.texts} must name the two texts of an example, or none")

  def keys_of(self, data: Any) -> tuple[str, str]:
    """The keys of the two texts."""
    keys = self.texts or getattr(recipes.maker_of(data.ops), "texts", ())[:2]
    if len(keys) != 2:
      raise ConfigError("evals: texts must name the two texts of an example: data.ops make one of"
                        " each")
    return keys

  def check_data(self, data: Any) -> None:
    """Raises DataError where the split can't be used."""
    self.examples(data)

  def examples(self, data: Any) -> list[dict[str, Any]]:
    """The examples of the split, each with both texts.

    Raises:
      DataError: a text is missing.
    """
    return with_texts(data.examples(self.source), self.keys_of(data), self.source)


@dataclasses.dataclass(frozen=True)
class Similarity(_OfPairs):
  """Spearman's and Pearson's correlation of cosines with scores (Reimers and Gurevych 2019, 4).

  The scores may be on any scale.
  """
  gold: str = "label"  # key of the score in an example

  def examples(self, data: Any) -> list[dict[str, Any]]:
    found = super().examples(data)
    for e in found:
      if self.gold not in e or not math.isfinite(number_of(e[self.gold])):
        told = f"{self.gold}={e[self.gold]!r}, which is no" if self.gold in e else (
            f"no {self.gold!r}, the")
        raise DataError(f"{', '.join(self.source)}: example {e['id']} has {told} score of its pair;"
                        f" it has {', '.join(k for k in e if k != 'id')}")
    return found

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    examples, (first, second) = self.examples(task.data), self.keys_of(task.data)
    embed = Vectors(task, params)
    a, b = (embed([e[key] for e in examples]).astype(np.float64) for key in (first, second))
    cosines = (a * b).sum(-1)
    gold = np.array([number_of(e[self.gold]) for e in examples])
    yield "spearman", scores.spearman(cosines, gold)
    yield "pearson", scores.pearson(cosines, gold)
    yield "examples", len(examples)
    yield "predictions", ({"id": e["id"], "second": e[second], "gold": float(g),
                           "prediction": float(c)} for e, g, c in zip(examples, gold, cosines))


@dataclasses.dataclass(frozen=True)
class Retrieval(_OfPairs):
  """Texts found by their cosine to a query: recall, reciprocal rank and nDCG.

  The first text of an example is a query and the second is relevant to it; a query that stands in
  several examples has as many. It is searched among all second texts of the split, each once, and
  those of `corpus`. Predictions have `negative_0` and so on, the nearest texts that are not
  relevant: hard negatives for training (Xiong et al. 2021).
  """
  corpus: tuple[str, ...] = ()  # sources of more texts to search, with the key of the second
  depths: tuple[Size, ...] = (1, 5, 10)  # of recall; the largest is that of the other scores
  negatives: Count = 1  # of each prediction

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

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    examples, (first, second) = self.examples(task.data), self.keys_of(task.data)
    passages = self.passages(task.data, examples)
    place = {text: i for i, text in enumerate(passages)}
    relevant: dict[str, dict[int, None]] = {}
    for e in examples:
      relevant.setdefault(e[first], {})[place[e[second]]] = None
    embed = Vectors(task, params)
    queries, of_texts = embed(list(relevant)), embed(passages)
    ranks, found = [], {}
    for part in parts(len(queries), len(passages)):
      own = [list(r) for r in list(relevant.values())[part]]
      cosines = queries[part] @ of_texts.T
      ranks += ranks_of(cosines, own)
      most = self.negatives + max(map(len, own))
      found |= zip(list(relevant)[part], map(Found, *best_of(cosines, most), own))
    yield from ranking_scores(ranks, self.depths)
    yield "queries", len(queries)
    yield "passages", len(passages)
    yield "predictions", (
        {"id": e["id"], "gold": e[second], **found[e[first]].record(passages, self.negatives)}
        for e in examples)


class Found(NamedTuple):
  """The passages that a query finds."""
  places: np.ndarray  # their numbers, the best first
  cosines: np.ndarray  # of each
  relevant: list[int]  # the numbers of those that are right

  def record(self, passages: Sequence[str], negatives: int) -> dict[str, Any]:
    """The best passage, and the first `negatives` that are wrong."""
    wrong = [passages[i] for i in self.places if i not in self.relevant][:negatives]
    return {"prediction": passages[self.places[0]],
            "correct": bool(self.places[0] in self.relevant),
            "scores": {"cosine": float(self.cosines[0])},
            **{f"negative_{i}": text for i, text in enumerate(wrong)}}


class Vectors:
  """Texts to the head's vectors at length 1, as long as the run's texts may be.

  Args:
    task: the model and its data.
    params: of the model.
  """

  def __init__(self, task: Task, params: Any):
    self.tokenizer = task.data.tokenizers[TOKENIZER]
    self.max_length = longest(task.model, task.data.lengths["max_length"])
    self.predictor = Predictor(task.model, params, mesh=task.mesh)

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """[N] texts to float32 [N, D]."""
    x = np.stack(self.predictor(encode(self.tokenizer, texts, None, self.max_length)))
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def with_texts(examples: list[dict[str, Any]], keys: Sequence[str],
               source: Sequence[str]) -> list[dict[str, Any]]:
  """The examples; raises DataError where one has no text at a key."""
  for e in examples:
    for key in keys:
      if not isinstance(e.get(key), str):
        raise DataError(f"{', '.join(source)}: example {e['id']} has no text {key!r}; it has"
                        f" {', '.join(k for k in e if k != 'id')}")
  return examples
