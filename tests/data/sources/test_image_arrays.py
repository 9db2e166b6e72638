"""Images of arrays, digits and TFDS, and the classes of sources."""

import collections
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from jtx.data.sources import images
from jtx.data.sources.images import check_classes, class_names
from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError, DataError
from tests.data.image_files import Listed, all_of, error_of, numbered, pixels, png, write_tree

# ------------------------------------------------------------------------------ arrays


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("shape", [(7, 4, 5), (7, 4, 5, 3)])
def test_npz(tmp_path, save, shape):
  labels = np.array([0, 2, 1, 2, 0, 0, 1], np.int32)
  save(tmp_path / "a.npz", images=pixels(*shape), labels=labels)
  source = open_source("npz:a.npz", str(tmp_path))
  assert source.classes == ("0", "1", "2") and len(source) == 7
  for again in (source, pickle.loads(pickle.dumps(source))):
    for i, example in enumerate(all_of(again)):
      np.testing.assert_array_equal(example["image"], pixels(*shape)[i])
      assert example["label"] == labels[i] and type(example["label"]) is int
  assert len(pickle.dumps(source)) < 500
  for part, kept in ((":rows[:3]", [0, 1, 2]), (":rows[5:]", [5, 6]), (":rows[50%:]", [3, 4, 5, 6]),
                     (":rows[1:2]", [1])):
    some = open_source(f"npz:a.npz{part}", str(tmp_path))
    assert [e["label"] for e in all_of(some)] == labels[kept].tolist()
    assert some.classes == source.classes
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(some))[0]["image"],
                                  pixels(*shape)[kept[0]])
  assert error_of(DataError, open_source, "npz:a.npz:rows[7:]", str(tmp_path)) == (
      "npz:a.npz:rows[7:]: empty split")
  assert error_of(ConfigError, open_source, "npz:a.npz:each[:1]", str(tmp_path)) == (
      "source: 'npz:a.npz:each[:1]' ends in 'each[:1]'; a part of the rows is written rows[:80%],"
      " rows[80%:] or rows[3:5]")


def test_npz_arrays_may_have_other_names(tmp_path):
  np.savez(tmp_path / "a.npz", x=pixels(2, 3, 3), y=np.array([1, 0]), note=np.array("hello"))
  assert [e["label"] for e in all_of(open_source("npz:a.npz", str(tmp_path)))] == [1, 0]


@pytest.mark.parametrize("arrays, message", [
    (dict(x_train=pixels(2, 3, 3), x_test=pixels(1, 3, 3), y=np.zeros(2, int)),
     "needs images [N, H, W] or [N, H, W, C] and labels [N]; it has x_train [2, 3, 3] uint8,"
     " x_test [1, 3, 3] uint8, y [2] int64"),
    (dict(images=pixels(2, 3, 3)), "needs images [N, H, W] or [N, H, W, C] and labels [N]; it has"
     " images [2, 3, 3] uint8"),
    ({}, "needs images [N, H, W] or [N, H, W, C] and labels [N]; it has nothing"),
    (dict(images=pixels(2, 3), labels=np.zeros(2, int)),
     "has images [2, 3] uint8 and labels [2] int64; images must be [N, H, W] or [N, H, W, C] of"
     " uint8"),
    (dict(images=pixels(2, 3, 3) / 255, labels=np.zeros(2, int)),
     "has images [2, 3, 3] float64 and labels [2] int64; images must be [N, H, W] or"
     " [N, H, W, C] of uint8"),
    (dict(images=pixels(2, 3, 3), labels=np.zeros(3, int)),
     "has images [2, 3, 3] uint8 and labels [3] int64; labels must be [2] of an integer type"),
    (dict(images=pixels(2, 3, 3), labels=np.zeros(2)),
     "has images [2, 3, 3] uint8 and labels [2] float64; labels must be [2] of an integer type"),
    (dict(images=pixels(2, 3, 3), labels=np.array([0, -1])),
     "has the label -1; labels count from 0"),
])
def test_bad_arrays(tmp_path, arrays, message):
  np.savez(tmp_path / "a.npz", **arrays)
  assert error_of(DataError, open_source, "npz:a.npz", str(tmp_path)) == (
      f"{tmp_path}/a.npz: {message}")


