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
from PIL import Image, ImageEnhance, ImageFilter, ImageOps, UnidentifiedImageError

from jtx.config import ConfigError, nearest
from jtx.data import DataError
from jtx.data.example import Example
from jtx.data.images import listed
from jtx.data.lazy import BadExample
from jtx.data.ops_finetune import check_names
from jtx.data.packing import Column

Generator = np.random.Generator

FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
MODES = {1: "L", 3: "RGB"}  # channels -> what Pillow calls them
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
ATTEMPTS = 10  # at a box that fits into an image
GREY = 128  # what is put where an image was moved away


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


def _check_range(op: str, key: str, value: tuple[float, float], most: float = math.inf) -> None:
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
    _check_range("inception_crop", "area", self.area, 1)
    _check_range("inception_crop", "ratio", self.ratio)
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


# ------------------------------------------------------------------------------ colours


def _enhanced(kind: Callable[[Image.Image], Any]) -> Callable[[Image.Image, float], Image.Image]:
  return lambda image, strength: kind(image).enhance(1 + 0.9 * strength)


def _moved(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
  """The pixel at (x, y) is that of `image` at (a x + b y + c, d x + e y + f)."""
  return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR,
                         fillcolor=_grey(image))


def _grey(image: Image.Image) -> int | tuple[int, ...]:
  return GREY if image.mode == "L" else (GREY,) * 3


def _translated(image: Image.Image, x: float, y: float) -> Image.Image:
  """Moved by shares of width and height, in whole pixels: right and down, if positive."""
  return _moved(image, (1, 0, -round(x * image.width), 0, 1, -round(y * image.height)))


FARTHEST = 150 / 331  # of a side: the most that AutoAugment translates, for which images were 331

# name -> the image changed with a strength from -1 to 1; at 0, all but two leave it as it is.
POLICY: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, s: image,
    "autocontrast": lambda image, s: ImageOps.autocontrast(image),
    "equalize": lambda image, s: ImageOps.equalize(image),
    "rotate": lambda image, s: image.rotate(30 * s, Image.Resampling.BILINEAR,
                                            fillcolor=_grey(image)),
    "solarize": lambda image, s: ImageOps.solarize(image, round(256 * (1 - abs(s)))),
    "color": _enhanced(ImageEnhance.Color),
    "posterize": lambda image, s: ImageOps.posterize(image, 8 - round(4 * abs(s))),
    "contrast": _enhanced(ImageEnhance.Contrast),
    "brightness": _enhanced(ImageEnhance.Brightness),
    "sharpness": _enhanced(ImageEnhance.Sharpness),
    "shear_x": lambda image, s: _moved(image, (1, 0.3 * s, 0, 0, 1, 0)),
    "shear_y": lambda image, s: _moved(image, (1, 0, 0, 0.3 * s, 1, 0)),
    "translate_x": lambda image, s: _translated(image, FARTHEST * s, 0),
    "translate_y": lambda image, s: _translated(image, 0, FARTHEST * s),
}


