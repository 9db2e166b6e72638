"""From sources to batches, where batch number g is a pure function of (seed, g).

Examples are tokenised once. The stream of examples is an endless sequence of epochs, each a
permutation; fixed windows of the stream are packed into rows, and the rows of a window are
permuted. Everything up to the batch can be looked up at random, so the step number is the
data position: any number of processes, workers or threads reads the same batches.
"""

import bisect
import collections
import dataclasses
import functools
import itertools
import threading
from typing import Any, Iterator, Mapping, NamedTuple, Sequence
import zlib

from absl import flags
from absl import logging
import numpy as np

from jtx.config import ConfigDict, ConfigError, build
from jtx.data import DataError
from jtx.data.ops_text import OPS
from jtx.data.packing import Column, Pack, Pad, assemble

Layout = Pack | Pad
Batch = dict[str, np.ndarray]

CHUNK = 4096  # examples prepared at a time
TOO_LONG = "longer than a row"  # why an example is dropped, where no op did it


def rng(seed: int, *path: str | int) -> np.random.Generator:
  """A generator that is a function of the seed and of what it is for."""
  words = [zlib.crc32(p.encode()) if isinstance(p, str) else p for p in path]
  return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *words])))


# ------------------------------------------------------------------------- preparation


def columns_of(op: Any) -> dict[str, Column]:
  """What an op makes for the model; most make nothing."""
  return getattr(op, "columns", {})


def makes_tokens(op: Any) -> bool:
  return any(column.kind == "tokens" for column in columns_of(op).values())


class Recipe(NamedTuple):
  """The ops of a config, by what they work on."""
  prepare: list[Any]  # an example, once
  form: Any  # documents: makes examples of them, others in every epoch; None: they are examples
  layout: Layout  # examples, into rows
  alter: list[Any]  # a batch

  def bind(self, tokenizers: Mapping[str, Any]) -> "Recipe":
    """The recipe with what its ops need to know of the tokenizers."""
    return self._replace(form=self.form and self.form.bind(tokenizers),
                         alter=[op.bind(tokenizers) for op in self.alter])

  def row_columns(self) -> dict[str, Column]:
    """What the examples in a row have."""
    return used_columns(self) if self.form is None else self.form.columns


def build_ops(configs: Sequence[ConfigDict]) -> Recipe:
  """The ops of a config's `data.ops`.

  Raises:
    ConfigError: an unknown op or key, not one layout, not one op that makes tokens, or an op out
      of its place.
  """
  ops = [build(OPS, c, what=f"data.ops[{i}]") for i, c in enumerate(configs)]
  names = [c.name for c in configs]
  what = f"data.ops ({', '.join(names)})"
  layouts = [i for i, op in enumerate(ops) if isinstance(op, Layout)]
  if len(layouts) != 1:
    raise ConfigError(f"{what}: needs one layout, 'pack' or 'pad'")
  at = layouts[0]
  forms = [i for i, op in enumerate(ops) if hasattr(op, "form")]
  if forms not in ([], [at - 1]):
    raise ConfigError(f"{what}: {names[forms[0]]!r} forms examples of documents; there is one such"
                      " op at most, right before the layout")
  for name, op in zip(names[at + 1:], ops[at + 1:]):
    if not hasattr(op, "alter"):
      raise ConfigError(f"{what}: {name!r} does not work on batches, so it stands before the"
                        " layout")
  for name, op in zip(names[:at], ops[:at]):
    if hasattr(op, "alter"):
      raise ConfigError(f"{what}: {name!r} works on batches, so it stands after the layout")
  makers = [i for i, op in enumerate(ops[:at]) if makes_tokens(op) and i not in forms]
  if len(makers) != 1:
    valid = ", ".join(repr(n) for n, op in OPS.items()
                      if hasattr(op, "columns") and not hasattr(op, "form"))
    raise ConfigError(f"{what}: needs one op that makes tokens, such as {valid}, before the"
                      " layout")
  if "filter_length" in names and names.index("filter_length") < makers[0]:
    raise ConfigError(f"data.ops: 'filter_length' counts tokens, so it stands after"
                      f" {names[makers[0]]!r}")
  made = tuple(f for f, c in columns_of(ops[makers[0]]).items() if c.kind == "tokens")
  for name, op in zip(names, ops):
    if name in ("filter_length", names[at]) and not set(op.fields) <= set(made):
      raise ConfigError(f"data.ops: {name!r} has fields={op.fields}, but {names[makers[0]]!r} makes"
                        f" only {made}")
  prepare = ops[:at - len(forms)]
  if forms and ops[at].group:
    raise ConfigError(f"{what}: group=True is for examples, and {names[forms[0]]!r} fills its rows")
  for i in (*forms, *range(at + 1, len(ops))):
    if not set(ops[i].needs) <= set(columns_of(ops[makers[0]])):
      raise ConfigError(f"{what}: {names[i]!r} needs what 'encode_sentences' makes")
  if len(ops) > at + 2:
    raise ConfigError(f"{what}: there is one op at most that works on batches")
  return Recipe(prepare, ops[forms[0]] if forms else None, ops[at], ops[at + 1:])


