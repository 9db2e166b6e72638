"""Sources in a bucket are those of the same files in a folder."""

import json
import pickle
import random
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from jtx.data.sources import files
from jtx.data.sources.registry import open_source
from jtx.errors import DataError
from tests.data.image_files import png, write_tree
from tests.data.sources.buckets import Bucket, bucket, upload  # noqa: F401
from tests.data.sources.test_webdataset import samples, write_tar
from tests.data.sources.text_files import all_of, write

SPECS = (
    "text:a.en,a.de", "text:a.en", "jsonl:a.jsonl", "jsonl:a.jsonl:rows[1:]:columns[x=a]",
    "tsv:a.tsv", "table:a.tsv", "csv:a.csv", "parquet:a.parquet", "parquet:a-*.parquet",
    "parquet:a-{0..1}.parquet", "arrow:a.feather", "arrow:stream.arrow", "arrow:saved",
    "conll:a.conll:1", "conllu:a.conllu", "squad:a.json:titles[:1]", "documents:docs",
    "documents:docs:folders[1:]", "documents:docs.zip", "blank_lines:blank.txt", "images:photos",
    "images:photos:each[1:]", "images:photos.zip", "npz:a.npz:rows[:2]", "wds:a.tar", "wds:shards",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("data")
  write(folder, "a.en", "one\ntwo\n")
  write(folder, "a.de", "\ufeffeins\nzwei")
  write(folder, "a.jsonl", "".join(json.dumps({"a": "ü" * i}) + "\n" for i in range(9)))
  write(folder, "a.tsv", "a\tb\n1\t2\n3\t4\n")
  write(folder, "a.csv", 'a,b\n"1,\n",2\n3,4\n')
  write(folder, "a.conll", "a\tO\tX\nb\tO\tY\n")
  write(folder, "a.conllu", "1\ta" + "\tX" * 8 + "\n")
  write(folder, "blank.txt", "a\nb\n\nc\n")
  qas = [{"id": "q", "question": "?", "answers": [{"text": "b", "answer_start": 2}]}]
  write(folder, "a.json", json.dumps({"data": [
      {"title": "t", "paragraphs": [{"context": "a b", "qas": qas}]}]}))
  (folder / "docs" / "x" / "y" / "z" / "deep").mkdir(parents=True)
  write(folder / "docs", "1.txt", "eins")
  write(folder / "docs" / "x" / "y" / "z" / "deep", "2.md", "zwei")
  write_tree(folder / "photos", cat={f"{i}.png": png(i) for i in range(3)}, dog={"d.png": png(9)})
  for name in ("docs", "photos"):
    with zipfile.ZipFile(folder / f"{name}.zip", "w") as archive:
      for path in sorted((folder / name).rglob("*")):
        archive.write(path, path.relative_to(folder / name))
  np.savez(folder / "a.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.arange(3))
  rows = pa.Table.from_pylist([{"text": f"t{i}", "label": i} for i in range(50)])
  for name in ("a", "a-0", "a-1"):
    pa.parquet.write_table(rows, folder / f"{name}.parquet", row_group_size=20)
  pa.feather.write_feather(rows, str(folder / "a.feather"))
  (folder / "saved").mkdir()
  for path in (folder / "stream.arrow", folder / "saved" / "data.arrow"):
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_stream(f, rows.schema) as writer:
      writer.write_table(rows, max_chunksize=9)
  write(folder / "saved", "state.json", '{"_data_files": [{"filename": "data.arrow"}]}')
  (folder / "shards").mkdir()
  for i in range(2):
    write_tar(folder / "shards" / f"{i}.tar", samples(3 * i, 3 * i + 3))
  write_tar(folder / "a.tar", samples(0, 4))
  return folder


def plain(examples, folder):
  """Examples whose paths are relative, and arrays lists."""
  tell = lambda v: v.tolist() if isinstance(v, np.ndarray) else v
  return [{k: v.removeprefix(folder) if k == "path" else tell(v) for k, v in e.items()}
          for e in examples]


@pytest.mark.parametrize("spec", SPECS)
def test_a_source_in_a_bucket(folder, bucket, spec):  # noqa: F811
  upload(folder, bucket)
  here, there = open_source(spec, str(folder)), open_source(spec, bucket)
  wanted = plain(all_of(here), str(folder))
  assert wanted and plain(all_of(there), bucket) == wanted
  assert getattr(here, "classes", None) == getattr(there, "classes", None)
  again = pickle.loads(pickle.dumps(there))
  order = random.Random(0).sample(range(len(again)), len(again))
  assert plain([again[i] for i in order], bucket) == [wanted[i] for i in order]
  # The whole path in a spec, and a folder of this machine beside it.
  kind, _, rest = spec.partition(":")
  full = f"{kind}:" + ",".join(f"{bucket}/{name}" for name in rest.split(","))
  assert plain(all_of(open_source(full, str(folder))), bucket) == wanted


def test_lines_are_fetched_by_the_block(folder, bucket, monkeypatch):  # noqa: F811
  monkeypatch.setattr(files, "BLOCK", 16)
  upload(folder, bucket)
  source = open_source("jsonl:a.jsonl", bucket)
  assert all_of(source) == all_of(open_source("jsonl:a.jsonl", str(folder)))
  assert Bucket.requests == [("/bucket/data/a.jsonl", at, min(at + 16, source._lines.data.size))
                             for at in range(0, source._lines.data.size, 16)]


def test_an_image_is_one_request(folder, bucket):  # noqa: F811
  upload(folder, bucket)
  source = open_source("wds:a.tar", bucket)
  Bucket.requests.clear()
  assert source[2]["image"] == png(2)
  (path, start, stop), = Bucket.requests
  assert path == "/bucket/data/a.tar" and stop - start == len(png(2))


@pytest.mark.parametrize("kind", ["text", "jsonl", "tsv", "csv", "parquet", "arrow", "conll",
                                  "conllu", "squad", "documents", "blank_lines", "images", "npz",
                                  "wds"])
def test_what_is_not_there(bucket, kind):  # noqa: F811
  with pytest.raises(DataError) as e:
    open_source(f"{kind}:gs://bucket/none.x")
  assert str(e.value) == "gs://bucket/none.x: No such file or directory"