@dataclasses.dataclass(frozen=True)
class RandAugment(ImageOp):
  """`num_ops` of 14 operations one after the other, each drawn uniformly (Cubuk et al. 2020).

  All have one strength m = magnitude / 10, from 0, which leaves an image as it is, to 1:

    rotate                                 30 m degrees
    shear_x, shear_y                       0.3 m pixels a pixel
    translate_x, translate_y               0.453 m of the side (150 / 331), in whole pixels
    color, contrast, brightness, sharpness factor 1 + 0.9 m or 1 - 0.9 m
    solarize                               values from 256 (1 - m) on are inverted
    posterize                              8 - 4 m bits are kept, rounded
    identity, autocontrast, equalize       whatever m is

  The first four rows have either sign, with equal chances. What is moved in from outside is grey.
  Where magnitudes count to 30, as torchvision's do, a third of them is meant here.
  """
  num_ops: int = 2
  magnitude: float = 9.0  # 0 to 10

  def __post_init__(self):
    if self.num_ops < 1:
      raise ConfigError(f"op randaugment: num_ops={self.num_ops} must be positive")
    if not 0 <= self.magnitude <= 10:
      raise ConfigError(f"op randaugment: magnitude={self.magnitude} must be from 0 to 10; of one"
                        " that counts to 30, take a third")

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      return image
    operations = list(POLICY.values())
    for number in generator.integers(2 * len(operations), size=self.num_ops).tolist():
      sign = -1 if number % 2 else 1
      image = operations[number // 2](image, sign * self.magnitude / 10)
    return image


@dataclasses.dataclass(frozen=True)
class ColorJitter(ImageOp):
  """Changes each of three by a factor that is uniform in 1 - x to 1 + x, in random order."""
  brightness: float = 0.4
  contrast: float = 0.4
  saturation: float = 0.4

  def __post_init__(self):
    for key in ("brightness", "contrast", "saturation"):
      if getattr(self, key) < 0:
        raise ConfigError(f"op color_jitter: {key}={getattr(self, key)} must not be negative")

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      return image
    kinds = ((ImageEnhance.Brightness, self.brightness), (ImageEnhance.Contrast, self.contrast),
             (ImageEnhance.Color, self.saturation))
    for i in generator.permutation(3).tolist():
      kind, most = kinds[i]
      if most:
        image = kind(image).enhance(generator.uniform(max(0, 1 - most), 1 + most))
    return image


@dataclasses.dataclass(frozen=True)
class ThreeAugment(ImageOp):
  """One of three, each as often, then `color_jitter` (Touvron et al. 2022, DeiT III, section 3.3).

  The three are grey, solarisation (values from 128 on are inverted), and Gaussian blur with a
  radius that is uniform in 0.1 to 2 pixels.
  """
  jitter: float = 0.3  # of brightness, contrast and saturation; 0 is none

  def __post_init__(self):
    if self.jitter < 0:
      raise ConfigError(f"op three_augment: jitter={self.jitter} must not be negative")

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      return image
    choice = generator.integers(3)
    if choice == 0:
      image = ImageOps.grayscale(image).convert(image.mode)
    elif choice == 1:
      image = ImageOps.solarize(image, 128)
    else:
      image = image.filter(ImageFilter.GaussianBlur(generator.uniform(0.1, 2.0)))
    return ColorJitter(*[self.jitter] * 3).apply(image, generator)


@dataclasses.dataclass(frozen=True)
class RandomErasing(ImageOp):
  """Puts random pixels into a box of random area and shape (Zhong et al. 2020).

  The paper draws the box's ratio uniformly; here its logarithm is uniform, as others have it.
  """
  probability: float = 0.25  # that there is such a box
  area: tuple[float, float] = (0.02, 1 / 3)  # of the box, as a share of the image's
  ratio: tuple[float, float] = (0.3, 3.3)  # of the box, width / height

  def __post_init__(self):
    if not 0 <= self.probability <= 1:
      raise ConfigError(f"op random_erasing: probability={self.probability} must be from 0 to 1")
    _check_range("random_erasing", "area", self.area, 1)
    _check_range("random_erasing", "ratio", self.ratio)

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None or generator.random() >= self.probability:
      return image
    box = random_box(*image.size, self.area, self.ratio, generator)
    if box is None:
      return image
    left, top, right, bottom = box
    shape = (bottom - top, right - left, *([3] if image.mode == "RGB" else []))
    image = image.copy()  # it may share its pixels with the source's array
    image.paste(Image.fromarray(generator.integers(256, size=shape, dtype=np.uint8)), (left, top))
    return image


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
    "randaugment": RandAugment,
    "color_jitter": ColorJitter,
    "three_augment": ThreeAugment,
    "random_erasing": RandomErasing,
    "images": Images,
}
