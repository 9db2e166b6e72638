"""Ops that make the labels of examples: classes and numbers."""

import collections
import dataclasses
import functools
import math
from typing import Any, Iterator, Sequence

from absl import logging
import numpy as np

from jtx.data.example import Example, placed
from jtx.data.op import Column, ExampleOp
from jtx.errors import ConfigError, DataError, ExampleError, listed
from jtx.ranges import NotNegative

SHOWN = 20  # names that a message has at most
TO_PREDICT = ("; for a number that is to be predicted take the op 'number', as the config"
              " classify.py does with names=")
UNKNOWN = (None, "", "?", "-1", -1)  # labels of examples that are yet to be predicted


@dataclasses.dataclass(frozen=True)
class Label(ExampleOp):
  """The class of an example as `label`: a name is looked up, an int is an index of `names`.

  Where all names are numbers, an int is looked up too, so that stars from 1 to 5 are their names.
  """
  key: str = "label"  # of the class in an example
  names: tuple[str, ...] = ()  # the classes in order; () is those of the training sources

  named = True

  def __post_init__(self):
    check_names("label", self.names)

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      e["label"] = np.int32(class_of("label", e, self.key, self.names))
    return examples

  def misfit(self, example: Example) -> str:
    value = example.get(self.key)
    if is_unknown(value) or index_of(value, self.names) is not None:
      return ""
    return (f"{self.key!r} is {value!r}, but in the data of the run it is a label, one of"
            f" {listed(self.names, SHOWN)}{hint(self.names)}")

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    return collected_names("label", self.key, sources, ops)


def is_unknown(value: Any) -> bool:
  """Whether a label stands for none: that of an example that is yet to be predicted."""
  return not isinstance(value, (list, tuple, np.ndarray)) and value in UNKNOWN


def check_names(op: str, names: Sequence[str]) -> None:
  """Raises ConfigError where a name of a class or tag stands more than once."""
  if double := sorted(name for name, n in collections.Counter(names).items() if n > 1):
    raise ConfigError(f"op {op}: names has {', '.join(double)} more than once")


def value_of(op: str, example: Example, key: str) -> Any:
  if key not in example:
    keys = ", ".join(k for k in example if k != "id")
    raise ExampleError(op, example["id"], f"has no {key!r}; it has {keys}")
  return example[key]


def class_of(op: str, example: Example, key: str, names: Sequence[str]) -> int:
  value = value_of(op, example, key)
  if not names:
    raise ConfigError(f"op {op}: names is empty; it must name the classes in order")
  index = index_of(value, names)
  if index is None:
    counted = list(names) == [str(i) for i in range(len(names))] or not are_numbers(tuple(names))
    raise ExampleError(op, example["id"], f"has {key}={example[key]!r}; valid are"
                       f" {listed(names, SHOWN)}"
                       + (f", or their numbers 0 to {len(names) - 1}" if counted else "")
                       + (" (-1 stands for an unknown label)" if str(example[key]) == "-1" else "")
                       + hint(names))
  return index


def hint(names: Sequence[str]) -> str:
  """How numbers are predicted, where classes are many and most of them are numbers."""
  numbers = sum(math.isfinite(number_of(name)) for name in names)
  return TO_PREDICT if len(names) > SHOWN and 2 * numbers > len(names) else ""


def index_of(value: Any, names: Sequence[str]) -> int | None:
  """The place of a name in `names`, or of an int that is a place; None if it is neither.

  Where all names are numbers, an int is a name.
  """
  if isinstance(value, str):
    return names.index(value) if value in names else None
  name = name_of(value)
  if name in names and (isinstance(value, (bool, np.bool_)) or are_numbers(tuple(names))):
    return names.index(name)
  if name is None or isinstance(value, (bool, np.bool_)) or are_numbers(tuple(names)):
    return None
  return int(value) if 0 <= value < len(names) else None


def name_of(value: Any) -> str | None:
  """The name of a class that has this label, of text or a whole number or a bool; None of others.

  Tables have whole numbers as floats where values are missing in the column.
  """
  if isinstance(value, str):
    return value
  if isinstance(value, (bool, np.bool_)):
    return "true" if value else "false"
  if isinstance(value, (int, np.integer)):
    return str(int(value))
  if isinstance(value, (float, np.floating)) and float(value).is_integer():
    return str(int(value))
  return None


@functools.lru_cache
def are_numbers(names: tuple[str, ...]) -> bool:
  """Whether all names are whole numbers, so that an int is a name and no place among them."""
  return all(name.removeprefix("-").isdecimal() for name in names)


# -------------------------------------------------------------------------- collecting


