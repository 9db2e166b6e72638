"""Files and sources of images that several tests share."""

import io

import numpy as np
from PIL import Image
import pytest

from jtx.config import section
from jtx.data.ops.registry import OPS
from jtx.data.pipeline import Stream
from jtx.data.prepared import lazy
from jtx.data.recipes import build_ops


def png(value, size=(4, 3)):
  """The bytes of an even grey picture."""
  file = io.BytesIO()
  Image.new("RGB", size, (value,) * 3).save(file, "PNG")
  return file.getvalue()


def write_tree(folder, **classes):
  """A folder a class, with files by name."""
  for name, files in classes.items():
    for file, data in files.items():
      path = folder / name / file
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(data)


def all_of(source):
  return [source[i] for i in range(len(source))]


def error_of(kind, function, *args):
  with pytest.raises(kind) as e:
    function(*args)
  return str(e.value)


def pixels(*shape, seed=0):
  return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


class Listed(list):
  """A source of images in memory, whose labels are numbers."""

  def __init__(self, examples, classes, name="listed"):
    super().__init__(examples)
    self.classes, self.name = classes, name


def numbered(count, classes=("a", "b", "c"), size=(8, 8), name="listed"):
  """Even pictures whose value is their number."""
  return Listed([{"image": np.full((*size, 3), i, np.uint8), "label": i % len(classes)}
                 for i in range(count)], classes, name)


def configs(*names, **edits):
  return [section(OPS, name, **edits.get(name, {})) for name in names]


SMALL = dict(pad_crop={"size": 8, "padding": 2}, images={"size": 8})
TRAIN = configs("decode_image", "pad_crop", "flip", "random_erasing", "images", **SMALL,
                decode_image={"names": ("a", "b", "c")})


def lazily(*sources, ops=TRAIN):
  recipe = build_ops(ops)
  return lazy(sources, recipe), recipe


def stream_of(*sources, ops=TRAIN, **edits):
  examples, recipe = lazily(*(sources or (numbered(40), numbered(23))), ops=ops)
  options = {"seed": 5, "batch_size": 8, "window": 20, "counts": examples.sizes}
  return Stream(examples, recipe, **options | edits)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


REASON = "is no image of the formats JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM"
