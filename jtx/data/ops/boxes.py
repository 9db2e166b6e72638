"""Boxes in images, and where they go when the pixels are cropped, scaled or flipped.

A box is left, top, right and bottom in pixels, from the top left corner of the image; right and
bottom are where it ends, so a box of width 1 has right = left + 1.
"""

from typing import NamedTuple

import numpy as np

from jtx.data.example import Example
from jtx.errors import DataError

Box = tuple[float, float, float, float]


class Move(NamedTuple):
  """A part of an image, scaled to a size, and then flipped or not."""
  part: Box  # of the image, beyond whose edges it may reach
  size: tuple[int, int]  # width and height that the part gets
  flip: bool = False  # left to right


def moved(boxes: np.ndarray, move: Move) -> np.ndarray:
  """[N, 4] float32: where boxes [N, 4] are after a move, as far as they are in the image."""
  left, top, right, bottom = move.part
  width, height = move.size
  scale = np.array([width / (right - left), height / (bottom - top)] * 2)
  result = (np.asarray(boxes, np.float64) - [left, top, left, top]) * scale
  result = np.clip(result, 0, [width, height, width, height])
  return (flipped(result, width) if move.flip else result).astype(np.float32)


def flipped(boxes: np.ndarray, width: float) -> np.ndarray:
  """Boxes [N, 4] of an image that was flipped left to right."""
  left, top, right, bottom = np.moveaxis(boxes, -1, 0)
  return np.stack([width - right, top, width - left, bottom], -1)


def areas(boxes: np.ndarray) -> np.ndarray:
  """[N]: pixels of boxes [N, 4]."""
  return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def move_example(example: Example, move: Move) -> Example:
  """An example with its boxes moved; those of which nothing is in the image any more are left out.

  Args:
    example: with `boxes` [N, 4] float32 and `box_labels` [N] int32.
    move: of its image.
  """
  boxes = moved(example["boxes"], move)
  kept = areas(boxes) > 0
  return {**example, "boxes": boxes[kept], "box_labels": example["box_labels"][kept]}


def checked(example: Example) -> Example:
  """The example of a source, with `boxes` as [N, 4] float32 and `box_labels` as [N] int32.

  Raises:
    DataError: they are of another shape or kind, or a box has no width or height.
  """
  path = example["path"]
  if "box_labels" not in example:
    raise DataError(f"op decode_image: {path} has 'boxes' without 'box_labels', a number for each")
  boxes, labels = np.asarray(example["boxes"]), np.asarray(example["box_labels"])
  if not boxes.size and not labels.size:  # an image without objects
    boxes, labels = np.zeros((0, 4)), np.zeros(0, int)
  if boxes.shape != (*labels.shape, 4) or labels.ndim != 1 or labels.dtype.kind not in "iu":
    raise DataError(f"op decode_image: {path} has boxes {list(boxes.shape)} and box_labels"
                    f" {list(labels.shape)} {labels.dtype}; they must be [N, 4], and [N] of"
                    " integers")
  boxes = boxes.astype(np.float32)
  if wrong := np.flatnonzero((boxes[:, :2] >= boxes[:, 2:]).any(1)).tolist():
    raise DataError(f"op decode_image: {path} has the box {boxes[wrong[0]].tolist()}; a box is"
                    " left, top, right and bottom, the lower first")
  return {**example, "boxes": boxes, "box_labels": labels.astype(np.int32)}
