"""Sources of images with texts or labels: files that a table lists, and scenes of digits."""

import functools
import os
from typing import Any, Iterator, NamedTuple

import numpy as np

from jtx.data.sources import files
from jtx.data.sources.fingerprints import listing
from jtx.data.sources.images import Digits
from jtx.data.sources.views import View, value_of
from jtx.errors import ConfigError, DataError

TOLD = "text", "label"  # what a row tells of an image: one of them, or both


class CaptionsSource:
  """Files of images, and what they show: a row of a table has an "image", its file, and more.

  That is a "text", or the "label" of a classifier, or both. Classes are known when all labels are
  read, for which no image is.

  Args:
    name: the spec.
    rows: the table.
    folder: that names of files are relative to.

  Raises:
    DataError: a row has other columns.
  """
  classes = None

  def __init__(self, name: str, rows: Any, folder: str):
    self.name, self._rows, self._folder = name, rows, folder
    self.columns = ("image", *(key for key in TOLD if len(rows) and key in self._check(0)))

  def _check(self, i: int) -> dict[str, Any]:
    row = self._rows[i]
    told = "label" in row or isinstance(row.get("text"), str)
    if not told or not isinstance(row.get("image"), str):
      missing = "'text' and no 'label'" if isinstance(row.get("image"), str) else "'image'"
      raise DataError(f"{self.name}: example {i} has no text {missing} but {', '.join(row)};"
                      " image is the file, text what it shows and label its class, which"
                      " :columns[image=NAME+text=NAME] and :columns[image=NAME+label=NAME] take"
                      " from columns of other names")
    return row

  def __len__(self) -> int:
    return len(self._rows)

  def __getitem__(self, i: int) -> dict[str, Any]:
    row = self._check(i)
    path = os.path.join(self._folder, row["image"])
    try:
      image = files.read(path)
    except DataError as e:
      raise DataError(f"{self.name}: the image of example {i}: {e}") from None
    return {"image": image, **{key: row[key] for key in TOLD if key in row}, "path": path}

  def path(self, i: int) -> str:
    """The file of an example's image."""
    return os.path.join(self._folder, self._check(i)["image"])

  def listing(self) -> Iterator[str | np.ndarray]:
    """What the table has."""
    yield from listing(self._rows)

  def line(self, i: int) -> int | None:
    """The number of an example's line in the table, from 1, where that is known."""
    line = getattr(self._rows, "line", None)
    return line(i) if line else None

  @property
  def labels(self) -> list[Any]:
    return list(self.column("label"))

  def column(self, key: str) -> Iterator[Any]:
    """The texts or labels in order, for which no image is read; or the names of the files."""
    yield from (value_of(self._rows, i, key) for i in range(len(self)))


# ------------------------------------------------------------------------------ scenes

SIZE = 24  # pixels, of a scene's sides; a digit has 8
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Of digits one above the other, or side by side, what the first is to the second, and back.
RELATIONS = (("above", "below"), ("left of", "right of"))
TRAIN, EVALUATED = 65_536, 160  # scenes of a split
SHIFT = 4  # pixels, by which digits of a pair are out of line at most


def is_held_out(relation: int, first: int, second: int) -> bool:
  """Whether a pair of digits in a relation is left for evaluation, as 40 of all 200 are."""
  return (first + 3 * second + relation) % 5 == 0


@functools.cache
def pairs(held_out: bool) -> tuple[tuple[int, int, int], ...]:
  """The (relation, first digit, second digit) of a split."""
  return tuple((r, a, b) for r in range(len(RELATIONS)) for a in range(10) for b in range(10)
               if is_held_out(r, a, b) == held_out)


def named(digit: int) -> str:
  return f"an {WORDS[digit]}" if digit == 8 else f"a {WORDS[digit]}"


class Pair(NamedTuple):
  """Two digits of a scene."""
  relation: int  # of RELATIONS
  digits: tuple[int, int]
  swapped: bool  # it is told of the second digit


