"""Sources of images with boxes: COCO, PASCAL VOC, JSON lines, TFDS's objects, scattered digits."""

import collections
import json
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from jtx.data.sources.boxes import of_objects
from jtx.data.sources.images import Digits
from jtx.data.sources.registry import open_source
from jtx.data.sources.scattered import HIDDEN, ScatteredDigits
from jtx.errors import ConfigError, DataError
from tests.data.image_files import all_of, error_of, png, write_tree

BOXES = [[3, 4, 13, 24], [0, 0, 30, 20]]  # corners of the two boxes of b.png


def plain(example):
  """An example with its boxes as lists, and the areas that are known."""
  areas = [None if np.isnan(x) else x for x in example["box_areas"]]
  return {**example, "boxes": example["boxes"].tolist(), "box_areas": areas,
          "crowd": example["crowd"].tolist()}


def expected(folder, areas=(None, None), crowd=(False, False), labels=("dog", "cat")):
  return [{"image": png(1), "path": f"{folder}/a.png", "boxes": [], "box_labels": [],
           "box_areas": [], "crowd": []},
          {"image": png(2), "path": f"{folder}/b.png", "boxes": BOXES, "box_labels": list(labels),
           "box_areas": list(areas), "crowd": list(crowd)}]


def check(source, classes, examples):
  for opened in (source, pickle.loads(pickle.dumps(source))):
    assert opened.classes == classes and not opened.numbered
    assert [plain(e) for e in all_of(opened)] == examples
  assert plain(source[-1]) == examples[-1]
  with pytest.raises(IndexError):
    source[len(examples)]


# -------------------------------------------------------------------------------- COCO


COCO = {
    "images": [{"id": 7, "file_name": "a.png", "height": 3}, {"id": 3, "file_name": "b.png"}],
    "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}, {"id": 90, "name": "cow"}],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 18, "bbox": [3, 4, 10, 20], "area": 99.5},
        {"id": 2, "image_id": 3, "category_id": 17, "bbox": [0, 0, 30, 20], "iscrowd": 1},
        {"id": 5, "image_id": 7, "category_id": 17, "bbox": [9, 9, 0, 4], "area": 0}]}


def write_coco(folder, **edits):
  write_tree(folder, val={"a.png": png(1), "b.png": png(2)})
  (folder / "val.json").write_text(json.dumps({**COCO, **edits}))


def test_coco(tmp_path, caplog):
  """Classes are all categories in the order of their numbers; images are in that of the file."""
  write_coco(tmp_path)
  source = open_source("coco:val.json:images[val]", str(tmp_path))
  check(source, ("cat", "dog", "cow"),
        expected(tmp_path / "val", areas=(99.5, None), crowd=(False, True)))
  assert [r.getMessage() for r in caplog.records if "left out" in r.getMessage()] == [
      f"{tmp_path}/val.json: annotations[2] (id 5): the box [9.0, 9.0, 9.0, 13.0] of 'cat' has no"
      " width or no height; it is left out"]
  part = open_source("coco:val.json:images[val]:rows[1:]", str(tmp_path))
  assert len(part) == 1 and part.classes == source.classes
  (tmp_path / "val.json").rename(tmp_path / "val" / "val.json")
  assert [plain(e) for e in all_of(open_source("coco:val/val.json", str(tmp_path)))] == [
      plain(e) for e in all_of(source)]


