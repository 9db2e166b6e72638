"""Ops on images, which run whenever an example is read: each time anew, and not once.

`augment(example, generator)` gives the example that an op makes of one. In training the generator
is a function of the seed and of the row; in evaluation it is None, and an op that draws at random
does what stands in its place, or nothing. Between `decode_image` and the layout `images` an
example's "image" is a Pillow image, in RGB or in shades of grey.
"""

import dataclasses
import functools
import io
import math
from typing import Any, Callable

import numpy as np
from PIL import Image, UnidentifiedImageError

from jtx.data.example import Example
from jtx.data.ops.finetune import check_names
from jtx.data.packing import Column
from jtx.data.sources.images import listed
from jtx.errors import BadExample, ConfigError, DataError, nearest

Generator = np.random.Generator

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}  # channels -> what Pillow calls them
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
ATTEMPTS = 10  # at a box that fits into an image


def _check_channels(op: str, channels: int) -> None:
  if channels not in MODES:
    raise ConfigError(f"op {op}: channels={channels} must be 1 or 3")


def _check_size(op: str, size: int) -> None:
  if size < 1:
    raise ConfigError(f"op {op}: size={size} must be positive")


def _check_filter(op: str, interpolation: str) -> None:
  if interpolation not in FILTERS:
    raise ConfigError(f"op {op}: interpolation={interpolation!r} is none;"
                      f" {nearest(interpolation, FILTERS)}")


def check_range(op: str, key: str, value: tuple[float, float], most: float = math.inf) -> None:
  if len(value) != 2 or not 0 < value[0] <= value[1] <= most:
    limit = f" and at most {most:g}" if most < math.inf else ""
    raise ConfigError(f"op {op}: {key}={value} must be two numbers, the lower first, above 0"
                      + limit)


# --------------------------------------------------------------------------- decoding


