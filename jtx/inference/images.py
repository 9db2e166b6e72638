"""Predictions of a trained vision transformer for images: classes, or vectors.

Images are paths, bytes of a file, or arrays; they go through the ops that evaluation used.
"""

import concurrent.futures
import os
import sys
from typing import Any, Iterable, Iterator, Sequence, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx import storage
from jtx.data.example import Example
from jtx.data.packing import assemble
from jtx.data.sources import files
from jtx.data.sources.images import ENDINGS
from jtx.errors import ConfigError, DataError
from jtx.inference.predictions import Labels, Prediction, predicted

Value = TypeVar("Value")
Image = str | os.PathLike | bytes | np.ndarray
THREADS = 4  # that decode
TOP = 5  # classes that are given for an image


def takes_images(model: nn.Module) -> bool:
  return not {"image", "patch"}.isdisjoint(model.example())


class ImagePredictor:
  """Runs a method of a model over images.

  Args:
    model: of images, such as a Vit.
    params: its parameters.
    ops: that make arrays of images, such as those of a run's data.
    method: of the model, from a batch to [B, ...].
    batch_size: images at a time.
  """

  def __init__(self, model: nn.Module, params: Any, ops: Sequence[Any], *, method: str = "predict",
               batch_size: int = 64):
    self.ops, self.params, self.method, self.batch_size = ops, params, method, batch_size
    columns = {name: column for op in ops for name, column in op.columns.items()}
    made = assemble(ops[-1], columns, [], [])  # of no images
    self.columns, self.keys = columns, [key for key in model.example() if key in made]
    self.run = jax.jit(lambda params, batch: model.apply({"params": params}, batch,
                                                         method=method))

  def __call__(self, images: Sequence[Image]) -> Iterator[np.ndarray]:
    """The method's value of each image, in order; `features` are [D].

    Raises:
      DataError: an image can't be read or decoded.
    """
    yield from in_order(self._values(images))

  def _values(self, images: Sequence[Image]) -> Iterator[tuple[int, np.ndarray]]:
    for examples, batch in self.batches(images, self.keys):
      values = np.asarray(self.run(self.params, batch))
      for (place, _), value in zip(examples.items(), values):
        yield place, value.reshape(-1) if self.method == "features" else value

  def batches(self, images: Sequence[Image], keys: Sequence[str],
              ) -> Iterator[tuple[dict[int, Example], dict[str, jax.Array]]]:
    """Examples after the ops by their places, and the arrays [batch_size, ...] of some keys.

    All batches are of one shape, or each of one of the few that the layout has, so that a program
    is compiled once for each; rows without an image are 0. Of fewer images than `batch_size` the
    rows are a power of two.

    Raises:
      DataError: an image can't be read or decoded.
    """
    size = min(self.batch_size, 1 << max(len(images) - 1, 0).bit_length())
    waiting: dict[Any, dict[int, Example]] = {}  # by the layout of their batch
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
      for start in range(0, len(images), size):
        made = pool.map(self._laid, images[start:start + size])
        for place, (layout, example) in enumerate(made, start):
          waiting.setdefault(layout, {})[place] = example
          if len(waiting[layout]) == size:
            yield self._batch(layout, waiting.pop(layout), size, keys)
    for layout, examples in waiting.items():
      yield self._batch(layout, examples, size, keys)

  def _laid(self, image: Image) -> tuple[Any, Example]:
    """The layout of an image's batch, and the image after all ops."""
    example, layout = self._before_layout(image), self.ops[-1]
    if layout.by_size:
      layout = layout.fit(np.array([example["image"].size[::-1]]))
    return layout, layout.augment(example, None)

  def _batch(self, layout: Any, examples: dict[int, Example], size: int,
             keys: Sequence[str]) -> tuple[dict[int, Example], dict[str, jax.Array]]:
    rows = [[example] for example in examples.values()] + [[]] * (size - len(examples))
    batch = assemble(layout, {**self.columns, **layout.columns}, rows, [[]] * size)
    return examples, {key: jnp.asarray(batch[key]) for key in keys}

  def example(self, image: Image) -> Example:
    """An image as an example after the ops, without a label."""
    return self.ops[-1].augment(self._before_layout(image), None)

  def _before_layout(self, image: Image) -> Example:
    path = "an image" if isinstance(image, (bytes, np.ndarray)) else os.fspath(image)
    if not isinstance(image, (bytes, np.ndarray)):
      image = files.read(path)
    example = {"image": image, "label": 0, "path": path}
    for op in self.ops[:-1]:
      example = op.augment(example, None)
    return example

  def array(self, image: Image) -> np.ndarray:
    """[H, W, C], as the model takes it.

    Raises:
      ConfigError: it takes patches.
    """
    if "image" not in self.keys:
      raise ConfigError("a picture needs a model of whole images, and this one takes the patches of"
                        " images of any shape")
    return self.example(image)["image"]