@pytest.mark.parametrize("edits, message", [
    ({"images": {}}, "has no list 'images'; a file of COCO's format has the lists images,"
     " annotations and categories"),
    ({"categories": [{"id": "1", "name": "cat"}]}, "categories[0] has id='1'; it must be a whole"
     " number"),
    ({"images": [{"id": 7}]}, "images[0] has file_name=None; it must be a text"),
    ({"annotations": [{"id": 1, "image_id": 4, "category_id": 17, "bbox": [0, 0, 1, 1]}]},
     "annotations[0] has the image_id 4, which is none of images"),
    ({"annotations": [{"id": 1, "image_id": 3, "category_id": 1, "bbox": [0, 0, 1, 1]}]},
     "annotations[0] has the category_id 1, which is none of categories"),
    ({"annotations": [{"id": 1, "image_id": 3, "category_id": 17, "bbox": [0, 0, 1]}]},
     "annotations[0] has the box [0, 0, 1]; a box is four numbers, [left, top, width, height] in"
     " pixels"),
    ({"annotations": [{"id": 1, "image_id": 3, "category_id": 17}]},
     "annotations[0] has the box None; a box is four numbers, [left, top, width, height] in"
     " pixels"),
])
def test_what_is_not_coco(tmp_path, edits, message):
  write_coco(tmp_path, **edits)
  found = error_of(DataError, open_source, "coco:val.json", str(tmp_path))
  assert found.removeprefix(f"{tmp_path}/val.json: ") == message


def test_a_file_that_is_no_json_and_other_options(tmp_path):
  (tmp_path / "x.json").write_text("{")
  assert error_of(DataError, open_source, "coco:x.json", str(tmp_path)).startswith(
      f"{tmp_path}/x.json: not valid JSON (")
  assert error_of(ConfigError, open_source, "coco:x.json:columns[a]", str(tmp_path)) == (
      "source: 'coco:x.json:columns[a]' has the option columns[a]; valid are rows[:90%],"
      " images[FOLDER]")


# --------------------------------------------------------------------------- PASCAL VOC


def xml(*objects):
  """An annotation of (name, xmin, ymin, xmax, ymax) each."""
  keys = ("xmin", "ymin", "xmax", "ymax")
  return "<annotation>" + "".join(
      f"<object><name>{name}</name><bndbox>" + "".join(f"<{k}>{x}</{k}>" for k, x in zip(keys, box))
      + "</bndbox></object>" for name, *box in objects) + "</annotation>"


def voc_files(lists):
  return {"JPEGImages/a.png": png(1), "JPEGImages/b.png": png(2), "JPEGImages/c.png": png(3),
          "Annotations/a.xml": xml(("dog", 5, 5, 5, 9)).encode(),
          "Annotations/b.xml": xml(("dog", 4, 5, 13, 24), ("cat", 1, 1, 30.0, 20)).encode(),
          "Annotations/c.xml": xml(("cow", 1, 1, 2, 2)).encode(),
          f"{lists}val.txt": b"a\nb 1\n\n", f"{lists}train.txt": b"c\n"}


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("root, lists", [("", ""), ("VOCdevkit/VOC2007/", "ImageSets/Main/")])
def test_pascal_voc(tmp_path, caplog, archive, root, lists):
  """Pixels are counted from 1, and the last one belongs to the box."""
  named = {root + name: data for name, data in voc_files(lists).items()}
  place = tmp_path / ("voc.zip" if archive else "voc")
  if archive:
    with zipfile.ZipFile(place, "w") as file:
      for name, data in named.items():
        file.writestr(name, data)
  else:
    write_tree(place, **{"": named})
  source = open_source(f"voc:{place.name}:val", str(tmp_path))
  check(source, ("cat", "dog"), expected(f"{place}/{root}JPEGImages"))
  assert [r.getMessage() for r in caplog.records if "left out" in r.getMessage()] == [
      f"{place}/{root}Annotations/a.xml: object 0: the box [5.0, 5.0, 5.0, 9.0] of 'dog' has no"
      " width or no height; it is left out"]
  whole = open_source(f"voc:{place.name}", str(tmp_path))
  assert len(whole) == 3 and whole.classes == ("cat", "cow", "dog")
  assert error_of(DataError, open_source, f"voc:{place.name}:test", str(tmp_path)) == (
      f"{place}: has no list test.txt of images, in ImageSets/Main/ or beside it; it has train,"
      " val")


