"""English to German number words, dates and clock times, generated; nothing is downloaded.

  cardinal  four hundred and seventeen               vierhundertsiebzehn
  ordinal   forty-first                              einundvierzigste
  year      nineteen eighty-seven                    neunzehnhundertsiebenundachtzig
  date      Saturday, July the fourth, nineteen ...  Samstag, 4. Juli 1987
  time      three forty-five p.m.                    15:45 Uhr

The words are num2words' and Babel's, kept in number_words.tsv, from which larger numbers, dates and
times are put together; tests/data/sources/make_number_words.py makes that file again. The target is
a function of the source, over all subsets together. Splits are disjoint by value: a fixed hash of
the value, which no seed or config touches, sends 2 % to "val", 8 % to "test", the rest to "train".
Cardinals, ordinals and years share the hash of their number, because "two thousand and one" is both
a cardinal and a year. A split holds every one of its small numbers and a fixed sample of its large
ones.
"""

import datetime
import functools
import os
from typing import Callable, Iterator, NamedTuple

import numpy as np

from jtx import config

SPLITS = ("train", "val", "test")


class Words(NamedTuple):
  """Rows of `number_words.tsv`: English and German, by kind and number."""
  cardinal: dict[int, tuple[str, str]]  # below 1,000
  ordinal: dict[int, tuple[str, str]]  # 1 to 1,000
  year: dict[int, tuple[str, str]]  # 1900 to 2099
  month: dict[int, tuple[str, str]]
  weekday: dict[int, tuple[str, str]]  # Monday is 0


@functools.cache
def words() -> Words:
  tables = Words._make({} for _ in Words._fields)
  with open(os.path.join(os.path.dirname(__file__), "number_words.tsv"), encoding="utf-8") as f:
    for line in f:
      kind, number, english, german = line.removesuffix("\n").split("\t")
      getattr(tables, kind)[int(number)] = english, german
  return tables


def english_cardinal(n: int) -> str:
  """`n` in 0..999,999 in English words, as num2words writes them."""
  return _english(n, words().cardinal)


def _english(n: int, last: dict[int, tuple[str, str]]) -> str:
  """`n` with its last three digits, unless they are 0, in the words of a table."""
  if n < 1000:
    return last[n][0]
  high = words().cardinal[n // 1000][0]
  if n % 1000 == 0:
    return f"{high} thousand"
  between = ", " if n % 1000 >= 100 else " and "
  return f"{high} thousand{between}{last[n % 1000][0]}"


def german_cardinal(n: int) -> str:
  """`n` in 0..999,999 in German words.

  As num2words writes them, but for its "einhunderteinstausend": before "tausend" German
  has "ein", not "eins".
  """
  if n < 1000:
    return words().cardinal[n][1]
  return _german_thousands(n) + (words().cardinal[n % 1000][1] if n % 1000 else "")


def _german_thousands(n: int) -> str:
  high = words().cardinal[n // 1000][1]
  return (high.removesuffix("s") if high.endswith("eins") else high) + "tausend"


def _cardinal(n: int) -> tuple[str, str]:
  return english_cardinal(n), german_cardinal(n)


def _ordinal(n: int) -> tuple[str, str]:
  if n <= 1000:
    return words().ordinal[n]
  english = _english(n, words().ordinal) + ("th" if n % 1000 == 0 else "")
  last = words().ordinal[n % 1000][1] if n % 1000 else "ste"
  # num2words has "hundertste", but "eintausendeinhundertste".
  return english, _german_thousands(n) + ("ein" if n % 1000 == 100 else "") + last


def _year(n: int) -> tuple[str, str]:
  return words().year[n]


def _date(n: int) -> tuple[str, str]:
  """The date of the proleptic Gregorian ordinal `n`."""
  day = datetime.date.fromordinal(n)
  english, german = zip(words().weekday[day.weekday()], words().month[day.month])
  return (f"{english[0]}, {english[1]} the {_ordinal(day.day)[0]}, {_year(day.year)[0]}",
          f"{german[0]}, {day.day}. {german[1]} {day.year}")


def _time(n: int) -> tuple[str, str]:
  """The clock time `n` minutes after midnight."""
  hour, minute = divmod(n, 60)
  if minute == 0:
    minutes = "o'clock"
  elif minute < 10:
    minutes = "oh " + english_cardinal(minute)
  else:
    minutes = english_cardinal(minute)
  half = "a.m." if hour < 12 else "p.m."
  return f"{english_cardinal((hour - 1) % 12 + 1)} {minutes} {half}", f"{hour:02}:{minute:02} Uhr"


_PAIR: dict[str, Callable[[int], tuple[str, str]]] = {
    "cardinal": _cardinal, "ordinal": _ordinal, "year": _year, "date": _date, "time": _time,
}
SUBSETS = tuple(_PAIR)

# Ranges of values [start, stop), and how many of a range "train", "val" and "test" take
# at most. Short numbers are few, so all are taken: a model has to see them all.
_ALL = 10_000
_FIRST_DAY = datetime.date(1900, 1, 1).toordinal()
_END_DAY = datetime.date(2100, 1, 1).toordinal()
_RANGES: dict[str, tuple[tuple[int, int, tuple[int, int, int]], ...]] = {
    "cardinal": ((0, 1_000, (_ALL, _ALL, _ALL)),
                 (1_000, 10_000, (6_000, 100, _ALL)),
                 (10_000, 100_000, (6_000, 150, 1_200)),
                 (100_000, 1_000_000, (7_000, 200, 2_500))),
    "ordinal": ((1, 1_000, (_ALL, _ALL, _ALL)), (1_000, 10_000, (3_500, 100, _ALL))),
    "year": ((1_900, 2_100, (_ALL, _ALL, _ALL)),),
    "date": ((_FIRST_DAY, _END_DAY, (4_000, 150, 800)),),
    "time": ((0, 24 * 60, (_ALL, _ALL, _ALL)),),
}


def _hash(x: np.ndarray) -> np.ndarray:
  """SplitMix64 (Steele et al., OOPSLA 2014): uint64 -> uint64, the same everywhere."""
  x = x.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))