def text_ops(ops: Sequence[Any]) -> list[Any]:
  """The ops before the one that makes tokens."""
  return list(itertools.takewhile(lambda op: not makes_tokens(op), ops))


def texts(sources: Sequence, ops: Sequence[Any], fields: Sequence[str]) -> Iterator[str]:
  """The text of tokenizer fields before it becomes tokens, for training a tokenizer."""
  maker = next(filter(makes_tokens, ops))
  for source in sources:
    for examples in _chunks(source):
      for op in text_ops(ops):
        examples = op(examples, None)
      for e in examples:
        for f in fields:
          yield from maker.texts_of(e, f)


def _chunks(source, offset: int = 0) -> Iterator[list[dict[str, Any]]]:
  for start in range(0, len(source), CHUNK):
    stop = min(start + CHUNK, len(source))
    yield [{**source[i], "id": offset + i} for i in range(start, stop)]


@dataclasses.dataclass
class Prepared:
  """Tokenised examples, source after source, as flat arrays."""
  columns: dict[str, Column]
  # Of tokens and what is aligned with them: all examples one after the other. Else [examples].
  values: dict[str, np.ndarray]
  offsets: dict[str, np.ndarray]  # field -> int64 [examples + 1] into its values
  ids: np.ndarray  # [examples] int64: number of the example among all of all sources
  sizes: list[int]  # examples kept of each source

  def __len__(self) -> int:
    return len(self.ids)

  def example(self, i: int) -> dict[str, np.ndarray]:
    result = {}
    for name, values in self.values.items():
      field = field_of(name, self.columns[name])
      result[name] = (values[i] if field is None
                      else values[self.offsets[field][i]:self.offsets[field][i + 1]])
    return result

  def lengths(self, examples: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, fields] token counts."""
    return np.stack([self.offsets[f][examples + 1] - self.offsets[f][examples] for f in fields], -1)


def field_of(name: str, column: Column) -> str | None:
  """The field that a column is as long as, or None for one number an example."""
  return {"tokens": name, "example": None}.get(column.kind, column.kind.removeprefix("aligned:"))


def prepare(sources: Sequence, recipe: Recipe, tokenizers: dict) -> Prepared:
  """Runs the preparing ops over all sources, and drops examples that are longer than a row.

  Documents, of which examples are formed later, may be of any length.

  Raises:
    DataError: a source has no example left.
  """
  columns, fields = used_columns(recipe), recipe.layout.fields
  values: dict[str, list[np.ndarray]] = {name: [] for name in columns}
  lengths: dict[str, list[int]] = {f: [] for f in fields}
  ids, sizes, offset = [], [], 0
  for source in sources:
    before = len(ids)
    dropped = collections.Counter()
    for examples in _chunks(source, offset):
      examples = _run(recipe, examples, tokenizers, dropped)
      for name, column in columns.items():
        values[name].append(join([e[name] for e in examples], column))
      for f in fields:
        lengths[f] += [len(e[f]) for e in examples]
      ids += [e["id"] for e in examples]
    offset += len(source)
    sizes.append(len(ids) - before)
    tell_kept(source.name, len(source), sizes[-1], dropped)
  return Prepared(columns, {name: np.concatenate(parts) for name, parts in values.items()},
                  {f: np.cumsum([0, *n], dtype=np.int64) for f, n in lengths.items()},
                  np.array(ids, np.int64), sizes)


def tell_kept(name: str, read: int, kept: int, dropped: Mapping[str, int]) -> None:
  """Logs how many examples of a source are left, and how many were dropped by what.

  Raises:
    DataError: none is left.
  """
  told = ", ".join(f"{reason}: {count}" for reason, count in dropped.items() if count)
  if not kept:
    raise DataError(f"{name}: data.ops dropped all of its {read} examples ({told})")
  logging.info("%s: %d of %d examples%s", name, kept, read, f" (dropped: {told})" if told else "")


def used_columns(recipe: Recipe) -> dict[str, Column]:
  """What the preparing ops make, without the fields that the layout leaves out."""
  made = {name: column for op in recipe.prepare for name, column in columns_of(op).items()}
  return {name: column for name, column in made.items()
          if field_of(name, column) in (None, *recipe.layout.fields)}


def join(values: Sequence[Any], column: Column) -> np.ndarray:
  if column.kind == "example":
    return np.array(values, column.dtype)
  return np.concatenate([np.zeros(0, column.dtype), *values])


def _run(recipe: Recipe, examples: list[dict[str, Any]], tokenizers: dict,
         dropped: collections.Counter) -> list[dict[str, Any]]:
  """The examples that all ops and a row of the layout leave; counts the others by reason."""
  examples = run_ops(recipe.prepare, examples, tokenizers, dropped)
  limits = row_limits(recipe).items()
  fits = [e for e in examples if all(len(e[f]) <= n for f, n in limits)]
  dropped[TOO_LONG] += len(examples) - len(fits)
  return fits


def run_ops(ops: Sequence[Any], examples: list[dict[str, Any]], tokenizers: dict,
            dropped: collections.Counter) -> list[dict[str, Any]]:
  """The examples that preparing ops leave; counts those that they drop by the op's name."""
  names = {constructor: name for name, constructor in OPS.items()}
  for op in ops:
    count = len(examples)
    examples = op(examples, tokenizers)
    dropped[names[type(op)]] += max(count - len(examples), 0)  # some make several of one
  return examples


