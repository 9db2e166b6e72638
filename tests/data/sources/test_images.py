"""Images in folders and archives, a folder a class."""

import collections
import io
import os
import pickle
import subprocess
import sys
import zipfile

import numpy as np
from PIL import Image
import pytest

from jtx.data.sources.registry import open_source
from jtx.errors import BadExample, ConfigError, DataError
from tests.data.image_files import all_of, error_of, png, write_tree
from tests.helpers import in_threads


def write_zip(path, names, method=zipfile.ZIP_DEFLATED):
  with zipfile.ZipFile(path, "w", method) as archive:
    for name, data in names.items():
      archive.writestr(name, data)


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
  assert b"_open" in pickle.dumps({"_open": 0}) and "_open" in source._archive._data.__dict__
  assert "_open" not in pickle.loads(pickle.dumps(source))._archive._data.__dict__


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_threads_share_an_archive(tmp_path, method):
  rng = np.random.default_rng(0)
  names = {f"c/{i:03}.png": rng.bytes(int(rng.integers(1, 30000))) for i in range(100)}
  write_zip(tmp_path / "a.zip", names, method)
  source, expected = open_source("images:a.zip", str(tmp_path)), list(names.values())

  def read(seed):
    for i in np.random.default_rng(seed).integers(100, size=300):
      assert source[int(i)]["image"] == expected[i]

  in_threads(read)


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


def test_parts_are_of_each_class(tmp_path, caplog):
  write_tree(tmp_path, a={f"{i:02}.png": png(i) for i in range(10)},
             b={f"{i:02}.png": png(100 + i) for i in range(5)})

  def values(part):
    source = open_source(f"images:.{part}", str(tmp_path))
    assert source.classes == ("a", "b")
    return [Image.open(io.BytesIO(e["image"])).getpixel((0, 0))[0] for e in all_of(source)]

  assert values(":each[:3]") == [0, 1, 2, 100, 101, 102]
  assert values(":each[3:]") == [*range(3, 10), 103, 104]
  assert values(":each[90%:]") == [9, 104]  # 9 of 10, 4 of 5
  assert not caplog.records
  assert values(":each[:90%]") == [*range(9), *range(100, 104)]
  assert values(":each[7:]") == [7, 8, 9]
  assert "images:.:each[7:]: has no image of " in caplog.text
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
