"""Ops on images: closed forms, statistics of what is drawn, and what is refused."""

import dataclasses
import io
import pickle

import numpy as np
from PIL import Image
import pytest

from jtx import config
from jtx.data.op import Column
from jtx.data.ops import augment
from jtx.data.ops import image as image_ops
from jtx.data.ops.augment import POLICY, ColorJitter, RandAugment, RandomErasing, ThreeAugment
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image import Flip, InceptionCrop, PadCrop, Resize, random_box
from jtx.data.ops.image_layout import Images
from jtx.data.ops.registry import OPS
from jtx.errors import BadExample, ConfigError, DataError
from tests.helpers import assert_share, chi_square


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


# --------------------------------------------------------------------------- decoding

TEN = tuple("0123456789")


def decoded(image, op=DecodeImage(names=TEN), label=3):
  return op.augment({"image": image, "label": label, "path": "p.x", "id": 5}, None)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "PPM", "TIFF", "WEBP"])
def test_files_without_loss_give_their_pixels(kind):
  image = noise(13, 7)
  options = {"lossless": True} if kind == "WEBP" else {}
  assert same(decoded(bytes_of(image, kind, **options))["image"], image)


def test_a_jpeg_gives_what_pillow_decodes():
  data = bytes_of(smooth(160, 120), "JPEG")
  result = decoded(data)["image"]
  assert same(result, Image.open(io.BytesIO(data)).convert("RGB"))
  assert np.abs(array(result) - array(smooth(160, 120))).mean() < 4
  grey = decoded(data, DecodeImage(1, TEN))["image"]
  assert same(grey, Image.open(io.BytesIO(data)).convert("L"))


def grey_of(pixels):
  """Rec. 601 luma [H, W] of [H, W, 3], in Pillow's fixed point."""
  return (pixels @ [19595, 38470, 7471] + 0x8000) >> 16


def test_other_modes_become_rgb_or_grey():
  image = noise(6, 5)
  alpha = image.copy()
  alpha.putalpha(noise(6, 5, 1))
  palette = image.quantize(16)
  for kind, given, expected in (("PNG", alpha, image), ("PNG", palette, palette.convert("RGB")),
                                ("GIF", palette, palette.convert("RGB")),
                                ("PNG", image.convert("1"), image.convert("1").convert("RGB"))):
    assert same(decoded(bytes_of(given, kind))["image"], expected)
  grey = decoded(bytes_of(image, "PNG"), DecodeImage(1, TEN))["image"]
  assert grey.mode == "L"
  np.testing.assert_array_equal(array(grey), grey_of(array(image)))
  colours = decoded(bytes_of(grey, "PNG"))["image"]
  np.testing.assert_array_equal(array(colours), array(grey)[..., None].repeat(3, -1))
  assert decoded(bytes_of(image.convert("CMYK"), "JPEG"))["image"].mode == "RGB"


def test_sixteen_bits_keep_their_upper_eight():
  pixels = (np.arange(64 * 64) * 16).astype(np.uint16).reshape(64, 64)
  for kind in ("PNG", "TIFF"):
    data = bytes_of(Image.fromarray(pixels), kind)
    grey = decoded(data, DecodeImage(1, TEN))["image"]
    np.testing.assert_array_equal(array(grey), pixels >> 8)
    assert decoded(data)["image"].mode == "RGB"


def test_of_several_frames_the_first_is_taken():
  frames = [Image.new("L", (4, 4), value) for value in (10, 200)]
  for kind in ("GIF", "TIFF", "WEBP"):
    options = {"lossless": True} if kind == "WEBP" else {}
    data = bytes_of(frames[0].convert("RGB"), kind, save_all=True, append_images=frames[1:],
                    **options)
    assert array(decoded(data)["image"]).tolist() == [[[10] * 3] * 4] * 4


@pytest.mark.parametrize("channels, shape", [(3, (5, 4, 3)), (1, (5, 4)), (1, (5, 4, 1))])
def test_arrays_are_taken_as_they_are(channels, shape):
  pixels = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
  for given in (pixels, np.asfortranarray(pixels), pixels[::-1]):
    image = decoded(given, DecodeImage(channels, TEN))["image"]
    assert image.mode == {1: "L", 3: "RGB"}[channels]
    np.testing.assert_array_equal(array(image).ravel(), given.ravel())


