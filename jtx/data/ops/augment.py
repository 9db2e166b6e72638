"""Augmentation of images: RandAugment, 3-Augment, colour jitter, random erasing.

In evaluation they do nothing. See `jtx.data.ops.image` for what such ops are.
"""

import dataclasses
from typing import Annotated, Any, Callable

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from jtx.data.ops.image import Generator, PixelOp, check_range, random_box
from jtx.ranges import Layers, NotNegative, Positive, Share, SomeShare, Within

GREY = 128  # what is put where an image was moved away


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
class RandAugment(PixelOp):
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
  num_ops: Layers = 2  # operations that an image gets, one after the other
  magnitude: Annotated[float, Within("[0, 10]")] = 9.0  # 10 m: the strength of all operations

  moves = True  # some of the operations do

  def apply(self, image: Image.Image, generator: Generator | None) -> Image.Image:
    if generator is None:
      return image
    operations = list(POLICY.values())
    for number in generator.integers(2 * len(operations), size=self.num_ops).tolist():
      sign = -1 if number % 2 else 1
      image = operations[number // 2](image, sign * self.magnitude / 10)
    return image


@dataclasses.dataclass(frozen=True)
class ColorJitter(PixelOp):
  """Changes each of three by a factor that is uniform in 1 - x to 1 + x, in random order."""
  brightness: NotNegative = 0.4  # x of the brightness; 0 leaves it as it is
  contrast: NotNegative = 0.4  # the same of the contrast
  saturation: NotNegative = 0.4  # the same of the saturation

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
class ThreeAugment(PixelOp):
  """One of three, each as often, then `color_jitter` (Touvron et al. 2022, DeiT III, section 3.3).

  The three are grey, solarisation (values from 128 on are inverted), and Gaussian blur with a
  radius that is uniform in 0.1 to 2 pixels.
  """
  jitter: NotNegative = 0.3  # of brightness, contrast and saturation; 0 is none

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
class RandomErasing(PixelOp):
  """Puts random pixels into a box of random area and shape (Zhong et al. 2020).

  The paper draws the box's ratio uniformly; here its logarithm is uniform, as others have it.
  """
  probability: Share = 0.25  # that there is such a box
  area: tuple[SomeShare, SomeShare] = (0.02, 1 / 3)  # of the box, as a share of the image's
  ratio: tuple[Positive, Positive] = (0.3, 3.3)  # of the box, width / height

  def __post_init__(self):
    check_range("random_erasing", "area", self.area, 1)
    check_range("random_erasing", "ratio", self.ratio)

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