def split_of(values: np.ndarray) -> np.ndarray:
  """The index into `SPLITS` of each value, `[N] -> [N]`."""
  return np.digitize(_hash(np.asarray(values)) % np.uint64(100), [90, 92])


def values_of(subset: str, split: str) -> np.ndarray:
  """The values of a subset in a split, in increasing order a range, `[N]` int64."""
  chosen = []
  for start, stop, most in _RANGES[subset]:
    values = np.arange(start, stop)
    values = values[split_of(values) == SPLITS.index(split)]
    # Ranked by the hash of the hash: the hash alone says which split a value is in.
    rank = np.argsort(_hash(_hash(values)), kind="stable")
    chosen.append(np.sort(values[rank[:most[SPLITS.index(split)]]]))
  return np.concatenate(chosen)


class NumberWords:
  """A source of {"src": English, "tgt": German}, each pair made when it is asked for."""

  def __init__(self, name: str, subsets: tuple[str, ...], split: str):
    self.name = name
    self._values = [(s, int(v)) for s in subsets for v in values_of(s, split)]

  def __len__(self) -> int:
    return len(self._values)

  def __getitem__(self, i: int) -> dict[str, str]:
    subset, value = self._values[i]
    source, target = _PAIR[subset](value)
    return {"src": source, "tgt": target}

  def values(self) -> Iterator[tuple[str, int]]:
    """(subset, value) of every example, in order."""
    return iter(self._values)


def number_words(subset: str, split: str) -> NumberWords:
  """The embedded set `number_words[/SUBSET][:SPLIT]`; all subsets where `subset` is "".

  Raises:
    ConfigError: no such subset or split.
  """
  name = "embedded:number_words" + (f"/{subset}" if subset else "") + f":{split}"
  if subset and subset not in SUBSETS:
    raise config.ConfigError(
        f"{name}: unknown subset {subset!r}; {config.nearest(subset, SUBSETS)}")
  if split not in SPLITS:
    raise config.ConfigError(f"{name}: unknown split {split!r}; {config.nearest(split, SPLITS)}")
  return NumberWords(name, (subset,) if subset else SUBSETS, split)
