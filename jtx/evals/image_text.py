"""Retrieval of texts by images, and of images by texts (Radford et al. 2021, appendix E)."""

import dataclasses
import hashlib
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from jtx.errors import ConfigError
from jtx.evals.images import run
from jtx.evals.task import Task
from jtx.parallel import processes
from jtx.ranges import CountOrNone, Size

KEYS = ("image", "text", "text_segment_ids", "text_positions", "real")
CHUNK = 1024  # queries that are compared at a time


@dataclasses.dataclass(frozen=True)
class ImageText:
  """Recall at k both ways: the share of queries with a right answer among the k best of a split.

  Examples with the same image, or with the same text, are one image, or one text: an image may
  have several right texts, of which one is enough, and the other way round.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  depths: tuple[Size, ...] = (1, 5, 10)  # k, of recall
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"image_text"})  # of the model
  keys = ("image", "text")  # of a batch

  def __post_init__(self):
    if not self.depths:
      raise ConfigError("evals: depths=() names no k; write such as depths=(1, 5, 10)")

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    images, texts, own = pairs(task, params, self.source)
    for name, queries, answers, right in (("text", images, texts, own),
                                          ("image", texts, images, own.T)):
      ranks = ranks_of(queries, answers, right)
      for k in self.depths:
        yield f"{name}_recall_at_{k}", float((ranks < k).mean())
    yield "images", len(images)
    yield "texts", len(texts)


def pairs(task: Task, params: Any, source: tuple[str, ...],
          ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Vectors of a split's images [I, W] and texts [T, W], and which belong together, bool [I, T]."""
  found = []
  for batch in task.batches(source):
    marks = {"image_mark": marked(batch["image"].reshape(-1, *batch["image"].shape[-3:])),
             "text_mark": marked(texts_of(batch))}
    marks = {key: mark.reshape(*batch["real"].shape, -1) for key, mark in marks.items()}
    batch = task.to_device({k: batch[k] for k in KEYS} | marks)
    vectors = run("vectors", task.model, params, {k: batch[k] for k in KEYS})
    *parts, real = processes.to_host((*vectors, *(batch[k] for k in marks), batch["real"]))
    found.append([part.reshape(real.size, -1)[real.reshape(-1) > 0] for part in parts])
  images, texts, *marks = (np.concatenate(parts) for parts in zip(*found))
  (image_rows, of_image), (text_rows, of_text) = (
      np.unique(mark, axis=0, return_index=True, return_inverse=True)[1:] for mark in marks)
  own = np.zeros((len(image_rows), len(text_rows)), bool)
  own[of_image.reshape(-1), of_text.reshape(-1)] = True
  return images[image_rows], texts[text_rows], own


def texts_of(batch: Mapping[str, np.ndarray]) -> list[np.ndarray]:
  """The tokens of each text of a batch, row after row."""
  return [tokens[segments == segment]
          for tokens, segments in zip(batch["text"], batch["text_segment_ids"])
          for segment in range(1, batch["real"].shape[1] + 1)]


def marked(rows: Sequence[np.ndarray]) -> np.ndarray:
  """A digest [R, 4] int32 of each row, by which equal ones are known."""
  digests = [hashlib.blake2b(np.ascontiguousarray(row), digest_size=16).digest() for row in rows]
  return np.frombuffer(b"".join(digests), np.int32).reshape(len(rows), 4)


def ranks_of(queries: np.ndarray, answers: np.ndarray, right: np.ndarray) -> np.ndarray:
  """Of each query [Q] the number of wrong answers that are as near as the nearest right one.

  Args:
    queries: vectors [Q, W].
    answers: vectors [A, W].
    right: bool [Q, A].
  """
  ranks = []
  for start in range(0, len(queries), CHUNK):
    part = right[start:start + CHUNK]
    scores = queries[start:start + CHUNK] @ answers.T
    best = np.where(part, scores, -np.inf).max(1, keepdims=True)
    ranks.append(((scores >= best) & ~part).sum(1))
  return np.concatenate(ranks)
