"""Boxes of objects, which move with the pixels of their image."""

import numpy as np

from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image import Flip
from jtx.data.ops.scale import RandomSizeCrop, ScaleJitter
from jtx.data.sources.scattered import small
from jtx.figures.boxes import Drawn, boxed
from jtx.inference.boxes import with_sides

NUMBER = 2  # of an image of the training split with four digits
OPS = {  # of draws that show what they do
    "flip": (Flip(), 0), "random_size_crop": (RandomSizeCrop(1.0, (48,), 30, 40), 1),
    "scale_jitter": (ScaleJitter(32, factor=(1.4, 1.6)), 2)}


def examples() -> dict[str, dict]:
  """By its name what each op makes of one image: with `image`, `boxes` and `box_labels`."""
  source = small("", "train")
  decode = DecodeImage(names=source.classes, boxes=True)
  whole = decode.augment({**source[NUMBER], "path": "an image"}, None)
  return {"as it is": whole} | {name: op.augment(whole, np.random.default_rng(seed))
                                for name, (op, seed) in OPS.items()}


def draw_boxes():
  found = examples()
  names = small("", "train").classes
  boxes = [[Drawn(names[number], with_sides(box))
            for number, box in zip(e["box_labels"], e["boxes"])] for e in found.values()]
  return boxed([np.asarray(e["image"]) for e in found.values()], boxes, names, list(found), most=4)


FIGURES = {"boxes": draw_boxes}