def row_limits(recipe: Recipe) -> dict[str, int]:
  """The most tokens of each field that an example may have; documents may be of any length."""
  return {} if recipe.form else dict(zip(recipe.layout.fields, recipe.layout.lengths))


# ------------------------------------------------------------------------ global order


def mixture_sizes(sizes: Sequence[int], weights: Sequence[float],
                  smoothing: float | None) -> list[int]:
  """How many examples of each source an epoch of sum(sizes) examples has.

  Args:
    sizes: of the sources.
    weights: one a source, need not sum to 1; empty is by size.
    smoothing: s takes sources by size^s instead (multilingual BERT uses 0.7).

  Raises:
    ConfigError: both are given, or weights of another number, negative, or all 0.
  """
  if weights and smoothing is not None:
    raise ConfigError("data.weights and data.smoothing exclude each other")
  if weights and (len(weights) != len(sizes) or not 0 < sum(weights) < np.inf or min(weights) < 0):
    raise ConfigError(f"data.weights={tuple(weights)}: needs a weight of 0 or more for each of the"
                      f" {len(sizes)} sources")
  power = 1.0 if smoothing is None else smoothing
  share = np.array(weights or [n ** power for n in sizes], float)
  exact = share / share.sum() * sum(sizes)
  counts = np.floor(exact).astype(int)
  # What rounding down left over goes to the largest remainders.
  counts[np.argsort(counts - exact, kind="stable")[:sum(sizes) - counts.sum()]] += 1
  return counts.tolist()


