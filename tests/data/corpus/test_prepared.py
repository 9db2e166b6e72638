"""A prepared corpus gives the batches of its sources, whoever made it, and tells what is wrong."""

import contextlib
import dataclasses
import filecmp
import functools
import hashlib
import json
import os
import pathlib
import pickle
import shutil
import struct
import threading
import types

from array_record.python import array_record_module as array_record
import numpy as np
import pytest

from configs import choose, classify, common, nmt_numbers, squad, tag
from jtx.data import make_corpus, pipeline
from jtx.data.corpus import files as files_lib
from jtx.data.corpus import reader, writer
from jtx.data.dataset import Dataset
from jtx.data.op import Column
from jtx.data.tokenizers.files import load_tokenizers
from jtx.errors import ConfigError, DataError


def write_documents(path, number, seed=0):
  """Documents of 0 to 9 sentences of few words, parted by blank lines."""
  rng = np.random.default_rng(seed)
  words = "ant bee cat dog elk fox gnu hen ibis jay".split()
  documents = []
  for _ in range(number):
    sentences = [" ".join(rng.choice(words, rng.integers(1, 9))).capitalize() + "."
                 for _ in range(rng.integers(1, 10))]
    documents.append("\n".join(sentences))
  pathlib.Path(path).write_text("\n\n".join(documents) + "\n")


def documents_config(folder, form="segment_pair", **mask):
  c = common.get_config()
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=60, mask=True)
  c.data.path = str(folder)
  c.data.train = ("blank_lines:a.txt", "blank_lines:b.txt")
  c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"), common.op(form),
                common.op("pack", fields=("text",), lengths=(24,), max_segments=4),
                common.op("mask", **mask))
  c.data.window = 30
  return c


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
  folder = tmp_path_factory.mktemp("documents")
  write_documents(folder / "a.txt", 70)
  write_documents(folder / "b.txt", 23, seed=1)
  return folder


def numbers_config(**edits):
  c = nmt_numbers.get_config("tiny")
  c.data.train = ("embedded:number_words/time:train", "embedded:number_words/year:train")
  # Some have more tokens than the op allows, or than a row has.
  c.data.ops = (common.op("clean"), common.op("tokenize"),
                common.op("filter_length", max_length=8),
                common.op("pack", lengths=(7, 6)))
  c.data.weights = (0.25, 0.75)
  return common.apply(c, edits)


def windows_config():
  """Each context in several windows of three tokens."""
  c = squad.get_config("tiny,stride=1")
  return common.apply(c, {"data.ops": (
      common.op("encode_windows", max_length=11, max_question=4, stride=1), c.data.ops[1])})


def prepare(config, output, workers=0, **options):
  return make_corpus.prepare(config.data, config.tokenizer, str(output),
                             run=functools.partial(writer.make_shards, workers=workers),
                             **{"shard_size": 400} | options)


def with_prepared(config, *outputs):
  config = config.copy_and_resolve_references()
  config.data.train = tuple(f"prepared:{os.path.abspath(output)}" for output in outputs)
  return config


def dataset(config, **given):
  return Dataset(config.data, config.tokenizer, **given)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def contents(folder):
  return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def small_config(folder, lines=17):
  """Lines of text, in two sources of one shard and more."""
  for name, number in (("one.txt", lines), ("two.txt", 4)):
    text = "".join(f"{name} line {i} {'x ' * (i % 5)}\n" for i in range(number))
    (folder / name).write_text(text)
  c = common.get_config()
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=60)
  c.data.path, c.data.train = str(folder), ("text:one.txt", "text:two.txt")
  c.data.ops = (common.op("clean", fields=("text",)), common.op("tokenize", fields=("text",)),
                common.op("pack", fields=("text",), lengths=(40,)))
  c.data.window = 0
  return c


# ---------------------------------------------------------------------- the same batches

