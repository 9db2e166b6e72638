"""Boxes of images: exact geometry, ops that move or refuse them, and batches of several sizes."""

import dataclasses
import io

import numpy as np
from PIL import Image
import pytest

from jtx.config import build, section
from jtx.data.lazy import LazyExamples, Tally
from jtx.data.op import Column
from jtx.data.ops.augment import RandAugment, RandomErasing
from jtx.data.ops.boxes import Move, flipped, moved
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.image import Flip, InceptionCrop, PadCrop, Resize
from jtx.data.ops.image_layout import Images
from jtx.data.ops.registry import OPS
from jtx.data.ops.scale import RandomSizeCrop, ResizeShortest, ScaleJitter, scaled
from jtx.data.pipeline import eval_batches
from jtx.data.recipes import build_ops
from jtx.errors import ConfigError, DataError

BOXES = [[2, 1, 6, 5], [0, 0, 12, 8], [9, 6, 12, 8]]


def example(width=12, height=8, boxes=BOXES, **edits):
  """An image that is white in its first box, black elsewhere, with an example's other keys."""
  pixels = np.zeros((height, width), np.uint8)
  if boxes:
    left, top, right, bottom = boxes[0]
    pixels[top:bottom, left:right] = 255
  return {"image": Image.fromarray(pixels), "path": "p.x", "label": np.int32(0),
          "boxes": np.array(boxes, np.float32).reshape(-1, 4),
          "box_labels": np.arange(len(boxes), dtype=np.int32),
          "box_areas": np.arange(len(boxes), dtype=np.float32),
          "crowd": np.arange(len(boxes)) == 1} | edits


def white(image):
  """The box of an image's white pixels."""
  rows, columns = np.nonzero(np.asarray(image) == 255)
  return [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]


def found(result):
  """Boxes and labels; what else a box has goes with it."""
  if "crowd" in result and len(result["boxes"]):
    assert result["crowd"].tolist() == (result["box_labels"] == 1).tolist() or (
        not result["crowd"].any())
    assert len(result["box_areas"]) == len(result["boxes"])
  return result["boxes"].tolist(), result["box_labels"].tolist()


@pytest.mark.parametrize("move, expected", [
    (Move((0, 0, 12, 8), (24, 4)), [[4, .5, 12, 2.5], [0, 0, 24, 4], [18, 3, 24, 4]]),
    (Move((0, 0, 12, 8), (12, 8), flip=True), [[6, 1, 10, 5], [0, 0, 12, 8], [0, 6, 3, 8]]),
    (Move((4, 2, 10, 7), (6, 5)), [[0, 0, 2, 3], [0, 0, 6, 5], [5, 4, 6, 5]]),
    (Move((-2, -1, 6, 7), (8, 8)), [[4, 2, 8, 6], [2, 1, 8, 8], [8, 7, 8, 8]]),
    (Move((1, 0, 7, 8), (3, 16), flip=True), [[.5, 2, 2.5, 10], [0, 0, 3, 16], [0, 12, 0, 16]]),
])
def test_boxes_follow_a_move(move, expected):
  result = moved(np.array(BOXES), move)
  assert result.dtype == np.float32
  assert result.tolist() == expected
  assert moved(np.zeros((0, 4)), move).shape == (0, 4)


def test_a_flip_twice_is_none():
  boxes = np.array(BOXES, float)
  np.testing.assert_array_equal(flipped(flipped(boxes, 12), 12), boxes)


@pytest.mark.parametrize("training", [False, True])
def test_resize_scales_boxes(training):
  generator = np.random.default_rng(0) if training else None
  result = Resize(16, width=36).augment(example(), generator)
  assert result["image"].size == (36, 16)
  assert found(result) == ([[6, 2, 18, 10], [0, 0, 36, 16], [27, 12, 36, 16]], [0, 1, 2])