class Order:
  """The endless stream of examples: epoch after epoch, each shuffled.

  An epoch takes `counts[s]` examples of source s, which go through that source's own
  permutations in turn, so a source of weight 2 is seen twice where others are seen once.
  """

  def __init__(self, sizes: Sequence[int], counts: Sequence[int], seed: int):
    self.sizes, self.counts, self.seed = list(sizes), list(counts), seed
    self.starts = np.cumsum([0, *sizes])
    self.epoch = functools.lru_cache(2)(self._epoch)

  def __reduce__(self):
    return Order, (self.sizes, self.counts, self.seed)

  def _epoch(self, epoch: int) -> np.ndarray:
    """Example numbers of one epoch in order."""
    parts = []
    for s, (size, count) in enumerate(zip(self.sizes, self.counts)):
      first = epoch * count
      rounds = range(first // size, -(-(first + count) // size))
      draws = [rng(self.seed, "source", s, r).permutation(size) for r in rounds]
      if draws:
        skip = first - rounds[0] * size
        parts.append(self.starts[s] + np.concatenate(draws)[skip:skip + count])
    return rng(self.seed, "epoch", epoch).permutation(np.concatenate(parts))

  def examples(self, start: int, stop: int) -> np.ndarray:
    """Example numbers at places start to stop of the stream."""
    size = sum(self.counts)
    parts = []
    for epoch in range(start // size, -(-stop // size)):
      low = epoch * size
      parts.append(self.epoch(epoch)[max(start - low, 0):stop - low])
    return np.concatenate(parts)


class Window(NamedTuple):
  """Examples that were made into rows together."""
  examples: Any  # Prepared, or what a forming op made of it, which has the same methods
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

  def __init__(self, prepared: Prepared, recipe: Recipe, *, seed: int, batch_size: int,
               counts: Sequence[int], window: int, rows: Sequence[int] | None = None,
               cursor: tuple[int, int] = (0, 0)):
    if window < 0:
      raise ConfigError(f"data.window={window} must be positive, or 0 for an epoch")
    self.prepared, self.recipe, self.seed = prepared, recipe, seed
    self.batch_size = batch_size
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
      lengths = examples.lengths(np.concatenate(rows), self.recipe.layout.fields).max(1)
      shuffled = grouped(shuffled, lengths, w * self.window, self.batch_size, generator)
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
    return self._locate(step * self.batch_size)

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`; see `packing.assemble`."""
    plan, first_row = [], step * self.batch_size
    for row in range(first_row, first_row + self.batch_size):
      w, first = self._locate(row)
      window = self.plan(w)
      plan.append((window.examples, window.rows[row - first]))
    return read(self.recipe, plan, self.rows, self.seed, first_row)


class Phases:
  """Streams one after the other, as one: the rows of a later phase may be longer and fewer.

  Args:
    streams: one a phase.
    starts: the first step of each, from 0 up.
  """

  def __init__(self, streams: Sequence[Stream], starts: Sequence[int]):
    self.streams, self.starts = list(streams), list(starts)

  def phase(self, step: int) -> int:
    return bisect.bisect_right(self.starts, step) - 1

  def batch_size(self, step: int) -> int:
    return self.streams[self.phase(step)].batch_size

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`."""
    phase = self.phase(step)
    return self.streams[phase].batch(step - self.starts[phase])

  def cursor(self, step: int) -> tuple[int, int]:
    """Where planning may start for batch number `step`, within its phase."""
    phase = self.phase(step)
    return self.streams[phase].cursor(step - self.starts[phase])


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


def planned(recipe: Recipe, prepared: Prepared, numbers: np.ndarray,
            generator: np.random.Generator) -> Window:
  """Examples, or what is formed of documents, as rows in the order given."""
  examples = prepared
  if recipe.form is not None:
    examples = recipe.form.form(prepared, numbers, recipe.layout.lengths[0], generator)
    numbers = np.arange(len(examples))
  rows = recipe.layout.plan(examples.lengths(numbers, recipe.layout.fields))
  return Window(examples, [numbers[row] for row in rows])


def read(recipe: Recipe, plan: Sequence[tuple[Any, np.ndarray]], rows: Sequence[int], seed: int,
         first_row: int) -> Batch:
  """Some rows of a global batch, which is as long as all of its rows together ask for.

  Args:
    recipe: how rows are made.
    plan: of each row, where its examples are, and their numbers there.
    rows: which ones to read.
    seed: of what is drawn anew for every row.
    first_row: number of the first row of the plan in its stream.
  """
  layout = recipe.layout
  longest = max(examples.lengths(row, layout.fields).max(initial=1) for examples, row in plan)
  mine = [plan[r] for r in rows]
  batch = assemble(layout.fit(int(longest)), plan[0][0].columns,
                   [[examples.example(i) for i in row] for examples, row in mine],
                   [examples.ids[row] for examples, row in mine])
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
  batch = assemble(recipe.layout, recipe.row_columns(), [[]] * batch_size, [[]] * batch_size)
  batch = altered(recipe, batch, 0, range(batch_size))
  batch.pop("ids")
  return batch


def eval_batches(prepared: Prepared, recipe: Recipe, batch_size: int,
                 rows: Sequence[int] | None = None) -> Iterator[Batch]:
  """Every example once, in order; the last batch is filled with rows of padding.

  What is formed and drawn is the same every time.
  """
  examples, plan = planned(recipe, prepared, np.arange(len(prepared)), rng(0, "form", 0))
  plan += [np.zeros(0, np.int64)] * (-len(plan) % batch_size)
  for start in range(0, len(plan), batch_size):
    yield read(recipe, [(examples, row) for row in plan[start:start + batch_size]],
               range(batch_size) if rows is None else rows, 0, start)


# -------------------------------------------------------------------------- read ahead


class _Batches:
  """Batches `start` to `stop` of a stream as a Grain source."""

  def __init__(self, stream: Stream | Phases, start: int, stop: int):
    self.stream, self.start, self.stop = stream, start, stop

  def __len__(self):
    return self.stop - self.start

  def __getitem__(self, i):
    return self.stream.batch(self.start + int(i))

  def __repr__(self):
    return f"batches {self.start} to {self.stop}"


def iterate(stream: Stream | Phases, start: int, stop: int, *, threads: int,
            workers: int) -> Iterator[Batch]:
  """Batches start to stop, in order, read ahead by threads or by worker processes."""
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
  finally:
    if hasattr(iterator, "close"):
      iterator.close()