@pytest.mark.parametrize("name, data, message", [
    ("Annotations/b.xml", b"<annotation", "{}/Annotations/b.xml: not valid XML (unclosed token:"
     " line 1, column 0)"),
    ("Annotations/b.xml", xml(("", 1, 2, 3, 4)).encode(), "{}/Annotations/b.xml: object 0 has no"
     " name"),
    ("Annotations/b.xml", xml(("cat", 1, "x", 3, 4)).encode(), "{}/Annotations/b.xml: object 0 has"
     " the bndbox ['1', 'x', '3', '4']; it needs the numbers xmin, ymin, xmax and ymax"),
    ("Annotations/b.xml", None, "{}/val.txt:2: names 'b', and there is no"
     " Annotations/b.xml"),
    ("JPEGImages/b.png", None, "{}/val.txt:2: names 'b', and there is no JPEGImages/b.jpg"),
    ("val.txt", b"a\n\nb c  -1\n", "{}/val.txt:3: names 'b c', and there is no"
     " Annotations/b c.xml"),
])
def test_what_is_not_voc(tmp_path, name, data, message):
  named = voc_files("") | {name: data}
  write_tree(tmp_path / "voc", **{"": {n: d for n, d in named.items() if d is not None}})
  assert error_of(DataError, open_source, "voc:voc:val", str(tmp_path)) == (
      message.format(tmp_path / "voc"))


def test_names_of_images_may_have_spaces(tmp_path):
  """What looks like a flag is of the name where an annotation has it."""
  image, note = png(1), xml(("dog", 1, 1, 2, 2)).encode()
  write_tree(tmp_path / "voc", **{"": {"val.txt": b"train 1\ntrain 2  1\r\nc -1\n"} | {
      f"{folder}{name}.{kind}": data for name in ("train 1", "train 2", "c", "train")
      for folder, kind, data in (("JPEGImages/", "png", image), ("Annotations/", "xml", note))}})
  source = open_source("voc:voc:val", str(tmp_path))
  assert [os.path.basename(source[i]["path"]) for i in range(len(source))] == [
      "train 1.png", "train 2.png", "c.png"]


def test_a_folder_without_annotations(tmp_path):
  write_tree(tmp_path, x={"a.png": png(1)})
  assert error_of(DataError, open_source, "voc:x:val", str(tmp_path)) == (
      f"{tmp_path}/x: has no folder Annotations; PASCAL VOC has Annotations/ID.xml,"
      " JPEGImages/ID.jpg and ImageSets/Main/SPLIT.txt")


def test_blood_cells():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published data sets are in it")
  counts = {}
  for split in ("train", "val"):
    source = open_source(f"voc:bccd/bccd_trainval.zip:{split}", os.environ["JTX_TEST_DATA"])
    assert source.classes == ("Platelets", "RBC", "WBC")
    boxes = np.concatenate([source[i]["boxes"] for i in range(len(source))])
    assert boxes.min() >= -1 and (boxes.max(0) <= [640, 480] * 2).all()
    counts[split] = len(source), dict(collections.Counter(
        label for i in range(len(source)) for label in source[i]["box_labels"]))
  assert counts == {"train": (205, {"RBC": 2381, "WBC": 214, "Platelets": 209}),
                    "val": (87, {"RBC": 967, "WBC": 87, "Platelets": 83})}


# -------------------------------------------------------------------------- JSON lines


