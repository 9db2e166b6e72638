"""Crops, sizes and flips of images."""

import numpy as np
from PIL import Image
import pytest

from jtx.data.ops import image as image_ops
from jtx.data.ops.image import Flip, InceptionCrop, PadCrop, Resize, random_box
from jtx.errors import DataError
from tests.data.ops.pictures import array, generators, inside, noise, places, same
from tests.helpers import assert_share, chi_square


def accepted(area, ratio, aspect=1.0, points=1500):
  """Areas and log ratios [points^2] of a grid of draws, without boxes larger than the image."""
  middle = lambda low, high: low + (high - low) * (np.arange(points) + 0.5) / points
  a, r = np.meshgrid(middle(*area), middle(*np.log(ratio)))
  fits = (a * np.exp(r) <= aspect) & (a / np.exp(r) <= 1 / aspect)
  return a[fits], r[fits]


@pytest.mark.parametrize("area, ratio, size", [
    ((0.08, 1.0), (3 / 4, 4 / 3), (2000, 2000)),
    ((0.08, 1.0), (3 / 4, 4 / 3), (2400, 1600)),
    ((0.02, 1 / 3), (0.5, 3.0), (2000, 2000)),
])
def test_boxes_are_of_the_area_and_shape_that_is_asked_for(area, ratio, size):
  width, height = size
  boxes = [random_box(width, height, area, ratio, g) for g in generators(4000)]
  boxes = np.array([box for box in boxes if box])
  assert len(boxes) > 3990
  left, top, right, bottom = boxes.T
  assert boxes.min() >= 0 and right.max() <= width and bottom.max() <= height
  w, h = right - left, bottom - top
  shares, logs = w * h / (width * height), np.log(w / h)
  expected = accepted(area, ratio, width / height)
  for seen, wanted in zip((shares, logs), expected):
    assert abs(seen.mean() - wanted.mean()) < 3 * wanted.std() / np.sqrt(len(seen))
    edges = np.quantile(wanted, np.linspace(0, 1, 11)[1:-1])
    assert chi_square(np.bincount(np.searchsorted(edges, seen), minlength=10)) < 3
    assert wanted.min() - 0.01 < seen.min() and seen.max() < wanted.max() + 0.01
  for start, room in ((left, width - w), (top, height - h)):
    part = (start / np.maximum(room, 1))[room > 100]
    assert abs(part.mean() - 0.5) < 3 * np.sqrt(1 / 12 / len(part))


def test_no_box_fits_into_a_strip():
  assert random_box(1000, 10, (0.5, 1.0), (3 / 4, 4 / 3), np.random.default_rng(0)) is None


def check_places(result, left, top, scale_x, scale_y, box, tolerance=1.0):
  """That a crop of `places` has the pixels of the places, away from the box's borders."""
  size = result.size[0]
  x = left + (np.arange(size) + 0.5) * scale_x - 0.5
  y = top + (np.arange(size) + 0.5) * scale_y - 0.5
  seen = array(result)
  columns = inside(x, box[0], box[2], 2 * scale_x)
  rows = inside(y, box[1], box[3], 2 * scale_y)
  assert columns.sum() > size / 2 and rows.sum() > size / 2
  assert np.abs(seen[:, columns, 0] - x[columns]).max() <= tolerance
  assert np.abs(seen[rows, :, 1] - y[rows, None]).max() <= tolerance


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_inception_crop_scales_its_box(interpolation):
  op = InceptionCrop(size=40, interpolation=interpolation, eval_resize=50)
  image = places(250, 180)
  for seed in range(20):
    box = random_box(250, 180, op.area, op.ratio, np.random.default_rng(seed))
    result = op.apply(image, np.random.default_rng(seed))
    assert result.size == (40, 40)
    check_places(result, box[0], box[1], (box[2] - box[0]) / 40, (box[3] - box[1]) / 40, box)


def test_a_crop_does_not_look_beyond_its_box():
  pixels = np.full((64, 64, 3), 255, np.uint8)
  op = InceptionCrop(size=8, area=(0.2, 0.3), eval_resize=8)
  left, top, right, bottom = random_box(64, 64, op.area, op.ratio, np.random.default_rng(1))
  pixels[top:bottom, left:right] = 9
  assert (array(op.apply(Image.fromarray(pixels), np.random.default_rng(1))) == 9).all()