def told(subject: int | Pair) -> str:
  """A digit, or two of them, in words."""
  if isinstance(subject, int):
    return named(subject)
  first, second = reversed(subject.digits) if subject.swapped else subject.digits
  return f"{named(first)} {RELATIONS[subject.relation][subject.swapped]} {named(second)}"


class Scenes:
  """Handwritten digits on a grey image [24, 24], one or two, and what they are in words.

  A pair is told as "a seven above a two" or "a two below a seven". Pairs of the evaluation are in
  no training scene in the same relation, and its digits are by other writers' hands than those of
  training. An example has a "label", the first digit's name.

  Args:
    kind: "singles", "pairs", or "" for both in turns of one and three.
    split: "train" or "test".
  """
  classes = WORDS

  def __init__(self, kind: str, split: str):
    self.name = f"embedded:scenes{kind and '/' + kind}:{split}"
    if kind not in ("", "singles", "pairs"):
      raise ConfigError(f"{self.name}: valid subsets are singles and pairs")
    if split not in ("train", "test"):
      raise ConfigError(f"{self.name}: valid splits are train and test")
    self._kind, self._split = kind, split
    digits = Digits(split)
    self._by_class = [[digits[i]["image"] for i in np.flatnonzero(digits.labels == d)]
                      for d in range(10)]

  def __reduce__(self):
    return Scenes, (self._kind, self._split)

  def __len__(self) -> int:
    return TRAIN if self._split == "train" else EVALUATED

  def __getitem__(self, i: int) -> dict[str, Any]:
    i, rng = self._drawn(i)
    subject = self._subject(i, rng)
    scene = np.zeros((SIZE, SIZE), np.uint8)
    if isinstance(subject, int):
      self._put(scene, subject, rng.integers(0, SIZE - 8, 2, endpoint=True), rng)
    else:
      apart = rng.integers(0, 4, 2, endpoint=True) + (0, 12)  # along the relation
      across = rng.integers(0, SIZE - 8 - SHIFT, endpoint=True) + rng.integers(0, SHIFT, 2)
      for digit, a, b in zip(subject.digits, apart, across):
        self._put(scene, digit, (a, b) if subject.relation == 0 else (b, a), rng)
    first = subject if isinstance(subject, int) else subject.digits[0]
    return {"image": scene, "text": told(subject), "label": WORDS[first]}

  def column(self, key: str) -> Iterator[Any]:
    """Texts in order, for which no image is drawn; or another of an example's values."""
    if key == "text":
      yield from (told(self._subject(*self._drawn(i))) for i in range(len(self)))
    else:
      yield from (self[i][key] for i in range(len(self)))

  def _drawn(self, i: int) -> tuple[int, np.random.Generator]:
    """The number of a scene from 0 up, and what all of it is drawn from."""
    i = range(len(self))[i]
    return i, np.random.default_rng([i, self._split == "train"])

  def _subject(self, i: int, rng: np.random.Generator) -> int | Pair:
    """What a scene shows: one digit, or two."""
    evaluated = self._split == "test"
    if self._kind == "singles" or not self._kind and i % 4 == 0:
      return i % 10 if evaluated else int(rng.integers(10))
    known = pairs(held_out=evaluated)
    relation, *digits = known[i % len(known) if evaluated else rng.integers(len(known))]
    # In evaluation a scene has one text, whichever image of it.
    swapped = sum(digits) % 2 if evaluated else rng.integers(2)
    return Pair(relation, tuple(digits), bool(swapped))

  def _put(self, scene: np.ndarray, digit: int, place: Any, rng: np.random.Generator) -> None:
    """Draws a digit, in one of its handwritings, at the row and column of its upper left corner."""
    row, column = place
    choices = self._by_class[digit]
    scene[row:row + 8, column:column + 8] = choices[rng.integers(len(choices))]


def scenes(subset: str, split: str) -> Scenes:
  """Opens `embedded:scenes[/singles|/pairs]:SPLIT`."""
  return Scenes(subset, split)


def rows_of(table: Any, columns: Any, part: Any) -> Any:
  """Some rows and columns of a table, or the table itself."""
  return table if columns is None and part is None else View(table, columns, part)
