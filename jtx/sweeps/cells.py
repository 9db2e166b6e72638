"""Tables of a page: cells with a text for readers and a key by which a column is sorted."""

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from jtx.sweeps.report import number_text
from jtx.sweeps.sweep import word


@dataclasses.dataclass(frozen=True)
class Column:
  """The head of a column; `way` is "lower" or "higher" where one of its values is the best."""
  name: str
  number: bool = False
  way: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """A cell; it is sorted by `sort`, where "" comes last, and `n` is of how many runs it is."""
  text: str
  sort: str
  kind: str = ""
  best: bool = False
  n: int = 0


@dataclasses.dataclass(frozen=True)
class Table:
  columns: Sequence[Column]
  rows: Sequence[Sequence[Cell]]


def plain(value: Any) -> Cell:
  """A setting or a fact."""
  numeric = isinstance(value, (int, float)) and not isinstance(value, bool)
  return Cell(text=word(value), sort=sort_key(value) if numeric else word(value))


def long(value: Any) -> Cell:
  """A text that may have several lines."""
  return dataclasses.replace(plain(value), kind="long")


def number(value: Any) -> Cell:
  """A result; it may be a text, such as a signature."""
  if isinstance(value, float):
    return measured(value, number_text(value))
  return long(value) if isinstance(value, str) else measured(value, word(value))


def measured(value: float | None, text: str) -> Cell:
  """A number as a text of another form; nothing where there is none."""
  return Cell(text="" if value is None else text, sort=sort_key(value), kind="number")


def rate(value: float | None) -> Cell:
  return measured(value, "" if value is None else si(value))


def sort_key(value: float | None) -> str:
  """As the script reads numbers; what is missing, and NaN, comes last."""
  if value is None or math.isnan(value):
    return ""
  return repr(value) if math.isfinite(value) else f"{'-' * (value < 0)}Infinity"


def si(x: float) -> str:
  """ "5.54 k": three digits and the prefix of a thousand's power."""
  power = 0
  while abs(x) >= 999.5 and power < 6:
    x, power = x / 1000, power + 1
  return f"{x:#.3g}".rstrip(".") + ("", " k", " M", " G", " T", " P", " E")[power]
