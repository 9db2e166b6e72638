"""Ops that make the labels of examples: classes and numbers."""

import dataclasses
import math
from typing import Any, Sequence

import numpy as np

from jtx.data.example import Example
from jtx.data.op import Column, ExampleOp
from jtx.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class Label(ExampleOp):
  """The class of an example as `label`: a name is looked up, an int is an index of `names`."""
  key: str = "label"
  names: tuple[str, ...] = ("0", "1")

  named = True

  def __post_init__(self):
    check_names("label", self.names)
    if not self.names:
      raise ConfigError("op label: names is empty; it must name the classes in order")

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      e["label"] = np.int32(class_of("label", e, self.key, self.names))
    return examples


def check_names(op: str, names: Sequence[str]) -> None:
  """Raises ConfigError where a name of a class or tag stands more than once."""
  if double := sorted({name for name in names if names.count(name) > 1}):
    raise ConfigError(f"op {op}: names has {', '.join(double)} more than once")


def value_of(op: str, example: Example, key: str) -> Any:
  if key not in example:
    keys = ", ".join(k for k in example if k != "id")
    raise DataError(f"op {op}: example {example['id']} has no {key!r}; it has {keys}")
  return example[key]


def class_of(op: str, example: Example, key: str, names: Sequence[str]) -> int:
  index = index_of(value_of(op, example, key), names)
  if index is None:
    raise DataError(f"op {op}: example {example['id']} has {key}={example[key]!r}; valid are"
                    f" {', '.join(names)}, or their numbers 0 to {len(names) - 1}"
                    + (" (-1 stands for an unknown label)" if str(example[key]) == "-1" else ""))
  return index


def index_of(value: Any, names: Sequence[str]) -> int | None:
  """The place of a name in `names`, or of an int that is a place; None if it is neither."""
  if isinstance(value, str):
    return names.index(value) if value in names else None
  if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
    return int(value) if 0 <= value < len(names) else None
  return None


@dataclasses.dataclass(frozen=True)
class Number(ExampleOp):
  """A number to be predicted, as `label`, float32: example[key] times `scale`."""
  key: str
  scale: float = 1.0

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example", "float32")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      value = value_of("number", e, self.key)
      try:
        number = float(value)
      except (TypeError, ValueError):
        number = math.nan
      if not math.isfinite(number):
        raise DataError(f"op number: example {e['id']} has {self.key}={value!r}, which is not a"
                        " finite number")
      e["label"] = np.float32(number * self.scale)
    return examples
