"""Objects that a trained detector finds in images, with their boxes in pixels of the files."""

import functools
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import flax.linen as nn
import jax
import numpy as np

from jtx.data.ops.decode import DecodeImage
from jtx.data.sources import files
from jtx.errors import DataError
from jtx.figures.boxes import Drawn, boxed
from jtx.inference.images import Image, ImagePredictor, in_order

KEYS = ("image", "size")  # of a batch, that a detector takes
THRESHOLD = 0.5  # the least score of what is given
BATCH_SIZE = 8  # images at a time, which are large


class Found(NamedTuple):
  """An object in an image."""
  label: str  # its class
  score: float  # its probability
  box: tuple[float, float, float, float]  # left, top, width and height, in pixels of the file


class Queries(NamedTuple):
  """What the queries of a detector say of images; B images and Q queries."""
  scores: Any  # [B, Q]: the probability of the likeliest class that is one
  classes: Any  # [B, Q], numbers
  boxes: Any  # [B, Q, 4]: centre x, centre y, width and height, relative to the image


@functools.partial(jax.jit, static_argnums=0)
def detect(model: nn.Module, params: Any, batch: Mapping[str, jax.Array]) -> Queries:
  """What a detector says after its last layer.

  Args:
    model: with a method `boxes`, from a batch to `logits` [L, B, Q, C + 1], of which the last class
      is "no object", and `boxes` [L, B, Q, 4].
    params: its parameters.
    batch: `image` [B, H, W, 3] and `size` [B, 2], the height and width of what is not padding.
  """
  outputs = model.apply({"params": params}, dict(batch), method="boxes")
  p = jax.nn.softmax(outputs["logits"][-1].astype(np.float32))[..., :-1]
  return Queries(p.max(-1), p.argmax(-1), outputs["boxes"][-1].astype(np.float32))


def corners(boxes: np.ndarray, size: Sequence[int]) -> np.ndarray:
  """Relative boxes [N, 4] as left, top, right and bottom in pixels, float64.

  Args:
    boxes: centre x, centre y, width and height.
    size: height and width of the image.
  """
  boxes = np.asarray(boxes, np.float64)
  half = boxes[:, 2:] / 2
  relative = np.concatenate([boxes[:, :2] - half, boxes[:, :2] + half], 1)
  return relative * ([size[1], size[0]] * 2)


def objects(queries: Queries, size: Sequence[int], labels: Sequence[str],
            threshold: float = THRESHOLD) -> list[Found]:
  """The objects of one image, best first; what of a box is beyond its edges is cut off.

  Args:
    queries: of the image: [Q], [Q] and [Q, 4].
    size: height and width of its file.
    labels: names of the classes.
    threshold: the least score.

  Raises:
    DataError: the scores are not finite.
  """
  if not np.isfinite(queries.scores).all():
    raise DataError("the model gives scores that are NaN or infinite: its weights can't be used")
  order = np.argsort(-queries.scores, kind="stable")
  order = order[queries.scores[order] >= threshold]
  boxes = np.clip(corners(queries.boxes[order], size), 0, [size[1], size[0]] * 2)
  return [Found(labels[int(queries.classes[q])], float(queries.scores[q]), with_sides(box))
          for q, box in zip(order, boxes)]


def with_sides(box: Sequence[float]) -> tuple[float, float, float, float]:
  """Left, top, width and height of left, top, right and bottom, to a hundredth of a pixel."""
  left, top, right, bottom = map(float, box)
  return round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)


class Detector:
  """Images to the objects in them.

  Args:
    model: with a head for boxes, such as a Detr.
    params: its parameters.
    ops: as for `ImagePredictor`; boxes are relative to what they make of a whole image, so none of
      them cuts something off.
    labels: names of the classes.
    batch_size: images at a time.
  """

  def __init__(self, model: nn.Module, params: Any, ops: Sequence[Any], labels: Sequence[str], *,
               batch_size: int = BATCH_SIZE):
    self.model, self.params, self.labels = model, params, labels
    self.predictor = ImagePredictor(model, params, ops, batch_size=batch_size)

  def __call__(self, images: Sequence[Image],
               threshold: float = THRESHOLD) -> Iterator[list[Found]]:
    """The objects of each image, in order, best first; those whose score is `threshold` or more.

    Raises:
      DataError: an image can't be read or decoded.
    """
    yield from in_order(self._found(images, threshold))

  def _found(self, images: Sequence[Image], threshold: float) -> Iterator[tuple[int, list[Found]]]:
    for examples, batch in self.predictor.batches(images, KEYS):
      found = jax.device_get(detect(self.model, self.params, batch))
      for i, (place, example) in enumerate(examples.items()):
        yield place, objects(Queries(*(x[i] for x in found)), example["original_size"],
                             self.labels, threshold)


def picture(path: str, found: Sequence[Found], labels: Sequence[str]) -> Any:
  """A figure of an image's file with the objects that were found in it.

  Args:
    path: of the file.
    found: its objects.
    labels: of all classes, which tell the colours.
  """
  image = DecodeImage(labelled=False).augment({"image": files.read(path), "path": path}, None)
  drawn = [Drawn(x.label, x.box, x.score) for x in found]
  return boxed([np.asarray(image["image"])], [drawn], labels)
