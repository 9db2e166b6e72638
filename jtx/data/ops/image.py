"""Ops on images, which run whenever an example is read: each time anew, and not once.

Between `decode_image` and the layout `images` an example's "image" is a Pillow image, in RGB or in
shades of grey. An op that moves pixels moves the example's boxes with them, or refuses examples
that have some.
"""

import dataclasses
import math

import numpy as np
from PIL import Image

from jtx.data.example import Example
from jtx.data.op import ImageOp
from jtx.data.ops.boxes import Box, Move, move_example
from jtx.errors import ConfigError, DataError, nearest
from jtx.ranges import Pixels, PixelsOrNone, Positive, SomeShare

Generator = np.random.Generator

FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
ATTEMPTS = 10  # at a box that fits into an image


def check_filter(op: str, interpolation: str) -> None:
  if interpolation not in FILTERS:
    raise ConfigError(f"op {op}: interpolation={interpolation!r} is none;"
                      f" {nearest(interpolation, FILTERS)}")


def check_range(op: str, key: str, value: tuple[float, float], most: float = math.inf) -> None:
  if len(value) != 2 or not 0 < value[0] <= value[1] <= most:
    limit = f" and at most {most:g}" if most < math.inf else ""
    raise ConfigError(f"op {op}: {key}={value} must be two numbers, the lower first, above 0"
                      + limit)


class PixelOp(ImageOp):
  """Changes the pixels of an image, in `apply`."""
  moves = False  # pixels, to places that it can't tell

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with its image changed.

    Raises:
      DataError: the op moves pixels, and the example has boxes.
    """
    if self.moves and len(example.get("boxes", ())):
      raise DataError(f"op {type(self).__name__.lower()}: {example['path']} has boxes, which this"
                      " op can't move with the pixels; leave it out of data.ops")
    return {**example, "image": self.apply(example["image"], generator)}

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    raise NotImplementedError


class MoveOp(ImageOp):
  """Crops, scales or flips an image and its boxes: `move` draws how, and `pixels` does it."""

  def augment(self, example: Example, generator: Generator | None) -> Example:
    move = self.move(example["image"].size, generator)
    if move is None:
      return example
    example = {**example, "image": self.pixels(example["image"], move, generator)}
    return move_example(example, move) if "boxes" in example else example

  def sized(self, size: tuple[int, int], generator: Generator | None) -> tuple[int, int]:
    move = self.move(size, generator)
    return size if move is None else move.size

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    """An image alone after the op."""
    move = self.move(image.size, generator)
    return image if move is None else self.pixels(image, move, generator)

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move | None:
    """How an image of a width and height is moved; None leaves it as it is."""
    raise NotImplementedError

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    """The image after a move; the generator only tells training from evaluation."""
    raise NotImplementedError


def random_box(width: int, height: int, area: tuple[float, float], ratio: tuple[float, float],
               generator: Generator) -> tuple[int, int, int, int] | None:
  """A box somewhere in an image: left, top, right, bottom.

  Args:
    width: of the image.
    height: of the image.
    area: of the box, as a share of the image's: least, most; drawn uniformly.
    ratio: of the box, width / height: least, most; drawn log-uniformly, so that a box is as
      likely to stand as to lie.
    generator: to draw from.

  Returns:
    The box, or None where ATTEMPTS of them were larger than the image.
  """
  for _ in range(ATTEMPTS):
    size = width * height * generator.uniform(*area)
    shape = math.exp(generator.uniform(math.log(ratio[0]), math.log(ratio[1])))
    w, h = round(math.sqrt(size * shape)), round(math.sqrt(size / shape))
    if 0 < w <= width and 0 < h <= height:
      left, top = (int(generator.integers(room + 1)) for room in (width - w, height - h))
      return left, top, left + w, top + h
  return None


@dataclasses.dataclass(frozen=True)
class InceptionCrop(MoveOp):
  """A box of random area and shape, scaled to size x size (Szegedy et al. 2015, section 6).

  Where no box fitted in ten attempts, it is the largest one in the middle whose shape is in
  `ratio`. In evaluation the image is scaled so that its shorter side is `eval_resize`, and the
  middle of it is cut out.
  """
  size: Pixels = 224  # pixels: height and width of the result
  area: tuple[SomeShare, SomeShare] = (0.08, 1.0)  # of the box, as a share of the image's
  ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)  # of the box, width / height
  eval_resize: Pixels = 256  # pixels of the shorter side in evaluation, before the crop
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    check_range("inception_crop", "area", self.area, 1)
    check_range("inception_crop", "ratio", self.ratio)
    check_filter("inception_crop", self.interpolation)
    if self.eval_resize < self.size:
      raise ConfigError(f"op inception_crop: eval_resize={self.eval_resize} must not be less than"
                        f" size={self.size}")

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (InceptionCrop(size=self.size, eval_resize=self.eval_resize,
                          interpolation=self.interpolation),)

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move:
    if generator is None:
      return Move(self.middle(*size), (self.size, self.size))
    box = random_box(*size, self.area, self.ratio, generator) or self.largest(*size)
    return Move(box, (self.size, self.size))

  def largest(self, width: int, height: int) -> tuple[int, int, int, int]:
    """The largest box in the middle whose width / height is in `ratio`."""
    w = min(width, round(height * self.ratio[1]))
    h = min(height, round(width / self.ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h

  def middle(self, width: int, height: int) -> Box:
    """The part of an image that evaluation sees."""
    short = min(width, height)
    scaled = [side * self.eval_resize // short for side in (width, height)]
    # Only what is kept is computed: the place of it in the image that is given.
    places = [((n - self.size) // 2, side / n) for n, side in zip(scaled, (width, height))]
    starts = [first * step for first, step in places]
    ends = [(first + self.size) * step for first, step in places]
    return *starts, *ends

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    if generator is None:
      return image.resize(move.size, FILTERS[self.interpolation], move.part)
    # Cut out first: else the filter would look beyond the box.
    return image.crop(move.part).resize(move.size, FILTERS[self.interpolation])


@dataclasses.dataclass(frozen=True)
class PadCrop(MoveOp):
  """Puts zeros around an image and cuts size x size out of it at random (as for CIFAR).

  In evaluation it is the middle, of which nothing is cut off where the image is of that size.
  """
  size: Pixels = 32  # pixels: height and width of what is cut out
  padding: PixelsOrNone = 4  # pixels on each side

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (CenterCrop(size=self.size),)

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with the crop.

    Raises:
      DataError: the image with its padding is smaller than `size`.
    """
    width, height = example["image"].size
    if min(width, height) + 2 * self.padding < self.size:
      raise DataError(f"op pad_crop: {example['path']} is of {width} x {height} pixels, which with"
                      f" padding={self.padding} are less than size={self.size}; 'resize' before"
                      " it makes images larger")
    return super().augment(example, generator)

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move:
    if generator is None:
      return CenterCrop(size=self.size).move(size, None)
    left, top = (int(generator.integers(side + 2 * self.padding - self.size + 1)) - self.padding
                 for side in size)
    return Move((left, top, left + self.size, top + self.size), (self.size, self.size))

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    del generator  # all is drawn
    return image.crop(move.part)  # Pillow fills what lies beyond the image with zeros