CONFIGS = {
    "two fields, weights, long ones dropped": lambda folder: numbers_config(),
    "one field left out": lambda folder: numbers_config(
        **{"data.ops": (common.op("clean"), common.op("tokenize"),
                        common.op("pack", fields=("tgt",), lengths=(8,)))}),
    "classes, similar lengths": lambda folder: classify.get_config("tiny,group"),
    "numbers": lambda folder: classify.get_config("tiny,names=,label=label,scores=pearson"),
    "tags, whose names are collected": lambda folder: tag.get_config("tiny"),
    "windows": lambda folder: windows_config(),
    "choices": lambda folder: choose.get_config("tiny"),
    "pairs of segments": documents_config,
    "full sentences": lambda folder: documents_config(folder, "full_sentences", whole_words=True),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_are_those_of_the_sources(name, documents, tmp_path):
  config = CONFIGS[name](documents)
  prepare(config, tmp_path, shard_size=40 if "sentences" in name or "segments" in name else 400)
  ours, theirs = dataset(with_prepared(config, tmp_path)), dataset(config)
  assert isinstance(ours.prepared_train, reader.PreparedFiles)
  assert ours.tokenizer_texts() == theirs.tokenizer_texts()
  assert ours.info == theirs.info and ours.labels == theirs.labels
  assert ours.num_train_rows() == theirs.num_train_rows()
  streams = [d.train_stream(3, 16, range(16)) for d in (ours, theirs)]
  rows = theirs.num_train_rows()
  steps = {0, 1, 2, rows // 16, rows // 16 + 1, 2 * rows // 16 + 1}  # and later epochs
  for step in sorted(steps):
    assert_same(*(stream.batch(step) for stream in streams))
    assert streams[0].cursor(step) == streams[1].cursor(step)


def test_examples_lengths_and_ids(documents, tmp_path):
  config = numbers_config()
  prepare(config, tmp_path)
  files, memory = (dataset(c).prepared_train for c in (with_prepared(config, tmp_path), config))
  assert len(files) == len(memory) == sum(memory.sizes) and files.sizes == memory.sizes
  assert 0 < memory.sizes[0] < 1292 - 796  # as many are too long for the op, others for a row
  assert files.columns == memory.columns
  np.testing.assert_array_equal(files.ids, memory.ids)
  assert files.ids.dtype == memory.ids.dtype
  numbers = np.random.default_rng(0).integers(len(memory), size=(50))
  for fields in (("src",), ("tgt", "src")):
    lengths = [p.lengths(numbers, fields) for p in (files, memory)]
    np.testing.assert_array_equal(*lengths)
    assert lengths[0].dtype == lengths[1].dtype
  for i in (0, len(memory) - 1, *numbers.tolist()):
    assert_same(files.example(i), memory.example(i))


def test_evaluators_read_their_sources_as_ever(documents, tmp_path):
  config = documents_config(documents)
  prepare(config, tmp_path)
  specs = ("blank_lines:b.txt",)
  batches = [list(dataset(c).eval_batches(specs, 8, range(8)))
             for c in (with_prepared(config, tmp_path), config)]
  assert len(batches[0]) == len(batches[1]) > 1
  for a, b in zip(*batches):
    assert_same(a, b)
  own = dataset(with_prepared(config, tmp_path))
  with pytest.raises(ConfigError, match="holds tokens and no texts"):
    own.prepare((f"prepared:{tmp_path}",))


@pytest.mark.parametrize("threads,workers", [(4, 0), (2, 1)])
def test_threads_and_processes_read_the_same_batches(documents, tmp_path, threads, workers):
  config = documents_config(documents)
  prepare(config, tmp_path, shard_size=9)
  stream, memory = (dataset(c).train_stream(0, 8, range(8))
                    for c in (with_prepared(config, tmp_path), config))
  expected = [memory.batch(step) for step in range(25)]
  found = list(pipeline.iterate(stream, 0, 25, threads=threads, workers=workers))
  assert len(found) == 25
  for a, b in zip(found, expected):
    assert_same(a, b)


def test_many_threads_share_few_open_files(tmp_path, monkeypatch):
  monkeypatch.setattr(reader, "OPEN_FILES", 2)
  config = small_config(tmp_path)
  prepare(config, tmp_path / "D", shard_size=2)
  files = dataset(with_prepared(config, tmp_path / "D")).prepared_train
  memory = dataset(config).prepared_train
  wrong = []

  def read(seed):
    for i in np.random.default_rng(seed).integers(len(memory), size=300):
      if files.example(i)["text"].tolist() != memory.example(i)["text"].tolist():
        wrong.append(i)

  threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
  for t in threads:
    t.start()
  for t in threads:
    t.join()
  assert not wrong and files._reader.cache_info().currsize == 2


def test_a_pickle_is_small_and_reads_the_same(documents, tmp_path):
  config = documents_config(documents)
  prepare(config, tmp_path)
  files = dataset(with_prepared(config, tmp_path)).prepared_train
  data = pickle.dumps(files)
  assert len(data) < 1000
  again = pickle.loads(data)
  np.testing.assert_array_equal(again.ids, files.ids)
  for i in (0, 50, 92):
    assert_same(again.example(i), files.example(i))


def test_rows_of_another_length_need_no_other_files(tmp_path):
  config = numbers_config()
  prepare(config, tmp_path)
  for lengths in ((7, 5), (64, 64)):
    config.data.ops[-1].lengths = lengths
    ours, theirs = dataset(with_prepared(config, tmp_path)), dataset(config)
    assert ours.prepared_train.sizes == theirs.prepared_train.sizes
    for step in (0, 60):
      assert_same(*(d.train_stream(0, 8, range(8)).batch(step) for d in (ours, theirs)))
  config.data.ops[-1].lengths = (2, 2)
  with pytest.raises(DataError, match="time:train: data.ops dropped all of its 1292 examples"
                                      r" \(filter_length: \d+, longer than a row: \d+\)"):
    dataset(with_prepared(config, tmp_path)).prepared_train


def test_several_folders_are_read_one_after_the_other(documents, tmp_path):
  vocabulary = tmp_path / "vocab.txt"
  vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *"abcdefgh",
                                   *(f"##{c}" for c in "abcdefghij")]) + "\n")
  whole = documents_config(documents)
  whole.tokenizer.kind = common.tokenizer("file", path=str(vocabulary))
  for name in "ab":
    config = whole.copy_and_resolve_references()
    config.data.train = (f"blank_lines:{name}.txt",)
    prepare(config, tmp_path / name)
  ours, theirs = dataset(with_prepared(whole, tmp_path / "a", tmp_path / "b")), dataset(whole)
  assert ours.prepared_train.sizes == theirs.prepared_train.sizes == [70, 23]
  for step in (0, 3, 9):
    assert_same(*(d.train_stream(0, 8, range(8)).batch(step) for d in (ours, theirs)))


