"""The layout of images of any shape: patches of several images in a row."""

import dataclasses
import math
from typing import Literal

import numpy as np

from jtx.data.example import Example
from jtx.data.op import Column, ImageOp, LayoutOp, Stage
from jtx.data.ops.image import FILTERS, Generator, check_filter
from jtx.data.packing import Pack
from jtx.errors import ConfigError
from jtx.ranges import Pixels, Size


@dataclasses.dataclass(frozen=True)
class Patches(LayoutOp, ImageOp):
  """Several images a row, each of as many patches as its shape asks for.

  A file of h x w pixels has ceil(s h / size) x ceil(s w / size) patches, to which its image is
  scaled. s is 1, or the largest number with which they are `most` or fewer, in a grid of at most
  `max_side` rows and columns; with `grow` it is that in any case. So an image keeps its aspect
  ratio, but for less than a patch (Dehghani et al. 2023; Tschannen et al. 2025, section 2.4.2).
  Images share rows by first fit, as texts do with `pack`. For this the sizes of a window's images
  are read before they are decoded.

  A batch has, of R rows of T = `length` patches and S = `max_segments` images,

    patch              [R, T, size * size * channels] uint8
    patch_places       [R, T, 2] int32   row and column in the image
    patch_segment_ids  [R, T] int32      1, 2, ... by image; 0 is padding
    patch_positions    [R, T] int32      from 0 in each image, row by row
    real               [R, S] int32      1 where there is an image
    label              [R, S]            where images have labels
  """
  size: Pixels = 16  # pixels of a patch's side
  most: Size = 256  # patches of an image
  length: Size = 1024  # patches of a row
  max_segments: Size = 16  # images of a row, at most
  max_side: Size = 64  # rows, and columns, of patches of an image, at most
  grow: bool = False  # small images are scaled up to `most` patches, too
  channels: Literal[1, 3] = 3  # 3 is RGB, 1 is grey
  interpolation: str = "bilinear"  # or bicubic

  stage = Stage.LAYOUT
  group = pad = False  # all rows are full, and all of an image is seen
  fields = ("patch",)

  def __post_init__(self):
    check_filter("patches", self.interpolation)
    if self.most > self.length:
      raise ConfigError(f"op patches: an image of most={self.most} patches has no place in a row of"
                        f" length={self.length}")

  @property
  def lengths(self) -> tuple[int, ...]:
    return (self.length,)

  @property
  def columns(self) -> dict[str, Column]:
    return {"patch": Column("aligned:patch", "uint8", (self.size**2 * self.channels,)),
            "patch_places": Column("aligned:patch", "int32", (2,))}

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    """One image a row, for predictions."""
    return (dataclasses.replace(self, length=self.most, max_segments=1),)

  def fit(self, lengths: np.ndarray | None) -> "Patches":
    del lengths  # rows are full
    return self

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    return Pack(self.fields, self.lengths, self.max_segments).plan(lengths)

  def takes(self, size: tuple[int, int]) -> bool:
    del size  # any
    return True

  def number(self, size: tuple[int, int]) -> int:
    """The patches of an image of a height and width in pixels."""
    return math.prod(self.grid(size))

  def grid(self, size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches of an image of a height and width in pixels."""
    scaled = lambda s: tuple(max(math.ceil(s * side / self.size - 1e-9), 1) for side in size)
    fits = lambda s: math.prod(scaled(s)) <= self.most and max(scaled(s)) <= self.max_side
    if not self.grow and fits(1.0):
      return scaled(1.0)
    low, high = 0.0, 1.0
    while fits(high):
      low, high = high, 2 * high
    for _ in range(50):
      middle = (low + high) / 2
      low, high = (middle, high) if fits(middle) else (low, middle)
    return scaled(low)

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with its patches in place of its image."""
    del generator  # nothing is drawn
    rows, columns = self.grid(tuple(example["original_size"].tolist()))
    image, side = example["image"], self.size
    if image.size != (columns * side, rows * side):
      image = image.resize((columns * side, rows * side), FILTERS[self.interpolation])
    pixels = np.asarray(image).reshape(rows, side, columns, side, self.channels)
    places = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
    rest = {key: value for key, value in example.items() if key != "image"}
    return {**rest, "patch": pixels.swapaxes(1, 2).reshape(rows * columns, -1),
            "patch_places": places.reshape(-1, 2).astype(np.int32)}
