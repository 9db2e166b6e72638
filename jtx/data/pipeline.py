"""Batches by number: batch g of training is a pure function of the seed and g.

Texts are tokenised once, as the recipe says; images are read when a batch has them. The stream of
examples is an endless sequence of epochs, each a permutation; fixed windows of the stream are
packed into rows, and the rows of a window are permuted. Everything up to the batch can be looked
up at random, so the step number is the data position: any number of processes, workers or threads
reads the same batches.
"""

import bisect
import functools
import threading
from typing import Any, Iterator, NamedTuple, Protocol, Sequence

from absl import flags
import numpy as np

from jtx.data import batching
from jtx.data.lazy import LazyExamples
from jtx.data.order import Order, rng
from jtx.data.op import LayoutOp
from jtx.data.packing import assemble, folded
from jtx.data.prepared import Prepared
from jtx.data.recipes import Recipe
from jtx.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]
PlannedRow = tuple[Any, np.ndarray]  # where its examples are, and their numbers there


class Numbered(Protocol):
  """What has batches by number: a stream, several in turn, or a split."""

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`."""


class Window(NamedTuple):
  """Examples that were made into rows together."""
  # Prepared, or what has the same methods: LazyExamples, or what a forming op made.
  examples: Any
  rows: list[np.ndarray]  # numbers of the examples of each row


class Stream:
  """Training batches by number.

  Args:
    prepared: the examples, or documents that examples are formed of.
    recipe: how they become rows.
    seed: of all shuffling.
    batch_size: B, rows of a global batch.
    counts: examples of each source in an epoch.
    window: examples, or documents, that are made into rows together; 0 is an epoch, and
      no more are taken.
    rows: which rows of a batch this process reads; None is all. Need not be contiguous.
    cursor: as `cursor()` gave it, to start there without planning what came before.
  """

  def __init__(self, prepared: Prepared | LazyExamples, recipe: Recipe, *, seed: int,
               batch_size: int, counts: Sequence[int], window: int,
               rows: Sequence[int] | None = None, cursor: tuple[int, int] = (0, 0)):
    if window < 0:
      raise ConfigError(f"data.window={window} must be positive, or 0 for an epoch")
    self.prepared, self.recipe, self.seed = prepared, recipe, seed
    self.batch_size = batch_size
    self.planned = batch_size * recipe.layout.fold  # rows of the plan that a batch has
    # Documents repeated in one window would only make it slow to plan.
    self.window = min(window or sum(counts), sum(counts))
    self.rows = range(batch_size) if rows is None else rows
    self.order = Order(prepared.sizes, counts, seed)
    self.plan = functools.lru_cache(8)(self._plan)
    self.first_window = cursor[0]
    self.starts = [cursor[1]]  # first row of window first_window + i
    self.lock = threading.Lock()

  def __getstate__(self):
    return {k: v for k, v in self.__dict__.items() if k not in ("lock", "plan")}

  def __setstate__(self, state):
    self.__dict__.update(state)
    self.plan = functools.lru_cache(8)(self._plan)
    self.lock = threading.Lock()

  def _plan(self, w: int) -> Window:
    numbers = self.order.examples(w * self.window, (w + 1) * self.window)
    examples, rows = planned(self.recipe, self.prepared, numbers, rng(self.seed, "form", w))
    generator = rng(self.seed, "window", w)
    shuffled = generator.permutation(len(rows))
    if self.recipe.layout.group:  # an example is a row, so this window's first row is known
      shuffled = grouped(shuffled, ranks(self.recipe, examples, rows),
                         w * self.window, self.planned, generator)
    return Window(examples, [rows[i] for i in shuffled])

  def _locate(self, row: int) -> tuple[int, int]:
    """The window that holds row number `row` of the stream, and the window's first row."""
    with self.lock:
      if row < self.starts[0]:
        self.first_window, self.starts = 0, [0]
      while self.starts[-1] <= row:
        last = self.first_window + len(self.starts) - 1
        self.starts.append(self.starts[-1] + len(self.plan(last).rows))
      i = bisect.bisect_right(self.starts, row) - 1
      return self.first_window + i, self.starts[i]

  def cursor(self, step: int) -> tuple[int, int]:
    """Where planning may start for batch number `step`: (window, its first row)."""
    return self._locate(step * self.planned)

  def epochs(self, step: int) -> float:
    """Passes over the data in the batches before number `step`, to a row's share of its window."""
    row = step * self.planned
    at = row if row in (0, self.starts[0]) else row - 1  # no other window is planned for it
    w, first = self._locate(at)
    share = (row - first) / max(len(self.plan(w).rows), 1)
    return (w + share) * self.window / sum(self.order.counts)

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`; see `packing.assemble`."""
    plan, first_row = [], step * self.planned
    for row in range(first_row, first_row + self.planned):
      w, first = self._locate(row)
      window = self.plan(w)
      plan.append((window.examples, window.rows[row - first]))
    return read(self.recipe, plan, self.rows, self.seed, first_row, train=True)


def grouped(rows: np.ndarray, lengths: np.ndarray, first: int, batch_size: int,
            generator: np.random.Generator) -> np.ndarray:
  """Rows of a window in an order in which those of a batch are of similar length.

  Args:
    rows: numbers of the rows, shuffled.
    lengths: by number.
    first: place of the window's first row in the stream.
    batch_size: rows of a batch.
    generator: shuffles the batches; what the window has of its first and last batch stays there.
  """
  ordered = rows[np.argsort(lengths[rows], kind="stable")]
  batches = np.split(ordered, range(-first % batch_size, len(rows), batch_size))
  head, *middle = batches
  tail = [middle.pop()] if middle and len(middle[-1]) < batch_size else []
  return np.concatenate([head, *(middle[i] for i in generator.permutation(len(middle))), *tail])


def ranks(recipe: Recipe, examples: Any, rows: Sequence[np.ndarray]) -> np.ndarray:
  """[rows]: by which a batch has similar ones, of rows of an example each."""
  layout = recipe.layout
  return layout.rank(examples.lengths(np.concatenate(rows), layout.fields))


def planned(recipe: Recipe, prepared: Prepared | LazyExamples, numbers: np.ndarray,
            generator: np.random.Generator, train: bool = True) -> Window:
  """Examples, or what is formed of documents, as rows in the order given."""
  examples: Any = prepared
  if recipe.form is not None:
    examples = recipe.form.form(prepared, numbers, recipe.row_lengths(), generator)
  elif recipe.layout.by_size:
    examples = prepared.sized(numbers, generator if train else None)
  if examples is not prepared:
    numbers = np.arange(len(examples))
  rows = recipe.layout.plan(examples.lengths(numbers, recipe.layout.fields))
  return Window(examples, [numbers[row] for row in rows])


def laid(layout: LayoutOp, plan: Sequence[PlannedRow]) -> Sequence[PlannedRow]:
  """The rows of a batch, of which each has `fold` rows of the plan, not necessarily neighbours."""
  if layout.fold == 1:
    return plan
  examples = plan[0][0]  # of all rows: those that are formed anew in each window fill theirs
  numbers = np.concatenate([row for _, row in plan])
  rows = folded(examples.lengths(numbers, layout.fields), len(plan) // layout.fold, layout.fold)
  return [(examples, numbers[np.array(row, np.int64)]) for row in rows]


def read(recipe: Recipe, plan: Sequence[PlannedRow], rows: Sequence[int], seed: int,
         first_row: int, train: bool) -> Batch:
  """Some rows of a global batch, which is as long as all of its rows together ask for.

  Args:
    recipe: how rows are made.
    plan: `fold` rows of it for each row of the batch.
    rows: which ones to read; those that there are none of are padding.
    seed: of what is drawn anew for every row.
    first_row: number of the first row of the plan in its stream.
    train: whether images are augmented at random.
  """
  layout, plan = recipe.layout, list(laid(recipe.layout, plan))
  plan += [(plan[0][0], np.zeros(0, np.int64))] * (max(rows, default=0) + 1 - len(plan))
  layout = layout.fit(np.stack([examples.lengths(row, layout.fields).sum(0)
                                for examples, row in plan]))
  if recipe.augment:
    mine = [plan[r][0].after_ops(plan[r][1], rng(seed, "row", first_row + r) if train else None,
                                 layout) for r in rows]
    ids = [[example["id"] for example in row] for row in mine]
  else:
    mine = [[plan[r][0].example(i) for i in plan[r][1]] for r in rows]
    ids = [plan[r][0].ids[plan[r][1]] for r in rows]
  batch = assemble(layout, {**plan[0][0].columns, **layout.columns}, mine, ids)
  return altered(recipe, batch, seed, [first_row + r for r in rows])


def altered(recipe: Recipe, batch: Batch, seed: int, rows: Sequence[int]) -> Batch:
  """A batch after the ops that work on batches; what they draw is a function of seed and row."""
  if recipe.alter:
    generators = [rng(seed, "row", r) for r in rows]
    for op in recipe.alter:
      batch = op.alter(batch, generators)
  return batch


def example_batch(recipe: Recipe, batch_size: int) -> Batch:
  """A batch of padding, which has the keys, shapes and dtypes of all batches, but no ids."""
  layout = recipe.layout.fit(None)
  batch = assemble(layout, recipe.row_columns(), [[]] * batch_size, [[]] * batch_size)
  batch = altered(recipe, batch, 0, range(batch_size))
  batch.pop("ids")
  return batch


class Split:
  """Evaluation batches by number: every example once; the last is filled with padding.

  They are in order, but images whose batches have several shapes in that of their shapes, of which
  none is mixed with another: what is said of an image does not depend on the others.
  All that is formed and drawn is the same every time. Arguments are as for `eval_batches`.
  """

  def __init__(self, prepared: Prepared | LazyExamples, recipe: Recipe, batch_size: int,
               rows: Sequence[int] | None = None):
    self.examples, self.plan = planned(recipe, prepared, np.arange(len(prepared)),
                                       rng(0, "form", 0), train=False)
    self.planned = batch_size * recipe.layout.fold  # rows of the plan that a batch has
    if recipe.layout.by_size and self.plan:
      self.plan = batching.apart(self.plan, ranks(recipe, self.examples, self.plan), self.planned)
    self.plan += [np.zeros(0, np.int64)] * (-len(self.plan) % self.planned)
    self.recipe = recipe
    self.rows = range(batch_size) if rows is None else rows

  def __len__(self) -> int:
    return len(self.plan) // self.planned

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`."""
    start = step * self.planned
    plan = [(self.examples, row) for row in self.plan[start:start + self.planned]]
    return read(self.recipe, plan, self.rows, 0, start, train=False)


