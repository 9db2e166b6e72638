"""Layouts: how examples of many lengths become rows of one shape."""

import dataclasses
from typing import Mapping, Sequence

import numpy as np

from jtx.config import ConfigError


@dataclasses.dataclass(frozen=True)
class Pad:
  """One example a row, padded to `lengths` tokens of each field."""
  fields: tuple[str, ...] = ("src", "tgt")
  lengths: tuple[int, ...] = (128, 128)

  max_segments = 1

  def __post_init__(self):
    check_lengths(self)

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]


@dataclasses.dataclass(frozen=True)
class Pack:
  """Several examples a row, by first fit over the examples in the order given.

  An example goes into the first row with room for all of its fields. Of the rows begun,
  the last `open_rows` are looked at, which bounds the work (about 5 microseconds an
  example) and costs about 1 % of the room.
  """
  fields: tuple[str, ...] = ("src", "tgt")
  lengths: tuple[int, ...] = (128, 128)
  max_segments: int = 64
  open_rows: int = 32

  def __post_init__(self):
    check_lengths(self)
    if self.max_segments < 1 or self.open_rows < 1:
      raise ConfigError("op pack: max_segments and open_rows must be positive")

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    """Rows of indices into `lengths` [examples, fields], none of which exceeds a row."""
    rows: list[list[int]] = []
    open_rows: list[tuple[list[int], list[int]]] = []  # (row, room left in each field)
    for i, need in enumerate(lengths.tolist()):
      for row, room in open_rows:
        if all(r >= n for r, n in zip(room, need)):
          row.append(i)
          for f, n in enumerate(need):
            room[f] -= n
          if len(row) == self.max_segments or not all(room):
            open_rows.remove((row, room))
          break
      else:
        row = [i]
        rows.append(row)
        if self.max_segments > 1:
          open_rows.append((row, [size - n for size, n in zip(self.lengths, need)]))
          if len(open_rows) > self.open_rows:
            open_rows.pop(0)
    return rows


def check_lengths(layout: "Pad | Pack") -> None:
  if len(layout.fields) != len(layout.lengths) or min(layout.lengths, default=0) < 1:
    raise ConfigError(f"op {type(layout).__name__.lower()}: lengths={layout.lengths} must give a"
                      f" positive length for each of the fields {', '.join(layout.fields)}")


def assemble(layout: "Pad | Pack", rows: Sequence[Sequence[Mapping[str, np.ndarray]]],
             ids: Sequence[Sequence[int]]) -> dict[str, np.ndarray]:
  """Rows of examples as arrays.

  Returns:
    For each field f of length L, int32 `f [R, L]`, `f_segment_ids [R, L]` (1, 2, ... in the
    order of the row, 0 is padding) and `f_positions [R, L]` (from 0 in every segment); and
    int64 `ids [R, max_segments]`, -1 where there is none.
  """
  batch = {}
  for f, length in zip(layout.fields, layout.lengths):
    tokens, segments, positions = (np.zeros((len(rows), length), np.int32) for _ in range(3))
    for r, row in enumerate(rows):
      at = 0
      for segment, example in enumerate(row, 1):
        place = slice(at, at + len(example[f]))
        tokens[r, place] = example[f]
        segments[r, place] = segment
        positions[r, place] = np.arange(len(example[f]))
        at = place.stop
    batch |= {f: tokens, f"{f}_segment_ids": segments, f"{f}_positions": positions}
  batch["ids"] = np.full((len(rows), layout.max_segments), -1, np.int64)
  for r, row in enumerate(ids):
    batch["ids"][r, :len(row)] = row
  return batch