def test_json_lines(tmp_path, caplog):
  lines = [{"image": "a.png", "boxes": [[1, 1, 2, -1]], "classes": ["cow"]},
           {"image": "b.png", "boxes": [[3, 4, 10, 20], [0, 0, 30, 20]], "classes": ["dog", "cat"],
            "crowd": [False, True]}, {"image": "x/c.png"}]
  write_tree(tmp_path, **{"": {"a.png": png(1), "b.png": png(2), "x/c.png": png(3)}})
  (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
  source = open_source("boxes:t.jsonl:rows[:2]", str(tmp_path))
  check(source, ("cat", "dog"), expected(tmp_path, crowd=(False, True)))
  assert [r.getMessage() for r in caplog.records if "left out" in r.getMessage()] == [
      f"{tmp_path}/t.jsonl:1: box 0: the box [1.0, 1.0, 3.0, 0.0] of 'cow' has no width or no"
      " height; it is left out"]
  assert open_source("boxes:t.jsonl", str(tmp_path))[2]["image"] == png(3)


@pytest.mark.parametrize("line, message", [
    ({"file": "a.png"}, "has no text 'image', the file; it has file"),
    ({"image": "a.png", "boxes": [[0, 0, 1, 1]]}, "needs lists 'boxes' and 'classes' (and 'crowd')"
     " of the same length, a box [left, top, width, height] and a name each"),
    ({"image": "a.png", "boxes": 3}, "needs lists 'boxes' and 'classes' (and 'crowd')"
     " of the same length, a box [left, top, width, height] and a name each"),
    ({"image": "a.png", "boxes": [[0, 0, 1, 1]], "classes": [1]}, "has the class 1; classes are"
     " names"),
    ({"image": "a.png", "boxes": [["0", 0, 1, 1]], "classes": ["a"]}, "box 0 has the box ['0', 0,"
     " 1, 1]; a box is four numbers, [left, top, width, height] in pixels"),
])
def test_lines_of_another_form(tmp_path, line, message):
  (tmp_path / "t.jsonl").write_text(f"{json.dumps({'image': 'a.png'})}\n{json.dumps(line)}\n")
  found = error_of(DataError, open_source, "boxes:t.jsonl", str(tmp_path))
  assert found.removeprefix(f"{tmp_path}/t.jsonl:2").lstrip(": ") == message


# -------------------------------------------------------------------------------- TFDS


def test_objects_of_tfds_are_in_pixels():
  """A box is top, left, bottom and right, relative to an image of 40 x 20 pixels."""
  objects = {"bbox": np.array([[0.25, 0.5, 1, 0.75], [0, 0, 0, 1]], np.float32),
             "label": np.array([1, 0]), "area": np.array([88, 5]), "is_crowd": [True, False]}
  found = of_objects(png(1, (40, 20)), objects, ("cat", "dog"), "x, example 1")
  assert found["boxes"].tolist() == [[20, 5, 30, 20]] and found["box_labels"] == ["dog"]
  assert found["box_areas"].tolist() == [88] and found["crowd"].tolist() == [True]
  without = of_objects(png(1), {"bbox": np.zeros((0, 4)), "label": []}, ("cat",), "x")
  assert without["boxes"].shape == (0, 4) and without["crowd"].shape == (0,)
  with pytest.raises(DataError, match="x, example 2: can't be decoded"):
    of_objects(b"no", objects, ("cat", "dog"), "x, example 2")


TINY_OBJECTS = """
import io, sys
import numpy as np
from PIL import Image
import tensorflow_datasets as tfds
from jtx.data.sources.registry import open_source
folder = sys.argv[1]

class TinyObjects(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({
        "image": tfds.features.Image(shape=(None, None, 3)),
        "objects": tfds.features.Sequence({
            "bbox": tfds.features.BBoxFeature(), "area": np.int64, "is_crowd": np.bool_,
            "label": tfds.features.ClassLabel(names=["zebra", "ape"])})}))

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples()}

  def _generate_examples(self):
    for i in range(3):
      file = io.BytesIO()
      Image.new("RGB", (16, 8)).save(file, "PNG")
      file.seek(0)
      yield i, {"image": file, "objects": [
          {"bbox": tfds.features.BBox(ymin=.25, xmin=.5, ymax=1.0, xmax=.75), "area": 7, "label": 1,
           "is_crowd": False}] * i}

builder = TinyObjects(data_dir=folder, file_format="array_record")
builder.download_and_prepare()
source = open_source("tfds:tiny_objects:train", folder)
assert source.classes == ("zebra", "ape"), source.classes
found = sorted(len(source[i]["boxes"]) for i in range(3))
assert found == [0, 1, 2], found
one = next(source[i] for i in range(3) if len(source[i]["boxes"]) == 1)
assert one["boxes"].tolist() == [[8, 2, 12, 8]] and one["box_labels"] == ["ape"], one
assert one["box_areas"].tolist() == [7] and not one["crowd"].any() and "objects" not in one
assert "tensorflow" not in sys.modules
"""


@pytest.mark.slow
def test_tfds_prepared_with_objects(tmp_path):
  done = subprocess.run([sys.executable, "-c", TINY_OBJECTS, str(tmp_path)],
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr


# ---------------------------------------------------------------------- scattered digits


def test_digits_are_scattered_in_tight_boxes():
  source = open_source("embedded:scattered:train")
  digits, counts = Digits("train"), collections.Counter()
  by_class = {str(d): [digits[i]["image"] for i in np.flatnonzero(digits.labels == d)[:200]]
              for d in range(10)}
  for i in range(40):
    example = source[i]
    image, boxes = example["image"][..., 0], example["boxes"].astype(int)
    assert image.shape == (32, 32) and 1 <= len(boxes) <= 4
    outside = image.copy()
    for left, top, right, bottom in boxes:
      inside = image[top:bottom, left:right]
      assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))
      outside[top:bottom, left:right] = 0
    assert not outside.any()
    if len(boxes) == 1:
      left, top, right, bottom = boxes[0]
      shapes = [x[np.ix_(x.any(1), x.any(0))] for x in by_class[example["box_labels"][0]]]
      counts["known"] += any(np.array_equal(image[top:bottom, left:right], x) for x in shapes)
    counts[len(boxes)] += 1
  assert counts["known"] == counts[1] > 3 and min(counts[n] for n in (2, 3, 4)) > 3


