"""Decoding images of files and arrays."""

import io
import pickle

import numpy as np
from PIL import Image
import pytest

from jtx.data.ops.augment import RandomErasing
from jtx.data.ops.decode import DecodeImage
from jtx.data.sources.images import TABLE
from jtx.errors import BadExample, ConfigError, DataError
from tests.data.ops.pictures import TEN, array, bytes_of, grey_of, noise, same, smooth


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


@pytest.mark.parametrize("orientation, turned", [
    (1, lambda x: x), (3, lambda x: x[::-1, ::-1]), (2, lambda x: x[:, ::-1]),
    (6, lambda x: np.rot90(x, -1)), (8, lambda x: np.rot90(x)), (5, lambda x: x.swapaxes(0, 1))])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_images_are_turned_as_programs_show_them(orientation, turned, kind):
  image, exif = noise(13, 7), Image.Exif()
  exif[0x0112] = orientation
  example = decoded(bytes_of(image, kind, exif=exif))
  np.testing.assert_array_equal(array(example["image"]), turned(array(image)))
  assert example["original_size"].tolist() == list(array(example["image"]).shape[:2])


@pytest.mark.parametrize("exif", [b"Exif\0\0II*\0\x08\0\0", b"Exif\0\0nothing", b"Exif\0\0"])
def test_broken_exif_loses_no_image(exif):
  data = bytes_of(smooth(24, 16), "JPEG")
  length = (len(exif) + 2).to_bytes(2, "big")
  broken = data[:2] + b"\xff\xe1" + length + exif + data[2:]
  example = decoded(broken)
  assert same(example["image"], decoded(data)["image"])
  assert DecodeImage(names=TEN).size_of({"image": broken}) == (16, 24)


def test_boxes_are_of_an_image_as_it_is_shown():
  """Of 16 x 24 pixels on their side, also where it is decoded at a half."""
  exif = Image.Exif()
  exif[0x0112] = 6
  data = bytes_of(smooth(24, 16), "JPEG", exif=exif)
  boxes = {"boxes": [[2, 4, 16, 24]], "box_labels": [3]}
  for op, scale in ((DecodeImage(names=TEN), 1), (DecodeImage(names=TEN, min_side=8), 2)):
    example = op.augment({"image": data, "label": 3, "path": "p.x", **boxes}, None)
    assert example["image"].size == (16 // scale, 24 // scale)
    assert example["original_size"].tolist() == [24, 16] == [*op.size_of({"image": data})]
    np.testing.assert_array_equal(example["boxes"], np.array([[2, 4, 16, 24]]) / scale)


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
  (3, "p.x", f"op decode_image: the image of p.x is neither bytes nor a uint8 array, but a text;"
   f" {TABLE}"),
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
