"""Examples after the ops that run once: tokenised texts in memory, or images yet to be read."""

import collections
import dataclasses
from typing import Any, Iterator, Mapping, Sequence
import zlib

from absl import logging
import numpy as np

from jtx.data import recipes
from jtx.data.example import placed
from jtx.data.lazy import LazyExamples, Tally, texts_alone
from jtx.data.op import Column
from jtx.data.ops.registry import OPS
from jtx.data.sources.images import check_classes
from jtx.errors import DataError

CHUNK = 4096  # examples prepared at a time
TOO_LONG = "longer than a row"  # why an example is dropped, where no op did it


def texts(sources: Sequence, ops: Sequence[Any], fields: Sequence[str]) -> Iterator[str]:
  """The text of tokenizer fields before it becomes tokens, for training a tokenizer."""
  maker, empty = recipes.maker_of(ops), True
  for source in sources:
    for examples in ([e] for e in texts_alone(source)) if maker.of_images else _chunks(source):
      with placed(source):
        for op in () if maker.of_images else recipes.text_ops(ops):
          examples = op(examples, None)
        for text in (text for e in examples for f in fields for text in maker.texts_of(e, f)):
          empty = empty and not text.strip()
          yield text
  if empty:
    raise DataError(f"{', '.join(source.name for source in sources)}: all texts are empty")


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
  digests: list[str]  # of the kept examples of each source, by which they are known again

  def __len__(self) -> int:
    return len(self.ids)

  def example(self, i: int) -> dict[str, np.ndarray]:
    result = {}
    for name, values in self.values.items():
      field = recipes.field_of(name, self.columns[name])
      result[name] = (values[i] if field is None
                      else values[self.offsets[field][i]:self.offsets[field][i + 1]])
    return result

  def lengths(self, examples: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, fields] token counts."""
    return np.stack([self.offsets[f][examples + 1] - self.offsets[f][examples] for f in fields], -1)


def prepare(sources: Sequence, recipe: recipes.Recipe, tokenizers: dict) -> Prepared:
  """Runs the preparing ops over all sources, and drops examples that are longer than a row.

  Documents, of which examples are formed later, may be of any length.

  Raises:
    DataError: a source has no example left.
  """
  columns, fields = recipe.prepared_columns(), recipe.prepared_fields()
  values: dict[str, list[np.ndarray]] = {name: [] for name in columns}
  lengths: dict[str, list[int]] = {f: [] for f in fields}
  ids, sizes, digests, offset = [], [], [], 0
  for source in sources:
    before = len(ids)
    dropped, sums = collections.Counter(), collections.Counter()  # the latter are checksums
    for examples in _chunks(source, offset):
      with placed(source, offset):
        examples = _run(recipe, examples, tokenizers, dropped)
      for name, column in columns.items():
        values[name].append(join([e[name] for e in examples], column))
        sums["of", name] = zlib.crc32(values[name][-1], sums["of", name])
      for f in fields:
        lengths[f] += (own := [len(e[f]) for e in examples])
        sums["lengths", f] = zlib.crc32(np.array(own, np.int64), sums["lengths", f])
      ids += [e["id"] for e in examples]
    offset += len(source)
    sizes.append(len(ids) - before)
    digests.append(" ".join(f"{number:08x}" for _, number in sorted(sums.items())))
    tell_kept(source.name, len(source), sizes[-1], dropped)
  return Prepared(columns=columns, ids=np.array(ids, np.int64), sizes=sizes,
                  digests=digests,
                  values={name: np.concatenate(parts) for name, parts in values.items()},
                  offsets={f: np.cumsum([0, *n], dtype=np.int64) for f, n in lengths.items()})


def lazy(sources: Sequence, recipe: recipes.Recipe, warned: set[str] | None = None) -> LazyExamples:
  """The examples of sources of images, none of which is read yet.

  Args:
    sources: one after the other.
    recipe: with the names of the classes.
    warned: paths of broken images that were warned of before.

  Raises:
    DataError: a source has other classes than the run, or more boxes than a row.
  """
  decode = recipe.augment[0]
  for source in sources:
    if decode.labelled:
      check_classes(source, decode.names)
    room = getattr(recipe.layout, "max_boxes", 0)
    if room and (most := getattr(source, "most_boxes", 0)) > room:
      raise DataError(f"{source.name}: has an image with {most} boxes, which is more than"
                      f" max_boxes={room} of op images")
    logging.info("%s: %d images%s", source.name, len(source),
                 f" of {len(decode.names)} classes" if decode.labelled else "")
  return LazyExamples(sources, recipe.augment, recipe.prepared_columns(),
                      Tally(decode.max_bad, warned))


def tell_kept(name: str, read: int, kept: int, dropped: Mapping[str, int]) -> None:
  """Logs how many examples of a source are left, and how many were dropped by what.

  Raises:
    DataError: none is left.
  """
  told = ", ".join(f"{reason}: {count}" for reason, count in dropped.items() if count)
  if not kept:
    raise DataError(f"{name}: data.ops dropped all of its {read} examples ({told})")
  several = kept + sum(dropped.values()) > read  # an op that makes windows, say, of one
  what = f"{kept} examples, made of {read}" if several else f"{kept} of {read} examples"
  logging.info("%s: %s%s", name, what, f" (dropped: {told})" if told else "")


def join(values: Sequence[Any], column: Column) -> np.ndarray:
  if column.kind == "example":
    return np.array(values, column.dtype).reshape(-1, *column.shape)
  return np.concatenate([np.zeros(0, column.dtype), *values])


def _run(recipe: recipes.Recipe, examples: list[dict[str, Any]], tokenizers: dict,
         dropped: collections.Counter) -> list[dict[str, Any]]:
  """The examples that all ops and a row of the layout leave; counts the others by reason."""
  examples = run_ops(recipe.prepare, examples, tokenizers, dropped)
  limits = recipe.row_limits().items()
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
