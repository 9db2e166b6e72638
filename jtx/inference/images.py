"""What a trained vision transformer says of images: classes, or vectors.

Images are paths, bytes of a file, or arrays; they go through what evaluation did with them: the
ops of the run, or for a Hugging Face directory a resize to the model's size.
"""

import concurrent.futures
import os
from typing import Any, Iterator, Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.data.sources.images import ENDINGS, file_bytes
from jtx.errors import DataError

Image = str | os.PathLike | bytes | np.ndarray
THREADS = 4  # that decode
TOP = 5  # classes of an image that are told


def ops_of(directory: str, model: nn.Module) -> Sequence[Any]:
  """The ops that make arrays of images for the model of a directory."""
  from jtx.data.ops.image import DecodeImage, Images, Resize
  from jtx.interop import huggingface
  from jtx.saved import pretrained
  if not huggingface.is_hf(directory) and not pretrained.is_converted(directory):
    return pretrained.open_dataset(directory).recipe.augment
  image = model.image
  return (DecodeImage(channels=image.channels, names=("image",)), Resize(size=image.size),
          Images(size=image.size, channels=image.channels))


class ImagePredictor:
  """Runs a method of a model over images.

  Args:
    directory: whose model it is.
    model: a Vit.
    params: its parameters.
    method: of the model, from a batch to [B, ...].
    batch_size: images at a time.
  """

  def __init__(self, directory: str, model: nn.Module, params: Any, method: str = "predict",
               batch_size: int = 64):
    self.ops, self.params, self.batch_size = ops_of(directory, model), params, batch_size
    self.run = jax.jit(lambda params, image: model.apply({"params": params}, {"image": image},
                                                         method=method))

  def __call__(self, images: Sequence[Image]) -> Iterator[np.ndarray]:
    """The method's value of each image, in order.

    Raises:
      DataError: an image can't be read or decoded.
    """
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
      for start in range(0, len(images), self.batch_size):
        arrays = list(pool.map(self.array, images[start:start + self.batch_size]))
        # One shape, so that it is compiled once.
        batch = np.zeros((self.batch_size, *arrays[0].shape), np.uint8)
        batch[:len(arrays)] = arrays
        yield from np.asarray(self.run(self.params, jnp.asarray(batch)))[:len(arrays)]

  def array(self, image: Image) -> np.ndarray:
    """[H, W, C], as the model takes it."""
    path = "an image" if isinstance(image, (bytes, np.ndarray)) else os.fspath(image)
    if not isinstance(image, (bytes, np.ndarray)):
      image = file_bytes(path)
    example = {"image": image, "label": 0, "path": path}
    for op in self.ops:
      example = op.augment(example, None)
    return example["image"]


def listed_images(path: str) -> list[str]:
  """The images of a folder, by name; or those that a file lists, one path a line; or one image.

  Raises:
    DataError: there are none.
  """
  if os.path.isdir(path):
    found = sorted(os.path.join(place, name) for place, _, names in os.walk(path)
                   for name in names if name.lower().endswith(ENDINGS))
  elif path.lower().endswith(ENDINGS):
    return [path]
  else:
    lines = file_bytes(path).decode("utf-8", errors="replace").splitlines()
    found = [os.path.join(os.path.dirname(path), line.strip()) for line in lines if line.strip()]
  if not found:
    raise DataError(f"{path}: names no image; give a folder of images, an image, or a text file"
                    " with a path a line")
  return found
