"""Parquet and Arrow files, and folders of `datasets`, row by row."""

import json
import pickle
import random
import sys

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from jtx.data.sources import arrow, columns
from jtx.data.sources.registry import open_source
from jtx.errors import DataError
from tests.data.sources.text_files import all_of
from tests.helpers import in_threads

ROWS = [{"text": f"text {i}", "label": i % 3, "pair": {"en": f"e{i}", "de": None},
         "answers": [{"text": "t", "start": i}] * (i % 2)} for i in range(1000)]


def table(rows=ROWS, names=()):
  made = pa.Table.from_pylist(rows)
  features = {"label": {"names": list(names), "_type": "ClassLabel"}}
  about = {"huggingface": json.dumps({"info": {"features": features}})}
  return made.replace_schema_metadata(about) if names else made


def write_stream(path, rows, batch):
  made = table(rows)
  with pa.OSFile(str(path), "wb") as f, pa.ipc.new_stream(f, made.schema) as writer:
    writer.write_table(made, max_chunksize=batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("arrow")
  pa.parquet.write_table(table(), folder / "a.parquet", row_group_size=300)
  pa.feather.write_feather(table(), str(folder / "a.feather"), chunksize=128)
  pa.feather.write_feather(table(), str(folder / "b.arrow"), chunksize=128,
                           compression="uncompressed")
  write_stream(folder / "stream.arrow", ROWS, 100)
  return folder


SPECS = ("parquet:a.parquet", "arrow:a.feather", "arrow:b.arrow", "arrow:stream.arrow")


@pytest.mark.parametrize("rows", [1 << 14, 64])
@pytest.mark.parametrize("spec", SPECS)
def test_rows_in_any_order(folder, spec, rows, monkeypatch):
  monkeypatch.setattr(arrow, "PIECE_ROWS", rows)  # stretches of row groups, or whole ones
  source = open_source(spec, str(folder))
  assert len(source) == 1000 and all_of(source) == ROWS and source[-1] == ROWS[-1]
  order = random.Random(0).sample(range(1000), 1000)
  source = pickle.loads(pickle.dumps(source))
  assert [source[i] for i in order] == [ROWS[i] for i in order]
  with pytest.raises(IndexError):
    source[1000]


@pytest.mark.parametrize("spec", SPECS)
def test_columns_by_name(folder, spec):
  source = open_source(f"{spec}:columns[src=pair.en+label]:rows[:10]", str(folder))
  assert all_of(source) == [{"src": f"e{i}", "label": i % 3} for i in range(10)]
  assert list(source.column("label")) == [i % 3 for i in range(10)]
  assert list(source.column("src")) == [f"e{i}" for i in range(10)]
  with pytest.raises(DataError, match="example 0 has no column 'text'; it has src, label"):
    list(source.column("text"))
  assert list(open_source(spec, str(folder)).column("text")) == [row["text"] for row in ROWS]
  with pytest.raises(DataError, match="has no column 'lable'; did you mean 'label'?"):
    open_source(f"{spec}:columns[lable]", str(folder))


def test_only_the_columns_that_are_named_are_decoded(folder, monkeypatch):
  tables = []
  read = columns.Kept.table
  monkeypatch.setattr(columns.Kept, "table",
                      lambda self, piece: tables.append(read(self, piece)) or tables[-1])
  for spec in SPECS:
    open_source(f"{spec}:columns[label]", str(folder))[0]
    assert tables[-1].column_names == ["label"]


def test_threads_share_a_source(folder):
  source = open_source("parquet:a.parquet", str(folder))

  def work(seed):
    for i in random.Random(seed).sample(range(1000), 60):
      assert source[i] == ROWS[i]

  in_threads(work)


def test_several_files_and_few_pieces_in_memory(tmp_path):
  for i in range(6):
    pa.parquet.write_table(table(ROWS[i * 100:(i + 1) * 100]), tmp_path / f"t-{i}.parquet",
                           row_group_size=20)
  for spec in ("parquet:t-*.parquet", "parquet:.", "parquet:t-{0..5}.parquet"):
    source = open_source(spec, str(tmp_path))
    assert all_of(source) == ROWS[:600]
    assert source._kept._read.cache_info().currsize == columns.KEPT
  pa.parquet.write_table(table([{"other": 1}]), tmp_path / "t-9.parquet")
  with pytest.raises(DataError, match=r"t-9\.parquet: has the columns other, but .*t-0\.parquet"):
    open_source("parquet:t-*.parquet", str(tmp_path))
  with pytest.raises(DataError, match=r"x-\*\.parquet: has no file"):
    open_source("parquet:x-*.parquet", str(tmp_path))


def test_names_of_classes_and_images(tmp_path):
  rows = [{"label": i % 2, "image": {"bytes": b"png", "path": "a.png"}} for i in range(4)]
  pa.parquet.write_table(table(rows, ("neg", "pos")), tmp_path / "a.parquet")
  source = open_source("parquet:a.parquet", str(tmp_path))
  assert source.classes == ("neg", "pos") and source.names_of("image") is None
  assert source[1] == {"label": 1, "image": b"png"}
  assert source.labels == [0, 1, 0, 1]
  assert open_source("parquet:a.parquet:rows[1:]", str(tmp_path)).labels == [1, 0, 1]
  renamed = open_source("parquet:a.parquet:columns[kind=label]", str(tmp_path))
  assert renamed.names_of("kind") == ("neg", "pos") and renamed.classes is None
  source._features = {"tags": {"feature": {"names": ["O", "X"], "_type": "ClassLabel"}},
                      "old": [{"names": ["a"], "_type": "ClassLabel"}], "text": {"_type": "Value"}}
  assert [source.names_of(k) for k in ("tags", "old", "text")] == [("O", "X"), ("a",), None]


def test_a_folder_of_save_to_disk(tmp_path):
  (tmp_path / "train").mkdir()
  for i in range(2):
    write_stream(tmp_path / "train" / f"data-{i}.arrow", ROWS[i * 50:(i + 1) * 50], 20)
  (tmp_path / "train" / "cache-1.arrow").write_bytes(b"of something else")
  state = {"_data_files": [{"filename": f"data-{i}.arrow"} for i in range(2)]}
  (tmp_path / "train" / "state.json").write_text(json.dumps(state))
  (tmp_path / "train" / "dataset_info.json").write_text(json.dumps(
      {"features": {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}}))
  (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
  source = open_source("arrow:train", str(tmp_path))
  assert all_of(source) == ROWS[:100] and source.names_of("label") == ("a", "b", "c")
  with pytest.raises(DataError) as e:
    open_source("arrow:.", str(tmp_path))
  assert str(e.value) == f"{tmp_path}/.: has the splits train, test; name one, as in" \
      f" arrow:{tmp_path}/./train"
  (tmp_path / "train" / "state.json").write_text("{}")
  with pytest.raises(DataError, match="state.json: is not what save_to_disk writes"):
    open_source("arrow:train", str(tmp_path))


@pytest.mark.parametrize("spec, said", [
    ("parquet:a.feather", r"a\.feather: can't be read, since it is of another format or damage"),
    ("arrow:a.parquet", r"a\.parquet: can't be read, since it is of another format or damage"),
    ("arrow:none.arrow", r"none\.arrow: No such file or directory"),
    ("parquet:none.parquet", r"none\.parquet: No such file or directory"),
])
def test_files_that_are_no_tables(folder, spec, said):
  with pytest.raises(DataError, match=said):
    open_source(spec, str(folder))


def test_without_pyarrow(folder, monkeypatch):
  monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
  with pytest.raises(DataError, match=r"^sources parquet: and arrow: need pyarrow, which can't be"
                                      r" imported \(.*\); install it by: pip install pyarrow$"):
    open_source("parquet:a.parquet", str(folder))
