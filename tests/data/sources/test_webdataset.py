"""Images of tar archives, as WebDataset names them."""

import io
import pickle
import tarfile

import pytest

from jtx.data.ops.decode import DecodeImage
from jtx.data.sources.images import check_classes
from jtx.data.sources.registry import open_source
from jtx.errors import DataError
from tests.data.image_files import all_of, error_of, png


def write_tar(path, files, mode="w"):
  with tarfile.open(path, mode) as tar:
    for name, data in files:
      info = tarfile.TarInfo(name)
      info.size = len(data)
      tar.addfile(info, io.BytesIO(data))


def samples(start, stop, label="cls"):
  made = lambda i: str(i % 3).encode() if label == "cls" else b'{"label": "c%d", "x": 1}' % (i % 3)
  return [file for i in range(start, stop)
          for file in ((f"a/{i:03d}.png", png(i)), (f"a/{i:03d}.{label}", made(i)))]


def test_shards_in_order(tmp_path):
  for i in range(3):
    write_tar(tmp_path / f"s-{i:02d}.tar", samples(5 * i, 5 * i + 5))
  for spec in ("wds:s-{00..02}.tar", "wds:.", "wds:s-*.tar"):
    source = open_source(spec, str(tmp_path))
    assert source.name == spec and source.classes == ("0", "1", "2")
    examples = all_of(source)
    assert [e["image"] for e in examples] == [png(i) for i in range(15)]
    assert [e["label"] for e in examples] == [i % 3 for i in range(15)]
    assert examples[7]["path"].endswith("s-01.tar/a/007.png")
  assert all_of(pickle.loads(pickle.dumps(source))) == examples
  part = open_source("wds:s-00.tar:rows[1:3]", str(tmp_path))
  assert source.labels == [e["label"] for e in examples]
  assert part.labels == [1, 2] and len(part) == 2


def test_labels_by_name_and_classes(tmp_path):
  write_tar(tmp_path / "a.tar", [("readme.png", png(0)), ("readme.json", b'{"label": "z"}'),
                                 *samples(0, 3, "json"), ("b.txt.png", b"")][2:-1])
  source = open_source("wds:a.tar", str(tmp_path))
  assert source.classes == ("c0", "c1", "c2") and [e["label"] for e in all_of(source)] == [
      "c0", "c1", "c2"]
  op = DecodeImage(names=DecodeImage().collect_names([source], ()))
  assert [int(op.augment(e, None)["label"]) for e in all_of(source)] == [0, 1, 2]
  part = open_source("wds:a.tar:rows[:1]", str(tmp_path))
  check_classes(part, source.classes)
  check_classes(source, ("c2", "c1", "c0", "c4"))  # an evaluation may lack some
  assert "it also has c2" in error_of(DataError, check_classes, source, ("c0", "c1"))
  write_tar(tmp_path / "n.tar", samples(0, 3))
  numbers = open_source("wds:n.tar", str(tmp_path))
  check_classes(numbers, ("a", "b", "c", "d"))
  assert "has labels up to 2" in error_of(DataError, check_classes, numbers, ("a", "b"))


@pytest.mark.parametrize("files, said", [
    ([("a.cls", b"1"), ("b.png", b"")], "the example of a.cls has 0 images; it needs one, KEY.jpg"),
    ([("a.png", b""), ("a.jpg", b"")], "the example of a.png has 2 images"),
    ([("a.png", b""), ("a.cls", b"-1")], "a.cls has the label -1; it is the number of a class"),
    ([("a.png", b""), ("a.json", b"[]")], "a.json is no JSON object"),
    ([("a.png", b""), ("a.cls", b"1"), ("b.png", b"")],
     "b.png: has the label None, but the first image has 1; all have a number, or a name, or none"),
    ([], "wds:a.tar: empty split"),
])
def test_bad_archives(tmp_path, files, said):
  write_tar(tmp_path / "a.tar", files)
  assert said in error_of(DataError, open_source, "wds:a.tar", str(tmp_path))


def test_files_that_are_no_archives(tmp_path):
  write_tar(tmp_path / "a.tar.gz", samples(0, 2), "w:gz")
  assert "is no tar archive, or is compressed as a whole" in error_of(
      DataError, open_source, "wds:a.tar.gz", str(tmp_path))
  assert error_of(DataError, open_source, "wds:none.tar", str(tmp_path)) == (
      f"{tmp_path}/none.tar: No such file or directory")
  write_tar(tmp_path / "a.tar", samples(0, 2))
  source = open_source("wds:a.tar", str(tmp_path))
  (tmp_path / "a.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:520])
  assert "a/000.png: is cut off" in error_of(DataError, lambda: source[0])