def in_order(results: Iterable[tuple[int, Value]]) -> Iterator[Value]:
  """Values by their places, from 0 up, each as soon as those before it are there."""
  waiting: dict[int, Value] = {}
  at = 0
  for place, value in results:
    waiting[place] = value
    while at in waiting:
      yield waiting.pop(at)
      at += 1


def save_patches(path: str, model: nn.Module, params: Any, ops: Sequence[Any],
                 images: Sequence[Image], batch_size: int = 64) -> None:
  """Writes the features of all patches as a float32 array [images, H, W, D] in NumPy's format.

  They are the states of the last layer, such as a linear probe of places starts from. The file is
  written as the images are read, so that they need not fit in memory.

  Args:
    path: of the file, which ends in .npy.
    model: as for `ImagePredictor`.
    params: its parameters.
    ops: as for `ImagePredictor`.
    images: in the order of the array's rows.
    batch_size: images at a time.

  Raises:
    ConfigError: the path ends otherwise, or is of a bucket.
    DataError: an image can't be read or decoded.
  """
  if not path.endswith(".npy") or storage.is_remote(path):
    raise ConfigError(f"{path}: features of patches are written to a file of this machine whose"
                      " name ends in .npy")
  if not hasattr(model, "patch_features"):
    raise ConfigError(f"a {type(model).__name__} has no features of patches in one grid")
  run, file = ImagePredictor(model, params, ops, method="patch_features",
                             batch_size=batch_size), None
  for i, x in enumerate(run(images)):
    if file is None:
      file = np.lib.format.open_memmap(path, "w+", np.float32, (len(images), *x.shape))
    file[i] = x


class ImageClassifier:
  """Images to their classes.

  Args:
    model: of images, with a head for classes.
    params: its parameters.
    ops: as for `ImagePredictor`.
    labels: names of the classes.
    batch_size: images at a time.
  """

  def __init__(self, model: nn.Module, params: Any, ops: Sequence[Any], labels: Sequence[str], *,
               batch_size: int = 64):
    self.head, self.labels = model.head, labels
    self.predictor = ImagePredictor(model, params, ops, batch_size=batch_size)

  def __call__(self, images: Sequence[Image]) -> list[Prediction | Labels]:
    """The class or labels of each image, in order."""
    return [predicted(self.head, x[0], self.labels) for x in self.predictor(images)]


def listed_images(path: str) -> list[str]:
  """The images of a folder, by name; or those that a file lists, one path a line; or one image.

  "-" is the list on standard input. What a folder hides, with a name that begins with a dot, is
  left out.

  Raises:
    DataError: there are none, or one that is listed is not there.
  """
  if os.path.isdir(path):
    found = sorted(os.path.join(path, name) for name in files.walked(path, None)
                   if name.lower().endswith(ENDINGS) and not files.is_hidden(name))
  elif path.lower().endswith(ENDINGS):
    return [path]
  else:
    listed = sys.stdin.buffer.read() if path == "-" else files.read(path)
    lines = listed.decode("utf-8", errors="replace").splitlines()
    path, found = "standard input" if path == "-" else path, []
    for number, line in enumerate(map(str.strip, lines), 1):
      image = os.path.join(os.path.dirname(path), line)
      if line and not storage.is_remote(image) and not os.path.isfile(image):
        raise DataError(f"{path}:{number}: there is no image {image}")
      found += [image] if line else []
  if not found:
    raise DataError(f"{path}: names no image; give a folder of images, an image, or a text file"
                    " with a path a line")
  return found