def test_an_image_is_a_function_of_seed_and_number():
  source = open_source("embedded:scattered:test")
  again = pickle.loads(pickle.dumps(source))
  for i in (11, 3, 0):
    np.testing.assert_array_equal(source[i]["image"], again[i]["image"])
    np.testing.assert_array_equal(source[i]["boxes"], again[i]["boxes"])
  other = ScatteredDigits("x", Digits("test"), 32, seed=1)
  assert any(len(source[i]["boxes"]) != len(other[i]["boxes"]) for i in range(9))
  assert source[-1]["box_labels"] == source[len(source) - 1]["box_labels"]
  with pytest.raises(IndexError):
    source[len(source)]


class Blocks:
  """Digits that are full blocks of 6 x 6 pixels, of values that tell them apart."""

  def __len__(self):
    return 4

  def __getitem__(self, i):
    return {"image": np.pad(np.full((6, 6), 10 + i, np.uint8), 1), "label": i}


def test_digits_hide_little_of_each_other():
  """Blocks in a crowded image share a tenth of their pixels at most, and may touch."""
  source, touching = ScatteredDigits("x", Blocks(), 14), 0
  for i in range(-4, 4):
    boxes = source[i]["boxes"].astype(int)
    cover = np.zeros((14, 14), int)
    for left, top, right, bottom in boxes:
      cover[top:bottom, left:right] += 1
    for left, top, right, bottom in boxes:
      assert (cover[top:bottom, left:right] > 1).mean() <= HIDDEN
      touching += (np.pad(cover, 1)[top:bottom + 2, left:right + 2] > 0).sum() > 36
  assert touching


def test_scattered_digits_of_a_file(tmp_path):
  images = np.zeros((10, 28, 28), np.uint8)
  images[:, 4:24, 10:18] = np.arange(1, 11)[:, None, None]
  np.savez(tmp_path / "d.npz", images=images, labels=np.arange(10))
  train, test = (open_source(f"scattered:d.npz:rows[{part}]", str(tmp_path))
                 for part in (":8", "8:"))
  assert (len(train), len(test)) == (8, 2) and train.classes == test.classes
  assert train[0]["image"].shape == (64, 64, 3)
  for source, labels in ((train, set("01234567")), (test, set("89"))):
    assert {label for e in all_of(source) for label in e["box_labels"]} <= labels
  np.savez(tmp_path / "d.npz", images=np.zeros((2, 70, 28), np.uint8), labels=np.arange(2))
  assert error_of(DataError, open_source, "scattered:d.npz", str(tmp_path)) == (
      f"{tmp_path}/d.npz: has images [70, 28] of 2 classes; to be scattered they must be grey, of"
      " at most 64 x 64 pixels, and of 10 classes at most")
  assert "has no subsets" in error_of(ConfigError, open_source, "embedded:scattered/x:train")
