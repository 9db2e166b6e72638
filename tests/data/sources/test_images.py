"""Images from their sources to batches: what is read, in which order, and what is refused."""

import collections
import io
import os
import pickle
import subprocess
import sys
import threading
import zipfile

from absl import logging
import numpy as np
from PIL import Image
import pytest

from configs import common
from jtx import config as config_lib
from jtx.config import section
from jtx.data import make_corpus, order, pipeline
from jtx.data.dataset import Dataset
from jtx.data.lazy import LazyExamples, Tally
from jtx.data.ops.image_layout import Images
from jtx.data.ops.registry import OPS
from jtx.data.pipeline import Stream, eval_batches, example_batch, iterate
from jtx.data.prepared import lazy
from jtx.data.recipes import build_ops
from jtx.data.sources import images
from jtx.data.sources.images import check_classes, class_names
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import BadExample, ConfigError, DataError
from jtx.saved import workdir as workdirs

STEPS = 9


def png(value, size=(4, 3)):
  """The bytes of an even grey picture."""
  file = io.BytesIO()
  Image.new("RGB", size, (value,) * 3).save(file, "PNG")
  return file.getvalue()


def write_tree(folder, **classes):
  """A folder a class, with files by name."""
  for name, files in classes.items():
    for file, data in files.items():
      path = folder / name / file
      path.parent.mkdir(parents=True, exist_ok=True)
      path.write_bytes(data)


def write_zip(path, names, method=zipfile.ZIP_DEFLATED):
  with zipfile.ZipFile(path, "w", method) as archive:
    for name, data in names.items():
      archive.writestr(name, data)


def all_of(source):
  return [source[i] for i in range(len(source))]


def error_of(kind, function, *args):
  with pytest.raises(kind) as e:
    function(*args)
  return str(e.value)


ANIMALS = {"dog": {"b.png": png(1), "a.JPEG": png(2)}, "cat": {"1.png": png(3), "10.png": png(4),
                                                               "2.png": png(5), "notes.txt": b"x"}}
IN_ORDER = [("cat", "cat/1.png", 3), ("cat", "cat/10.png", 4), ("cat", "cat/2.png", 5),
            ("dog", "dog/a.JPEG", 2), ("dog", "dog/b.png", 1)]


# ------------------------------------------------------------------- folders and archives


def test_a_folder_a_class_in_order_of_names(tmp_path):
  write_tree(tmp_path / "pets", **ANIMALS)
  (tmp_path / "pets" / "README.md").write_text("hello")
  (tmp_path / "pets" / ".hidden").mkdir()
  (tmp_path / "pets" / ".hidden" / "x.png").write_bytes(b"")
  source = open_source("images:pets", str(tmp_path))
  assert source.name == "images:pets" and source.classes == ("cat", "dog")
  assert all_of(source) == [
      {"image": png(value), "label": label, "path": f"{tmp_path}/pets/{file}"}
      for label, file, value in IN_ORDER]
  assert source[-1] == source[4]
  with pytest.raises(IndexError):
    source[5]
  again = pickle.loads(pickle.dumps(source))
  assert all_of(again) == all_of(source) and again.classes == source.classes


@pytest.mark.parametrize("prefix", ["", "train/"])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_archive_is_as_its_folder(tmp_path, prefix, method):
  write_tree(tmp_path / "pets", **ANIMALS)
  names = {f"{prefix}{name}/{file}": data for name, files in reversed(ANIMALS.items())
           for file, data in files.items()}
  others = {"__MACOSX/train/cat/._1.png": b"x", f"{prefix}": b"", f"{prefix}dog/": b"",
            f"{prefix}notes.txt": b"y"}
  write_zip(tmp_path / "pets.zip", names | {k: v for k, v in others.items() if k}, method)
  folder, archive = (open_source(f"images:pets{end}", str(tmp_path)) for end in ("", ".zip"))
  for source in (archive, pickle.loads(pickle.dumps(archive))):
    assert source.classes == folder.classes
    assert [(e["image"], e["label"]) for e in all_of(source)] == [
        (e["image"], e["label"]) for e in all_of(folder)]
    assert source[0]["path"] == f"{tmp_path}/pets.zip/{prefix}cat/1.png"