def test_flip_mirrors_boxes_with_the_pixels():
  results = [Flip().augment(example(), np.random.default_rng(seed)) for seed in range(8)]
  kept = ([[float(x) for x in box] for box in BOXES], [0, 1, 2])
  mirrored = ([[6, 1, 10, 5], [0, 0, 12, 8], [0, 6, 3, 8]], [0, 1, 2])
  assert {str(found(r)) for r in results} == {str(kept), str(([[float(x) for x in b] for b in
                                                              mirrored[0]], mirrored[1]))}
  assert all(white(r["image"]) == r["boxes"][0].tolist() for r in results)
  assert found(Flip().augment(example(), None)) == kept


def test_pad_crop_moves_boxes_with_the_pixels_and_leaves_out_those_beyond():
  op, labels_of = PadCrop(size=8, padding=2), []
  for seed in range(30):
    result = op.augment(example(), np.random.default_rng(seed))
    assert result["image"].size == (8, 8)
    boxes, labels = found(result)
    pixels = np.asarray(result["image"])
    assert (0 in labels) == (pixels == 255).any() and len(boxes) == len(labels)
    if 0 in labels:
      assert white(pixels) == boxes[0]
    labels_of.append(tuple(labels))
  assert {(0, 1), (1, 2), (0, 1, 2)} <= set(labels_of)
  middle = op.augment(example(), None)  # columns 2 to 10
  assert found(middle) == ([[0, 1, 4, 5], [0, 0, 8, 8], [7, 6, 8, 8]], [0, 1, 2])


def test_inception_crop_moves_boxes():
  op = InceptionCrop(size=8, eval_resize=8)  # evaluation keeps columns 2 to 10
  assert found(op.augment(example(), None)) == (
      [[0, 1, 4, 5], [0, 0, 8, 8], [7, 6, 8, 8]], [0, 1, 2])
  for seed in range(10):
    left, top, right, bottom = op.move((12, 8), np.random.default_rng(seed)).part
    result = op.augment(example(boxes=[[left, top, right, bottom]]), np.random.default_rng(seed))
    assert found(result) == ([[0, 0, 8, 8]], [0])
    assert (np.asarray(result["image"]) == 255).all()


def test_what_moves_pixels_but_no_boxes_refuses_them():
  with pytest.raises(DataError) as e:
    RandAugment().augment(example(), None)
  assert str(e.value) == ("op randaugment: p.x has boxes, which this op can't move with the pixels;"
                          " leave it out of data.ops")
  without = {key: value for key, value in example().items() if "box" not in key}
  assert RandAugment().augment(without, None)["image"] is without["image"]
  erased = RandomErasing(1.0).augment(example(), np.random.default_rng(0))
  np.testing.assert_array_equal(erased["boxes"], example()["boxes"])  # pixels stay in their places


# ------------------------------------------------------------------------------ decoding


def decode(boxes, labels, image=None, **fields):
  image = np.zeros((8, 12), np.uint8) if image is None else image
  op = DecodeImage(channels=1, names=("a",), **fields)
  return op.augment({"image": image, "label": 0, "path": "p.x", "boxes": boxes,
                     "box_labels": labels}, None)


def test_decoding_makes_arrays_of_boxes():
  result = decode([[2, 1, 6, 5], [10, 4, 20, 20]], [3, 1])
  assert found(result) == ([[2, 1, 6, 5], [10, 4, 12, 8]], [3, 1])  # cut at the image's edges
  assert result["boxes"].dtype == np.float32 and result["box_labels"].dtype == np.int32
  none = decode([], [])
  assert none["boxes"].shape == (0, 4) and none["box_labels"].shape == (0,)


def test_boxes_of_a_jpeg_that_is_decoded_at_a_fraction():
  file = io.BytesIO()
  Image.fromarray(np.zeros((64, 96), np.uint8)).save(file, "JPEG")
  result = decode([[8, 16, 40, 64]], [0], file.getvalue(), min_side=16)
  assert result["image"].size == (24, 16)
  assert result["boxes"].tolist() == [[2, 4, 10, 16]]


