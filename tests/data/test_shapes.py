"""Batches of images in a few shapes: which one a batch has, and that nothing else changes."""

import collections
import json
import pickle

import numpy as np
from PIL import Image
import pytest

from configs import common
from jtx.data.dataset import Dataset
from jtx.data.ops.image_layout import Images
from jtx.data.pipeline import example_batch, iterate
from jtx.data.sources.boxes import coco
from jtx.data.sources.views import View
from jtx.data.sources.voc import voc
from jtx.errors import ConfigError, DataError
from tests.data.image_files import assert_same, configs, error_of, png
from tests.data.streams import assert_same_all

SHAPES = ((16, 32), (32, 16))
# Every third stands.
SIZES = [(20, 12), (12, 20), (24, 14), (31, 15), (16, 30), (20, 10)] * 5  # width and height


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Even images whose value is their number, and a box in each."""
  path = tmp_path_factory.mktemp("shapes")
  for i, size in enumerate(SIZES):
    (path / f"{i}.png").write_bytes(png(i + 1, size))
  (path / "all.jsonl").write_text("".join(json.dumps(
      {"image": f"{i}.png", "boxes": [[2, 2, 5, 6]], "classes": ["x"]}) + "\n"
      for i in range(len(SIZES))))
  return path


def dataset(folder, *ops, shapes=SHAPES, decode=None, window=0, spec="boxes:all.jsonl"):
  c = common.get_config()
  c.data.path, c.data.train, c.data.window = str(folder), (spec,), window
  c.data.ops = (*configs("decode_image", decode_image={"boxes": True, **(decode or {})}), *ops,
                *configs("images", images={"size": 32, "pad": True, "max_boxes": 1,
                                           "shapes": shapes}))
  return Dataset(c.data, c.tokenizer)


def cropping(longest=32):
  """DETR's ops in small."""
  return configs("flip", "random_size_crop", "resize_shortest",
                 random_size_crop={"probability": 0.5, "shortest": (12, 14), "least": 8,
                                   "most": 12},
                 resize_shortest={"shortest": (8, 16), "longest": longest})


def shape_of(batch):
  return batch["image"].shape[1:3]


def test_the_first_shape_with_room_is_taken():
  layout = Images(size=32, pad=True, shapes=SHAPES)
  fitted = lambda *sizes: layout.fit(np.array(sizes)).output_size
  assert fitted((16, 32)) == fitted((3, 4), (0, 0)) == fitted((10, 20), (16, 16)) == (16, 32)
  assert fitted((17, 16)) == fitted((32, 1), (0, 0)) == (32, 16)
  assert fitted((17, 17)) == fitted((16, 32), (17, 1)) == (32, 32)
  assert layout.fit(None).output_size == layout.output_size == (32, 32)
  assert layout.rank(np.array([[1, 1], [20, 1], [1, 20], [20, 20]])).tolist() == [0, 1, 0, 2]
  assert Images(size=32, pad=True).fit(np.array([[1, 1]])).output_size == (32, 32)


@pytest.mark.parametrize("window", [0, 12])
def test_images_that_lie_and_that_stand_have_batches_of_their_own(folder, window):
  """In every batch each image has the pixels and the box that it has in a square."""
  data = dataset(folder, *cropping(), window=window)
  stream, counted, ids = data.train_stream(3, 4, range(4)), collections.Counter(), []
  for step in range(30):
    batch = stream.batch(step)
    sizes = batch["size"]
    assert shape_of(batch) == Images(size=32, pad=True, shapes=SHAPES).fit(sizes).output_size
    for image, (height, width), box, number in zip(batch["image"], sizes, batch["boxes"][:, 0],
                                                   batch["ids"][:, 0]):
      assert (image[:height, :width] == number + 1).all()
      assert not image[height:].any() and not image[:, width:].any()
      assert (box[2:] <= 1).all()
    counted[shape_of(batch)] += 1
    ids += batch["ids"][:, 0].tolist()
  assert collections.Counter(ids) == {i: 4 for i in range(30)}  # four epochs
  assert min(counted[shape] for shape in SHAPES) >= 5
  assert counted[(32, 32)] <= 1 + 30 * 4 // (window or 30)  # a batch at the seam of two


def test_crops_are_drawn_as_often_and_anew_in_every_epoch(folder):
  """Half of the images are scaled alone, and half of these to the longer of two."""
  data = dataset(folder, *cropping())
  stream = data.train_stream(3, 30, range(30))
  epochs = [stream.batch(step) for step in range(20)]
  sizes = [dict(zip(b["ids"][:, 0].tolist(), map(tuple, b["size"].tolist()))) for b in epochs]
  for i in range(30):
    assert len({epoch[i] for epoch in sizes}) > 2
  for epoch in sizes:  # and files of one size are not moved alike
    assert len({epoch[i] for i in range(0, 30, 6)}) > 1
  width, height = SIZES[0]
  whole = {(side, int(side * width / height)) for side in (8, 16)}
  share = np.mean([epoch[i] in whole for epoch in sizes for i in range(0, 30, 6)])
  assert 0.4 < share < 0.75  # and some crops have that shape, too
  assert sizes != [dict(zip(b["ids"][:, 0].tolist(), map(tuple, b["size"].tolist())))
                   for b in map(data.train_stream(4, 30, range(30)).batch, range(20))]