# ------------------------------------------------------------------------------- files


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
      "kind": {"name": "bytes"}, "shared": True}
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


# ------------------------------------------------------------- the same bytes in the end


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_write_the_same_bytes(tmp_path, workers):
  config = small_config(tmp_path)
  prepare(config, tmp_path / "here", shard_size=4)
  prepare(config, tmp_path / "there", shard_size=4, workers=workers)
  assert contents(tmp_path / "here") == contents(tmp_path / "there")


@contextlib.contextmanager
def ended_at(change, before):
  """Ends the run, as a signal does, at the `change`-th file that gets its name or goes away."""
  count, rename, remove = 0, os.replace, os.remove

  def counted(function):
    def call(*args):
      nonlocal count
      count += 1
      if count == change and before:
        raise KeyboardInterrupt
      function(*args)
      if count == change:
        raise KeyboardInterrupt
    return call

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(os, "replace", counted(rename))
    patch.setattr(os, "remove", counted(remove))
    yield


@pytest.mark.parametrize("before", [True, False])
def test_a_run_that_was_ended_anywhere_is_gone_on_with(tmp_path, before):
  config = small_config(tmp_path)
  prepare(config, tmp_path / "whole", shard_size=6)
  expected = contents(tmp_path / "whole")
  for change in range(1, 100):
    output = tmp_path / f"ended{change}"
    try:
      with ended_at(change, before):
        prepare(config, output, shard_size=6)
      break
    except KeyboardInterrupt:
      left = contents(output)
      for name, data in left.items():  # what has a final name is whole
        if name in expected and name != "manifest.json":
          assert data == expected[name]
      if not (output / "manifest.json").exists() and (output / "unfinished.json").exists():
        with pytest.raises(DataError, match="its preparation is not finished"):
          dataset(with_prepared(config, output))
    prepare(config, output, shard_size=6)
    assert contents(output) == expected
  # unfinished.json, the tokenizer, two files of four shards, the manifest, unfinished.json away
  assert change == 2 + 2 * 4 + 2 + 1


def test_a_run_that_was_ended_in_the_midst_of_a_shard(tmp_path, monkeypatch):
  config = small_config(tmp_path)
  prepare(config, tmp_path / "whole", shard_size=6)
  for record in (1, 8, 20):
    written = []

    def encode(self, example, original=files_lib.Format.encode):
      written.append(1)
      if len(written) == record:
        raise KeyboardInterrupt
      return original(self, example)

    output = tmp_path / f"ended{record}"
    with monkeypatch.context() as patch:
      patch.setattr(files_lib.Format, "encode", encode)
      with pytest.raises(KeyboardInterrupt):
        prepare(config, output, shard_size=6)
    assert len(list(output.glob("*.npz"))) == (record - 1) // 6
    prepare(config, output, shard_size=6)
    assert contents(output) == contents(tmp_path / "whole")


