"""Layouts: how examples of many lengths become rows of one shape."""

import dataclasses
from typing import Mapping, Sequence

import numpy as np

from jtx.data import batching
from jtx.data.op import Column, LayoutOp
from jtx.errors import ConfigError
from jtx.ranges import Size


@dataclasses.dataclass(frozen=True)
class Pad(LayoutOp):
  """One example a row, padded to `lengths` tokens of each field.

  With `trim` the rows of a batch whose examples are shorter are cut to one of few lengths, for
  each of which the train step is compiled once (`jtx.data.batching.bucket`). With `group` a batch
  has examples of similar length, so that less of it is padding. With `max_segments` S above 1 a
  batch has S examples for each of its rows, the same ones as with S times as many rows, and they
  are laid into rows of about equal length, up to S times as long.
  """
  fields: tuple[str, ...] = ("src", "tgt")  # of tokens, that a row has
  lengths: tuple[Size, ...] = (128, 128)  # of an example, in tokens of each field
  trim: bool = False  # rows are cut to what the batch needs
  group: bool = False  # a batch has examples of similar length
  per_doubling: Size = 2  # lengths that trim cuts to, from one power of two to the next
  max_segments: Size = 1  # S, examples of a row

  def __post_init__(self):
    check_lengths(self)

  @property
  def fold(self) -> int:
    return self.max_segments

  def fit(self, lengths: np.ndarray | None) -> "Pad":
    """The layout of a batch, which with `trim` is as long as the longest field of any row asks."""
    most = [n * self.fold for n in self.lengths]
    if self.trim and lengths is not None:
      longest = int(lengths.max(initial=1))
      most = [batching.bucket(longest, n, steps=self.per_doubling) for n in most]
    return dataclasses.replace(self, lengths=tuple(most))

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]


@dataclasses.dataclass(frozen=True)
class Pack(LayoutOp):
  """Several examples a row, by first fit over the examples in the order given.

  An example goes into the first row with room for all of its fields. Of the rows begun,
  the last `open_rows` are looked at, which bounds the work (about 3 microseconds an
  example) and costs less than 1 % of the room.
  """
  fields: tuple[str, ...] = ("src", "tgt")  # of tokens, that a row has
  lengths: tuple[Size, ...] = (128, 128)  # of a row, in tokens of each field
  max_segments: Size = 64  # examples of a row, at most
  open_rows: Size = 32  # rows that are looked at for an example, the last that were begun

  group = False  # all rows are full

  def __post_init__(self):
    check_lengths(self)

  def fit(self, lengths: np.ndarray | None) -> "Pack":
    del lengths  # rows are full
    return self

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    """Rows of indices into `lengths` [examples, fields], none of which exceeds a row."""
    # The room left in a row, all fields in one integer: a lane of bits a field, whose top
    # bit stays set unless more is taken from the lane than it has.
    bits = max(self.lengths).bit_length() + 1
    guards = _lanes([1 << (bits - 1)] * len(self.fields), bits)
    least = _lanes([1] * len(self.fields), bits)
    empty = guards + _lanes(self.lengths, bits)
    rows: list[list[int]] = []
    open_rows: list[list[int]] = []
    rooms: list[int] = []  # of the open rows
    for i, example in enumerate(lengths.tolist()):
      need = _lanes(example, bits)
      for at, room in enumerate(rooms):
        if (room - need) & guards == guards:
          break
      else:
        at = len(rooms)
        rows.append([])
        open_rows.append(rows[-1])
        rooms.append(empty)
      open_rows[at].append(i)
      rooms[at] -= need
      if len(open_rows[at]) == self.max_segments or (rooms[at] - least) & guards != guards:
        del open_rows[at], rooms[at]
      elif len(rooms) > self.open_rows:
        del open_rows[0], rooms[0]
    return rows


def folded(lengths: np.ndarray, rows: int, most: int) -> list[list[int]]:
  """Examples laid into rows of about equal length.

  From the longest on, each goes into the row that is the shortest by then and has fewer than
  `most` (Graham 1969, longest processing time first).

  Args:
    lengths: [examples, fields], of `rows * most` examples at most.
    rows: how many there are.
    most: examples of a row.

  Returns:
    Indices into `lengths` of each row, in their order.
  """
  totals = np.zeros((rows, lengths.shape[1]), np.int64)
  result: list[list[int]] = [[] for _ in range(rows)]
  for i in np.argsort(-lengths.max(1), kind="stable").tolist():
    free = [r for r in range(rows) if len(result[r]) < most]
    row = min(free, key=lambda r: totals[r].max())
    result[row].append(i)
    totals[row] += lengths[i]
  return [sorted(row) for row in result]


def _lanes(values: Sequence[int], bits: int) -> int:
  return sum(v << (bits * f) for f, v in enumerate(values))


def check_lengths(layout: "Pad | Pack") -> None:
  if len(layout.fields) != len(layout.lengths) or not layout.lengths:
    raise ConfigError(f"op {type(layout).__name__.lower()}: lengths={layout.lengths} must give a"
                      f" length for each of the fields {', '.join(layout.fields)}")


def assemble(layout: "Pad | Pack", columns: Mapping[str, Column],
             rows: Sequence[Sequence[Mapping[str, np.ndarray]]],
             ids: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
  """Rows of examples as arrays.

  Args:
    layout: what fields a row has, and their lengths.
    columns: what the examples have.
    rows: the examples of each row.
    ids: their numbers.

  Returns:
    For each field f of length L, `f [R, L, *shape]`, int32 `f_segment_ids [R, L]` (1, 2, ... in
    the order of the row, 0 is padding), `f_positions [R, L]` (from 0 in every segment), and
    [R, L, *shape] of what is aligned with f; the columns of one number an example
    `[R, max_segments]`, and of several `[R, max_segments, *shape]`; arrays `[R, *shape]`; and int64
    `ids [R, max_segments]`, -1 where there is no example.
  """
  batch = {}
  for f, length in zip(layout.fields, layout.lengths):
    names = [f, *(name for name, c in columns.items() if c.kind == f"aligned:{f}")]
    arrays = {name: np.zeros((len(rows), length, *columns[name].shape), columns[name].dtype)
              for name in names}
    segments, positions = (np.zeros((len(rows), length), np.int32) for _ in range(2))
    for r, row in enumerate(rows):
      at = 0
      for segment, example in enumerate(row, 1):
        place = slice(at, at + len(example[f]))
        for name, array in arrays.items():
          array[r, place] = example[name]
        segments[r, place] = segment
        positions[r, place] = np.arange(len(example[f]))
        at = place.stop
    batch |= {**arrays, f"{f}_segment_ids": segments, f"{f}_positions": positions}
  for name, column in columns.items():
    if column.kind == "example":
      batch[name] = np.zeros((len(rows), layout.max_segments, *column.shape), column.dtype)
      for r, row in enumerate(rows):
        for s, example in enumerate(row):
          batch[name][r, s] = example[name]
    elif column.kind == "array":
      batch[name] = np.full((len(rows), *column.shape), column.fill, column.dtype)
      for r, row in enumerate(rows):
        for example in row:
          batch[name][r] = example[name]
  batch["ids"] = np.full((len(rows), layout.max_segments), -1, np.int64)
  for r, row in enumerate(ids):
    batch["ids"][r, :len(row)] = row
  return batch