@pytest.mark.parametrize("boxes, labels, message", [
    ([[1, 2, 3]], [0], "has boxes [1, 3] and box_labels [1] int64; they must be [N, 4], and [N] of"
     " integers"),
    ([[1, 2, 3, 4]], [0, 1], "has boxes [1, 4] and box_labels [2] int64; they must be [N, 4], and"
     " [N] of integers"),
    ([[1, 2, 3, 4]], [0.5], "has boxes [1, 4] and box_labels [1] float64; they must be [N, 4], and"
     " [N] of integers"),
    ([[1, 2, 3, 4], [3, 2, 1, 4]], [0, 0], "has the box [3, 2, 1, 4]; a box is left, top,"
     " right and bottom, the lower first"),
])
def test_boxes_that_are_none_are_refused(boxes, labels, message):
  with pytest.raises(DataError) as e:
    decode(boxes, labels)
  assert str(e.value) == f"op decode_image: p.x {message}"


def test_boxes_need_labels():
  with pytest.raises(DataError) as e:
    DecodeImage(channels=1, names=("a",)).augment(
        {"image": np.zeros((8, 8), np.uint8), "label": 0, "path": "p.x", "boxes": []}, None)
  assert str(e.value) == ("op decode_image: p.x has 'boxes' without 'box_labels', a number for"
                          " each")


# ------------------------------------------------------------------------------- batches


class Source(list):
  name = "s"


def recipe_of(*names, **edits):
  return build_ops([section(OPS, name, **edits.get(name, {})) for name in names])


def test_a_batch_of_two_sizes_is_padded_to_the_layouts_size():
  pixels = [np.full((4, 6), 100, np.uint8), np.full((5, 3), 200, np.uint8)]
  source = Source([{"image": pixels[0], "label": 0, "boxes": [[1, 0, 6, 4], [0, 0, 1, 2]],
                    "box_labels": [4, 5]},
                   {"image": pixels[1], "label": 0, "boxes": [], "box_labels": []}])
  recipe = recipe_of("decode_image", "images", decode_image={"channels": 1, "names": ("a",)},
                     images={"size": 5, "width": 7, "channels": 1, "pad": True, "max_boxes": 3})
  examples = LazyExamples([source], recipe.augment, recipe.prepared_columns(), Tally(0.0))
  batch, = eval_batches(examples, recipe, 3)
  expected = np.zeros((3, 5, 7, 1), np.uint8)
  expected[0, :4, :6, 0], expected[1, :5, :3, 0] = pixels
  np.testing.assert_array_equal(batch["image"], expected)
  assert batch["size"].tolist() == batch["original_size"].tolist() == [[4, 6], [5, 3], [0, 0]]
  assert batch["boxes"].dtype == batch["box_areas"].dtype == np.float32
  np.testing.assert_allclose(batch["boxes"][0], [[3.5 / 6, .5, 5 / 6, 1], [.5 / 6, .25, 1 / 6, .5],
                                                 [0, 0, 0, 0]], rtol=1e-6)
  assert not batch["boxes"][1:].any() and not batch["crowd"].any()
  assert batch["box_classes"].tolist() == [[4, 5, -1], [-1, -1, -1], [-1, -1, -1]]
  assert batch["box_areas"].tolist() == [[20, 2, 0], [0, 0, 0], [0, 0, 0]]
  assert batch["real"].tolist() == [[1], [1], [0]]


def test_the_columns_of_a_layout():
  assert Images(5, 1, width=7).columns == {"image": Column("array", "uint8", (5, 7, 1))}
  assert Images(5, 1, pad=True).columns.keys() == {"image", "size"}
  assert Images(5, 1, max_boxes=2, mean=(0.5,), std=(0.5,)).columns == {
      "image": Column("array", "float32", (5, 5, 1)), "size": Column("array", "int32", (2,)),
      "boxes": Column("array", "float32", (2, 4)),
      "box_classes": Column("array", "int32", (2,), fill=-1),
      "box_areas": Column("array", "float32", (2,)), "crowd": Column("array", "bool", (2,)),
      "original_size": Column("array", "int32", (2,))}