def test_names_and_comments_in_an_archive_may_be_long(tmp_path):
  """So that the data does not begin where it was thought to."""
  data = {f"c/{'x' * n}.png": bytes([n % 256]) * 700 for n in (1, 200, 470, 490, 900)}
  with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
    for name, content in data.items():
      info = zipfile.ZipInfo(name)
      info.extra, info.comment = b"\x99\x99\x08\x00" + bytes(8), b"a comment"
      archive.writestr(info, content)
  source = open_source("images:a.zip", str(tmp_path))
  assert [e["image"] for e in all_of(source)] == list(data.values())


def test_an_archive_is_not_pickled_open(tmp_path):
  write_zip(tmp_path / "a.zip", {f"c/{i}.png": png(i) for i in range(3)})
  source = open_source("images:a.zip", str(tmp_path))
  source[0]
  assert b"_file" in pickle.dumps({"_file": 0}) and "_file" in source._archive.__dict__
  assert "_file" not in pickle.loads(pickle.dumps(source))._archive.__dict__


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_threads_share_an_archive(tmp_path, method):
  rng = np.random.default_rng(0)
  names = {f"c/{i:03}.png": rng.bytes(int(rng.integers(1, 30000))) for i in range(100)}
  write_zip(tmp_path / "a.zip", names, method)
  source, expected = open_source("images:a.zip", str(tmp_path)), list(names.values())
  wrong = []

  def read(seed):
    for i in np.random.default_rng(seed).integers(100, size=300):
      if source[int(i)]["image"] != expected[i]:
        wrong.append(i)

  threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


def test_a_forked_process_reads_beside_its_parent(tmp_path):
  """They share one open file, but no position in it."""
  names = {f"c/{i:03}.png": bytes([i]) * 20000 for i in range(100)}
  write_zip(tmp_path / "a.zip", names, zipfile.ZIP_STORED)
  script = f"""
import os
from jtx.data.sources.images import ImagesSource
source = ImagesSource("x", {str(tmp_path / "a.zip")!r})
source[0]
children = []
for child in range(3):
  pid = os.fork()
  if not pid:
    good = all(source[i]["image"] == bytes([i]) * 20000 for _ in range(20) for i in range(100))
    os._exit(0 if good else 1)
  children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
"""
  done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False,
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
  assert done.stdout == "[0, 0, 0]\n", done.stderr


def test_links_are_followed_but_not_in_circles(tmp_path):
  write_tree(tmp_path / "store", **ANIMALS)
  (tmp_path / "pets").mkdir()
  for name in ANIMALS:
    (tmp_path / "pets" / name).symlink_to(tmp_path / "store" / name)
  (tmp_path / "store" / "cat" / "up").symlink_to(tmp_path / "pets")
  source = open_source("images:pets", str(tmp_path))
  assert [(e["label"], e["image"]) for e in all_of(source)] == [
      (label, png(value)) for label, _, value in IN_ORDER]


def test_parts_are_of_each_class(tmp_path):
  write_tree(tmp_path, a={f"{i:02}.png": png(i) for i in range(10)},
             b={f"{i:02}.png": png(100 + i) for i in range(5)})

  def values(part):
    source = open_source(f"images:.{part}", str(tmp_path))
    assert source.classes == ("a", "b")
    return [Image.open(io.BytesIO(e["image"])).getpixel((0, 0))[0] for e in all_of(source)]

  assert values(":each[:3]") == [0, 1, 2, 100, 101, 102]
  assert values(":each[3:]") == [*range(3, 10), 103, 104]
  assert values(":each[90%:]") == [9, 104]  # 9 of 10, 4 of 5
  assert values(":each[:90%]") == [*range(9), *range(100, 104)]
  assert values(":each[7:]") == [7, 8, 9]
  assert values(":each[2:4]") == [2, 3, 102, 103]
  assert error_of(DataError, values, ":each[10:]") == "images:.:each[10:]: empty split"
  for part in (":rows[:3]", ":each[3]", ":"):
    assert error_of(ConfigError, values, part) == (
        f"source: 'images:.{part}' ends in {part[1:]!r}; a part of every class is written"
        " each[:80%], each[80%:] or each[3:5]")


