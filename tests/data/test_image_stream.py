"""Batches of images: recipes, streams and evaluation."""

import pickle

import numpy as np
import pytest

from jtx.data import order
from jtx.data.ops.image_layout import Images
from jtx.data.pipeline import eval_batches, example_batch, iterate
from jtx.data.recipes import build_ops
from jtx.errors import ConfigError
from tests.data.image_files import (
    TRAIN, Listed, assert_same, configs, error_of, lazily, numbered, pixels, stream_of)

STEPS = 9


# ----------------------------------------------------------------------------- recipes


def test_build_ops_of_images():
  recipe = build_ops(TRAIN)
  assert (recipe.prepare, recipe.form, recipe.alter) == ([], None, [])
  assert recipe.layout == Images(8) and recipe.augment[-1] is recipe.layout
  assert [type(op).__name__ for op in recipe.augment] == [
      "DecodeImage", "PadCrop", "Flip", "RandomErasing", "Images"]
  assert recipe.bind({}).augment == recipe.augment
  assert {name: (c.kind, c.dtype, c.shape) for name, c in recipe.row_columns().items()} == {
      "label": ("example", "int32", ()), "real": ("example", "int32", ()),
      "image": ("array", "uint8", (8, 8, 3))}


@pytest.mark.parametrize("ops, message", [
    (configs("decode_image", "flip"), "data.ops (decode_image, flip): needs one layout, 'pack' or"
     " 'pad', or 'images' for images"),
    (configs("decode_image", "images", "images"), "data.ops (decode_image, images, images): needs"
     " one layout, 'pack' or 'pad', or 'images' for images"),
    (configs("decode_image", "flip", "pad"), "data.ops (decode_image, flip, pad): 'pad' is for"
     " texts and 'decode_image' for images, so they have no place in one list"),
    (configs("clean", "tokenize", "images"), "data.ops (clean, tokenize, images): 'clean' is for"
     " texts and 'images' for images, so they have no place in one list"),
    (configs("tokenize", "flip", "pack"), "data.ops (tokenize, flip, pack): 'tokenize' is for texts"
     " and 'flip' for images, so they have no place in one list"),
    (configs("decode_image", "images", "mask"), "data.ops (decode_image, images, mask): 'mask' is"
     " for texts and 'decode_image' for images, so they have no place in one list"),
    (configs("flip", "images"), "data.ops (flip, images): needs one 'decode_image', as its first"
     " op"),
    (configs("images"), "data.ops (images): needs one 'decode_image', as its first op"),
    (configs("flip", "decode_image", "images"), "data.ops (flip, decode_image, images): needs one"
     " 'decode_image', as its first op"),
    (configs("decode_image", "decode_image", "images"), "data.ops (decode_image, decode_image,"
     " images): needs one 'decode_image', as its first op"),
    (configs("decode_image", "images", "flip"), "data.ops (decode_image, images, flip): 'flip' does"
     " not work on batches, so it stands before the layout"),
    (configs("decode_image", "resize", "pad_crop", "flip", "images"), "data.ops (decode_image,"
     " resize, pad_crop, flip, images): 'pad_crop' has size=32, but 'images' has size=224"),
    (configs("decode_image", "inception_crop", "images", images={"channels": 1}), "data.ops"
     " (decode_image, inception_crop, images): 'decode_image' has channels=3, but 'images' has"
     " channels=1"),
])
def test_build_ops_says_what_is_wrong(ops, message):
  assert error_of(ConfigError, build_ops, ops) == message


# ------------------------------------------------------------------------------ stream


@pytest.fixture(scope="module")
def batches():
  stream = stream_of()
  result = [stream.batch(step) for step in range(STEPS)]
  assert stream.cursor(STEPS)[0] > 2
  return result


def test_batches_have_images_labels_and_ids(batches):
  """Where an image is not erased, cut off or filled up, it has the value of its number."""
  for batch in batches:
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == {
        "image": ((8, 8, 8, 3), np.uint8), "label": ((8, 1), np.int32), "real": ((8, 1), np.int32),
        "ids": ((8, 1), np.int64)}
    numbers = np.where(batch["ids"] < 40, batch["ids"], batch["ids"] - 40)
    np.testing.assert_array_equal(batch["label"], numbers % 3)
    assert (batch["real"] == 1).all()
    for image, number in zip(batch["image"], numbers[:, 0]):
      values, counts = np.unique(image, return_counts=True)
      assert number in values and counts[values == number] > 30