def test_files_that_are_no_archive_of_arrays(tmp_path):
  np.savez(tmp_path / "whole.npz", images=pixels(2, 30, 30), labels=np.zeros(2, int))
  whole = bytearray((tmp_path / "whole.npz").read_bytes())
  whole[1000] ^= 255
  np.save(tmp_path / "array.npy", pixels(2, 3, 3))
  np.savez(tmp_path / "objects.npz", images=pixels(2, 3, 3), labels=np.array([{}, {}]))
  for name, data in (("changed.npz", bytes(whole)), ("cut.npz", whole[:-50]), ("text.npz", b"x"),
                     ("empty.npz", b"")):
    (tmp_path / name).write_bytes(data)
  for name in ("changed.npz", "cut.npz", "text.npz", "empty.npz", "array.npy", "objects.npz"):
    message = error_of(DataError, open_source, f"npz:{name}", str(tmp_path))
    assert message.startswith(f"{tmp_path}/{name}: is not what numpy.savez writes, or is damaged (")
  assert error_of(DataError, open_source, "npz:gone.npz", str(tmp_path)) == (
      f"{tmp_path}/gone.npz: No such file or directory")


def test_mnist():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published data sets are in it")
  folder = os.environ["JTX_TEST_DATA"]
  source = open_source("npz:mnist/mnist_train.npz", folder)
  assert len(source) == 60_000 and source.classes == tuple("0123456789")
  assert source[0]["image"].shape == (28, 28) and source[0]["image"].dtype == np.uint8
  # The published counts of the training set's digits.
  assert np.bincount(source.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265,
                                                  5851, 5949]
  val = open_source("npz:mnist/mnist_train.npz:rows[55000:]", folder)
  assert len(val) == 5000 and val[0]["label"] == source[55_000]["label"]


def test_digits():
  pytest.importorskip("sklearn", reason="scikit-learn is not installed")
  from sklearn.datasets import load_digits
  train, test = (open_source(f"embedded:digits:{split}") for split in ("train", "test"))
  assert (len(train), len(test)) == (1437, 360) and len(open_source("embedded:digits")) == 1437
  assert train.classes == test.classes == tuple("0123456789")
  whole = load_digits()
  every = all_of(train) + all_of(test)
  seen = collections.Counter((e["image"].tobytes(), e["label"]) for e in every)
  assert seen == collections.Counter((np.round(image * 255 / 16).astype(np.uint8).tobytes(), label)
                                     for image, label in zip(whole.images, whole.target.tolist()))
  assert {e["image"].shape for e in every} == {(8, 8)}
  assert max(e["image"].max() for e in every) == 255
  parts = [np.bincount([e["label"] for e in all_of(source)]) for source in (train, test)]
  assert (np.abs(parts[1] - (parts[0] + parts[1]) * 360 / 1797) <= 1).all()  # stratified
  again = pickle.loads(pickle.dumps(test))
  assert len(pickle.dumps(test)) < 200 and again.name == "embedded:digits:test"
  for a, b in zip(all_of(again), all_of(test), strict=True):
    np.testing.assert_array_equal(a["image"], b["image"])


def test_bad_specs_of_digits(monkeypatch):
  assert error_of(ConfigError, open_source, "embedded:digits:val") == (
      "embedded:digits:val: valid splits are train and test")
  assert error_of(ConfigError, open_source, "embedded:digits/8x8:test") == (
      "embedded:digits/8x8: it has no subsets, so leave /8x8 away")
  monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
  images.digits.cache_clear()
  message = error_of(DataError, open_source, "embedded:digits")
  assert message.startswith("embedded:digits: is a part of scikit-learn, which can't be imported (")
  assert message.endswith("); install it by: pip install scikit-learn")


