"""Texts of many lengths as batches of few shapes, for inference."""

from typing import Mapping, Sequence

import numpy as np

MIN_BUCKET = 16
NO_LIMIT = 1 << 30


def bucket(length: int, limit: int, least: int = MIN_BUCKET, steps: int = 2) -> int:
  """The padded length: powers of two and steps between them, up to the limit.

  Args:
    length: to be padded.
    limit: of all lengths.
    least: the shortest padded length, a power of two.
    steps: from one power of two to the next, a power of two.
  """
  size = least
  while size < length:
    size += max((1 << (size.bit_length() - 1)) // steps, 1)
  return min(size, limit)


def groups(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
  """Indices of the texts, shortest first, a batch at a time."""
  order = np.argsort(lengths, kind="stable").tolist()
  return [order[i:i + batch_size] for i in range(0, len(order), batch_size)]


def pad(field: str, rows: Sequence[np.ndarray], size: int, length: int,
        aligned: Mapping[str, Sequence[np.ndarray]] = {}, pad_id: int = 0) -> dict[str, np.ndarray]:
  """Tokens, one text a row, as a model's inputs [size, length]; see `jtx.data.packing.assemble`.

  Args:
    field: their name.
    rows: up to `size` arrays of ids; rows without one are padding.
    size: B.
    length: T, of the longest at least.
    aligned: arrays as long as the rows, by the suffix of their name ("_types").
    pad_id: stands after the ids.
  """
  batch = {field: np.full((size, length), pad_id, np.int32),
           f"{field}_segment_ids": np.zeros((size, length), np.int32),
           **{f"{field}{suffix}": np.zeros((size, length), np.int32) for suffix in aligned}}
  for row, ids in enumerate(rows):
    batch[field][row, :len(ids)], batch[f"{field}_segment_ids"][row, :len(ids)] = ids, 1
    for suffix, values in aligned.items():
      batch[f"{field}{suffix}"][row, :len(ids)] = values[row]
  positions = np.broadcast_to(np.arange(length, dtype=np.int32), (size, length))
  return {**batch, f"{field}_positions": positions}


def apart(rows: Sequence[np.ndarray], kinds: np.ndarray, size: int) -> list[np.ndarray]:
  """Rows kind after kind, in whole batches of `size`; where a kind ends there are empty ones."""
  result: list[np.ndarray] = []
  for kind in np.unique(kinds):
    result += [rows[i] for i in np.flatnonzero(kinds == kind)]
    result += [np.zeros(0, np.int64)] * (-len(result) % size)
  return result