def test_finished_shards_are_kept_and_damaged_ones_made_anew(tmp_path, monkeypatch):
  config, output = small_config(tmp_path), tmp_path / "D"
  prepare(config, output, shard_size=6)
  expected = contents(output)
  made = []
  monkeypatch.setattr(writer, "tell_made",
                      lambda plan, number, new: made.append((number, new)))
  prepare(config, output, shard_size=6)
  assert made == [(i, False) for i in range(4)]

  (output / "00000.arrayrecord").unlink()
  flip(output / "00001.arrayrecord", 70_000)
  flip(output / "00003.npz", 20)
  (output / f"00002.arrayrecord.{'0a' * 16}.tmp").write_bytes(b"half")
  (output / "tokenizer.json").unlink()
  made.clear()
  prepare(config, output, shard_size=6)
  assert made == [(0, True), (1, True), (2, False), (3, True)]
  assert contents(output) == expected


def flip(path, at, bit=1):
  data = bytearray(path.read_bytes())
  data[at] ^= bit
  path.write_bytes(data)


def test_a_worker_that_is_ended_from_outside(tmp_path):
  config = small_config(tmp_path)
  (tmp_path / "D").mkdir()
  plan = make_corpus.begin(config.data, config.tokenizer, str(tmp_path / "D"), 4)
  with pytest.raises(DataError, match="a worker process was ended from outside"):
    writer.make_shards(dataclasses.replace(plan, ops=(Deadly(),)), 1)


class Deadly:
  """An op that ends its process."""

  def __call__(self, examples, tokenizers):
    os._exit(9)


# ------------------------------------------------------------------------------ refusals


@pytest.fixture
def made(tmp_path):
  config = small_config(tmp_path)
  prepare(config, tmp_path / "D", shard_size=6)
  return config, tmp_path / "D"


def other_ops(config, folder):
  config.data.ops[0].name = "lowercase"


def other_key(config, folder):
  config.data.ops = (common.op("clean", fields=("text",)),
                     common.op("tokenize", fields=("text",)),
                     common.op("filter_length", fields=("text",), max_length=9),
                     config.data.ops[-1])


def other_tokenizer(config, folder):
  config.tokenizer.kind.vocab_size = 50


def other_kind(config, folder):
  config.tokenizer.kind = common.tokenizer("bytes")


def other_source(config, folder):
  config.data.train = ("text:one.txt",)


def another_line(config, folder):
  with open(folder / "two.txt", "a") as f:
    f.write("one more\n")


def other_lines(config, folder):
  (folder / "one.txt").write_text((folder / "one.txt").read_text().replace("line 16", "row 16"))


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("change,sentence", [
    (other_ops, r"data.ops\[0\].name is 'clean' there and 'lowercase' here"),
    (other_key, r"data.ops\[2\].fields\[0\] is None there and 'text' here"),
    (other_tokenizer, "tokenizer.kind.vocab_size is 60 there and 50 here"),
    (other_kind, "tokenizer.kind.lowercase is False there and None here"),
    (other_source, r"data.train\[1\] is 'text:two.txt' there and None here"),
    (another_line, "the examples of text:two.txt have changed"),
    (other_lines, "the examples of text:one.txt have changed"),
])
def test_a_folder_of_something_else(made, tmp_path, change, sentence, finished):
  config, output = made
  if not finished:
    shutil.rmtree(output)
    with ended_at(4, before=False), pytest.raises(KeyboardInterrupt):
      prepare(config, output, shard_size=6)
  before = contents(output)
  change(config, tmp_path)
  with pytest.raises(ConfigError, match=sentence):
    prepare(config, output, shard_size=6)
  assert contents(output) == before