def test_a_layout_refuses_other_sizes_and_more_boxes():
  layout = Images(6, 1, width=12, pad=True, max_boxes=2)
  with pytest.raises(ConfigError, match="is of 12 x 8 pixels after all ops and 'images' has size=6"
                     " and width=12; one of"):
    layout.augment(example(), None)
  layout = Images(8, 1, width=12, max_boxes=2)
  with pytest.raises(DataError) as e:
    layout.augment(example(), None)
  assert str(e.value) == "op images: p.x has 3 boxes, which is more than max_boxes=2"
  with pytest.raises(DataError) as e:
    layout.augment({"image": example()["image"], "path": "p.x"}, None)
  assert str(e.value) == "op images: p.x has no 'boxes', and max_boxes=2 asks for them"


def test_sizes_of_ops_and_layout_must_fit():
  decode_image = {"channels": 3, "names": ("a",)}
  resize = {"size": 8, "width": 12}
  names = ("decode_image", "resize", "images")
  edits = dict(decode_image=decode_image, resize=resize)
  assert recipe_of(*names, **edits, images=resize).layout == Images(8, width=12)
  with pytest.raises(ConfigError) as e:
    recipe_of(*names, **edits, images={"size": 8})
  assert str(e.value) == ("data.ops (decode_image, resize, images): 'resize' has size=8 and"
                          " width=12, but 'images' has size=8")
  recipe_of(*names, **edits, images={"size": 9, "width": 13, "pad": True})
  with pytest.raises(ConfigError, match="'resize' has size=8 and width=12, but 'images' has size=9"
                     " and width=10"):
    recipe_of(*names, **edits, images={"size": 9, "width": 10, "pad": True})


@pytest.mark.parametrize("name, keys, op", [
    ("resize", {"size": 8, "interpolation": "bicubic"}, Resize(8, "bicubic")),
    ("images", {"size": 8, "channels": 1}, Images(8, 1))])
def test_sections_of_earlier_versions_build(name, keys, op):
  """They have no key for what is new."""
  c = section(OPS, name, **keys)
  for key in set(c) - {"name", *keys}:
    del c[key]
  assert build(OPS, c) == op


# -------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("size, shortest, longest, expected", [
    ((640, 480), 800, 1333, (1066, 800)), ((480, 640), 800, 1333, (800, 1066)),
    ((1000, 400), 800, 1333, (1333, 533)), ((500, 500), 800, 1333, (800, 800)),
    ((3, 100), 800, 90, (3, 90)),
])
def test_the_shorter_side_tells_the_size(size, shortest, longest, expected):
  assert scaled(size, shortest, longest) == expected


def test_the_size_in_evaluation_is_the_last_and_training_draws_all():
  op = ResizeShortest((4, 6, 16), longest=20)
  result = op.augment(example(), None)
  assert result["image"].size == (20, 13)  # 16 x 24 is too long
  np.testing.assert_allclose(result["boxes"], BOXES * np.array([20 / 12, 13 / 8] * 2),
                             rtol=1e-6)
  sizes = {op.augment(example(), np.random.default_rng(seed))["image"].size for seed in range(20)}
  assert sizes == {(6, 4), (9, 6), (20, 13)}


@pytest.mark.parametrize("keep", ["centre", "part"])
@pytest.mark.parametrize("op", [RandomSizeCrop(1.0, (16,), 6, 12),
                                ScaleJitter(12, factor=(1.5, 1.5))],
                         ids=lambda op: type(op).__name__)