def test_ops_do_not_write_into_the_arrays_of_a_source():
  pixels = np.full((16, 16), 77, np.uint8)
  image = decoded(pixels, DecodeImage(1, TEN))["image"]
  erased = RandomErasing(probability=1.0).apply(image, np.random.default_rng(0))
  assert (array(erased) != 77).any() and (pixels == 77).all() and (array(image) == 77).all()


@pytest.mark.parametrize("channels, value, message", [
  (3, np.zeros((5, 4), np.uint8),
   "op decode_image: the image of p.x is an array [5, 4], and channels=3 needs [H, W, 3]"),
  (3, np.zeros((5, 4, 1), np.uint8),
   "op decode_image: the image of p.x is an array [5, 4, 1], and channels=3 needs [H, W, 3]"),
  (3, np.zeros((5, 4, 4), np.uint8),
   "op decode_image: the image of p.x is an array [5, 4, 4], and channels=3 needs [H, W, 3]"),
  (1, np.zeros((5, 4, 3), np.uint8),
   "op decode_image: the image of p.x is an array [5, 4, 3], and channels=1 needs [H, W] or"
   " [H, W, 1]"),
  (1, np.zeros(5, np.uint8),
   "op decode_image: the image of p.x is an array [5], and channels=1 needs [H, W] or [H, W, 1]"),
  (3, np.zeros((5, 4, 3)),
   "op decode_image: the image of p.x is neither bytes nor a uint8 array"),
  (3, "p.x", "op decode_image: the image of p.x is neither bytes nor a uint8 array"),
])
def test_arrays_of_another_kind_are_refused(channels, value, message):
  with pytest.raises(DataError) as e:
    decoded(value, DecodeImage(channels, TEN))
  assert str(e.value) == message and not isinstance(e.value, BadExample)


def test_labels_are_names_or_numbers():
  image = np.zeros((2, 2, 3), np.uint8)
  op = DecodeImage(names=("cat", "0", "dog"))
  for label, number in (("cat", 0), ("0", 1), ("dog", 2), (0, 0), (2, 2), (np.int64(1), 1),
                        (np.uint8(2), 2)):
    example = decoded(image, op, label)
    assert example["label"] == number and example["label"].dtype == np.int32
    assert example["real"] == 1 and example["real"].dtype == np.int32
    assert example["id"] == 5 and example["path"] == "p.x"
  for label in (3, -1, "bird", "1", 1.0, None, True):
    with pytest.raises(DataError) as e:
      decoded(image, op, label)
    assert str(e.value) == (f"op decode_image: p.x has the label {label!r}; valid are cat, 0, dog,"
                            " or their numbers 0 to 2")
  with pytest.raises(DataError, match="valid are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more, or"):
    decoded(image, DecodeImage(names=(*TEN, "a", "b")), 12)
  with pytest.raises(ConfigError, match="op decode_image: names is empty"):
    decoded(image, DecodeImage())


@pytest.mark.parametrize("key, message", [
    ("image", "op decode_image: p.x has no 'image'; it has label"),
    ("label", "op decode_image: p.x has no 'label'; it has image")])
def test_examples_of_something_else_are_refused(key, message):
  example = {"path": "p.x", "id": 3, "image": b"", "label": 1}
  del example[key]
  with pytest.raises(DataError) as e:
    DecodeImage(names=TEN).augment(example, None)
  assert str(e.value) == message