def test_a_folder_of_another_shard_size_or_version_or_that_was_there_before(made, tmp_path):
  config, output = made
  with pytest.raises(ConfigError, match="--shard_size is 6 there and 7 here"):
    prepare(config, output, shard_size=7)
  edit_json(output / "manifest.json", version=2)
  with pytest.raises(DataError, match="manifest.json: is of version 2, and this jtx reads"):
    prepare(config, output, shard_size=6)
  (tmp_path / "mine").mkdir()
  (tmp_path / "mine" / "thesis.tmp").write_text("of years")
  with pytest.raises(ConfigError, match="mine: has thesis.tmp and is no folder that"):
    prepare(config, tmp_path / "mine")
  assert list(contents(tmp_path / "mine")) == ["thesis.tmp"]
  with pytest.raises(ConfigError, match="one.txt: is a file; choose a new folder"):
    prepare(config, tmp_path / "one.txt")


def edit_json(path, **edits):
  path.write_text(json.dumps(json.loads(path.read_text()) | edits))


def test_a_folder_with_another_tokenizer(made):
  config, output = made
  texts = load_tokenizers(str(output))
  edit_json(output / "tokenizer.json", text=texts["text"].replace("[", " [", 1))
  prepare(config, output, shard_size=6)  # the same tokenizer, written otherwise
  edit_json(output / "tokenizer.json", text=json.dumps({"kind": "bytes"}))
  with pytest.raises(ConfigError, match="tokenizer.json: is not the tokenizer that"):
    prepare(config, output, shard_size=6)


def test_a_tokenizer_of_a_file_is_known_by_its_content(tmp_path):
  config = small_config(tmp_path)
  from jtx.data.tokenizers.kinds import bpe
  for name, text in (("a", "x y z line"), ("same", "x y z line"), ("b", "other words")):
    bpe(iter([text]), vocab_size=60, min_frequency=1).save(tmp_path / name)
  use = lambda name: common.apply(config, {
      "tokenizer.kind": common.tokenizer("file", path=str(tmp_path / name))})
  prepare(use("a"), tmp_path / "D", shard_size=6)
  prepare(use("same"), tmp_path / "D", shard_size=6)
  dataset(with_prepared(use("same"), tmp_path / "D")).prepared_train
  with pytest.raises(ConfigError, match="with another tokenizer than the config gives now"):
    prepare(use("b"), tmp_path / "D", shard_size=6)
  with pytest.raises(ConfigError, match="D: was prepared with another tokenizer: .*b is none that"):
    dataset(with_prepared(use("b"), tmp_path / "D"))


def test_two_processes_at_one_folder(made):
  config, output = made
  with make_corpus.locked(str(output)):
    with pytest.raises(ConfigError, match="D: another process is preparing it"):
      prepare(config, output, shard_size=6)
  prepare(config, output, shard_size=6)


@pytest.mark.parametrize("change,sentence", [
    (other_ops, r"D: was prepared by another config: data.ops\[0\].name is 'clean' there"),
    (other_key, r"data.ops\[2\]"),
    (other_tokenizer, "D: was prepared with another tokenizer: tokenizer.kind.vocab_size is 60"),
    (other_kind, "D: was prepared with another tokenizer: tokenizer.kind.lowercase"),
])
def test_training_by_another_config(made, tmp_path, change, sentence):
  config, output = made
  change(config, tmp_path)
  with pytest.raises(ConfigError, match=sentence):
    dataset(with_prepared(config, output)).prepared_train


def test_training_does_not_need_what_it_was_prepared_from(made, tmp_path):
  config, output = made
  expected = dataset(config).train_stream(0, 4, range(4)).batch(0)
  for name in ("one.txt", "two.txt"):
    (tmp_path / name).unlink()
  shutil.move(output, tmp_path / "moved")
  config.data.train = ("prepared:moved",)  # relative to data.path
  assert_same(dataset(config).train_stream(0, 4, range(4)).batch(0), expected)


def test_a_trained_model_does_not_need_the_folder(made):
  config, output = made
  texts = dataset(config).tokenizer_texts()
  shutil.rmtree(output)
  data = dataset(with_prepared(config, output), saved=texts, labels=[])
  assert len(list(data.eval_batches(("text:two.txt",), 2, range(2)))) >= 1
  with pytest.raises(DataError, match="manifest.json: does not exist"):
    data.prepared_train
  with pytest.raises(DataError, match="manifest.json: does not exist"):
    dataset(with_prepared(config, output))


def test_a_run_of_another_tokenizer(made):
  config, output = made
  other = json.dumps({"kind": "bytes"})
  data = dataset(with_prepared(config, output), saved={"text": other})
  with pytest.raises(ConfigError, match="D: was prepared with another tokenizer than the one of"
                                        " this run"):
    data.prepared_train