def collected_names(op: str, key: str, sources: Sequence[Any],
                    ops: Sequence[Any] = ()) -> tuple[str, ...]:
  """The labels that training sources have, for the `names` of an op: by size if all are numbers.

  A source that knows the names of a column, as a ClassLabel of `datasets` does, gives them in its
  order. Else all examples are read. A label may be a list, of which each item is one.

  Args:
    op: the op's name, for messages.
    key: of the label in an example.
    sources: of the run.
    ops: that run over an example before `op` does.

  Raises:
    DataError: a label that is no class, labels that look like a number to be predicted or like
      texts, a header that was read as an example, or sources with other classes.
  """
  names = known_names(op, key, sources) if not ops else ()
  if not names:
    counts = collections.Counter()
    for source in sources:
      counts += _counted(op, key, source, ops)
    if len(counts) == counts.total() > 50:
      raise DataError(f"op {op}: all {counts.total():,} examples have another {key!r}, so it is no"
                      " class; is another column that of the classes?")
    numbers = are_numbers(tuple(counts))
    names = tuple(sorted(counts, key=int if numbers else None))
  logging.info("%d classes: %s", len(names), listed(names, SHOWN))
  return names


def known_names(op: str, key: str, sources: Sequence[Any]) -> tuple[str, ...]:
  """The classes of a column in order, which a source may know; () where none does.

  Raises:
    DataError: sources know others.
  """
  told = [source.names_of(key) for source in sources if hasattr(source, "names_of")]
  known = list(dict.fromkeys(filter(None, told)))
  if len(known) > 1:
    raise DataError(f"op {op}: the training sources have other classes each,"
                    f" {' and '.join(', '.join(names) for names in known)}")
  return known[0] if known else ()


def values_of(source: Any, key: str, ops: Sequence[Any]) -> Iterator[tuple[Example, Any]]:
  """Each example of a source after `ops`, and its value of a key.

  Without ops, a source that reads columns by themselves reads only this one.
  """
  if not ops and hasattr(source, "column"):
    yield from (({"id": i, key: value}, value) for i, value in enumerate(source.column(key)))
    return
  for i in range(len(source)):
    examples = [{**source[i], "id": i}]
    for op in ops:
      examples = op(examples, None)
    yield from ((e, value_of("label", e, key)) for e in examples)


def _counted(op: str, key: str, source: Any, ops: Sequence[Any]) -> collections.Counter:
  """How often a source has each label, by its name.

  Raises:
    DataError: see `collected_names`.
  """
  counts, first = collections.Counter(), None
  with placed(source):
    for example, value in values_of(source, key, ops):
      for item in value if isinstance(value, (list, tuple, np.ndarray)) else (value,):
        name = name_of(item)
        if not name:
          raise ExampleError(op, example["id"],
                             f"has {key}={item!r}, which is no class{_cure(item)}")
        counts[name] += 1
        first = name if first is None else first
  if key.isdecimal() and counts[first] == 1 and len(counts) > 1 and (
      min(n for name, n in counts.items() if name != first) > 1):
    raise DataError(f"{source.name}: the {key!r} of its first line, {first!r}, is that of no other"
                    " line, so the line looks like a header; tables with a header are read by"
                    f" table: or csv: (if it is a class, write all classes in order into the names"
                    f" of {op!r})")
  return counts


def _cure(value: Any) -> str:
  if isinstance(value, (float, np.floating)) and math.isfinite(value):
    return TO_PREDICT
  return ", but empty" if value is None or value == "" or value != value else ""


@dataclasses.dataclass(frozen=True)
class Number(ExampleOp):
  """A number to be predicted, as `label`, float32: example[key] times `scale`."""
  key: str  # of the number in an example
  scale: float = 1.0  # that the number is multiplied by
  limit: NotNegative = 0.0  # how far from 0 the product may be, 1 of cosines; 0 is any

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example", "float32")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      number = number_of(value := value_of("number", e, self.key))
      if not math.isfinite(number):
        raise ExampleError("number", e["id"], f"has {self.key}={value!r}, which is not a"
                           " finite number")
      if self._beyond(number):
        raise ExampleError("number", e["id"], f"has {self.key}={value!r}, which times"
                           f" scale={self.scale:g} is {number * self.scale:g}, and must be from"
                           f" {-self.limit:g} to {self.limit:g}; set scale so that all numbers are,"
                           " such as 0.2 for scores from 0 to 5")
      e["label"] = np.float32(number * self.scale)
    return examples

  def _beyond(self, number: float) -> bool:
    """Whether a number is too large; what rounding adds does not count."""
    return 0 < self.limit * (1 + 1e-6) < abs(number * self.scale)

  def misfit(self, example: Example) -> str:
    value = example.get(self.key)
    number = number_of(value)
    if is_unknown(value) or math.isfinite(number) and not self._beyond(number):
      return ""
    limited = f", which times {self.scale:g} is from {-self.limit:g} to {self.limit:g}"
    return (f"{self.key!r} is {value!r}, but in the data of the run it is a number"
            + limited * bool(self.limit))


def number_of(value: Any) -> float:
  """A number, or the text of one; NaN of others."""
  try:
    return float(value)
  except (TypeError, ValueError):
    return math.nan