def eval_batches(prepared: Prepared | LazyExamples, recipe: Recipe, batch_size: int,
                 rows: Sequence[int] | None = None, threads: int = 0) -> Iterator[Batch]:
  """The batches of a `Split`.

  Args:
    prepared: the examples, or documents that examples are formed of.
    recipe: how they become rows.
    batch_size: rows of a global batch.
    rows: which rows of a batch this process reads; None is all. Those from `batch_size` on are
      padding.
    threads: that read ahead; 0 is for what is in memory.

  Raises:
    DataError: too many of the images can't be decoded.
  """
  split = Split(prepared, recipe, batch_size, rows)
  if threads:
    yield from iterate(split, 0, len(split), threads=threads, workers=0)
  else:
    yield from map(split.batch, range(len(split)))
  if recipe.augment:
    prepared.tally.finish()


# -------------------------------------------------------------------------- read ahead


class _Batches:
  """Batches `start` to `stop` of a stream as a Grain source."""

  def __init__(self, stream: Numbered, start: int, stop: int):
    self.stream, self.start, self.stop = stream, start, stop

  def __len__(self):
    return self.stop - self.start

  def __getitem__(self, i):
    return self.stream.batch(self.start + int(i))

  def __repr__(self):
    return f"batches {self.start} to {self.stop}"


def iterate(stream: Numbered, start: int, stop: int, *, threads: int,
            workers: int) -> Iterator[Batch]:
  """Batches start to stop, in order, read ahead by threads or by worker processes.

  Raises:
    DataError: a worker process was ended from outside.
  """
  import grain
  if start >= stop:
    return
  if not flags.FLAGS.is_parsed():
    flags.FLAGS.mark_as_parsed()  # Grain's workers read absl flags, also in a notebook
  dataset = grain.MapDataset.source(_Batches(stream, start, stop)).to_iter_dataset(
      grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads))
  if workers:
    dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
  iterator = iter(dataset)
  try:
    yield from iterator
  except RuntimeError as e:
    if "terminated unexpectedly" not in str(e):
      raise
    raise DataError(f"data.workers={workers}: one of these processes was ended from outside, as a"
                    f" machine short of memory does ({str(e).partition('. ')[0]}); the same command"
                    " goes on from the last checkpoint") from e
  finally:
    if hasattr(iterator, "close"):
      iterator.close()