def test_an_epoch_has_every_example_once():
  stream = stream_of(batch_size=9, window=0)
  for epoch in range(3):
    ids = [i for step in range(7 * epoch, 7 * (epoch + 1))
           for i in stream.batch(step)["ids"].ravel().tolist()]
    assert sorted(ids) == list(range(63)) and ids != sorted(ids)


@pytest.mark.parametrize("readers", [
    [range(0, 8, 2), range(1, 8, 2)], [range(4), range(4, 8)], [[5, 0], [1, 7, 2], [3, 4, 6]],
    [range(i, i + 1) for i in range(8)]], ids=str)
def test_any_number_of_readers_reads_the_same_batches(batches, readers):
  streams = [stream_of(rows=rows) for rows in readers]
  for step in range(STEPS):
    joined = {k: np.full_like(v, 99) for k, v in batches[step].items()}
    for rows, stream in zip(readers, streams):
      for key, value in stream.batch(step).items():
        joined[key][np.asarray(rows)] = value
    assert_same(joined, batches[step])


def test_resume_with_and_without_cursor_in_any_order(batches):
  whole = stream_of()
  for step in np.random.default_rng(0).permutation(STEPS).tolist():
    for edit in ({}, {"cursor": whole.cursor(step)}):
      stream = pickle.loads(pickle.dumps(stream_of(**edit)))
      assert_same(stream.batch(step), batches[step])


@pytest.mark.parametrize("threads, workers", [(1, 0), (3, 0), (1, 1)])
def test_threads_and_workers_read_the_same_batches(batches, threads, workers):
  number = 3 if workers else STEPS
  read = list(iterate(stream_of(), 0, number, threads=threads, workers=workers))
  assert len(read) == number
  for a, b in zip(read, batches):
    assert_same(a, b)


def test_another_seed_and_another_epoch_augment_in_another_way():
  source = Listed([{"image": pixels(8, 8, 3), "label": 0}], ("a", "b", "c"))
  one = stream_of(source, batch_size=1, window=0)
  other = stream_of(source, batch_size=1, window=0, seed=6)
  a, b = ([stream.batch(step)["image"].tobytes() for step in range(20)] for stream in (one, other))
  assert len(set(a)) > 10 and a != b
  assert sum(x == y for x, y in zip(a, b)) < 8


def test_a_row_is_augmented_by_its_place_in_the_stream():
  stream, recipe = stream_of(), build_ops(TRAIN)
  for step in (0, 4):
    batch = stream.batch(step)
    for r in range(8):
      number = int(batch["ids"][r, 0])
      generator = order.rng(5, "row", 8 * step + r)
      example, = stream.prepared.after_ops([number], generator)
      np.testing.assert_array_equal(example["image"], batch["image"][r])
  assert recipe.augment == stream.prepared.ops


def test_nothing_is_read_before_it_is_asked_for():
  class Unread(Listed):
    def __getitem__(self, i):
      raise AssertionError("read")
  source = Unread(numbered(40), ("a", "b", "c"))
  stream = stream_of(source)
  assert len(stream.prepared) == 40 and stream.cursor(3)
  assert stream.prepared.lengths(np.arange(5), ()).shape == (5, 0)
  with pytest.raises(AssertionError, match="read"):
    stream.batch(0)


def test_the_example_batch_is_padding_of_the_same_kind(batches):
  example = example_batch(build_ops(TRAIN), 8)
  assert example.keys() == batches[0].keys() - {"ids"}
  for key, value in example.items():
    assert (value.shape, value.dtype) == (batches[0][key].shape, batches[0][key].dtype)
    assert not value.any()


@pytest.mark.parametrize("threads", [0, 2])
def test_evaluation_has_every_image_once_in_order(threads):
  examples, recipe = lazily(numbered(10), numbered(3))
  batches = list(eval_batches(examples, recipe, 4, threads=threads))
  ids = np.concatenate([b["ids"] for b in batches]).ravel().tolist()
  assert ids == [*range(13), -1, -1, -1]
  real = np.concatenate([b["real"] for b in batches]).ravel().tolist()
  assert real == [1] * 13 + [0] * 3
  image = np.concatenate([b["image"] for b in batches])
  for i, number in enumerate([*range(10), *range(3)]):
    assert (image[i] == number).all()
  assert not image[13:].any()
  again = list(eval_batches(*lazily(numbered(10), numbered(3)), 4, [3, 1]))
  for a, b in zip(again, batches):
    assert_same(a, {k: v[[3, 1]] for k, v in b.items()})