@dataclasses.dataclass(frozen=True)
class DecodeImage:
  """The first op: an "image" of bytes or of an array becomes a Pillow image, a "label" a number.

  Files are converted to RGB or to grey (16 bits to their upper 8); of several frames the first
  is taken. Arrays must have `channels`: [H, W, 3], or for one channel [H, W] or [H, W, 1], uint8.
  """
  channels: int = 3
  names: tuple[str, ...] = ()  # of the classes, in order; () is those of the training source
  # The share of images that can't be decoded, of those read so far, with which a run goes on.
  # Their rows are padding. It is judged from 100 images on, and at the end of an evaluation.
  max_bad: float = 0.01
  # JPEGs are decoded at 1/2, 1/4 or 1/8 where both sides stay this long or longer; 0 is never.
  min_side: int = 0

  columns = {"label": Column("example"), "real": Column("example")}

  def __post_init__(self):
    _check_channels("decode_image", self.channels)
    check_names("decode_image", self.names)
    if not 0 <= self.max_bad <= 1:
      raise ConfigError(f"op decode_image: max_bad={self.max_bad} must be a share, from 0 to 1")
    if self.min_side < 0:
      raise ConfigError(f"op decode_image: min_side={self.min_side} must not be negative")

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with a Pillow image, with `label` as int32, and `real`, which is 1.

    Raises:
      BadExample: the image can't be decoded.
      DataError: there is no image or label, or one that does not fit.
    """
    del generator  # nothing is drawn
    for key in ("image", "label"):
      if key not in example:
        keys = ", ".join(k for k in example if k not in ("id", "path"))
        raise DataError(f"op decode_image: {example['path']} has no {key!r}; it has {keys}")
    image = example["image"]
    if isinstance(image, bytes):
      image = self._decoded(image, example["path"])
    else:
      image = self._of_array(image, example["path"])
    label = self._number(example["label"], example["path"])
    return {**example, "image": image, "label": np.int32(label), "real": np.int32(1)}

  def _decoded(self, data: bytes, path: str) -> Image.Image:
    try:
      image = Image.open(io.BytesIO(data), formats=FORMATS)
      if self.min_side:
        image.draft(None, (self.min_side, self.min_side))
      if image.mode.startswith("I"):  # which Pillow would not scale, but cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
      image.load()
      mode = MODES[self.channels]
      return image if image.mode == mode else image.convert(mode)
    except UnidentifiedImageError as e:
      raise BadExample(path, f"is no image of the formats {', '.join(FORMATS)}") from e
    except Exception as e:  # a decoder raises all kinds of errors on broken bytes
      raise BadExample(path, f"can't be decoded ({str(e) or type(e).__name__})") from e

  def _of_array(self, image: Any, path: str) -> Image.Image:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
      raise DataError(f"op decode_image: the image of {path} is neither bytes nor a uint8 array")
    if self.channels == 1 and image.ndim == 3 and image.shape[2] == 1:
      image = image[..., 0]
    if not (image.ndim == 2 if self.channels == 1 else image.shape[2:] == (3,)):
      expected = "[H, W] or [H, W, 1]" if self.channels == 1 else "[H, W, 3]"
      raise DataError(f"op decode_image: the image of {path} is an array {list(image.shape)}, and"
                      f" channels={self.channels} needs {expected}")
    return Image.fromarray(image)

  @functools.cached_property
  def _numbers(self) -> dict[str, int]:
    return {name: number for number, name in enumerate(self.names)}

  def _number(self, label: Any, path: str) -> int:
    if not self.names:
      raise ConfigError("op decode_image: names is empty; it must name the classes in order")
    number = label
    if isinstance(label, str):
      number = self._numbers.get(label, -1)
    elif not isinstance(label, (int, np.integer)) or isinstance(label, bool):
      number = -1
    if not 0 <= number < len(self.names):
      raise DataError(f"op decode_image: {path} has the label {label!r}; valid are"
                      f" {listed(self.names)}, or their numbers 0 to {len(self.names) - 1}")
    return int(number)


class ImageOp:
  """An op that changes nothing but the image, in `apply`."""

  def augment(self, example: Example, generator: Generator | None) -> Example:
    return {**example, "image": self.apply(example["image"], generator)}

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    raise NotImplementedError


# --------------------------------------------------------------------- crops and sizes


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
class InceptionCrop(ImageOp):
  """A box of random area and shape, scaled to size x size (Szegedy et al. 2015, section 6).

  Where no box fitted in ten attempts, it is the largest one in the middle whose shape is in
  `ratio`. In evaluation the image is scaled so that its shorter side is `eval_resize`, and the
  middle of it is cut out.
  """
  size: int = 224
  area: tuple[float, float] = (0.08, 1.0)  # of the box, as a share of the image's
  ratio: tuple[float, float] = (3 / 4, 4 / 3)  # of the box, width / height
  eval_resize: int = 256
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    _check_size("inception_crop", self.size)
    check_range("inception_crop", "area", self.area, 1)
    check_range("inception_crop", "ratio", self.ratio)
    _check_filter("inception_crop", self.interpolation)
    if self.eval_resize < self.size:
      raise ConfigError(f"op inception_crop: eval_resize={self.eval_resize} must not be less than"
                        f" size={self.size}")

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      return self._middle(image)
    box = random_box(*image.size, self.area, self.ratio, generator) or self.largest(*image.size)
    # Cut out first: else the filter would look beyond the box.
    return image.crop(box).resize((self.size, self.size), FILTERS[self.interpolation])

  def largest(self, width: int, height: int) -> tuple[int, int, int, int]:
    """The largest box in the middle whose width / height is in `ratio`."""
    w = min(width, round(height * self.ratio[1]))
    h = min(height, round(width / self.ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h

  def _middle(self, image: Image.Image) -> Image.Image:
    short = min(image.size)
    scaled = [side * self.eval_resize // short for side in image.size]
    # Only what is kept is computed: the place of it in the image that is given.
    places = [(round((n - self.size) / 2), side / n) for n, side in zip(scaled, image.size)]
    starts = [first * step for first, step in places]
    ends = [(first + self.size) * step for first, step in places]
    return image.resize((self.size, self.size), FILTERS[self.interpolation], (*starts, *ends))


@dataclasses.dataclass(frozen=True)
class PadCrop(ImageOp):
  """Puts zeros around an image and cuts size x size out of it at random (as for CIFAR).

  In evaluation it is the middle, of which nothing is cut off where the image is of that size.
  """
  size: int = 32
  padding: int = 4  # pixels on each side

  def __post_init__(self):
    _check_size("pad_crop", self.size)
    if self.padding < 0:
      raise ConfigError(f"op pad_crop: padding={self.padding} must not be negative")

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

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      left, top = ((side - self.size) // 2 for side in image.size)
    else:
      left, top = (int(generator.integers(side + 2 * self.padding - self.size + 1)) - self.padding
                   for side in image.size)
    # Pillow fills what lies beyond the image with zeros.
    return image.crop((left, top, left + self.size, top + self.size))


@dataclasses.dataclass(frozen=True)
class Resize(ImageOp):
  """Scales an image to size x size, whatever its shape, also in evaluation."""
  size: int = 224
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    _check_size("resize", self.size)
    _check_filter("resize", self.interpolation)

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    del generator  # nothing is drawn
    return image.resize((self.size, self.size), FILTERS[self.interpolation])


@dataclasses.dataclass(frozen=True)
class Flip(ImageOp):
  """Left to right, one time in two."""

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None or generator.random() < 0.5:
      return image
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


# ------------------------------------------------------------------------------ layout


@dataclasses.dataclass(frozen=True)
class Images:
  """The layout of images: `image [R, size, size, channels]` uint8, an example a row.

  Beside it a row has `label [R, 1]` and `real [R, 1]` int32; `real` is 1 where there is an image,
  and 0 in padding.
  """
  size: int = 224
  channels: int = 3

  fields = lengths = ()  # there are no tokens
  group = False
  max_segments = 1

  def __post_init__(self):
    _check_size("images", self.size)
    _check_channels("images", self.channels)

  @property
  def columns(self) -> dict[str, Column]:
    return {"image": Column("array", "uint8", (self.size, self.size, self.channels))}

  def fit(self, longest: int) -> "Images":
    del longest  # all rows are of one size
    return self

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with its image as an array.

    Raises:
      ConfigError: the image is of another size.
    """
    del generator  # nothing is drawn
    width, height = example["image"].size
    if (width, height) != (self.size, self.size):
      raise ConfigError(f"data.ops: {example['path']} is of {width} x {height} pixels after all ops"
                        f" and 'images' has size={self.size}; one of 'inception_crop', 'pad_crop'"
                        " and 'resize', with the same size, makes it of that size")
    image = np.asarray(example["image"])
    return {**example, "image": image.reshape(self.size, self.size, self.channels)}


OPS: dict[str, Callable[..., Any]] = {
    "decode_image": DecodeImage,
    "inception_crop": InceptionCrop,
    "pad_crop": PadCrop,
    "resize": Resize,
    "flip": Flip,
    "images": Images,
}