def test_a_run_of_other_labels(tmp_path):
  config = tag.get_config("tiny")
  prepare(config, tmp_path, shard_size=2000)
  data = dataset(with_prepared(config, tmp_path), labels=["O", "B-TOWN", "B-NAME"])
  with pytest.raises(ConfigError, match=r"labels\[1\] is 'B-NAME' there and 'B-TOWN' here"):
    data.prepared_train


def test_prepared_sources_among_others(made, tmp_path):
  config, output = made
  config.data.train = ("text:one.txt", f"prepared:{output}")
  with pytest.raises(ConfigError, match="mixes prepared sources with others"):
    dataset(config)
  config.data.train = (f"prepared:{output}",)
  with pytest.raises(ConfigError, match="holds tokens and no texts"):
    prepare(config, tmp_path / "again")


# -------------------------------------------------------------------------------- damage


def delete(path):
  path.unlink()


def cut(path):
  path.write_bytes(path.read_bytes()[:-10])


def scramble(path):
  path.write_bytes(path.read_bytes()[::-1])


@pytest.mark.parametrize("file,damage,sentence", [
    ("00001.arrayrecord", delete, "00001.arrayrecord: No such file or directory, though"),
    ("00001.arrayrecord", cut, "00001.arrayrecord: has 131062 bytes and not the 131072 that"),
    ("00001.npz", delete, "00001.npz: does not exist"),
    ("00001.npz", cut, "00001.npz: is damaged"),
    ("00001.npz", lambda path: flip(path, 200), "00001.npz: is damaged"),
    ("00001.npz", lambda path: shutil.copy(path.with_name("00002.npz"), path),
     "00001.npz: is not the index of the shard that manifest.json tells of"),
    ("manifest.json", delete, "manifest.json: does not exist; a folder that experiments.prepare"),
    ("manifest.json", cut, "manifest.json: is not valid JSON"),
    ("manifest.json", lambda path: edit_json(path, version=3), "manifest.json: is of version 3,"),
    ("manifest.json", lambda path: path.write_text("[]"), "manifest.json: is of version None"),
    ("manifest.json", lambda path: path.write_text('{"version": 1}'), "manifest.json: has no 'op"),
    ("tokenizer.json", delete, "tokenizer.json: does not exist"),
    ("tokenizer.json", cut, "tokenizer.json: is not a JSON object"),
    ("tokenizer.json", lambda path: edit_json(path, text='{"kind": "bytes"}'),
     "tokenizer.json: is not what the corpus was prepared with"),
])
def test_damaged_files_are_named_when_a_run_begins(made, file, damage, sentence):
  config, output = made
  damage(output / file)
  with pytest.raises(DataError, match=sentence) as error:
    dataset(with_prepared(config, output)).prepared_train
  assert "\n" not in str(error.value) and str(output / file) in str(error.value)


def test_no_damaged_record_is_taken_for_a_good_one(made):
  """Of a file with one bit flipped, a record reads as it was or is an error that names the file."""
  config, output = made
  path = output / "00000.arrayrecord"
  good = path.read_bytes()
  memory = dataset(config).prepared_train
  rng = np.random.default_rng(0)
  # The file is padded with zeros; most of the flips go where there is something.
  places = np.concatenate([rng.choice(np.flatnonzero(np.frombuffer(good, np.uint8)), 60),
                           rng.integers(len(good), size=20)])
  errors = 0
  for at in places.tolist():
    flip(path, at, 1 << int(rng.integers(8)))
    files = dataset(with_prepared(config, output)).prepared_train
    for i in range(6):
      try:
        assert_same(files.example(i), memory.example(i))
      except DataError as e:
        assert str(e).startswith(f"{path}: record {i} ") and "\n" not in str(e)
        errors += 1
    path.write_bytes(good)
  assert errors > 20


def test_a_shard_in_another_ones_place(tmp_path):
  """Of equal size, with examples of equal tokens."""
  config, output = small_config(tmp_path), tmp_path / "D"
  (tmp_path / "one.txt").write_text("the same\n" * 12)
  prepare(config, output, shard_size=6)
  shutil.copy(output / "00001.arrayrecord", output / "00000.arrayrecord")
  assert filecmp.cmp(output / "00001.arrayrecord", output / "00000.arrayrecord", shallow=False)
  files = dataset(with_prepared(config, output)).prepared_train
  files.example(6)
  with pytest.raises(DataError, match="00000.arrayrecord: record 2 is not the one that the"):
    files.example(2)
