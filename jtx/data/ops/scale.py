"""Ops that scale images of any shape by a side, for detection; boxes move with the pixels."""

import dataclasses
from typing import Literal

from PIL import Image

from jtx.data.op import ImageOp
from jtx.data.ops.boxes import Move
from jtx.data.ops.image import FILTERS, Generator, MoveOp, check_filter, check_range
from jtx.errors import ConfigError
from jtx.ranges import Pixels, Positive, Share

Size = tuple[int, int]  # width and height


def scaled(size: Size, shortest: int, longest: int | None = None) -> Size:
  """The size of an image whose shorter side gets `shortest` pixels, and the other in proportion.

  Where the longer one would have more than `longest`, it is that long instead.
  """
  short, long = min(size), max(size)
  side: float = shortest
  if longest is not None and long * shortest > longest * short:
    side = longest * short / long
  # What a side is in proportion is cut off, and not rounded, as of torchvision.
  sides = max(round(side), 1), max(int(side * long / short), 1)
  return sides if size[0] <= size[1] else sides[::-1]


class ScaleOp(MoveOp):
  """A `MoveOp` that resamples the part of the image that it keeps."""
  interpolation: str

  def pixels(self, image: Image.Image, move: Move, generator: Generator | None) -> Image.Image:
    del generator  # all is drawn
    return image.resize(move.size, FILTERS[self.interpolation], move.part)


@dataclasses.dataclass(frozen=True)
class ResizeShortest(ScaleOp):
  """Scales an image by its shorter side, and less where its longer side would be too long.

  In training it is one of `shortest`, each as likely; in evaluation the last (Carion et al. 2020,
  section 4: 480 to 800 in steps of 32, and at most 1,333).
  """
  shortest: tuple[Pixels, ...] = (800,)  # pixels of the shorter side
  longest: Pixels = 1333  # pixels of the longer side, at most
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    check_filter("resize_shortest", self.interpolation)
    if not self.shortest or max(self.shortest) > self.longest:
      raise ConfigError(f"op resize_shortest: shortest={self.shortest} must be numbers of pixels,"
                        f" up to longest={self.longest}")

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (dataclasses.replace(self, shortest=self.shortest[-1:]),)

  def move(self, size: Size, generator: Generator | None) -> Move:
    place = -1 if generator is None else int(generator.integers(len(self.shortest)))
    return Move((0, 0, *size), scaled(size, self.shortest[place], self.longest))


@dataclasses.dataclass(frozen=True)
class RandomSizeCrop(ScaleOp):
  """Some images are scaled by their shorter side, and a box of random width and height is cut out.

  This is DETR's crop (Carion et al. 2020, section 4), after which `resize_shortest` follows. In
  evaluation nothing is done.
  """
  probability: Share = 0.5  # of an image to be cropped
  shortest: tuple[Pixels, ...] = (400, 500, 600)  # pixels of the shorter side, each as likely
  least: Pixels = 384  # pixels of a side of the crop
  most: Pixels = 600  # likewise; of a smaller image its side
  keep: Literal["centre", "part"] = "centre"  # of boxes, those whose centre, or a part, is inside
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    check_filter("random_size_crop", self.interpolation)
    if not self.shortest or self.least > self.most:
      raise ConfigError(f"op random_size_crop: shortest={self.shortest} must be numbers of pixels,"
                        f" and least={self.least} not more than most={self.most}")

  def move(self, size: Size, generator: Generator | None) -> Move | None:
    if generator is None or generator.random() >= self.probability:
      return None
    whole = scaled(size, self.shortest[int(generator.integers(len(self.shortest)))])
    cut = [int(generator.integers(min(self.least, side), min(self.most, side), endpoint=True))
           for side in whole]
    start = [int(generator.integers(side - n, endpoint=True)) for side, n in zip(whole, cut)]
    # The part in pixels of the image as it is, so that it is resampled once.
    part = [place * side / of for corner in (start, [s + n for s, n in zip(start, cut)])
            for place, side, of in zip(corner, size, whole)]
    return Move(tuple(part), (cut[0], cut[1]), centres=self.keep == "centre")


@dataclasses.dataclass(frozen=True)
class ScaleJitter(ScaleOp):
  """Scales an image by a random factor, and cuts out what is too large (large-scale jittering).

  Of factor 1 an image is as large as fits into height x width, as it is in evaluation (Ghiasi et
  al. 2021, section 3). Smaller ones are padded by the layout.
  """
  size: Pixels = 1024  # pixels: the height, and the width unless that is given
  width: Pixels | None = None  # pixels; None is size
  factor: tuple[Positive, Positive] = (0.1, 2.0)  # least, most; drawn uniformly
  keep: Literal["centre", "part"] = "centre"  # of boxes, those whose centre, or a part, is inside
  interpolation: str = "bilinear"  # or bicubic

  def __post_init__(self):
    check_range("scale_jitter", "factor", self.factor)
    check_filter("scale_jitter", self.interpolation)

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (dataclasses.replace(self, factor=(1.0, 1.0)),)

  def move(self, size: Size, generator: Generator | None) -> Move:
    factor = 1.0 if generator is None else float(generator.uniform(*self.factor))
    room = self.width or self.size, self.size
    fits = min(most / side for most, side in zip(room, size))
    whole = [max(round(side * fits * factor), 1) for side in size]
    cut = [min(n, most) for n, most in zip(whole, room)]
    start = [0 if generator is None else int(generator.integers(n - c, endpoint=True))
             for n, c in zip(whole, cut)]
    part = [place * side / of for corner in (start, [s + c for s, c in zip(start, cut)])
            for place, side, of in zip(corner, size, whole)]
    return Move(tuple(part), (cut[0], cut[1]), centres=self.keep == "centre")
