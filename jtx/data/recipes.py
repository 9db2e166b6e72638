"""The ops of a config, and what those that run once make of its sources."""

import collections
import dataclasses
import itertools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from absl import logging
import numpy as np

from jtx.config import ConfigDict, build
from jtx.data.lazy import LazyExamples, Tally
from jtx.data.ops.image import DecodeImage, Images
from jtx.data.ops.text import OPS
from jtx.data.packing import Column, Pack, Pad
from jtx.data.sources.images import check_classes
from jtx.errors import ConfigError, DataError

Layout = Pack | Pad | Images

CHUNK = 4096  # examples prepared at a time
TOO_LONG = "longer than a row"  # why an example is dropped, where no op did it


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
  augment: Sequence[Any] = ()  # an image, whenever it is read, to what the layout takes

  def bind(self, tokenizers: Mapping[str, Any]) -> "Recipe":
    """The recipe with what its ops need to know of the tokenizers."""
    return self._replace(form=self.form and self.form.bind(tokenizers),
                         alter=[op.bind(tokenizers) for op in self.alter])

  def with_length(self, length: int | None) -> "Recipe":
    """The recipe with rows of `length` tokens; None is what the layout says.

    Raises:
      ConfigError: examples may be longer than `length`, or are images.
    """
    if length is None:
      return self
    if self.augment:
      raise ConfigError("config.phases: is for rows of tokens, and data.ops make images; leave it"
                        " unset")
    if self.form is None and length < max(self.layout.lengths):
      raise ConfigError(f"config.phases: rows of {length} tokens are too short for examples of up"
                        f" to lengths={self.layout.lengths}, which the layout keeps; give it"
                        " the shortest phase's")
    lengths = (length,) * len(self.layout.fields)
    return self._replace(layout=dataclasses.replace(self.layout, lengths=lengths))

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
    raise ConfigError(f"{what}: needs one layout, 'pack' or 'pad', or 'images' for images")
  of_kind = _image_recipe if any(hasattr(op, "augment") for op in ops) else _text_recipe
  return of_kind(ops, names, layouts[0], what)


def _check_places(ops: Sequence[Any], names: Sequence[str], at: int, what: str) -> None:
  """Raises ConfigError where an op stands on the wrong side of the layout, which is at `at`."""
  for name, op in zip(names[at + 1:], ops[at + 1:]):
    if not hasattr(op, "alter"):
      raise ConfigError(f"{what}: {name!r} does not work on batches, so it stands before the"
                        " layout")
  for name, op in zip(names[:at], ops[:at]):
    if hasattr(op, "alter"):
      raise ConfigError(f"{what}: {name!r} works on batches, so it stands after the layout")


def _image_recipe(ops: list[Any], names: list[str], at: int, what: str) -> Recipe:
  """The recipe of ops of which one at least works on images; `at` is the layout's place."""
  image_op = next(name for name, op in zip(names, ops) if hasattr(op, "augment"))
  for name, op in zip(names, ops):
    if not hasattr(op, "augment"):
      raise ConfigError(f"{what}: {name!r} is for texts and {image_op!r} for images, so they have"
                        " no place in one list")
  _check_places(ops, names, at, what)
  if [i for i, op in enumerate(ops) if isinstance(op, DecodeImage)] != [0]:
    raise ConfigError(f"{what}: needs one 'decode_image', as its first op")
  sized = [i for i, op in enumerate(ops[:at]) if hasattr(op, "size")]
  for i, key in ((0, "channels"), *((i, "size") for i in sized[-1:])):
    if getattr(ops[i], key) != getattr(ops[at], key):
      raise ConfigError(f"{what}: {names[i]!r} has {key}={getattr(ops[i], key)}, but {names[at]!r}"
                        f" has {key}={getattr(ops[at], key)}")
  return Recipe([], None, ops[at], [], ops)


def _text_recipe(ops: list[Any], names: list[str], at: int, what: str) -> Recipe:
  """The recipe of ops that work on texts; `at` is the layout's place."""
  forms = [i for i, op in enumerate(ops) if hasattr(op, "form")]
  if forms not in ([], [at - 1]):
    raise ConfigError(f"{what}: {names[forms[0]]!r} forms examples of documents; there is one such"
                      " op at most, right before the layout")
  _check_places(ops, names, at, what)
  makers = [i for i, op in enumerate(ops[:at]) if makes_tokens(op) and i not in forms]
  if len(makers) != 1:
    valid = ", ".join(repr(n) for n, op in OPS.items()
                      if hasattr(op, "columns") and not hasattr(op, "form")
                      and not hasattr(op, "augment"))
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
  return {"tokens": name, "example": None, "array": None}.get(
      column.kind, column.kind.removeprefix("aligned:"))


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


def lazy(sources: Sequence, recipe: Recipe, warned: set[str] | None = None) -> LazyExamples:
  """The examples of sources of images, none of which is read yet.

  Args:
    sources: one after the other.
    recipe: with the names of the classes.
    warned: paths of broken images that were warned of before.

  Raises:
    DataError: a source has other classes than the run.
  """
  decode = recipe.augment[0]
  for source in sources:
    check_classes(source, decode.names)
    logging.info("%s: %d images of %d classes", source.name, len(source), len(decode.names))
  return LazyExamples(sources, recipe.augment, used_columns(recipe),
                      Tally(decode.max_bad, warned))


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
  """What the ops make of an example, without the fields that the layout leaves out."""
  made = {name: column for op in (*recipe.prepare, *recipe.augment)
          for name, column in columns_of(op).items()}
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
