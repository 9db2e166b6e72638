"""The files of a prepared corpus: records, indices and the manifest."""

import hashlib
import json
import pathlib
import struct
import types

from array_record.python import array_record_module as array_record
import numpy as np
import pytest

from configs import classify, common
from jtx.data.corpus import files as files_lib
from jtx.data.corpus import writer
from jtx.data.op import Column
from jtx.data.tokenizers.files import load_tokenizers
from jtx.errors import DataError
from tests.data.corpus.corpora import (
    assert_same, contents, dataset, prepare, small_config, windows_config)


def test_a_record_is_what_the_docstring_says(tmp_path):
  config = classify.get_config("tiny")
  config.data.ops[0].texts = ("text",)
  prepare(config, tmp_path, shard_size=1500)
  memory = dataset(config).prepared_train
  manifest = json.loads((tmp_path / "manifest.json").read_text())
  assert [(c["name"], c["stored"]) for c in manifest["columns"]] == [
      ("text", "<u2"), ("text_types", "<i4"), ("label", "<i4")]
  reader = array_record.ArrayRecordReader(str(tmp_path / "00001.arrayrecord"))
  assert reader.num_records() == 500
  example = memory.example(1507)
  text, label = example["text"].tolist(), int(example["label"])
  n = len(text)
  expected = struct.pack(f"<qi{n}H{n}ii", 1507, n, *text, *[0] * n, label)
  assert reader.read([7])[0] == expected
  with np.load(tmp_path / "00001.npz") as index:
    assert index["ids"].tolist() == list(range(1500, 2000)) and index["ids"].dtype == np.int64
    assert index["counts"][7].tolist() == [n] and index["counts"].dtype == np.int32


class Vocabulary:
  def __init__(self, size):
    self.size = size

  def text_ids(self):
    return np.arange(self.size)


class Marked:
  columns = {"text": Column("tokens"), "marks": Column("aligned:text", "uint8"),
             "other": Column("tokens"), "score": Column("example", "float32")}


@pytest.mark.parametrize("sizes,stored,largest", [
    ((65_536, 10), "<u2", 65_535), ((65_537, 10), "<i4", 65_536), ((10, 65_537), "<i4", 65_536)])
def test_tokens_take_two_bytes_where_the_vocabulary_allows(sizes, stored, largest):
  tokenizers = {f"f{i}": Vocabulary(size) for i, size in enumerate(sizes)}
  form = files_lib.Format.of([Marked()], tokenizers)
  assert [dtype.str for _, _, dtype in form.stored] == [stored, "|u1", stored, "<f4"]
  example = {"id": 2**40, "text": np.array([largest, 0, 7], np.int32),
             "marks": np.array([255, 0, 1], np.uint8), "other": np.zeros(0, np.int32),
             "score": np.float32(0.1), "beside": "text"}
  counts = form.counts(example)
  assert counts == [3, 0] and form.fields == ("text", "other")
  record = form.encode(example)
  width = 2 if stored == "<u2" else 4
  assert len(record) == form.size(np.array(counts)) == 8 + 2 * 4 + 3 * width + 3 + 0 + 4
  assert record.startswith(form.head(2**40, counts))
  again = files_lib.Format.from_json(json.loads(json.dumps(form.to_json())))
  assert again == form
  assert_same(again.decode(record, ("text", "marks", "other", "score")),
              {k: example[k] for k in ("text", "marks", "other", "score")})
  assert list(again.decode(record, ("score",))) == ["score"]