@dataclasses.dataclass(frozen=True)
class CenterCrop(MoveOp):
  """Cuts the middle out, in training too; around a smaller image there are zeros."""
  size: Pixels = 224  # pixels: height and width of what is cut out

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (self,)

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move:
    del generator  # nothing is drawn
    left, top = ((side - self.size) // 2 for side in size)
    return Move((left, top, left + self.size, top + self.size), (self.size, self.size))

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    del generator
    return image.crop(move.part)  # Pillow fills what lies beyond the image with zeros


@dataclasses.dataclass(frozen=True)
class Resize(MoveOp):
  """Scales an image to one size, whatever its shape, also in evaluation."""
  size: Pixels = 224  # pixels: the height, and the width unless that is given
  interpolation: str = "bilinear"  # or bicubic
  width: Pixels | None = None  # pixels; None is size

  def __post_init__(self):
    check_filter("resize", self.interpolation)

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.width or self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (self,)

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move:
    del generator  # nothing is drawn
    return Move((0, 0, *size), self.output_size[::-1])

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    del generator
    return image.resize(move.size, FILTERS[self.interpolation])


@dataclasses.dataclass(frozen=True)
class Flip(MoveOp):
  """Left to right, one time in two."""

  def move(self, size: tuple[int, int], generator: Generator | None) -> Move | None:
    if generator is None or generator.random() < 0.5:
      return None
    return Move((0, 0, *size), size, flip=True)

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    del move, generator
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
