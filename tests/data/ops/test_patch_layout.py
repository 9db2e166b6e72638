"""Patches of images of any shape: how many, which, and what shares a row."""

import math

import numpy as np
from PIL import Image
import pytest

from jtx.data.ops.patch_layout import Patches
from jtx.errors import ConfigError
from tests.data.image_files import configs, error_of
from jtx.data.recipes import build_ops


@pytest.mark.parametrize("size, grid", [
    ((32, 48), (2, 3)),
    ((33, 48), (3, 3)),  # less than a patch is a patch
    ((1, 1), (1, 1)),
    ((256, 256), (16, 16)),
    ((512, 512), (16, 16)),  # the most
    ((1000, 250), (32, 8)),
    ((16, 100_000), (1, 64)),  # one side's limit
])
def test_an_image_has_the_patches_that_it_needs(size, grid):
  assert Patches().grid(size) == grid and Patches().number(size) == math.prod(grid)


def test_the_grid_is_the_largest_of_an_aspect_ratio():
  """Against all scales in steps of a thousandth."""
  random = np.random.default_rng(0)
  layout = Patches(size=8, most=60, max_side=20, grow=True)
  for h, w in random.integers(4, 900, (40, 2)).tolist():
    rows, columns = layout.grid((h, w))
    assert rows * columns <= 60 and max(rows, columns) <= 20
    scaled = [(math.ceil(s * h / 8), math.ceil(s * w / 8)) for s in np.arange(1, 40_000) / 1000]
    allowed = [r * c for r, c in scaled if r * c <= 60 and max(r, c) <= 20]
    assert rows * columns >= max(allowed, default=1)


def example(pixels, path="a"):
  height, width = pixels.shape[:2]
  return {"image": Image.fromarray(pixels), "original_size": np.array([height, width]),
          "path": path}


def test_patches_are_the_pixels_of_their_places():
  pixels = np.random.default_rng(0).integers(256, size=(8, 12, 3), dtype=np.uint8)
  made = Patches(size=4).augment(example(pixels), None)
  assert made["patch"].shape == (6, 48) and "image" not in made
  for patch, (row, column) in zip(made["patch"], made["patch_places"]):
    np.testing.assert_array_equal(patch.reshape(4, 4, 3),
                                  pixels[4 * row:4 * row + 4, 4 * column:4 * column + 4])
  assert made["patch_places"].tolist() == [[r, c] for r in range(2) for c in range(3)]


def test_images_are_scaled_to_their_grid():
  grey = np.full((10, 30), 77, np.uint8)
  made = Patches(size=4, most=8, channels=1).augment(example(grey), None)
  assert made["patch_places"].max(0).tolist() == [1, 3] and np.all(made["patch"] == 77)


def test_rows_are_filled_by_first_fit():
  layout = Patches(most=6, length=10, max_segments=2)
  assert layout.plan(np.array([[6], [5], [3], [1], [4]])) == [[0, 2], [1, 3], [4]]


@pytest.mark.parametrize("names, edits, said", [
    (("decode_image", "resize", "patches"), {}, "'resize' makes images of one size, and 'patches'"),
    (("decode_image", "patches"), dict(most=9, length=8), "of most=9 patches has no place"),
    (("decode_image", "patches"), dict(channels=1), "channels"),
])
def test_what_does_not_go_with_it(names, edits, said):
  ops = configs(*names)
  for key, value in edits.items():
    ops[-1][key] = value
  assert said in error_of(ConfigError, build_ops, ops)
