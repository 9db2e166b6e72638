"""The layout of images: batches of arrays of one size, with boxes and padding."""

import dataclasses
from typing import Any, Literal

import numpy as np

from jtx.data.example import Example
from jtx.data.op import Column, ImageOp, LayoutOp, Stage
from jtx.data.ops import boxes
from jtx.data.ops.image import Generator
from jtx.data.packing import Pack
from jtx.errors import ConfigError, DataError
from jtx.ranges import Pixels, Positive, Share, Size, SizeOrNone


def told_size(size: tuple[int, int]) -> str:
  """A height and width as a config has them."""
  height, width = size
  return f"size={height}" if height == width else f"size={height} and width={width}"


@dataclasses.dataclass(frozen=True)
class Images(LayoutOp, ImageOp):
  """An example a row: `image [R, size, width, channels]`, uint8, or float32 where it is normalised.

  Beside it a row has `real [R, 1]` int32, which is 1 where there is an image and 0 in padding, and
  where images have labels `label [R, 1]`. With `pad` there is `size [R, 2]` int32, the height and
  width of what is not padding. With `max_boxes` = N there are

    boxes          [R, N, 4] float32  centre x, centre y, width and height, from 0 to 1 of `size`;
                                      zeros where there is none
    box_classes    [R, N] int32       their classes; -1 where there is none
    box_areas      [R, N] float32     in pixels of the file
    crowd          [R, N] bool        around many objects; left out of training
    size           [R, 2] int32       as with `pad`
    original_size  [R, 2] int32       height and width of the file

  Tokens that an op makes beside the image are laid out as by `jtx.data.packing.assemble`. With
  `max_segments` = S above 1 a row has up to S of such pairs, by first fit of their texts as with
  `pack`: its shapes are `image [R, S, size, width, channels]` and `real [R, S]`. For this all texts
  are encoded once before training, for which no image is read.

  With `shapes` a batch has the first of them that has room for all of its images, else size x
  width, and images of one shape share batches: the train step is compiled once for each.
  """
  size: Pixels = 224  # pixels: the height, and the width unless that is given
  channels: Literal[1, 3] = 3  # 3 is RGB, 1 is grey
  width: Pixels | None = None  # pixels; None is size
  pad: bool = False  # smaller images have zeros on their right and below
  max_boxes: SizeOrNone = 0  # N, boxes that a row has room for; 0: rows have none
  mean: tuple[Share, ...] = ()  # one a channel, of pixels from 0 to 1; () leaves bytes as they are
  std: tuple[Positive, ...] = ()  # likewise: a pixel becomes (x - mean) / std
  max_segments: Size = 1  # S, images of a row at most, whose texts share its tokens
  shapes: tuple[tuple[Pixels, Pixels], ...] = ()  # smaller heights and widths that a batch may have
  # Of tokens beside the image, which follow from the op that makes them.
  fields: tuple[str, ...] = dataclasses.field(default=(), metadata={"config": False})
  lengths: tuple[int, ...] = dataclasses.field(default=(), metadata={"config": False})

  stage = Stage.LAYOUT

  def __post_init__(self):
    if not len(self.mean) == len(self.std) == (self.channels if self.mean else 0):
      raise ConfigError(f"op images: mean={self.mean} and std={self.std} must have a number for"
                        f" each of the {self.channels} channels, or none")
    if self.max_segments > 1 and (self.pad or self.max_boxes):
      raise ConfigError(f"op images: rows of max_segments={self.max_segments} images have neither"
                        " pad nor max_boxes")
    if self.shapes and not self.pad:
      raise ConfigError(f"op images: shapes={self.shapes} are for images that are padded; set"
                        " pad=True")
    for height, width in self.shapes:
      if height > self.size or width > (self.width or self.size):
        raise ConfigError(f"op images: shapes={self.shapes} has {height} x {width}, which is more"
                          f" than {told_size(self.output_size)}")

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.width or self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (self.alone(max_boxes=0),)

  def alone(self, **more: Any) -> "Images":
    """The layout of images without texts."""
    return dataclasses.replace(self, fields=(), lengths=(), max_segments=1, **more)

  @property
  def columns(self) -> dict[str, Column]:
    kind, n = "float32" if self.mean else "uint8", self.max_boxes
    columns = {"image": Column("array" if self.max_segments == 1 else "example", kind,
                               (*self.output_size, self.channels))}
    if self.pad or n:
      columns["size"] = Column("array", "int32", (2,))
    if n:
      columns |= {"boxes": Column("array", "float32", (n, 4)),
                  "box_classes": Column("array", "int32", (n,), fill=-1),
                  "box_areas": Column("array", "float32", (n,)),
                  "crowd": Column("array", "bool", (n,)),
                  "original_size": Column("array", "int32", (2,))}
    return columns

  @property
  def by_size(self) -> bool:
    return bool(self.shapes)

  group = by_size

  def fit(self, lengths: np.ndarray | None) -> "Images":
    if not self.shapes:
      return self
    number = -1 if lengths is None else int(self.rank(lengths.max(0, keepdims=True))[0])
    height, width = (*self.shapes, self.output_size)[number]
    return dataclasses.replace(self, size=height, width=width, shapes=())

  def rank(self, lengths: np.ndarray) -> np.ndarray:
    """[images]: the number of the first shape that has room, of heights and widths [images, 2]."""
    room = (lengths[:, None] <= np.array(self.shapes).reshape(-1, 2)).all(-1)
    return np.where(room.any(1), room.argmax(1), len(self.shapes))

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    if self.max_segments == 1:
      return [[i] for i in range(len(lengths))]
    return Pack(self.fields, self.lengths, self.max_segments).plan(lengths)

  def takes(self, size: tuple[int, int]) -> bool:
    """Whether images of a height and width have a place in a row."""
    if self.pad:
      return all(side <= most for side, most in zip(size, self.output_size))
    return size == self.output_size

  def shown(self, image: np.ndarray) -> np.ndarray:
    """Pixels of a batch, [..., channels], as numbers from 0 to 1."""
    return image * np.float32(self.std) + np.float32(self.mean) if self.mean else image / 255

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with its image as an array.

    Raises:
      ConfigError: the image is of another size.
      DataError: it has more boxes than a row.
    """
    width, height = example["image"].size
    if not self.takes((height, width)):
      told = told_size(self.output_size)
      raise ConfigError(f"data.ops: {example['path']} is of {width} x {height} pixels after all ops"
                        f" and 'images' has {told}; one of 'inception_crop', 'pad_crop'"
                        " and 'resize', with the same size, makes it of that size"
                        + ", and 'resize_shortest' no larger than its longest" * self.pad)
    pixels = np.asarray(example["image"]).reshape(height, width, self.channels)
    pixels = pixels if not self.mean else (
        (pixels / np.float32(255) - np.float32(self.mean)) / np.float32(self.std))
    room = [(0, most - side) for side, most in zip((height, width), self.output_size)]
    made = {"image": np.pad(pixels, (*room, (0, 0))) if self.pad else pixels,
            "size": np.array([height, width], np.int32)}
    return {**example, **made, **self._boxes(example, (width, height), generator)}

  def _boxes(self, example: Example, size: tuple[int, int],
             generator: Generator | None) -> Example:
    """The boxes of an example, in training without crowds, padded to `max_boxes`."""
    if not self.max_boxes:
      return {}
    if "boxes" not in example:
      raise DataError(f"op images: {example['path']} has no 'boxes', and max_boxes="
                      f"{self.max_boxes} asks for them")
    if generator is not None:
      example = boxes.only(example, ~example["crowd"])
    number = len(example["boxes"])
    if number > self.max_boxes:
      raise DataError(f"op images: {example['path']} has {number} boxes, which is more than"
                      f" max_boxes={self.max_boxes}")
    room = (0, self.max_boxes - number)
    padded = lambda values, fill: np.pad(values, room, constant_values=fill)
    return {"boxes": np.pad(boxes.relative(example["boxes"], size), (room, (0, 0))),
            "box_classes": padded(example["box_labels"], -1),
            "box_areas": padded(example["box_areas"], 0), "crowd": padded(example["crowd"], False)}