ENDS = ".jpg, .jpeg, .png, .bmp, .gif, .webp, .tif, .tiff, .ppm"


@pytest.mark.parametrize("names, message", [
    ({"a/x.txt": b""}, f": has no image, which is a file that ends in {ENDS}"),
    ({"x.png": b"", "a/x.png": b""},
     ": x.png lies in the wrong place; an image lies in the folder of its class, CLASS/FILE"),
    ({"a/x.png": b"", "a/b/x.png": b""},
     ": a/b/x.png lies in the wrong place; an image lies in the folder of its class, CLASS/FILE"),
    ({"a/x.png": b"", "b/x.xml": b""},
     ": the folder b has no image, but every folder here is a class; an image ends in " + ENDS),
])
def test_folders_and_archives_of_another_form(tmp_path, names, message):
  write_zip(tmp_path / "a.zip", names)
  write_tree(tmp_path / "folder", **{"": names})
  for file in ("a.zip", "folder"):
    assert error_of(DataError, open_source, f"images:{file}", str(tmp_path)) == (
        f"{tmp_path / file}{message}")


def test_one_folder_more_is_for_archives_only(tmp_path):
  write_tree(tmp_path / "deep", **{"train/cat": ANIMALS["cat"]})
  assert "train/cat/1.png lies in the wrong" in error_of(
      DataError, open_source, "images:deep", str(tmp_path))
  write_zip(tmp_path / "two.zip", {"train/cat/1.png": b"", "test/cat/1.png": b""})
  assert "test/cat/1.png lies in the wrong place" in error_of(
      DataError, open_source, "images:two.zip", str(tmp_path))


def test_what_is_no_archive(tmp_path):
  (tmp_path / "a.zip").write_bytes(b"no")
  assert error_of(DataError, open_source, "images:a.zip", str(tmp_path)).startswith(
      f"{tmp_path}/a.zip: neither a folder nor a zip archive (")
  assert error_of(DataError, open_source, "images:gone", str(tmp_path)) == (
      f"{tmp_path}/gone: No such file or directory")
  write_zip(tmp_path / "b.zip", {"c/x.png": png(1)}, zipfile.ZIP_BZIP2)
  assert error_of(DataError, open_source, "images:b.zip", str(tmp_path)) == (
      f"{tmp_path}/b.zip: c/x.png is encrypted, or packed by another method than deflate; pack the"
      " archive again without")
  with pytest.raises(ConfigError, match="source: 'images:' names no data"):
    open_source("images:")


def test_a_file_that_is_gone_is_an_error(tmp_path):
  write_tree(tmp_path, **ANIMALS)
  source = open_source("images:.", str(tmp_path))
  (tmp_path / "cat" / "1.png").unlink()
  message = error_of(DataError, source.__getitem__, 0)
  assert message == f"{tmp_path}/./cat/1.png: No such file or directory"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_damaged_bytes_in_an_archive_are_a_bad_example(tmp_path, method):
  data = np.random.default_rng(0).bytes(500) + bytes(500)
  path = tmp_path / "a.zip"
  write_zip(path, {"c/1.png": data, "c/2.png": data}, method)
  whole = bytearray(path.read_bytes())
  whole[300] ^= 255
  path.write_bytes(whole)
  source = open_source("images:a.zip", str(tmp_path))
  assert source[1]["image"] == data
  with pytest.raises(BadExample) as e:
    source[0]
  assert str(e.value).startswith(f"{path}/c/1.png: is damaged (")