_TFDS_SCRIPT = """
import io, json, pickle, sys
import numpy as np
from PIL import Image
import tensorflow_datasets as tfds

def encoded(i, kind):
  file = io.BytesIO()
  Image.fromarray(np.full((5, 6, 3), 20 * i, np.uint8)).save(file, kind)
  file.seek(0)
  return file

class TinyPictures(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({
        "image": tfds.features.Image(shape=(None, None, 3)), "name": tfds.features.Text(),
        "label": tfds.features.ClassLabel(names=["zebra", "ape"])}))

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples(10), "test": self._generate_examples(4)}

  def _generate_examples(self, n):
    for i in range(n):
      yield i, {"image": encoded(i, "PNG" if i % 3 else "JPEG"), "name": f"nr. {i}", "label": i % 2}

folder = sys.argv[1]
TinyPictures(data_dir=folder, file_format="array_record").download_and_prepare()

from jtx.data.sources.registry import open_source
train, test = (open_source(f"tfds:tiny_pictures:{split}", folder) for split in ("train", "test"))
again = pickle.loads(pickle.dumps(train))
rows = []
for i in range(len(train)):
  e = again[i]
  number = int(e["name"][4:])
  assert e["image"] == encoded(number, "PNG" if number % 3 else "JPEG").read(), e
  rows.append([number, int(e["label"])])
print(json.dumps({"rows": sorted(rows), "classes": train.classes, "test": len(test),
                  "tensorflow": "tensorflow" in sys.modules}))
"""


def test_tfds_gives_the_bytes_of_image_files(tmp_path):
  import json
  done = subprocess.run([sys.executable, "-c", _TFDS_SCRIPT, str(tmp_path)],
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert json.loads(done.stdout.splitlines()[-1]) == {
      "rows": [[i, i % 2] for i in range(10)], "classes": ["zebra", "ape"], "test": 4,
      "tensorflow": False}


# ----------------------------------------------------------------------------- classes


def folder_of(tmp_path, *classes):
  write_tree(tmp_path, **{name: {"1.png": png(1)} for name in classes})
  return images.ImagesSource(f"images:{tmp_path.name}", str(tmp_path))


def test_names_come_from_the_training_sources(tmp_path):
  folder = folder_of(tmp_path / "x", "b", "a")
  assert class_names([folder]) == ("a", "b")
  np.savez(tmp_path / "a.npz", images=pixels(2, 3, 3), labels=np.array([0, 3]))
  np.savez(tmp_path / "b.npz", images=pixels(2, 3, 3), labels=np.array([0, 5]))
  arrays = [images.NpzSource(n, str(tmp_path / n)) for n in ("a.npz", "b.npz")]
  assert class_names(arrays) == tuple("012345")
  unknown = Listed([], None, "tfds:some")
  assert error_of(DataError, class_names, [folder, unknown]) == (
      "tfds:some: does not tell its classes; write them in order into the names of 'decode_image'")


def test_sources_with_other_classes_are_refused(tmp_path):
  folder = folder_of(tmp_path / "val", "ant", "bee", "fly")
  for names in (("ant", "bee", "fly"), ("fly", "ant", "bee")):  # whose labels are names
    check_classes(folder, names)
  assert error_of(DataError, check_classes, folder, ("ant", "bee", "fly", "wasp")) == (
      "images:val: does not have the classes of the run: it lacks wasp")
  assert error_of(DataError, check_classes, folder, ("ant", "bee")) == (
      "images:val: does not have the classes of the run: it also has fly")
  many = tuple(f"c{i}" for i in range(13))
  assert error_of(DataError, check_classes, folder, ("ant", "bee", *many)) == (
      "images:val: does not have the classes of the run: it lacks c0, c1, c2, c3, c4, c5, c6, c7,"
      " c8, c9 and 3 more and also has fly")
  # Labels that are numbers stand for the names in their order.
  numbers = numbered(3, ("ant", "bee", "fly"), name="tfds:flies")
  check_classes(numbers, ("ant", "bee", "fly"))
  assert error_of(DataError, check_classes, numbers, ("fly", "ant", "bee")) == (
      "tfds:flies: has the classes of the run in another order, ant, bee, fly and not fly, ant,"
      " bee")
  check_classes(Listed([], None), ("x",))
  np.savez(tmp_path / "a.npz", images=pixels(2, 3, 3), labels=np.array([0, 2]))
  arrays = images.NpzSource("npz:a.npz", str(tmp_path / "a.npz"))
  for names in (("ant", "bee", "fly"), tuple("0123")):
    check_classes(arrays, names)
  assert error_of(DataError, check_classes, arrays, ("ant", "bee")) == (
      "npz:a.npz: has labels up to 2, but the run has only the 2 classes ant, bee")
