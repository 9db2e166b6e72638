"""Boxes in images, and where they go when the pixels are cropped, scaled or flipped.

A box is left, top, right and bottom in pixels, from the top left corner of the image; right and
bottom are where it ends, so a box of width 1 has right = left + 1. An example with `boxes` [N, 4]
has for each, beside its class, its area in pixels of the file, and whether it is around a crowd.
"""

from typing import NamedTuple

import numpy as np

from jtx.data.example import Example
from jtx.data.sources.boxes import warn
from jtx.errors import DataError

Box = tuple[float, float, float, float]
OF_BOXES = ("boxes", "box_labels", "box_areas", "crowd")  # keys of an example, [N, ...]


class Move(NamedTuple):
  """A part of an image, scaled to a size, and then flipped or not."""
  part: Box  # of the image, beyond whose edges it may reach
  size: tuple[int, int]  # width and height that the part gets
  flip: bool = False  # left to right
  centres: bool = False  # boxes are left out whose centre is not in the part


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
    example: with `boxes` [N, 4] float32, and for each what else is of `OF_BOXES`.
    move: of its image.
  """
  boxes = moved(example["boxes"], move)
  kept = areas(boxes) > 0
  if move.centres:
    left, top, right, bottom = move.part
    x, y = (example["boxes"][:, :2] + example["boxes"][:, 2:]).T / 2
    kept &= (left <= x) & (x < right) & (top <= y) & (y < bottom)
  return only({**example, "boxes": boxes}, kept)


def only(example: Example, kept: np.ndarray) -> Example:
  """An example with those of its boxes for which `kept` [N] is true."""
  return {**example, **{key: example[key][kept] for key in OF_BOXES if key in example}}


def checked(example: Example, size: tuple[int, int]) -> Example:
  """The example of a source with arrays of its boxes, clipped at the edges of its file.

  It has `boxes` [N, 4] and `box_areas` [N] float32, `box_labels` [N] int32 and `crowd` [N] bool. A
  box that has no width or height, or lies beyond the edges, is left out, and the log names it.

  Args:
    example: with `boxes`, and `box_labels` as numbers; see `jtx.data.sources.boxes`.
    size: width and height of the file.

  Raises:
    DataError: they are of another shape or kind, or corners are in another order.
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
  if wrong := np.flatnonzero(~(boxes[:, :2] <= boxes[:, 2:]).all(1)).tolist():
    raise DataError(f"op decode_image: {path} has the box {boxes[wrong[0]].tolist()}; a box is"
                    " left, top, right and bottom, the lower first")
  clipped = np.clip(boxes.astype(np.float64), 0, [*size, *size])
  given = np.asarray(example.get("box_areas", np.full(len(boxes), np.nan)), np.float64)
  crowd = np.asarray(example.get("crowd", np.zeros(len(boxes))), bool)
  if given.shape != labels.shape or crowd.shape != labels.shape:
    raise DataError(f"op decode_image: {path} has box_areas {list(given.shape)} and crowd"
                    f" {list(crowd.shape)}; they must be [{len(labels)}], one for each box")
  inside = areas(clipped) > 0
  for i in np.flatnonzero(~inside).tolist():
    has = ("has no width or no height" if not areas(boxes)[i] else
           f"lies outside of the image of {size[0]} x {size[1]} pixels")
    warn(f"{path}: box {i}, {boxes[i].tolist()}, {has}; it is left out")
  own = np.where(np.isnan(given), areas(clipped), given)
  return only({**example, "boxes": clipped.astype(np.float32), "crowd": crowd,
               "box_labels": labels.astype(np.int32), "box_areas": own.astype(np.float32)}, inside)


def relative(boxes: np.ndarray, size: tuple[int, int]) -> np.ndarray:
  """Boxes [N, 4] of an image as centre x, centre y, width and height, each from 0 to 1.

  Args:
    boxes: in pixels.
    size: width and height of the image.
  """
  sides = boxes[:, 2:] - boxes[:, :2]
  return (np.concatenate([boxes[:, :2] + sides / 2, sides], 1) / [*size, *size]).astype(np.float32)