def test_crops_keep_boxes_by_their_centre_or_by_a_part(op, keep):
  """Beside pixels that are moved by the same crop."""
  op = dataclasses.replace(op, keep=keep)
  for seed in range(20):
    whole = example()
    move = op.move(whole["image"].size, np.random.default_rng(seed))
    result = op.augment(whole, np.random.default_rng(seed))
    left, top, right, bottom = move.part
    inside = []
    for label, (x1, y1, x2, y2) in enumerate(BOXES):
      x, y = (x1 + x2) / 2, (y1 + y2) / 2
      part = min(x2, right) > max(x1, left) and min(y2, bottom) > max(y1, top)
      inside += [label] if part and (
          keep == "part" or left <= x < right and top <= y < bottom) else []
    assert result["box_labels"].tolist() == inside
    scale = move.size[0] / (right - left)
    np.testing.assert_allclose(move.size[1] / (bottom - top), scale, rtol=0.05)
    if 0 in inside:
      white_box = np.array(white(np.where(np.asarray(result["image"]) > 127, 255, 0)))
      np.testing.assert_allclose(white_box, result["boxes"][0], atol=0.51)


def test_jitter_of_a_factor_below_one_makes_an_image_smaller_than_the_layout():
  result = ScaleJitter(24, width=18, factor=(0.5, 0.5)).augment(example(), np.random.default_rng(0))
  assert result["image"].size == (9, 6)
  assert ScaleJitter(24, width=18).augment(example(), None)["image"].size == (18, 12)


def test_crowds_are_in_evaluation_and_not_in_training():
  layout = Images(8, 1, width=12, max_boxes=3)
  train, evaluated = (layout.augment(example(), generator)
                      for generator in (np.random.default_rng(0), None))
  assert train["box_classes"].tolist() == [0, 2, -1] and not train["crowd"].any()
  assert evaluated["box_classes"].tolist() == [0, 1, 2]
  assert evaluated["crowd"].tolist() == [False, True, False]


def test_pixels_are_normalised_and_padding_is_zero():
  layout = Images(3, 1, width=4, pad=True, mean=(0.2,), std=(0.4,))
  result = layout.augment({"image": Image.fromarray(np.array([[0, 255, 51]], np.uint8)),
                           "path": "p.x"}, None)
  assert result["image"].dtype == np.float32 and result["size"].tolist() == [1, 3]
  expected = np.zeros((3, 4, 1))
  expected[0, :3, 0] = -0.5, 2, 0
  np.testing.assert_allclose(result["image"], expected, atol=1e-6)


def test_boxes_that_are_none_are_left_out_and_named_once(caplog):
  boxes = [[1, 1, 4, 4], [2, 2, 2, 5], [12, 0, 20, 4], [-3, -3, 0, 2]]
  for _ in range(2):
    result = decode(boxes, [0, 1, 2, 3])
    assert found(result) == ([[1, 1, 4, 4]], [0])
  said = [record.getMessage() for record in caplog.records]
  assert said == [
      "p.x: box 1, [2, 2, 2, 5], has no width or no height; it is left out",
      "p.x: box 2, [12, 0, 20, 4], lies outside of the image of 12 x 8 pixels; it is left out",
      "p.x: box 3, [-3, -3, 0, 2], lies outside of the image of 12 x 8 pixels; it is left out"]


def test_classes_of_boxes_are_by_name_and_areas_those_of_masks():
  op = DecodeImage(channels=1, names=("cat", "dog"), boxes=True)
  given = {"image": np.zeros((8, 12), np.uint8), "path": "p.x", "boxes": [[2, 1, 6, 20]] * 2,
           "box_labels": ["dog", "cat"], "box_areas": [7.5, np.nan], "crowd": [True, False]}
  result = op.augment(given, None)
  assert result["box_labels"].tolist() == [1, 0] and result["box_areas"].tolist() == [7.5, 28]
  assert result["crowd"].tolist() == [True, False] and result["original_size"].tolist() == [8, 12]
  with pytest.raises(DataError) as e:
    op.augment({**given, "box_labels": ["dog", "cow"]}, None)
  assert str(e.value) == ("op decode_image: p.x has the label 'cow'; valid are cat, dog, or their"
                          " numbers 0 to 1")
  with pytest.raises(DataError) as e:
    op.augment({**given, "crowd": [True]}, None)
  assert str(e.value) == ("op decode_image: p.x has box_areas [2] and crowd [1]; they must be [2],"
                          " one for each box")
