"""Images that tests of several ops take."""

import io

import numpy as np
from PIL import Image


def noise(width, height, channels=3, seed=0):
  """A Pillow image of random pixels."""
  shape = (height, width) if channels == 1 else (height, width, channels)
  pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
  return Image.fromarray(pixels)


def smooth(width, height):
  """A picture that loses little as a JPEG."""
  return noise(8, 6).resize((width, height), Image.Resampling.BICUBIC)


def places(width, height):
  """An image whose red is the column and whose green is the row of a pixel."""
  y, x = np.mgrid[:height, :width]
  return Image.fromarray(np.stack([x, y, 0 * x], -1).astype(np.uint8))


def array(image):
  return np.asarray(image).astype(int)


def bytes_of(image, kind, **options):
  file = io.BytesIO()
  image.save(file, kind, **options)
  return file.getvalue()


def generators(number, seed=0):
  return (np.random.default_rng([seed, i]) for i in range(number))


def same(a, b):
  return a.mode == b.mode and a.size == b.size and a.tobytes() == b.tobytes()


TEN = tuple("0123456789")


def grey_of(pixels):
  """Rec. 601 luma [H, W] of [H, W, 3], in Pillow's fixed point."""
  return (pixels @ [19595, 38470, 7471] + 0x8000) >> 16


def inside(values, low, high, margin):
  return (values > low + margin) & (values < high - 1 - margin)