def test_what_is_no_image_is_a_bad_example():
  with pytest.raises(BadExample) as e:
    decoded(b"GIF? no")
  assert str(e.value) == ("p.x: is no image of the formats JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM")
  data = bytes_of(smooth(80, 60), "JPEG")
  with pytest.raises(BadExample, match=r"^p\.x: can't be decoded \(image file is truncated"):
    decoded(data[:len(data) // 2])
  again = pickle.loads(pickle.dumps(e.value))
  assert (str(again), again.path, again.reason) == (str(e.value), "p.x", e.value.reason)


@pytest.mark.filterwarnings("ignore")  # Pillow's, of what it finds in broken files
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_damaged_bytes_give_an_image_or_a_bad_example(kind):
  whole = bytes_of(smooth(30, 20), kind)
  rng = np.random.default_rng(0)
  bad = 0
  for _ in range(150):
    data = bytearray(whole[:rng.integers(1, len(whole) + 1)])
    for place in rng.integers(len(data), size=rng.integers(4)):
      data[place] = rng.integers(256)
    try:
      assert decoded(bytes(data))["image"].mode == "RGB"
    except BadExample:
      bad += 1
  assert bad > 50


@pytest.mark.parametrize("min_side, size", [(0, (400, 300)), (301, (400, 300)), (151, (400, 300)),
                                            (150, (200, 150)), (80, (200, 150)), (75, (100, 75)),
                                            (2, (50, 38))])
def test_jpegs_may_be_decoded_at_a_smaller_scale(min_side, size):
  image = smooth(400, 300)
  op = DecodeImage(names=TEN, min_side=min_side)
  result = decoded(bytes_of(image, "JPEG", quality=95), op)["image"]
  assert result.size == size
  scale = 400 // size[0]
  rows = 300 // scale  # without one of which only half is in the image
  expected = image.crop((0, 0, 400, rows * scale)).resize((size[0], rows), Image.Resampling.BOX)
  assert np.abs(array(result)[:rows] - array(expected)).mean() < 2
  assert decoded(bytes_of(image, "PNG"), op)["image"].size == (400, 300)


# ------------------------------------------------------------------------------- crops


def accepted(area, ratio, aspect=1.0, points=1500):
  """Areas and log ratios [points^2] of a grid of draws, without boxes larger than the image."""
  middle = lambda low, high: low + (high - low) * (np.arange(points) + 0.5) / points
  a, r = np.meshgrid(middle(*area), middle(*np.log(ratio)))
  fits = (a * np.exp(r) <= aspect) & (a / np.exp(r) <= 1 / aspect)
  return a[fits], r[fits]


@pytest.mark.parametrize("area, ratio, size", [
    ((0.08, 1.0), (3 / 4, 4 / 3), (2000, 2000)),
    ((0.08, 1.0), (3 / 4, 4 / 3), (2400, 1600)),
    ((0.02, 1 / 3), (0.3, 3.3), (2000, 2000)),
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


def inside(values, low, high, margin):
  return (values > low + margin) & (values < high - 1 - margin)


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
                                          ((500, 375), (85, 64)), ((20, 20), (64, 64))])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_evaluation_is_scaling_and_then_cutting(size, scaled, interpolation):
  op = InceptionCrop(size=48, eval_resize=64, interpolation=interpolation)
  image = noise(*size)
  left, top = (round((n - 48) / 2) for n in scaled)
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


# ------------------------------------------------------------------------- randaugment

STRENGTHS = (0.3, 0.9, 1.0, -0.3, -1.0)


def policy(name, strength, image):
  return array(POLICY[name](image, strength))


def test_the_policy_has_the_fourteen_operations():
  assert sorted(POLICY) == sorted((
      "identity autocontrast equalize rotate solarize color posterize contrast brightness sharpness"
      " shear_x shear_y translate_x translate_y").split())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(POLICY))
def test_strength_0_changes_nothing_but_by_two_operations(name, channels):
  image = Image.fromarray(np.asarray(noise(40, 30, channels)) // 2 + 20)
  assert (POLICY[name](image, 0.0).tobytes() == image.tobytes()) == (
      name not in ("autocontrast", "equalize"))
  for strength in STRENGTHS:
    result = POLICY[name](image, strength)
    assert (result.mode, result.size) == (image.mode, image.size)


@pytest.mark.parametrize("s", STRENGTHS)
def test_operations_on_single_values(s):
  image, pixels = noise(40, 30), array(noise(40, 30))
  np.testing.assert_array_equal(policy("identity", s, image), pixels)
  threshold = {0.3: 179, 0.9: 26, 1.0: 0}[abs(s)]  # 256 * 0.7 = 179.2, 256 * 0.1 = 25.6
  np.testing.assert_array_equal(policy("solarize", s, image),
                                np.where(pixels >= threshold, 255 - pixels, pixels))
  lost = {0.3: 1, 0.9: 4, 1.0: 4}[abs(s)]  # bits, of 1.2, 3.6 and 4
  np.testing.assert_array_equal(policy("posterize", s, image), pixels >> lost << lost)


def blended(first, second, factor):
  return np.clip(first + factor * (second - first), 0, 255)


@pytest.mark.parametrize("s", STRENGTHS)
def test_operations_that_go_away_from_another_image(s):
  image, pixels = noise(40, 30), array(noise(40, 30))
  grey = grey_of(pixels)
  factor = 1 + 0.9 * s
  smoothed = pixels.copy()
  total = sum(pixels[y:28 + y, x:38 + x] * (5 if x == y == 1 else 1)
              for y in range(3) for x in range(3))
  smoothed[1:-1, 1:-1] = np.round(total / 13)
  for name, other in (("brightness", np.zeros_like(pixels)), ("color", grey[..., None]),
                      ("contrast", np.full_like(pixels, round(grey.mean()))),
                      ("sharpness", smoothed)):
    error = np.abs(policy(name, s, image) - blended(other, pixels, factor))
    assert error.max() <= 2, name  # a rounded smooth pixel is off by one, and is taken twice
    assert np.abs(policy(name, s, image) - pixels).mean() > 5, name


def test_autocontrast_and_equalize_spread_values():
  image = Image.fromarray(np.asarray(noise(40, 30)) // 3 + np.array([0, 40, 170], np.uint8))
  pixels = array(image)
  low, high = pixels.min((0, 1)), pixels.max((0, 1))
  assert np.abs(policy("autocontrast", 1, image) - (pixels - low) * 255 / (high - low)).max() <= 1
  equalized = policy("equalize", 1, image)
  for c in range(3):
    counts = np.bincount(pixels[..., c].ravel(), minlength=256)
    below = np.cumsum(counts) - counts  # pixels of lower values
    step = (1200 - counts[np.flatnonzero(counts)[-1]]) // 255
    table = np.minimum((step // 2 + below) // step, 255)
    np.testing.assert_array_equal(equalized[..., c], table[pixels[..., c]])


@pytest.mark.parametrize("s, x, y", [(1.0, 45, 30), (-1.0, -45, -30), (0.5, 23, 15),
                                     (-0.1, -5, -3)])
def test_translation_is_by_whole_pixels(s, x, y):
  """150 / 331 of 100 columns are 45.3, of 67 rows 30.4: to the right and down, if positive."""
  image, pixels = noise(100, 67), array(noise(100, 67))
  moved = np.full_like(pixels, 128)
  moved[:, max(x, 0):100 + min(x, 0)] = pixels[:, max(-x, 0):100 + min(-x, 0)]
  np.testing.assert_array_equal(policy("translate_x", s, image), moved)
  moved = np.full_like(pixels, 128)
  moved[max(y, 0):67 + min(y, 0)] = pixels[max(-y, 0):67 + min(-y, 0)]
  np.testing.assert_array_equal(policy("translate_y", s, image), moved)


@pytest.mark.parametrize("s", STRENGTHS)
def test_shear_and_rotation_take_pixels_from_where_they_should(s):
  image = places(120, 90)
  y, x = np.mgrid[:90, :120] + 0.5
  angle = np.radians(30 * s)  # counter-clockwise
  dx, dy = x - 60, y - 45
  sources = {"shear_x": (x + 0.3 * s * y, y), "shear_y": (x, y + 0.3 * s * x),
             "rotate": (60 + np.cos(angle) * dx - np.sin(angle) * dy,
                        45 + np.sin(angle) * dx + np.cos(angle) * dy)}
  for name, (from_x, from_y) in sources.items():
    result = policy(name, s, image)
    within = inside(from_x, 0, 121, 1) & inside(from_y, 0, 91, 1)
    assert within.mean() > 0.4
    assert np.abs(result[..., 0] - (from_x - 0.5))[within].max() <= 1, name
    assert np.abs(result[..., 1] - (from_y - 0.5))[within].max() <= 1, name
    outside = (from_x < -1) | (from_x > 121) | (from_y < -1) | (from_y > 91)
    assert outside.sum() > 100 and (result[outside] == 128).all()


def test_randaugment_draws_operations_evenly(monkeypatch):
  calls = []
  record = lambda name: lambda image, strength: calls.append((name, strength)) or image
  monkeypatch.setattr(augment, "POLICY", {name: record(name) for name in POLICY})
  image = noise(4, 4)
  for generator in generators(1400):
    RandAugment(num_ops=3, magnitude=7.0).apply(image, generator)
  assert len(calls) == 3 * 1400
  names = sorted(POLICY)
  counts = np.bincount([names.index(name) for name, _ in calls], minlength=14)
  assert chi_square(counts) < 3
  assert {abs(s) for _, s in calls} == {0.7}
  assert_share(sum(s > 0 for _, s in calls), len(calls), 0.5)
  # Both are drawn apart from one another, and so are the operations of one image.
  assert chi_square([sum(s > 0 for name, s in calls if name == n) for n in names]) < 3
  pairs = [(names.index(a[0]), names.index(b[0])) for a, b in zip(calls[::3], calls[1::3])]
  assert_share(sum(a == b for a, b in pairs), len(pairs), 1 / 14)


def test_randaugment_is_the_operations_one_after_the_other():
  image = noise(20, 20)
  made = {tuple(np.asarray(RandAugment(2, 5.0).apply(image, g)).ravel()) for g in generators(60)}
  strengths = (0.5, -0.5)
  possible = {tuple(np.asarray(second(first(image, s), t)).ravel()) for first in POLICY.values()
              for second in POLICY.values() for s in strengths for t in strengths}
  assert made <= possible and len(made) > 30


# ------------------------------------------------------------------- colours and erasing


def test_three_augment_takes_one_of_three():
  image, pixels = smooth(40, 30), array(smooth(40, 30))
  grey = grey_of(pixels)[..., None].repeat(3, -1)
  solarized = np.where(pixels >= 128, 255 - pixels, pixels)
  counts, blurs = [0, 0, 0], []
  for generator in generators(900):
    result = array(ThreeAugment(jitter=0.0).apply(image, generator))
    kinds = [np.array_equal(result, grey), np.array_equal(result, solarized)]
    if not any(kinds):
      blurs.append(result)
      assert np.abs(result.mean((0, 1)) - pixels.mean((0, 1))).max() < 1
      kinds.append(True)
    counts[kinds.index(True)] += 1
  for count in counts:
    assert_share(count, 900, 1 / 3)
  rough = lambda x: np.abs(np.diff(x, axis=0)).mean() + np.abs(np.diff(x, axis=1)).mean()
  roughness = np.array([rough(b) for b in blurs]) / rough(pixels)
  assert roughness.max() <= 1.01 and len(set(roughness)) > 100


def test_the_blur_has_radii_from_a_tenth_to_two(monkeypatch):
  radii = []
  blur = augment.ImageFilter.GaussianBlur
  monkeypatch.setattr(augment.ImageFilter, "GaussianBlur", lambda r: radii.append(r) or blur(r))
  for generator in generators(1500):
    ThreeAugment(jitter=0.0).apply(noise(3, 3), generator)
  assert chi_square(np.histogram(radii, 10, (0.1, 2.0))[0]) < 3
  assert min(radii) >= 0.1 and max(radii) <= 2.0


def test_three_augment_jitters_as_color_jitter():
  """A grey picture stays grey, so that the jitter is all that is left of one choice."""
  values = []
  for generator in generators(1200):
    result = np.unique(array(ThreeAugment(jitter=0.3).apply(
        Image.new("RGB", (4, 4), (100,) * 3), generator)))
    assert len(result) == 1
    values.append(int(result[0]))
  # Brightness is 70 to 130, and contrast leaves an even picture as it is.
  assert min(values) in (70, 71) and max(values) in (129, 130)
  assert abs(np.mean(values) - 100) < 1 + 3 * 60 / np.sqrt(12 * len(values))


@pytest.mark.parametrize("most, low, high", [(0.4, 0.6, 1.4), (0.9, 0.1, 1.9), (1.5, 0.0, 2.5)])
def test_brightness_has_uniform_factors(most, low, high):
  image = Image.new("RGB", (2, 2), (100,) * 3)
  op = ColorJitter(brightness=most, contrast=0.0, saturation=0.0)
  values = np.array([array(op.apply(image, g))[0, 0, 0] for g in generators(1500)])
  assert chi_square(np.histogram(values, 10, (100 * low - 0.5, 100 * high + 0.5))[0]) < 3


@pytest.mark.parametrize("key, other", [("contrast", "mean"), ("saturation", "grey")])
def test_contrast_and_saturation_go_away_from_grey(key, other):
  image, pixels = noise(12, 10), array(noise(12, 10))
  grey = grey_of(pixels)[..., None]
  goal = np.full_like(grey, round(grey.mean())) if other == "mean" else grey
  op = ColorJitter(**{**dict.fromkeys(("brightness", "contrast", "saturation"), 0.0), key: 0.5})
  factors = []
  for generator in generators(300):
    result = array(op.apply(image, generator))
    free = (result > 0) & (result < 255) & (np.abs(pixels - goal) > 40)
    factor = ((result - goal)[free] / (pixels - goal)[free]).mean()
    assert np.abs(result - blended(goal, pixels, factor)).max() <= 1.5
    factors.append(factor)
  assert 0.48 < min(factors) < 0.55 and 1.45 < max(factors) < 1.52
  assert abs(np.mean(factors) - 1) < 0.01 + 3 / np.sqrt(12 * 300)


def test_the_order_of_jitter_is_random():
  """With one factor each, six orders make different images."""
  class Fixed:
    def __init__(self, order):
      self.order = np.array(order)
    def permutation(self, number):
      return self.order
    def uniform(self, low, high):
      return high
  op, image = ColorJitter(0.9, 0.8, 0.7), Image.fromarray(np.asarray(noise(9, 9)) // 2)
  orders = [(a, b, 3 - a - b) for a in range(3) for b in range(3) if a != b]
  assert len({op.apply(image, Fixed(order)).tobytes() for order in orders}) > 3
  seen = [tuple(g.permutation(3)) for g in generators(1200)]
  assert chi_square([seen.count(order) for order in orders]) < 3


@pytest.mark.parametrize("channels", [1, 3])
def test_random_erasing_fills_a_box_with_random_pixels(channels):
  op = RandomErasing(probability=1.0)
  image, pixels = noise(64, 48, channels, seed=9), array(noise(64, 48, channels, seed=9))
  filled = []
  for seed in range(40):
    generator = np.random.default_rng(seed)
    generator.random()
    left, top, right, bottom = random_box(64, 48, op.area, op.ratio, generator)
    result = array(op.apply(image, np.random.default_rng(seed)))
    box = np.zeros((48, 64), bool)
    box[top:bottom, left:right] = True
    np.testing.assert_array_equal(result[~box], pixels[~box])
    filled.append(result[box].ravel())
    assert (result[box] != pixels[box]).mean() > 0.95
  assert chi_square(np.bincount(np.concatenate(filled), minlength=256)) < 3
  np.testing.assert_array_equal(array(image), pixels)  # the image given is not written to


def test_random_erasing_happens_with_its_probability():
  image = noise(16, 16)
  erased = sum(not same(RandomErasing(0.25).apply(image, g), image) for g in generators(2000))
  assert_share(erased, 2000, 0.25)
  strip = noise(64, 1)
  op = RandomErasing(1.0, area=(0.3, 0.3), ratio=(0.3, 0.3))
  assert same(op.apply(strip, np.random.default_rng(0)), strip)  # no box of that shape fits


# ------------------------------------------------------------------------------ all ops


def test_images_become_arrays_of_the_layout():
  layout = Images(size=5, channels=3)
  assert layout.columns == {"image": Column("array", "uint8", (5, 5, 3))}
  example = {"image": noise(5, 5), "path": "p.x", "label": 3}
  result = layout.augment(example, None)
  assert result["image"].shape == (5, 5, 3) and result["image"].dtype == np.uint8
  np.testing.assert_array_equal(result["image"], np.asarray(noise(5, 5)))
  grey = Images(size=5, channels=1).augment({**example, "image": noise(5, 5, 1)}, None)["image"]
  np.testing.assert_array_equal(grey, np.asarray(noise(5, 5, 1))[..., None])
  with pytest.raises(ConfigError) as e:
    layout.augment({**example, "image": noise(6, 5)}, None)
  assert str(e.value) == (
      "data.ops: p.x is of 6 x 5 pixels after all ops and 'images' has size=5; one of"
      " 'inception_crop', 'pad_crop' and 'resize', with the same size, makes it of that size")


# op -> field -> other fields by which it comes to matter, and another value
CHANGES = {
    DecodeImage: {"channels": ({}, 1), "names": ({}, TEN[::-1]), "min_side": ({}, 4)},
    InceptionCrop: {"size": ({}, 9), "area": ({}, (0.1, 0.2)), "ratio": ({}, (1.0, 1.0)),
                    "eval_resize": ({}, 20), "interpolation": ({}, "bicubic")},
    PadCrop: {"size": ({}, 15), "padding": ({}, 2)},
    Resize: {"size": ({}, 9), "interpolation": ({}, "bicubic"), "width": ({}, 9)},
    Flip: {},
    RandAugment: {"num_ops": ({}, 3), "magnitude": ({}, 3.0)},
    ColorJitter: {"brightness": ({}, 0.1), "contrast": ({}, 0.1), "saturation": ({}, 0.1)},
    ThreeAugment: {"jitter": ({}, 0.1)},
    RandomErasing: {"probability": ({}, 1.0), "area": ({}, (0.02, 0.03)),
                    "ratio": ({}, (1.0, 1.0))},
    Images: {"size": ({}, 15), "channels": ({}, 3), "width": ({}, 15), "pad": ({}, True),
             "max_boxes": ({}, 2)},
}
REQUIRED = {DecodeImage: {"names": TEN}, InceptionCrop: {"size": 8, "eval_resize": 12},
            PadCrop: {"size": 16}, Resize: {"size": 8}, RandomErasing: {"probability": 0.5},
            Images: {"size": 16, "channels": 1}}
EXEMPT = {(DecodeImage, "max_bad"): "what makes the examples reads it: see test_images.py"}


def outcome(op):
  """What an op makes of some images, in training and in evaluation; or what it has for a batch."""
  if isinstance(op, Images):
    return str(op.columns)
  results = []
  for seed in range(6):
    for generator in (np.random.default_rng(seed), None):
      image = smooth(24, 18) if seed % 2 else noise(18, 20, seed=seed)
      if isinstance(op, DecodeImage):
        image = bytes_of(image, "JPEG")
      example = op.augment({"image": image, "label": "4", "path": "", "id": 0}, generator)
      results.append((example["image"].mode, example["image"].size, example["image"].tobytes(),
                      str(example["label"])))
  return results


@pytest.mark.parametrize("op, field", [(op, f) for op in CHANGES for f in config.fields(op)
                                       if (op, f) not in EXEMPT],
                         ids=lambda x: getattr(x, "__name__", x))
def test_a_field_changes_what_an_op_makes(op, field):
  assert field in CHANGES[op], f"add {op.__name__}.{field} to CHANGES"
  context, value = CHANGES[op][field]
  fields = {**REQUIRED.get(op, {}), **context}
  assert outcome(op(**fields)) == outcome(op(**fields))
  assert outcome(op(**{**fields, field: value})) != outcome(op(**fields))


def test_every_op_is_covered():
  assert {op for op in OPS.values() if op.of_images} == set(CHANGES)
  for op, changes in CHANGES.items():
    assert set(changes) <= set(config.fields(op))
  assert all(field in config.fields(op) for op, field in EXEMPT)


@pytest.mark.parametrize("op", [InceptionCrop(size=8, eval_resize=8), PadCrop(size=16), Flip(),
                                RandAugment(), ColorJitter(), ThreeAugment(), RandomErasing(0.9)],
                         ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("channels", [1, 3])
def test_ops_are_a_function_of_the_generator_and_draw_nothing_without(op, channels):
  image = noise(16, 16, channels)
  before = image.tobytes()
  draws = [op.apply(image, np.random.default_rng(seed)) for seed in (0, 0, *range(1, 12))]
  assert same(draws[0], draws[1]) and len({d.tobytes() for d in draws}) > 1
  assert {d.mode for d in draws} == {image.mode}
  assert same(op.apply(image, None), op.apply(image, None))
  if not isinstance(op, InceptionCrop):
    assert same(op.apply(image, None), image)
  assert image.tobytes() == before
  assert same(dataclasses.replace(op).apply(image, np.random.default_rng(0)), draws[0])
  assert pickle.loads(pickle.dumps(op)) == op


@pytest.mark.parametrize("op, fields, message", [
    (DecodeImage, {"channels": 2}, "op decode_image: channels=2 must be 1 or 3"),
    (DecodeImage, {"names": ("a", "b", "a")}, "op decode_image: names has a more than once"),
    (DecodeImage, {"max_bad": 1.5}, "op decode_image: max_bad=1.5 must be a share, from 0 to 1"),
    (DecodeImage, {"min_side": -1}, "op decode_image: min_side=-1 must not be negative"),
    (InceptionCrop, {"size": 0}, "op inception_crop: size=0 must be positive"),
    (InceptionCrop, {"area": (0.0, 1.0)}, "op inception_crop: area=(0.0, 1.0) must be two numbers,"
     " the lower first, above 0 and at most 1"),
    (InceptionCrop, {"area": (0.5, 1.1)}, "op inception_crop: area=(0.5, 1.1) must be two numbers,"
     " the lower first, above 0 and at most 1"),
    (InceptionCrop, {"ratio": (2.0, 1.0)}, "op inception_crop: ratio=(2.0, 1.0) must be two"
     " numbers, the lower first, above 0"),
    (InceptionCrop, {"eval_resize": 200}, "op inception_crop: eval_resize=200 must not be less than"
     " size=224"),
    (InceptionCrop, {"interpolation": "bicubc"}, "op inception_crop: interpolation='bicubc' is"
     " none; did you mean 'bicubic'?"),
    (PadCrop, {"padding": -1}, "op pad_crop: padding=-1 must not be negative"),
    (PadCrop, {"size": -3}, "op pad_crop: size=-3 must be positive"),
    (Resize, {"size": 0}, "op resize: size=0 must be positive"),
    (Resize, {"interpolation": "none"}, "op resize: interpolation='none' is none; valid are:"
     " bilinear, bicubic"),
    (RandAugment, {"num_ops": 0}, "op randaugment: num_ops=0 must be positive"),
    (RandAugment, {"magnitude": 15.0}, "op randaugment: magnitude=15.0 must be from 0 to 10; of one"
     " that counts to 30, take a third"),
    (ColorJitter, {"contrast": -0.1}, "op color_jitter: contrast=-0.1 must not be negative"),
    (ThreeAugment, {"jitter": -0.1}, "op three_augment: jitter=-0.1 must not be negative"),
    (RandomErasing, {"probability": 2.0}, "op random_erasing: probability=2.0 must be from 0 to 1"),
    (RandomErasing, {"area": (0.1, 2.0)}, "op random_erasing: area=(0.1, 2.0) must be two numbers,"
     " the lower first, above 0 and at most 1"),
    (Images, {"size": 0}, "op images: size=0 must be positive"),
    (Images, {"channels": 4}, "op images: channels=4 must be 1 or 3"),
])
def test_fields_that_make_no_sense_are_refused(op, fields, message):
  with pytest.raises(ConfigError) as e:
    op(**fields)
  assert str(e.value) == message
