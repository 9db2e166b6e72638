"""Vectors of the texts of a split, and the correlation of their cosines with scores."""

import dataclasses
import math
from typing import Any, Iterator, NamedTuple, Sequence

import numpy as np

from jtx.data import recipes
from jtx.data.op import TOKENIZER
from jtx.data.ops.finetune import filled
from jtx.data.ops.labels import number_of
from jtx.errors import ConfigError, DataError
from jtx.evals import scores
from jtx.evals.task import Task
from jtx.inference.texts import Predictor, encode, longest
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class OfPairs:
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
class Similarity(OfPairs):
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
    a, b = (embed([e[key] for e in examples], queries=queries).astype(np.float64)
            for key, queries in ((first, True), (second, False)))
    cosines = (a * b).sum(-1)
    gold = np.array([number_of(e[self.gold]) for e in examples])
    yield "spearman", scores.spearman(cosines, gold)
    yield "pearson", scores.pearson(cosines, gold)
    yield "examples", len(examples)
    yield "predictions", ({"id": e["id"], "second": e[second], "gold": float(g),
                           "prediction": float(c)} for e, g, c in zip(examples, gold, cosines))


class Tokens(NamedTuple):
  """The vectors of the tokens of N texts."""
  vectors: np.ndarray  # [N, T, D] float32
  segments: np.ndarray  # [N, T] int32: 1 where a text has a token


class Vectors:
  """Texts to the head's vectors at length 1, as long as the run's texts may be.

  Args:
    task: the model and its data.
    params: of the model.
  """

  def __init__(self, task: Task, params: Any):
    self.tokenizer = task.data.tokenizers[TOKENIZER]
    self.max_length = longest(task.model, task.data.lengths["max_length"])
    maker = recipes.maker_of(task.data.ops)
    self.query_length = getattr(maker, "query_length", 0) or self.max_length
    self.fill = getattr(maker, "fill", False)
    self.predictor = Predictor(task.model, params, mesh=task.mesh)

  def __call__(self, texts: Sequence[str], *, queries: bool) -> np.ndarray:
    """[N] texts to float32 [N, D]; queries are cut as `EncodeEach` cuts them."""
    return at_length_1(np.stack(self.predictor(self.encode(texts, queries))))

  def encode(self, texts: Sequence[str], queries: bool) -> list[dict[str, Any]]:
    """The examples of texts."""
    length = self.query_length if queries else self.max_length
    examples = encode(self.tokenizer, texts, None, length)
    for e in examples if queries and self.fill else ():
      e["text"], e["text_types"] = filled(e["text"], e["text_types"], length, self.tokenizer)
    return examples

  def of_tokens(self, texts: Sequence[str], *, queries: bool) -> Tokens:
    """The vectors of all tokens of [N] texts; queries are cut and filled up, too."""
    found = self.predictor(self.encode(texts, queries))
    length = max(map(len, found))
    vectors = np.zeros((len(found), length, found[0].shape[-1]), np.float32)
    segments = np.zeros(vectors.shape[:2], np.int32)
    for i, x in enumerate(found):
      vectors[i, :len(x)], segments[i, :len(x)] = at_length_1(x), 1
    return Tokens(vectors, segments)


def at_length_1(x: np.ndarray) -> np.ndarray:
  """[..., D] vectors, scaled."""
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