def test_readers_of_all_kinds_see_the_same(folder):
  data = dataset(folder, *cropping(), window=12)
  whole = data.train_stream(3, 4, range(4))
  batches = [whole.batch(step) for step in range(9)]
  assert len({shape_of(batch) for batch in batches}) > 1
  assert_same_all(iterate(whole, 0, 9, threads=2, workers=0), batches)
  other = pickle.loads(pickle.dumps(dataset(folder, *cropping(), window=12).train_stream(
      3, 4, range(4), cursor=whole.cursor(7))))
  assert_same(other.batch(8), batches[8])
  parts = [dataset(folder, *cropping(), window=12).train_stream(3, 4, rows).batch(5)
           for rows in ((2,), (0, 1, 3))]
  assert_same({key: np.concatenate([part[key] for part in parts]) for key in parts[0]},
              {key: rows[[2, 0, 1, 3]] for key, rows in batches[5].items()})


@pytest.mark.parametrize("batch_size", [1, 4, 7])
def test_evaluation_has_every_image_once_by_its_shape(folder, batch_size):
  data, square = dataset(folder), dataset(folder, shapes=())
  batches = list(data.eval_batches(("boxes:all.jsonl",), batch_size, range(batch_size)))
  plain = next(square.eval_batches(("boxes:all.jsonl",), 30, range(30)))
  assert plain["ids"][:, 0].tolist() == list(range(30))
  seen = []
  for batch in batches:
    for r, i in enumerate(batch["ids"][:, 0]):
      height, width = shape_of(batch)
      if i >= 0:
        seen.append(i)
        np.testing.assert_array_equal(batch["image"][r], plain["image"][i, :height, :width])
        np.testing.assert_array_equal(batch["boxes"][r], plain["boxes"][i])
  assert sorted(seen) == list(range(30))
  assert {shape_of(batch) for batch in batches} == set(SHAPES)  # and none is mixed


def test_the_example_is_the_largest(folder):
  assert shape_of(example_batch(dataset(folder).recipe, 2)) == (32, 32)


@pytest.mark.parametrize("ops, decode, reason", [
    (configs("resize", resize={"size": 32}), {}, "'resize' makes all images of one size; leave out"
     " one of them"),
    ((), {"min_side": 8}, "'decode_image' has min_side=8, with which the size of an image is not"
     " known before it is read; leave out one of them"),
])
def test_shapes_that_can_not_be_chosen_are_refused(folder, ops, decode, reason):
  message = error_of(ConfigError, lambda: dataset(folder, *ops, decode=decode))
  assert message.endswith(f"): 'images' has shapes={SHAPES}, and {reason}")


# ------------------------------------------------------------------- sizes by annotations


def write_coco(folder, told):
  """Three images of 20 x 12 pixels, of which the annotation says what it is told."""
  for i in range(3):
    Image.new("RGB", (20, 12)).save(folder / f"{i}.png")
  (folder / "c.json").write_text(json.dumps({
      "images": [{"id": i, "file_name": f"{i}.png", **size} for i, size in enumerate(told)],
      "annotations": [], "categories": [{"id": 1, "name": "x"}]}))


def test_annotations_tell_sizes_without_reading_images(tmp_path):
  right = {"width": 20, "height": 12}
  write_coco(tmp_path, [right, {}, {"width": 20, "height": 12.5}])
  source = coco("coco:c.json", str(tmp_path / "c.json"), str(tmp_path))
  assert [source.image_size(i) for i in range(3)] == [(12, 20), None, None]
  assert View(source, None, None).image_size(0) == (12, 20)
  assert View(source, {"image": "image"}, None).image_size(0) is None
  write_coco(tmp_path, [right] * 3)
  data = dataset(tmp_path, spec="coco:c.json")
  for i in range(3):
    (tmp_path / f"{i}.png").unlink()
  examples = data.prepare(("coco:c.json",)).sized(np.arange(3), None)
  assert examples.lengths(np.arange(3), ()).tolist() == [[12, 20]] * 3


def test_an_image_of_another_size_than_its_annotation_is_bad(tmp_path, caplog):
  write_coco(tmp_path, [{"width": 20, "height": 12}] * 2 + [{"width": 12, "height": 20}])
  data = dataset(tmp_path, spec="coco:c.json", decode={"max_bad": 0.5})
  batches = data.eval_batches(("coco:c.json",), 1, range(1))
  found = {int(b["ids"][0, 0]): (shape_of(b), bool(b["real"][0, 0])) for b in batches}
  assert found == {0: ((16, 32), True), 1: ((16, 32), True), -1: ((32, 16), False)}
  assert (f"{tmp_path}/2.png: is of 20 x 12 pixels, and of 12 x 20 by its annotation, which need"
          " not say it; it is left out") in caplog.text
  write_coco(tmp_path, [{"width": 12, "height": 20}] * 3)  # of which no run learns anything
  with pytest.raises(DataError, match="3 of the 3 images read so far can't be used"):
    dataset(tmp_path, spec="coco:c.json").train_stream(0, 2, range(2))


def test_voc_tells_sizes(tmp_path):
  for name in ("JPEGImages", "Annotations"):
    (tmp_path / name).mkdir()
  for name, size in (("a", "<size><width>20</width><height>12</height></size>"), ("b", ""),
                     ("c", "<size><width>wide</width><height>12</height></size>")):
    Image.new("RGB", (20, 12)).save(tmp_path / "JPEGImages" / f"{name}.jpg")
    (tmp_path / "Annotations" / f"{name}.xml").write_text(f"<annotation>{size}</annotation>")
  source = voc("voc", str(tmp_path), "")
  assert [source.image_size(i) for i in range(3)] == [(12, 20), None, None]
