"""Batches of images with boxes: pixels and boxes move together, and processes read the same."""

import json

import numpy as np
from PIL import Image
import pytest

from configs import common
from jtx.data.dataset import Dataset
from jtx.errors import DataError
from tests.data.image_files import assert_same, configs, error_of

OPS = configs(
    "decode_image", "flip", "random_size_crop", "resize_shortest", "images",
    decode_image={"boxes": True},
    random_size_crop={"probability": 0.7, "shortest": (40, 50), "least": 30, "most": 50,
                      "keep": "part"},
    resize_shortest={"shortest": (32, 48), "longest": 80},
    images={"size": 80, "pad": True, "max_boxes": 2, "mean": (0.2,) * 3, "std": (0.4,) * 3})
JITTER = configs("decode_image", "scale_jitter", "images", decode_image={"boxes": True},
                 scale_jitter={"size": 64, "width": 80, "factor": (0.5, 2.0), "keep": "part"},
                 images={"size": 64, "width": 80, "pad": True, "max_boxes": 2})
SHAPES = ((48, 80), (80, 48))
SHAPED = (*OPS[:-1], *configs("images", images={**OPS[-1].to_dict(), "shapes": SHAPES}))


def write(folder, name, number, classes=("red", "green")):
  """Black images with a red and a green rectangle, and their boxes."""
  rng, lines = np.random.default_rng(len(name)), []
  for i in range(number):
    width, height = rng.integers(60, 120, 2)
    pixels, boxes = np.zeros((height, width, 3), np.uint8), []
    for channel, start in ((0, 4), (1, 34)):  # side by side, of even numbers of pixels
      w, h = rng.integers(10, 24, 2)
      left, top = start, int(rng.integers(2, height - h - 2))
      pixels[top:top + h, left:left + w, channel] = 255
      boxes.append([left, top, int(w), int(h)])
    Image.fromarray(pixels).save(folder / f"{name}{i}.png")
    lines.append({"image": f"{name}{i}.png", "boxes": boxes, "classes": list(classes)})
  (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  path = tmp_path_factory.mktemp("boxes")
  write(path, "train", 13)
  write(path, "val", 3)
  write(path, "other", 2, ("red", "blue"))
  return path


def dataset(folder, ops=OPS, labels=None):
  c = common.get_config()
  c.data.path, c.data.train, c.data.ops = str(folder), ("boxes:train.jsonl",), tuple(ops)
  return Dataset(c.data, c.tokenizer, labels=labels)


@pytest.mark.parametrize("ops", [OPS, JITTER, SHAPED], ids=["crop", "jitter", "shapes"])
def test_boxes_are_around_their_pixels_after_all_ops(folder, ops):
  """Of a class's colour at least half of its strength, within a pixel of the box."""
  data, seen = dataset(folder, ops), 0
  assert data.labels == ("green", "red") and data.info == {"head.outputs": 2}
  stream = data.train_stream(3, 8, range(8))
  layout = data.recipe.layout
  for step in range(4):
    batch = stream.batch(step)
    for r, (height, width) in enumerate(batch["size"]):
      assert not batch["image"][r, height:].any() and not batch["image"][r, :, width:].any()
      shown = layout.shown(batch["image"][r, :height, :width])
      for box, number in zip(batch["boxes"][r], batch["box_classes"][r]):
        if number < 0:
          assert not box.any()
          continue
        rows, columns = np.nonzero(shown[..., 1 - number] > 0.5)
        x, y, w, h = box * np.array([width, height] * 2)
        if min(w, h) < 2:
          continue  # of which nothing may be left at half of its strength
        np.testing.assert_allclose(
            [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1],
            [x - w / 2, y - h / 2, x + w / 2, y + h / 2], atol=1.01)
        seen += 1
  assert seen > 30


@pytest.mark.parametrize("ops", [OPS, SHAPED], ids=["one_shape", "shapes"])
def test_resuming_and_processes_change_nothing(folder, ops):
  """Any batch is read alone, from a cursor, or by rows of several processes."""
  data = dataset(folder, ops)
  whole = data.train_stream(5, 6, range(6))
  batches = [whole.batch(step) for step in range(6)]
  assert any((a["size"] != b["size"]).any() for a, b in zip(batches, batches[1:]))
  resumed = dataset(folder, ops).train_stream(5, 6, range(6), cursor=whole.cursor(4))
  assert_same(resumed.batch(4), batches[4])
  assert_same(resumed.batch(1), batches[1])
  parts = [dataset(folder, ops).train_stream(5, 6, rows).batch(3)
           for rows in ((0, 4, 5), (1, 2, 3))]
  assert_same({key: np.concatenate([p[key] for p in parts]) for key in parts[0]},
              {key: value[[0, 4, 5, 1, 2, 3]] for key, value in batches[3].items()})
  other = dataset(folder, ops).train_stream(6, 6, range(6)).batch(3)
  assert (other["boxes"] != batches[3]["boxes"]).any()


def test_all_batches_are_of_one_shape_and_padding_has_no_boxes(folder):
  data = dataset(folder)
  example = data.example_batch(4)
  assert (example["box_classes"] == -1).all() and not example["boxes"].any()
  batch, = data.eval_batches(("boxes:val.jsonl",), 4, range(4))
  assert batch["real"].ravel().tolist() == [1, 1, 1, 0]
  assert batch["box_classes"].tolist() == [[1, 0]] * 3 + [[-1, -1]]
  trained = data.train_stream(5, 4, range(4)).batch(0)
  for other in (batch, trained):
    assert {k: (v.shape, v.dtype) for k, v in other.items() if k != "ids"} == {
        k: (v.shape, v.dtype) for k, v in example.items()}
  assert batch["size"].min(1)[:3].tolist() == [48] * 3  # in evaluation the last of `shortest`


def test_classes_are_those_of_the_run(folder):
  data = dataset(folder, labels=("red", "green"))  # as a workdir keeps them
  batch, = data.eval_batches(("boxes:val.jsonl",), 3, range(3))
  assert batch["box_classes"].tolist() == [[0, 1]] * 3
  assert error_of(DataError, data.check, ("boxes:other.jsonl",)) == (
      "boxes:other.jsonl: does not have the classes of the run: it also has blue")
  two = common.get_config()
  two.data.path, two.data.ops = str(folder), tuple(OPS)
  two.data.train = ("boxes:train.jsonl", "boxes:other.jsonl:rows[1:]")
  both = Dataset(two.data, two.tokenizer)
  assert both.labels == ("green", "red", "blue") and len(both.prepared_train) == 14
  few = configs("decode_image", "images", decode_image={"boxes": True}, images={"max_boxes": 1})
  assert error_of(DataError, dataset(folder, few).prepare, ("boxes:val.jsonl",)) == (
      "boxes:val.jsonl: has an image with 2 boxes, which is more than max_boxes=1 of op images")
  one = dataset(folder, labels=("red", "green", "blue"))
  assert len(next(iter(one.eval_batches(("boxes:val.jsonl",), 3, range(3))))["ids"]) == 3
