"""The space of a search: for each of some config keys a range of numbers, or choices."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
from typing import Any

from jtx.config import ConfigDict
from jtx.errors import ConfigError
from jtx.sweeps.sweep import SEED, values_of, value_at

DIGITS = 4  # of a number that is drawn, which is then a name that people can read


@dataclasses.dataclass(frozen=True)
class Axis:
  """The values of one key.

  Attributes:
    key: of the config.
    choices: texts as on the command line; none where it is a range.
    low: the lowest value of a range.
    high: the highest value of a range.
    log: whether equal ratios, not equal differences, are equally far apart.
    whole: whether the numbers are integers.
  """
  key: str
  choices: tuple[str, ...] = ()
  low: float = 0.0
  high: float = 0.0
  log: bool = False
  whole: bool = False

  def ends(self) -> tuple[str, ...]:
    """Texts of the values that tell whether the config takes the axis."""
    return self.choices or (self.text(self.low), self.text(self.high))

  def rounded(self, value: Any) -> Any:
    """A number that was drawn with `DIGITS` digits, within the range; else the value."""
    if self.choices or self.whole:
      return value
    return min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)

  def text(self, value: Any) -> str:
    """Of a value, as it stands after `--config.KEY=`."""
    return value if self.choices else repr(value)


def parse(texts: Sequence[str], config: ConfigDict) -> list[Axis]:
  """The axes of "optim.lr=1e-4..1e-2:log", "model.encoder.num_layers=2,4,6" and their like.

  Raises:
    ConfigError: a text of another form, a key that comes twice or is a section, a range that is
      empty or not of the key's type.
  """
  axes: dict[str, Axis] = {}
  for text in texts:
    key, words = values_of("space", text, config)
    if key in axes:
      raise ConfigError(f"--space={text}: {key} has a --space already; give it all values at once")
    if len(words) == 1 and ".." in words[0]:
      axes[key] = _range(text, key, words[0], value_at(config, key))
    elif len(set(words)) < max(len(words), 2):
      raise ConfigError(f"--space={text}: give several values, each once, or a range such as"
                        " --space=optim.lr=1e-4..1e-2:log")
    else:
      axes[key] = Axis(key, tuple(words))
  if SEED in axes:
    raise ConfigError(f"--space={SEED}: the best of several seeds is luck; a table of a --grid has"
                      " the mean over them")
  return list(axes.values())


def _range(text: str, key: str, values: str, old: Any) -> Axis:
  """The axis of "1e-4..1e-2:log"; where `old`, the config's value, is an integer, it has those."""
  ends, *marks = values.split(":")
  whole = "int" in marks or isinstance(old, int) and not isinstance(old, bool)
  if set(marks) - {"log", "int"}:
    raise ConfigError(f"--space={text}: behind a range stand :log and :int only")
  low, _, high = ends.partition("..")
  try:
    low, high = map(int if whole else float, (low, high))
  except ValueError:
    kind = "integers" if whole else "numbers"
    raise ConfigError(f"--space={text}: the ends of a range are {kind}, as in 1..8 or 1..8:log"
                      ) from None
  log = "log" in marks
  if not low < high or high == float("inf") or log and low <= 0:
    raise ConfigError(f"--space={text}: a range is LOW..HIGH or LOW..HIGH:log, with LOW below HIGH,"
                      " and above 0 where it is logarithmic")
  return Axis(key, low=low, high=high, log=log, whole=whole)


def checks(axes: Sequence[Axis]) -> list[dict[str, str]]:
  """Edits of which each is to make a config: the first ends, then each other end beside them."""
  first = {axis.key: axis.ends()[0] for axis in axes}
  others = itertools.chain.from_iterable(((a.key, end) for end in a.ends()[1:]) for a in axes)
  return [first, *(first | {key: end} for key, end in others)]


def as_json(axis: Axis, short: str) -> Mapping[str, Any]:
  """For the report: its short name, and what it ranges over."""
  return {"name": short, "choices": list(axis.choices), "low": axis.low, "high": axis.high,
          "log": axis.log}
