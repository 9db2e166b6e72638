"""Examples formed of documents, which forming ops make for a window of them.

A form makes one field of a document or several, of any lengths: it derives from
`jtx.data.op.FormOp`, and what it forms from `Formed`.
"""

from typing import Any, Mapping, Sequence

import numpy as np

from jtx.data.op import Column


class Formed:
  """Examples that were formed of documents, by number; a Stream takes them as it takes Prepared.

  A subclass makes an example in `example`, when a batch has it.

  Args:
    columns: that examples have.
    lengths: [examples] tokens of each example in each field.
    ids: [examples] int64, a number that tells examples apart.
  """

  def __init__(self, columns: Mapping[str, Column], lengths: Mapping[str, np.ndarray],
               ids: np.ndarray):
    self.columns, self.ids = dict(columns), ids
    self._lengths = {field: np.asarray(counts, np.int64) for field, counts in lengths.items()}

  def __len__(self) -> int:
    return len(self.ids)

  def lengths(self, numbers: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, fields] token counts."""
    return np.stack([self._lengths[field][numbers] for field in fields], -1)

  def example(self, i: int) -> dict[str, np.ndarray]:
    """An example's columns."""
    raise NotImplementedError


class Opened:
  """Documents that are read once, however many examples are formed of them."""

  def __init__(self, documents: Any):
    self.ids = documents.ids
    self._documents, self._read = documents, {}

  def example(self, number: int) -> dict[str, np.ndarray]:
    if number not in self._read:
      self._read[number] = self._documents.example(number)
    return self._read[number]
