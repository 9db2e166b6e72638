"""The layout of images: batches of arrays of one size, with boxes and padding."""

import dataclasses
from typing import Literal

import numpy as np

from jtx.data.example import Example
from jtx.data.op import Column, ImageOp, LayoutOp, Stage
from jtx.data.ops.image import Generator
from jtx.errors import ConfigError, DataError
from jtx.ranges import Pixels, SizeOrNone


def told_size(size: tuple[int, int]) -> str:
  """A height and width as a config has them."""
  height, width = size
  return f"size={height}" if height == width else f"size={height} and width={width}"


@dataclasses.dataclass(frozen=True)
class Images(LayoutOp, ImageOp):
  """An example a row: `image [R, size, width, channels]` uint8.

  Beside it a row has `label [R, 1]` and `real [R, 1]` int32; `real` is 1 where there is an image,
  and 0 in padding. With `pad` there is `image_size [R, 2]` int32, the height and width of what is
  not padding. With `max_boxes` = N there are `boxes [R, N, 4]` float32 (left, top, right, bottom,
  in pixels), `box_labels [R, N]` int32, and `num_boxes [R, 1]` int32, how many of them are there.
  Tokens that an op makes beside the image are laid out as by `jtx.data.packing.assemble`.
  """
  size: Pixels = 224  # pixels: the height, and the width unless that is given
  channels: Literal[1, 3] = 3  # 3 is RGB, 1 is grey
  width: Pixels | None = None  # pixels; None is size
  pad: bool = False  # smaller images have zeros on their right and below
  max_boxes: SizeOrNone = 0  # N, boxes that a row has room for; 0: rows have none
  # Of tokens beside the image, which follow from the op that makes them.
  fields: tuple[str, ...] = dataclasses.field(default=(), metadata={"config": False})
  lengths: tuple[int, ...] = dataclasses.field(default=(), metadata={"config": False})

  stage = Stage.LAYOUT
  group = False
  max_segments = 1

  @property
  def output_size(self) -> tuple[int, int]:
    return self.size, self.width or self.size

  @property
  def evaluated(self) -> tuple[ImageOp, ...]:
    return (dataclasses.replace(self, max_boxes=0, fields=(), lengths=()),)

  @property
  def columns(self) -> dict[str, Column]:
    columns = {"image": Column("array", "uint8", (*self.output_size, self.channels))}
    if self.pad:
      columns["image_size"] = Column("array", "int32", (2,))
    if self.max_boxes:
      columns |= {"boxes": Column("array", "float32", (self.max_boxes, 4)),
                  "box_labels": Column("array", "int32", (self.max_boxes,)),
                  "num_boxes": Column("example")}
    return columns

  def fit(self, longest: int) -> "Images":
    del longest  # all rows are of one size
    return self

  def plan(self, lengths: np.ndarray) -> list[list[int]]:
    return [[i] for i in range(len(lengths))]

  def takes(self, size: tuple[int, int]) -> bool:
    """Whether images of a height and width have a place in a row."""
    if self.pad:
      return all(side <= most for side, most in zip(size, self.output_size))
    return size == self.output_size

  def augment(self, example: Example, generator: Generator | None) -> Example:
    """The example with its image as an array.

    Raises:
      ConfigError: the image is of another size.
      DataError: it has more boxes than a row.
    """
    del generator  # nothing is drawn
    width, height = example["image"].size
    if not self.takes((height, width)):
      told = told_size(self.output_size)
      raise ConfigError(f"data.ops: {example['path']} is of {width} x {height} pixels after all ops"
                        f" and 'images' has {told}; one of 'inception_crop', 'pad_crop'"
                        " and 'resize', with the same size, makes it of that size")
    pixels = np.asarray(example["image"]).reshape(height, width, self.channels)
    room = [(0, most - side) for side, most in zip((height, width), self.output_size)]
    made = {"image": np.pad(pixels, (*room, (0, 0))) if self.pad else pixels}
    if self.pad:
      made["image_size"] = np.array([height, width], np.int32)
    return {**example, **made, **self._boxes(example)}

  def _boxes(self, example: Example) -> Example:
    """The boxes of an example, padded with zeros to `max_boxes`."""
    number = len(example.get("boxes", ()))
    if number > self.max_boxes:
      raise DataError(f"op images: {example['path']} has {number} boxes, which is more than"
                      f" max_boxes={self.max_boxes}")
    if not self.max_boxes:
      return {}
    if "boxes" not in example:
      raise DataError(f"op images: {example['path']} has no 'boxes', and max_boxes="
                      f"{self.max_boxes} asks for them")
    room = (0, self.max_boxes - number)
    return {"boxes": np.pad(example["boxes"], (room, (0, 0))),
            "box_labels": np.pad(example["box_labels"], room), "num_boxes": np.int32(number)}