def test_cifar_in_its_archive():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published data sets are in it")
  folder = os.environ["JTX_TEST_DATA"]
  train, val = (open_source(f"images:cifar10_jpeg/train.zip:each[{part}]", folder)
                for part in (":4500", "4500:"))
  assert (len(train), len(val)) == (45_000, 5_000)
  assert train.classes == val.classes == ("airplane", "automobile", "bird", "cat", "deer", "dog",
                                          "frog", "horse", "ship", "truck")
  for source in (train, val):
    counts = collections.Counter(source.classes[n] for n in source._labels)
    assert set(counts.values()) == {len(source) // 10}
    for i in np.random.default_rng(0).integers(len(source), size=50).tolist():
      image = Image.open(io.BytesIO(source[i]["image"]))
      assert (image.size, image.mode, image.format) == ((32, 32), "RGB", "JPEG")
  assert val[0]["path"].endswith("train.zip/train/airplane/4500.jpg")


# ------------------------------------------------------------------------------ arrays


def pixels(*shape, seed=0):
  return np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)


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
  assert np.bincount(source._labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265,
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


class Listed(list):
  """A source of images in memory, whose labels are numbers."""

  def __init__(self, examples, classes, name="listed"):
    super().__init__(examples)
    self.classes, self.name = classes, name


def numbered(count, classes=("a", "b", "c"), size=(8, 8), name="listed"):
  """Even pictures whose value is their number."""
  return Listed([{"image": np.full((*size, 3), i, np.uint8), "label": i % len(classes)}
                 for i in range(count)], classes, name)


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


# ----------------------------------------------------------------------------- recipes


def configs(*names, **edits):
  return [section(OPS, name, **edits.get(name, {})) for name in names]


SMALL = dict(pad_crop={"size": 8, "padding": 2}, images={"size": 8})
TRAIN = configs("decode_image", "pad_crop", "flip", "random_erasing", "images", **SMALL,
                decode_image={"names": ("a", "b", "c")})


def test_build_ops_of_images():
  recipe = build_ops(TRAIN)
  assert (recipe.prepare, recipe.form, recipe.alter) == ([], None, [])
  assert recipe.layout == Images(8) and recipe.augment[-1] is recipe.layout
  assert [type(op).__name__ for op in recipe.augment] == [
      "DecodeImage", "PadCrop", "Flip", "RandomErasing", "Images"]
  assert recipe.bind({}).augment is recipe.augment
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


def lazily(*sources, ops=TRAIN):
  recipe = build_ops(ops)
  return lazy(sources, recipe), recipe


def stream_of(*sources, ops=TRAIN, **edits):
  examples, recipe = lazily(*(sources or (numbered(40), numbered(23))), ops=ops)
  options = {"seed": 5, "batch_size": 8, "window": 20, "counts": examples.sizes}
  return Stream(examples, recipe, **options | edits)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


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


# ------------------------------------------------------------------------ broken images


def with_broken(count, broken):
  """Pictures of one class, of which those at some places are no images."""
  return Listed([{"image": b"x" if i in broken else png(i, (8, 8)), "label": 0, "path": f"{i}.png"}
                 for i in range(count)], ("a",))


PLAIN = lambda **fields: configs("decode_image", "images", decode_image={"names": ("a",), **fields},
                                 images={"size": 8})
REASON = "is no image of the formats JPEG, PNG, BMP, GIF, WEBP, TIFF, PPM"


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "warning", lambda line, *args: lines.append(line % args))
  return lines


def test_a_broken_image_is_a_row_of_padding(warnings):
  stream = stream_of(with_broken(20, {3, 11}), ops=PLAIN(), window=0, batch_size=5)
  seen = collections.Counter()
  for step in range(12):  # three epochs
    batch = stream.batch(step)
    assert (batch["real"] == (batch["ids"] >= 0)).all()
    for r in range(5):
      number = int(batch["ids"][r, 0])
      seen[number] += 1
      assert (batch["image"][r] == max(number, 0)).all() and batch["label"][r] == 0
  assert seen == {-1: 6} | {i: 3 for i in range(20) if i not in (3, 11)}
  assert sorted(warnings) == [f"{i}.png: {REASON}; it is left out" for i in (11, 3)]
  assert (stream.prepared.tally.read, stream.prepared.tally.bad) == (60, 6)


