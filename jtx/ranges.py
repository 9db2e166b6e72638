"""Ranges of numbers, declared with a field: `rate: Annotated[float, Within("[0, 1)")]`."""

import types
import typing
from typing import Annotated, Any, Iterator


class Within(typing.NamedTuple):
  """An interval in the notation of mathematics, `[0, 1)`; `inf` is for no bound on a side."""
  interval: str

  def __contains__(self, value: Any) -> bool:
    low, high = self._bounds()
    above = value > low if self.interval[0] == "(" else value >= low
    below = value < high if self.interval[-1] == ")" else value <= high
    return above and below  # not where it is nan

  def __str__(self) -> str:
    """In words: "0 to below 1", "1 or more", "above 0"."""
    low, high = (f"{bound:.12g}" for bound in self._bounds())
    first = f"above {low}" if self.interval[0] == "(" else low
    last = f"below {high}" if self.interval[-1] == ")" else high
    if low == "-inf":
      return "finite" if high == "inf" else last if last != high else f"{high} or less"
    return f"{first} to {last}" if high != "inf" else first if first != low else f"{low} or more"

  def _bounds(self) -> tuple[float, float]:
    low, high = self.interval[1:-1].split(",")
    return float(low), float(high)


FINITE = Within("(-inf, inf)")
# Larger ones are mistakes: an array with such an axis would fill a machine.
MOST = 2 ** 24

Size = Annotated[int, Within(f"[1, {MOST}]")]  # of an axis of an array, or of a list
SizeOrNone = Annotated[int, Within(f"[0, {MOST}]")]  # 0 is off, or by itself
Pixels = Annotated[int, Within("[1, 16384]")]  # of a side of an image
PixelsOrNone = Annotated[int, Within("[0, 16384]")]
Layers = Annotated[int, Within("[1, 4096]")]
LayersOrNone = Annotated[int, Within("[0, 4096]")]
Count = Annotated[int, Within("[1, inf)")]
CountOrNone = Annotated[int, Within("[0, inf)")]  # 0 is off, or no limit
Positive = Annotated[float, Within("(0, inf)")]
NotNegative = Annotated[float, Within("[0, inf)")]
Share = Annotated[float, Within("[0, 1]")]
Fraction = Annotated[float, Within("(0, 1)")]
SomeShare = Annotated[float, Within("(0, 1]")]
Rate = Annotated[float, Within("[0, 1)")]  # of dropout; a decay of an average
SEEDS = range(2 ** 32)
Seed = Annotated[int, Within(f"[0, {SEEDS[-1]}]")]


def excluded(hint: Any, value: Any) -> Iterator[tuple[str, Any, str]]:
  """The parts of a value that its type, as it is annotated, excludes.

  Args:
    hint: a type with or without ranges, such as `tuple[Share, ...]` or `Size | None`.
    value: of the field.

  Yields:
    The place in the value ("" or "[2]"), the number or word, and what it must be.
  """
  within = FINITE
  if typing.get_origin(hint) is Annotated:
    within = next((m for m in hint.__metadata__ if isinstance(m, Within)), FINITE)
    hint = hint.__origin__
  if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
    fitting = [kind for kind in typing.get_args(hint) if isinstance(value, plain(kind))]
    yield from excluded(fitting[0], value) if fitting else ()
  elif isinstance(value, (tuple, list)):
    kinds = typing.get_args(hint) or (Any, Ellipsis)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
      kinds = kinds[:1] * len(value)
    for i, (kind, item) in enumerate(zip(kinds, value)):
      yield from ((f"[{i}]{place}", *rest) for place, *rest in excluded(kind, item))
  elif typing.get_origin(hint) is typing.Literal:
    if value not in typing.get_args(hint):
      yield "", value, "one of " + ", ".join(map(repr, typing.get_args(hint)))
  elif isinstance(value, (int, float)) and not isinstance(value, bool) and value not in within:
    yield "", value, str(within)


def plain(hint: Any) -> type:
  """The class of a type's values: `int` of `Size`, `tuple` of `tuple[Share, ...]`."""
  if typing.get_origin(hint) is Annotated:
    hint = hint.__origin__
  if typing.get_origin(hint) is typing.Literal:
    return type(typing.get_args(hint)[0])
  return typing.get_origin(hint) or (object if hint is Any else hint)
