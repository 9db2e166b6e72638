"""Digits scattered over larger images, made on the fly: a small data set of detection."""

from typing import Any

import numpy as np

from jtx.data.sources.images import Digits, NpzSource, numbered
from jtx.data.sources.parts import Part
from jtx.errors import ConfigError, DataError

MOST = 4  # digits of an image; from one up, each number as likely
HIDDEN = 0.1  # the share of a digit's pixels that are other digits' too, at most
ATTEMPTS = 50  # at a place for a digit, after which the image has one less
SEED = 0
MNIST_SIZE, SMALL_SIZE = 64, 32  # pixels of a side, of digits of 28 and of 8 pixels


class ScatteredDigits:
  """Images [size, size, 3] of one to four digits on black, with tight boxes around their pixels.

  Image i is a function of the seed, the digits and i alone: which digits it has, and each one's
  place. Digits may touch and overlap, but no one shares more than a tenth of
  its pixels with others. There are as many images as digits.

  Args:
    name: the spec.
    digits: a source of grey images [H, W] and labels.
    size: pixels of a side.
    seed: of all that is drawn.
  """
  numbered = False  # all ten classes are there: see `jtx.data.sources.images.check_classes`

  def __init__(self, name: str, digits: Any, size: int, seed: int = SEED):
    self.name, self._digits, self._size, self._seed = name, digits, size, seed
    self.classes = numbered(name, 9)

  def __len__(self) -> int:
    return len(self._digits)

  def __getitem__(self, i: int) -> dict[str, Any]:
    rng = np.random.default_rng([self._seed, range(len(self))[i]])
    canvas = np.zeros((self._size, self._size), np.uint8)
    owners = np.zeros(canvas.shape, np.int8)  # of each pixel, how many digits have it
    placed: list[tuple[tuple[slice, slice], np.ndarray]] = []
    boxes, labels = [], []
    for number in rng.integers(len(self), size=rng.integers(1, MOST, endpoint=True)):
      digit = self._digits[int(number)]
      ink = trimmed(digit["image"])
      place = self._place(ink > 0, owners, placed, rng)
      if place is None:
        continue
      canvas[place] = np.maximum(canvas[place], ink)
      owners[place] += ink > 0
      placed.append((place, ink > 0))
      rows, columns = place
      boxes.append([columns.start, rows.start, columns.stop, rows.stop])
      labels.append(self.classes[digit["label"]])
    return {"image": np.repeat(canvas[..., None], 3, -1), "box_labels": labels,
            "boxes": np.array(boxes, np.float64).reshape(-1, 4)}

  def _place(self, digit: np.ndarray, owners: np.ndarray, placed: list,
             rng: np.random.Generator) -> tuple[slice, slice] | None:
    """Rows and columns at which a digit, bool [h, w], and those before it share few pixels.

    None where ATTEMPTS of them were none, or the digit is all black.
    """
    for _ in range(ATTEMPTS if digit.any() else 0):
      top, left = (int(rng.integers(room, endpoint=True))
                   for room in self._size - np.array(digit.shape))
      place = slice(top, top + digit.shape[0]), slice(left, left + digit.shape[1])
      after = owners.copy()
      after[place] += digit
      if all((after[where][own] > 1).mean() <= HIDDEN for where, own in [*placed, (place, digit)]):
        return place
    return None


def trimmed(image: np.ndarray) -> np.ndarray:
  """An image [H, W] or [H, W, 1] without its black edges, [h, w]."""
  image = image.reshape(image.shape[:2])
  rows, columns = (np.flatnonzero(image.any(axis)) for axis in (1, 0))
  if not len(rows):
    return image  # an even black digit has no edges
  return image[rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1]


def of_file(name: str, file: str, part: Part | None) -> ScatteredDigits:
  """Of the digits of an npz file, such as MNIST's, on 64 x 64 pixels.

  Raises:
    DataError: the file has other images, or other labels than 0 to 9.
  """
  digits = NpzSource(name, file, part)
  shape = digits[0]["image"].shape if len(digits) else ()
  if len(digits) and (max(shape[:2]) > MNIST_SIZE or shape[2:] not in ((), (1,))
                      or len(digits.classes) > 10):
    raise DataError(f"{file}: has images {list(shape)} of {len(digits.classes)} classes; to be"
                    f" scattered they must be grey, of at most {MNIST_SIZE} x {MNIST_SIZE} pixels,"
                    " and of 10 classes at most")
  return ScatteredDigits(name, digits, MNIST_SIZE)


def small(subset: str, split: str) -> ScatteredDigits:
  """Opens `embedded:scattered:SPLIT`, of the digits of 8 x 8 pixels, on 32 x 32; no subsets."""
  if subset:
    raise ConfigError(f"embedded:scattered/{subset}: it has no subsets, so leave /{subset} away")
  return ScatteredDigits(f"embedded:scattered:{split}", Digits(split), SMALL_SIZE)