def test_broken_images_are_the_same_rows_for_all_readers():
  make = lambda **edits: stream_of(with_broken(20, {3, 11}), ops=PLAIN(), **edits)
  whole = [make().batch(step) for step in range(5)]
  assert any((b["real"] == 0).any() for b in whole)
  parts = [make(rows=range(4)), make(rows=range(4, 8))]
  for step in range(5):
    joined = [part.batch(step) for part in parts]
    assert_same({k: np.concatenate([j[k] for j in joined]) for k in joined[0]}, whole[step])


def test_too_many_broken_images_end_a_run(warnings):
  # One in 50 is more than a hundredth; it is judged from the hundredth image on.
  stream = stream_of(with_broken(50, {7}), ops=PLAIN(), batch_size=10, window=0)
  for step in range(9):
    stream.batch(step)
  message = error_of(DataError, stream.batch, 9)
  assert message == ("2 of the 100 images read so far can't be used (2.0%), which is more than op"
                     f" decode_image's max_bad=0.01; the last of them: 7.png: {REASON}")
  assert len(warnings) == 1
  borne = stream_of(with_broken(50, {7}), ops=PLAIN(max_bad=0.03), batch_size=10, window=0)
  for step in range(30):
    borne.batch(step)


@pytest.mark.parametrize("threads, workers", [(2, 0), (1, 1)])
def test_the_error_comes_through_threads_and_workers(threads, workers):
  stream = stream_of(with_broken(20, set(range(20))), ops=PLAIN(), batch_size=50)
  with pytest.raises(DataError, match="images read so far can't be used"):
    list(iterate(stream, 0, 5, threads=threads, workers=workers))


def test_evaluation_judges_small_splits_at_their_end(warnings):
  examples, recipe = lazily(with_broken(20, {4}), ops=PLAIN())
  batches = []
  with pytest.raises(DataError, match=r"1 of the 20 images read so far can't be used \(5.0%\)"):
    for batch in eval_batches(examples, recipe, 8):
      batches.append(batch)
  ids = np.concatenate([b["ids"] for b in batches]).ravel().tolist()
  assert ids == [*range(4), -1, *range(5, 20), *[-1] * 4]
  examples, recipe = lazily(with_broken(20, {4}), ops=PLAIN(max_bad=0.05))
  assert len(list(eval_batches(examples, recipe, 8))) == 3
  assert warnings == [f"4.png: {REASON}; it is left out"] * 2