def test_the_manifest(tmp_path):
  config = small_config(tmp_path)
  config.tokenizer.kind = common.tokenizer("bytes")
  (tmp_path / "one.txt").write_text("a b\n\nc\nd0\nd1\nd2\nd3\n\n")
  (tmp_path / "two.txt").write_text("long\nlonger\nno\n")
  config.data.ops = (config.data.ops[0], config.data.ops[1],
                     common.op("filter_length", fields=("text",), max_length=3), config.data.ops[2])
  manifest = prepare(config, tmp_path / "D", shard_size=5)
  assert manifest == json.loads((tmp_path / "D" / "manifest.json").read_text())
  assert manifest["version"] == 1
  assert [op["name"] for op in manifest["ops"]] == ["clean", "tokenize", "filter_length"]
  assert manifest["ops"][2] == {"name": "filter_length", "fields": ["text"], "max_length": 3,
                                "min_length": 1, "max_ratio": 0.0}
  assert manifest["tokenizer"] == {
      "kind": {"name": "bytes", "byt5": False}, "shared": True, "delimiters": []}
  # A byte a token, and the end: the texts have 4, 2, and four times 3.
  assert [{k: s[k] for k in ("name", "read", "kept", "dropped")} for s in manifest["sources"]] == [
      {"name": "text:one.txt", "read": 8, "kept": 5, "dropped": {"clean": 2, "filter_length": 1}},
      {"name": "text:two.txt", "read": 3, "kept": 1, "dropped": {"filter_length": 2}}]
  assert [s["dropped"] for s in manifest["shards"]] == [
      {"clean": 1, "filter_length": 1}, {"clean": 1}, {"filter_length": 2}]


def test_what_the_files_say_of_themselves(tmp_path):
  config = small_config(tmp_path)
  manifest = prepare(config, tmp_path / "D", shard_size=6)
  memory = dataset(config).prepared_train
  assert [(s["file"], s["source"], s["examples"]) for s in manifest["shards"]] == [
      ("00000.arrayrecord", 0, 6), ("00001.arrayrecord", 0, 6), ("00002.arrayrecord", 0, 5),
      ("00003.arrayrecord", 1, 4)]
  at = 0
  for shard in manifest["shards"]:
    data = (tmp_path / "D" / shard["file"]).read_bytes()
    assert shard["bytes"] == len(data) and shard["sha256"] == hashlib.sha256(data).hexdigest()
    numbers = range(at, at + shard["examples"])
    assert shard["tokens"] == {"text": sum(len(memory.example(i)["text"]) for i in numbers)}
    at += shard["examples"]
  texts = load_tokenizers(str(tmp_path / "D"))
  assert texts == dataset(config).tokenizer_texts()
  assert manifest["tokenizer_sha256"] == hashlib.sha256(
      json.dumps(texts, sort_keys=True).encode()).hexdigest()
  assert sorted(contents(tmp_path / "D")) == sorted(
      ["manifest.json", "tokenizer.json",
       *(f"0000{i}.{ending}" for i in range(4) for ending in ("arrayrecord", "npz"))])


def test_windows_are_more_than_what_they_are_of(tmp_path):
  manifest = prepare(windows_config(), tmp_path, shard_size=1500)
  source, = manifest["sources"]
  assert source["read"] == 2000 < source["kept"] and source["dropped"] == {}
  assert sum(shard["examples"] for shard in manifest["shards"]) == source["kept"]


def test_a_full_disk(tmp_path, monkeypatch):
  class Writer:
    def __init__(self, path, options):
      pathlib.Path(path).write_bytes(b"half")

    def write(self, record):
      pass

    def close(self):
      raise RuntimeError("write() failed: No space left on device")

  config = small_config(tmp_path)
  with monkeypatch.context() as patch:
    patch.setattr(writer, "array_record", types.SimpleNamespace(ArrayRecordWriter=Writer))
    with pytest.raises(DataError, match="00000.arrayrecord: can't be written .* No space left"):
      prepare(config, tmp_path / "D", shard_size=6)
  assert sorted(contents(tmp_path / "D")) == ["tokenizer.json", "unfinished.json"]


def test_sources_that_nothing_is_left_of(tmp_path):
  config = small_config(tmp_path)
  (tmp_path / "two.txt").write_text("\n \n\t\n")
  with pytest.raises(DataError, match=r"two.txt: data.ops dropped all of its 3 .*\(clean: 3\)"):
    prepare(config, tmp_path / "D")
  assert not (tmp_path / "D" / "manifest.json").exists()