@pytest.mark.parametrize("size, box", [
    ((1000, 10), (493, 0, 506, 10)), ((12, 900), (0, 442, 12, 458)), ((100, 80), (0, 0, 100, 80))])
def test_inception_crop_falls_back_to_the_middle(size, box):
  op = InceptionCrop(size=8, area=(0.9, 1.0), ratio=(3 / 4, 4 / 3), eval_resize=8)
  assert op.largest(*size) == box
  if size != (100, 80):
    image = noise(*size)
    expected = image.crop(box).resize((8, 8), Image.Resampling.BILINEAR)
    assert same(op.apply(image, np.random.default_rng(0)), expected)


def test_inception_crop_evaluates_on_the_middle():
  op = InceptionCrop(size=48, eval_resize=64)
  # 256 x 128 is scaled by a half, to 128 x 64, of which 40 columns and 8 rows go on each side.
  result = op.apply(places(256, 128), None)
  check_places(result, 80, 16, 2, 2, (0, 0, 256, 128), tolerance=0.6)


@pytest.mark.parametrize("size, scaled", [((97, 61), (101, 64)), ((61, 97), (64, 101)),
                                          ((500, 375), (85, 64)), ((20, 20), (64, 64)),
                                          ((83, 64), (83, 64))])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_scaling_and_then_cutting(size, scaled, interpolation):
  op = InceptionCrop(size=48, eval_resize=64, interpolation=interpolation)
  image = noise(*size)
  left, top = ((n - 48) // 2 for n in scaled)
  expected = image.resize(scaled, image_ops.FILTERS[interpolation]).crop(
      (left, top, left + 48, top + 48))
  assert np.abs(array(op.apply(image, None)) - array(expected)).max() <= 1


def test_pad_crop_takes_every_place_equally_often():
  image = Image.fromarray(np.arange(1, 26, dtype=np.uint8).reshape(5, 5))
  padded = np.pad(np.asarray(image), 2)
  seen = {}
  for generator in generators(3600):
    result = PadCrop(size=6, padding=2).apply(image, generator)
    seen[result.tobytes()] = seen.get(result.tobytes(), 0) + 1
  windows = {padded[y:y + 6, x:x + 6].tobytes() for y in range(4) for x in range(4)}
  assert seen.keys() == windows and len(windows) == 16
  assert chi_square(list(seen.values())) < 3


def test_pad_crop_evaluates_on_the_middle():
  image = noise(32, 32)
  assert same(PadCrop().apply(image, None), image)
  pixels = np.asarray(noise(10, 8))
  np.testing.assert_array_equal(np.asarray(PadCrop(size=6).apply(noise(10, 8), None)),
                                pixels[1:7, 2:8])
  np.testing.assert_array_equal(np.asarray(PadCrop(size=12).apply(noise(10, 8), None)),
                                np.pad(pixels, ((2, 2), (1, 1), (0, 0))))
  np.testing.assert_array_equal(
      np.asarray(PadCrop(size=5, padding=0).apply(noise(5, 5), np.random.default_rng(0))),
      np.asarray(noise(5, 5)))


@pytest.mark.parametrize("generator", [None, np.random.default_rng(0)])
def test_pad_crop_needs_an_image_that_is_large_enough(generator):
  with pytest.raises(DataError) as e:
    PadCrop(size=20).augment({"image": noise(20, 11), "path": "a.png"}, generator)
  assert str(e.value) == ("op pad_crop: a.png is of 20 x 11 pixels, which with padding=4 are less"
                          " than size=20; 'resize' before it makes images larger")


def test_resize_is_the_same_in_training_and_evaluation():
  image = places(200, 100)
  for op in (Resize(50), Resize(50, "bicubic")):
    result = op.apply(image, None)
    check_places(result, 0, 0, 4, 2, (0, 0, 200, 100))
    assert same(op.apply(image, np.random.default_rng(0)), result)
  assert same(Resize(9).apply(noise(9, 9), None), noise(9, 9))


def test_flip_mirrors_every_other_time():
  image = noise(7, 5)
  mirrored = np.asarray(image)[:, ::-1]
  flipped = [Flip().apply(image, g) for g in generators(2000)]
  count = sum(np.array_equal(np.asarray(f), mirrored) for f in flipped)
  assert_share(count, 2000, 0.5)
  assert all(same(f, image) for f in flipped if not np.array_equal(np.asarray(f), mirrored))
  assert same(Flip().apply(image, None), image)
