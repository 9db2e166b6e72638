"""Images that are read when a batch has them, with a limit on how many may be broken."""

import bisect
import threading
from typing import Any, Iterator, Sequence

from absl import logging
import numpy as np

from jtx.data.example import Example
from jtx.data.op import TOKENIZER, Column
from jtx.data.sources.views import value_of
from jtx.errors import BadExample, DataError

ENOUGH = 100  # examples, from which on a share of them means something


class Tally:
  """Counts what was read in this process, and what of it was bad. Threads may share it.

  Args:
    max_bad: the share of bad examples that is borne.
    warned: paths of bad examples that were warned of before; more are put into it.
  """

  def __init__(self, max_bad: float, warned: set[str] | None = None):
    self.max_bad = max_bad
    self.read = self.bad = 0
    self.newest: BadExample | None = None
    self._warned = set() if warned is None else warned
    self._lock = threading.Lock()

  def __reduce__(self):
    return Tally, (self.max_bad,)  # another process counts its own

  def add(self, error: BadExample | None = None) -> None:
    """Counts an example.

    Raises:
      DataError: too many of them are bad.
    """
    with self._lock:
      self.read += 1
      if error is not None:
        self.bad += 1
        self.newest = error
        if error.path not in self._warned:
          self._warned.add(error.path)
          logging.warning("%s; it is left out", error)
      self._check(ENOUGH)

  def finish(self) -> None:
    """Judges the examples of a split when all were read, however few they are.

    Raises:
      DataError: too many of them are bad.
    """
    with self._lock:
      self._check(1)

  def _check(self, least: int) -> None:
    if self.read >= least and self.bad > self.max_bad * self.read:
      raise DataError(f"{self.bad} of the {self.read} images read so far can't be used"
                      f" ({self.bad / self.read:.1%}), which is more than op decode_image's"
                      f" max_bad={self.max_bad}; the last of them: {self.newest}")


def texts_alone(source: Any) -> Iterator[Example]:
  """The texts of a source of images as examples; of one that can, no image is read."""
  texts = source.column(TOKENIZER) if hasattr(source, "column") else (
      value_of(source, i, TOKENIZER) for i in range(len(source)))
  yield from ({"path": f"{source.name}, example {i}", TOKENIZER: text}
              for i, text in enumerate(texts))


class LazyExamples:
  """The examples of sources of images, which a Stream takes as it takes Prepared.

  Nothing is read before it is asked for. Threads may share it.

  Args:
    sources: one after the other.
    ops: that run over an example whenever it is read; see `jtx.data.ops.image`.
    columns: that examples then have.
    tally: of what is read.
  """

  def __init__(self, sources: Sequence[Any], ops: Sequence[Any], columns: dict[str, Column],
               tally: Tally):
    self.sources, self.ops, self.columns = list(sources), list(ops), columns
    self.sizes = [len(source) for source in sources]
    self.ids = np.arange(sum(self.sizes))
    self.tally = tally
    self._starts = np.cumsum([0, *self.sizes]).tolist()
    self._number = np.full(len(self.ids), -1)  # of tokens or patches; -1 is not known yet

  def __len__(self) -> int:
    return len(self.ids)

  def lengths(self, examples: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, fields], where rows have several images; else they are 0: rows are of one length.

    Sizes of images are read for it, once, or the texts of all images of a source.
    """
    layout = self.ops[-1]
    if layout.max_segments == 1:
      return np.zeros((len(examples), len(fields)), np.int64)
    unknown = examples[self._number[examples] < 0]
    maker = next((op for op in self.ops if op.tokenizer_fields), None)
    if maker is None:
      self._number[unknown] = [layout.number(self.ops[0].size_of(self.example(i)))
                               for i in unknown]
      return self._number[examples][:, None]
    for s in np.unique(np.searchsorted(self._starts, unknown, "right") - 1):
      self._number[self._starts[s]:self._starts[s + 1]] = [
          len(maker.tokens_of(example)) for example in texts_alone(self.sources[s])]
    return self._number[examples][:, None]

  def example(self, i: int) -> Example:
    """An example as its source has it, with its "id", and a "path" that names it."""
    source = bisect.bisect_right(self._starts, i) - 1
    number = int(i) - self._starts[source]
    path = f"{self.sources[source].name}, example {number}"
    return {"path": path, **self.sources[source][number], "id": int(i)}

  def labels(self) -> Iterator[Any]:
    """The label of each example, as its source has it; of files and arrays no image is read."""
    for source in self.sources:
      yield from source.labels if hasattr(source, "labels") else (
          source[i]["label"] for i in range(len(source)))

  def after_ops(self, examples: Sequence[int] | np.ndarray,
                generator: np.random.Generator | None) -> list[Example]:
    """Examples after the ops, without bad ones.

    Args:
      examples: their numbers.
      generator: of what the ops draw; None is for evaluation, in which they draw nothing.

    Raises:
      DataError: too many of those read so far are bad.
    """
    results = []
    for i in examples:
      try:
        example = self.example(i)
        for op in self.ops:
          example = op.augment(example, generator)
      except BadExample as e:
        self.tally.add(e)
      else:
        self.tally.add()
        results.append(example)
    return results