def test_the_tally_is_exact_under_threads(warnings):
  tally = Tally(0.5)
  def count():
    for i in range(500):
      tally.add(BadExample(f"{i % 7}", "x") if i % 4 == 0 else None)
  threads = [threading.Thread(target=count) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (tally.read, tally.bad) == (4000, 1000) and len(warnings) == 7
  fresh = pickle.loads(pickle.dumps(tally))
  assert (fresh.read, fresh.bad, fresh.max_bad) == (0, 0, 0.5)


def test_examples_are_named_by_their_source_where_they_have_no_path():
  examples = LazyExamples([numbered(3), numbered(4, name="other")], [], {}, Tally(0.0))
  assert [examples.example(i)["path"] for i in (2, 3, 6)] == [
      "listed, example 2", "other, example 0", "other, example 3"]
  assert [examples.example(i)["id"] for i in (2, 3, 6)] == [2, 3, 6]
  source = Listed([{"image": np.zeros((8, 8), np.uint8), "label": 0}], ("a",), "npz:x")
  message = error_of(DataError, stream_of(source, ops=PLAIN(), batch_size=1).batch, 0)
  assert message == ("op decode_image: the image of npz:x, example 0 is an array [8, 8], and"
                     " channels=3 needs [H, W, 3]")


def test_an_image_of_another_size_names_the_ops_that_change_it():
  message = error_of(ConfigError, stream_of(numbered(3, size=(6, 9)), ops=PLAIN(
      names=("a", "b", "c"))).batch, 0)
  assert message.startswith("data.ops: listed, example ")
  assert message.endswith(" is of 9 x 6 pixels after all ops and 'images' has size=8; one of"
                          " 'inception_crop', 'pad_crop' and 'resize', with the same size, makes it"
                          " of that size")


# ----------------------------------------------------------------------------- dataset


@pytest.fixture
def tree(tmp_path):
  """Training and validation folders of two classes; a value is a picture's number."""
  for split, count in (("train", 12), ("val", 5)):
    write_tree(tmp_path / split, bird={f"{i:02}.png": png(i, (8, 8)) for i in range(count)},
               ant={f"{i:02}.png": png(100 + i, (8, 8)) for i in range(count)})
  return tmp_path


def data_config(path, **edits):
  c = common.get_config()
  c.data.path, c.data.train = str(path), ("images:train",)
  c.data.ops = tuple(configs("decode_image", "pad_crop", "flip", "images", **SMALL))
  common.apply(c, edits)
  return c


def dataset(path, saved=None, labels=None, **edits):
  c = data_config(path, **edits)
  return Dataset(c.data, c.tokenizer, saved, labels)


def test_a_dataset_of_images(tree):
  data = dataset(tree)
  assert data.labels == ("ant", "bird") and data.info == {"head.outputs": 2}
  assert (data.tokenizers, data.tokenizer_texts(), data.fields) == ({}, {}, ())
  assert data.num_train_rows() == 24
  stream = data.train_stream(0, 6, range(6))
  batch = stream.batch(0)
  assert batch["image"].shape == (6, 8, 8, 3)
  np.testing.assert_array_equal(batch["label"], batch["ids"] >= 12)  # ants come first
  assert {k: (v.shape, v.dtype) for k, v in data.example_batch(6).items()} == {
      k: (v.shape, v.dtype) for k, v in batch.items() if k != "ids"}
  batches = list(data.eval_batches(("images:val",), 4, range(4)))
  assert np.concatenate([b["ids"] for b in batches]).ravel().tolist() == [*range(10), -1, -1]
  values = np.concatenate([b["image"] for b in batches])[:10]
  np.testing.assert_array_equal(values[:, 0, 0, 0], [*range(100, 105), *range(5)])


def test_encoded_images_are_those_of_evaluation(tree):
  examples = dataset(tree).encoded(("images:val",))
  assert [e["id"] for e in examples] == list(range(10))
  assert [e["label"] for e in examples] == [0] * 5 + [1] * 5
  assert {e["image"].shape for e in examples} == {(8, 8, 3)}
  assert [e["image"][0, 0, 0] for e in examples] == [*range(100, 105), *range(5)]
  assert examples[7]["path"] == f"{tree}/val/bird/02.png"
  (tree / "val" / "ant" / "03.png").write_bytes(b"")
  with pytest.raises(DataError, match="1 of the 10 images read so far can't be used"):
    dataset(tree).encoded(("images:val",))
  kept = dataset(tree, **{"data.ops[0].max_bad": 0.1}).encoded(("images:val",))
  assert [e["id"] for e in kept] == [0, 1, 2, *range(4, 10)]


def test_evaluation_draws_nothing(tree, monkeypatch):
  def drawn(seed, *path):
    assert path[0] != "row", "evaluation draws for a row"
    return np.random.default_rng(len(path))
  data = dataset(tree)
  first = list(data.eval_batches(("images:val",), 3, range(3)))
  data.train_stream(3, 6, range(6)).batch(2)
  monkeypatch.setattr(pipeline, "rng", drawn)
  for a, b in zip(data.eval_batches(("images:val",), 3, range(3)), first, strict=True):
    assert_same(a, b)


def test_a_broken_image_is_warned_of_once_in_all_evaluations(tree, warnings):
  (tree / "val" / "ant" / "03.png").write_bytes(b"x")
  data = dataset(tree, **{"data.ops[0].max_bad": 0.2})
  for _ in range(2):
    list(data.eval_batches(("images:val",), 3, range(3)))
    data.encoded(("images:val",))
  assert warnings == [f"{tree}/val/ant/03.png: {REASON}; it is left out"]


class Checkpoints:
  """What `open_data` reads of the checkpoints of a run."""

  def __init__(self, meta):
    self.meta = meta

  def latest_step(self):
    return 7

  def read_meta(self, step):
    return self.meta


def test_a_run_on_images_is_opened_from_its_workdir(tree):
  c = data_config(tree)
  data = Dataset(c.data, c.tokenizer)
  save_tokenizers(data.tokenizer_texts(), str(tree))
  meta = {"tokenizers": data.tokenizer_texts(), "labels": list(data.labels)}
  c.data.train = ("images:gone",)
  again = workdirs.open_data(c, str(tree), Checkpoints(meta))
  assert (again.labels, again.info, again.tokenizers) == (("ant", "bird"), {"head.outputs": 2}, {})


def test_a_restored_dataset_has_the_labels_of_its_checkpoint(tree):
  trained = dataset(tree)
  meta = {"tokenizers": trained.tokenizer_texts(), "labels": list(trained.labels)}
  # The training images are not opened for it, and need not be there.
  restored = dataset(tree, meta["tokenizers"], meta["labels"], **{"data.train": ("images:gone",)})
  assert restored.labels == trained.labels and restored.info == trained.info
  for a, b in zip(restored.eval_batches(("images:val",), 4, range(4)),
                  trained.eval_batches(("images:val",), 4, range(4))):
    assert_same(a, b)


def test_evaluation_of_other_classes_is_refused(tree):
  data = dataset(tree)
  write_tree(tree / "more", ant={"1.png": png(1)}, bird={"1.png": png(1)}, cow={"1.png": png(1)})
  write_tree(tree / "less", ant={"1.png": png(1)})
  assert error_of(DataError, lambda: list(data.eval_batches(("images:more",), 4, range(4)))) == (
      "images:more: does not have the classes of the run: it also has cow")
  assert error_of(DataError, data.encoded, ("images:less",)) == (
      "images:less: does not have the classes of the run: it lacks bird")
  mixed = dataset(tree, **{"data.train": ("images:train", "images:less")})
  assert error_of(DataError, lambda: mixed.prepared_train) == (
      "images:less: does not have the classes of the run: it lacks bird")


def test_names_in_the_config_have_their_order(tree):
  data = dataset(tree, **{"data.ops[0].names": ("bird", "ant")})
  assert data.labels == ("bird", "ant")
  assert [e["label"] for e in data.encoded(("images:val",))] == [1] * 5 + [0] * 5


def test_sources_are_mixed_by_weight(tree):
  data = dataset(tree, **{"data.train": ("images:train:each[:3]", "images:train:each[3:]"),
                          "data.weights": (1.0, 1.0), "data.window": 0})
  stream = data.train_stream(0, 8, range(8))
  ids = np.concatenate([stream.batch(step)["ids"] for step in range(3)]).ravel()
  assert (ids < 6).sum() == (ids >= 6).sum() == 12


def test_what_is_for_texts_only_is_refused(tree):
  data = dataset(tree)
  assert error_of(ConfigError, data.train_stream, 0, 4, range(4), (0, 0), 64) == (
      "config.phases: is for rows of tokens, and data.ops make images; leave it unset")
  assert error_of(ConfigError, lambda: dataset(tree, **{"data.train": ("prepared:x",)})) == (
      "data.train=('prepared:x',): a prepared source holds tokens, and data.ops work on images")
  c = data_config(tree)
  assert error_of(ConfigError, lambda: make_corpus.prepare(
      c.data, c.tokenizer, str(tree / "out"), shard_size=10)) == (
          "data.ops work on images, which are read as training goes on; only texts can be prepared")
  assert error_of(ConfigError, lambda: dataset(tree, **{"data.train": ()})) == (
      "data.train: no source is named")
  (tree / "text.txt").write_text("a\nb\n")
  texts = dataset(tree, **{"data.train": ("text:text.txt",), "data.ops[0].names": ("a", "b")})
  assert error_of(DataError, texts.train_stream(0, 1, range(1)).batch, 0).startswith(
      "op decode_image: text:text.txt, example ")


def test_a_config_of_images_is_read_back_from_its_file(tree, tmp_path):
  c = data_config(tree)
  config_lib.save(c, str(tmp_path / "config.json"))
  again = config_lib.load(str(tmp_path / "config.json"))
  assert build_ops(again.data.ops) == build_ops(c.data.ops)
