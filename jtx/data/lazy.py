"""Images that are read when a batch has them, with a limit on how many may be broken."""

import bisect
import functools
import threading
from typing import Any, Callable, Iterator, Sequence

from absl import logging
import numpy as np

from jtx.data.example import Example
from jtx.data.op import TOKENIZER, Column, ImageOp, LayoutOp
from jtx.data.order import rng
from jtx.data.sources.fingerprints import of_listed
from jtx.data.sources.views import value_of
from jtx.errors import BadExample, DataError

Generator = np.random.Generator

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
    self._sizes: dict[int, tuple[int, int]] = {}  # of files, by number: height and width
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
    source, number = self._place(i)
    return {"path": f"{source.name}, example {number}", **source[number], "id": int(i)}

  def size(self, i: int) -> tuple[int, int]:
    """Height and width of an example's image, as its source says, or else as its file does."""
    if i not in self._sizes:
      source, number = self._place(i)
      told = source.image_size(number) if hasattr(source, "image_size") else None
      self._sizes[i] = told or self.ops[0].size_of(self.example(i))
    return self._sizes[i]

  def _place(self, i: int) -> tuple[Any, int]:
    source = bisect.bisect_right(self._starts, i) - 1
    return self.sources[source], int(i) - self._starts[source]

  @property
  def digests(self) -> list[str]:
    """What each source is known again by."""
    return [of_listed(source) for source in self.sources]

  def labels(self) -> Iterator[Any]:
    """The label of each example, as its source has it; of files and arrays no image is read."""
    for source in self.sources:
      yield from source.labels if hasattr(source, "labels") else (
          source[i]["label"] for i in range(len(source)))

  def after_ops(self, examples: Sequence[int] | np.ndarray, generator: Generator | None,
                layout: LayoutOp | None = None) -> list[Example]:
    """Examples after the ops, without bad ones.

    Args:
      examples: their numbers.
      generator: of what the ops draw; None is for evaluation, in which they draw nothing.
      layout: of the batch; None is the last of the ops.

    Raises:
      DataError: too many of those read so far are bad.
    """
    ops = [*self.ops[:-1], layout or self.ops[-1]]
    return self.tried(examples, lambda i: functools.reduce(
        lambda example, op: op.augment(example, generator), ops, self.example(i)))

  def tried(self, examples: Sequence[int] | np.ndarray,
            make: Callable[[int], Example]) -> list[Example]:
    """What `make` makes of examples by their numbers, without bad ones, which are counted."""
    results = []
    for i in examples:
      try:
        example = make(i)
      except BadExample as e:
        self.tally.add(e)
      else:
        self.tally.add()
        results.append(example)
    return results

  def sized(self, numbers: np.ndarray, generator: Generator | None) -> "SizedExamples":
    """Examples of a window, of whose ops it is drawn how they move pixels.

    Args:
      numbers: of the examples, in the order of the window.
      generator: a function of the seed and the window; None is for evaluation.
    """
    return SizedExamples(self, numbers, generator)


class SizedExamples:
  """Images whose sizes after the ops are known before they are read, by their places in a window.

  Ops that change sizes draw from a generator of the image, and not of the row that it comes into,
  since rows are made by these sizes. Arguments are as for `LazyExamples.sized`.
  """

  def __init__(self, examples: LazyExamples, numbers: np.ndarray, generator: Generator | None):
    self.examples, self.numbers = examples, numbers
    self.columns, self.ids = examples.columns, examples.ids[numbers]
    self._seeds = None if generator is None else generator.integers(2**62, size=len(numbers))
    self._lengths = np.array([self._after(n) for n in range(len(numbers))], np.int64).reshape(-1, 2)

  def __len__(self) -> int:
    return len(self.numbers)

  def lengths(self, examples: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, 2]: height and width after the ops."""
    del fields
    return self._lengths[examples]

  def after_ops(self, examples: Sequence[int] | np.ndarray, generator: Generator | None,
                layout: LayoutOp) -> list[Example]:
    """As `LazyExamples.after_ops`, where the generator is of what else is drawn."""
    def make(n: int) -> Example:
      i, moves = self.numbers[n], self._moves(n)
      example = self.examples.example(i)
      for op in [*self.examples.ops[:-1], layout]:
        drawn = type(op).sized is not ImageOp.sized
        example = op.augment(example, moves if drawn else generator)
        if op.opens:
          self._check(i, example)
      return example

    return self.examples.tried(examples, make)

  def _check(self, i: int, example: Example) -> None:
    """Raises BadExample where the file of an image is of another size than its annotation says."""
    (height, width), told = example["original_size"].tolist(), self.examples.size(i)
    if (height, width) != told:
      raise BadExample(example["path"], f"is of {width} x {height} pixels, and of"
                       f" {told[1]} x {told[0]} by its annotation, which need not say it")

  def _after(self, n: int) -> tuple[int, int]:
    """Height and width of an image after the ops."""
    moves, (height, width) = self._moves(n), self.examples.size(int(self.numbers[n]))
    for op in self.examples.ops[:-1]:
      width, height = op.sized((width, height), moves)
    return height, width

  def _moves(self, n: int) -> Generator | None:
    return None if self._seeds is None else rng(int(self._seeds[n]), "moves", 0)
