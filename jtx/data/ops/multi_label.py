"""The op that makes labels of which an example may have any number, as rows of 0 and 1."""

import dataclasses
import functools
from typing import Any, Callable, Sequence

import numpy as np

from jtx.data.example import Example
from jtx.data.op import Column, ExampleOp
from jtx.data.ops.labels import (
    SHOWN, check_names, collected_names, index_of, is_unknown, known_names, value_of)
from jtx.errors import ConfigError, DataError, ExampleError, listed

SEPARATOR = ","


@dataclasses.dataclass(frozen=True)
class MultiLabel(ExampleOp):
  """The labels of an example, any number of them, as `label` [C] of 0 and 1.

  In an example they are a list of names or of numbers, which count from 0, or one text with
  `separator` between the names. An empty list, or text, is no label.
  """
  key: str = "label"  # of the labels in an example
  names: tuple[str, ...] = ()  # the labels in order; () is those of the training sources
  separator: str = SEPARATOR  # between the names where they are one text

  named = True

  def __post_init__(self):
    check_names("multi_label", self.names)
    if not self.separator:
      raise ConfigError("op multi_label: separator is empty; it stands between the names in a text")

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example", "int8", (len(self.names),))}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      items = items_of(value_of("multi_label", e, self.key), self.names, self.separator)
      e["label"] = multi_hot(items, self.names,
                             functools.partial(ExampleError, "multi_label", e["id"]))
    return examples

  def misfit(self, example: Example) -> str:
    value = example.get(self.key)
    if is_unknown(value):
      return ""
    try:
      multi_hot(items_of(value, self.names, self.separator), self.names, DataError)
    except DataError as e:
      return str(e)
    return ""

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    if not ops and (names := known_names("multi_label", self.key, sources)):
      return names

    def split(examples: list[Example], tokenizers) -> list[Example]:
      return [e | {self.key: items_of(value_of("multi_label", e, self.key), (), self.separator)}
              for e in examples]
    return collected_names("multi_label", self.key, sources, (*ops, split))


def items_of(value: Any, names: Sequence[str], separator: str = SEPARATOR) -> Any:
  """The labels that a value has, one by one; a row of 0 and 1 stays one.

  Args:
    value: a list, an array, or a text with separators.
    names: of the labels; a whole text that is one of them is not split.
    separator: between the names.
  """
  if isinstance(value, str):
    parts = [value] if value in names else value.split(separator)
    return [part.strip() for part in parts if part.strip()]
  if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "OUS":
    return value.tolist()
  if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
    return [value]  # of one label, as classes that exclude one another have it
  return list(value) if isinstance(value, tuple) else value


def multi_hot(items: Any, names: Sequence[str],
              wrong: Callable[[str], DataError]) -> np.ndarray:
  """[C] int8: 1 for the labels among `items`.

  Args:
    items: as `items_of` gives them: a list, or an array [C] of 0 and 1.
    names: of the C labels.
    wrong: makes the error of what is wrong with the example, "has the label ...".

  Raises:
    ConfigError: there are no names.
    DataError: a label that is not among the names, or twice.
  """
  if not names:
    raise ConfigError("op multi_label: there are no names of labels; write them in order into"
                      " `names`")
  valid = f"valid are {listed(names, SHOWN)}, in a list or in one text"
  is_row = isinstance(items, np.ndarray) and items.shape == (len(names),)
  if is_row and set(items.tolist()) <= {0, 1}:
    return items.astype(np.int8)
  if not isinstance(items, list):
    raise wrong(f"has the labels {items!r}; {valid}")
  row = np.zeros(len(names), np.int8)
  for item in items:
    place = index_of(item, names)
    if place is None:
      raise wrong(f"has the label {item!r}; {valid}")
    if row[place]:
      raise wrong(f"has the label {item!r} more than once")
    row[place] = 1
  return row
