"""A detector that is given what it says, and images whose pixels tell which of them they are."""

import json
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from tests.data.image_files import png

NAMES = ("cat", "dog")


class Head(NamedTuple):
  """The fields of a head."""
  task: str
  outputs: int


class Given(nn.Module):
  """Queries of image number n, which all pixels of the image have as their value, from parameters.

  Parameters are `logits` [L, I, Q, C + 1] and `boxes` [L, I, Q, 4], of I images.
  """
  mean: float = 0.5  # of pixels, as they are normalised
  std: float = 0.25
  head: Head = Head("boxes", 2)

  @property
  def heads(self):
    return frozenset({"boxes"})

  def example(self):
    return {"image": jnp.zeros((1, 8, 8, 3)), "size": jnp.ones((1, 2), jnp.int32)}

  def boxes(self, batch, train=False):
    params = {key: self.get_variable("params", key) for key in ("logits", "boxes")}
    values = 255 * (batch["image"][:, 0, 0, 0] * self.std + self.mean)
    numbers = jnp.round(values).astype(jnp.int32)
    return {key: value[:, numbers] for key, value in params.items()}


def said(rows, queries=3):
  """Parameters of `Given`: of each image (class, probability, box) each, of two classes.

  The layer before the last says that there is nothing.
  """
  logits = np.full((2, len(rows), queries, len(NAMES) + 1), -20.0, np.float32)
  logits[..., -1] = 20
  boxes = np.full((2, len(rows), queries, 4), 0.5, np.float32)
  for i, row in enumerate(rows):
    for q, (number, p, box) in enumerate(row):
      logits[1, i, q] = np.log(1e-12)
      logits[1, i, q, number], logits[1, i, q, -1] = np.log(p), np.log1p(-p)
      boxes[1, i, q] = box
  return {"logits": logits, "boxes": boxes}


def write_images(folder, rows, sizes):
  """Even images whose value is their number, and boxes.jsonl, with (class, box) of each."""
  folder.mkdir(exist_ok=True)
  lines = []
  for i, (row, size) in enumerate(zip(rows, sizes)):
    (folder / f"{i}.png").write_bytes(png(i, size))
    lines.append({"image": f"{i}.png", "boxes": [box for _, box in row],
                  "classes": [NAMES[number] for number, _ in row]})
  (folder / "boxes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return str(folder)
