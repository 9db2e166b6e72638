"""Training from a prepared corpus: the same batches as from its sources."""

import pathlib
import pickle

import numpy as np
import pytest

from configs import choose, classify, common, nmt_numbers, tag
from jtx.data import pipeline
from jtx.data.corpus import reader
from jtx.errors import ConfigError, DataError
from tests.data.corpus.corpora import (
    assert_same, dataset, prepare, small_config, windows_config, with_prepared)
from tests.helpers import in_threads, one_fast_row


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


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (
    name in ("numbers", "tags, whose names are collected", "windows", "choices")))
                                  for name in CONFIGS])
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


@pytest.mark.parametrize("threads,workers", one_fast_row((4, 0), (2, 1)))
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

  def read(seed):
    for i in np.random.default_rng(seed).integers(len(memory), size=300):
      assert files.example(i)["text"].tolist() == memory.example(i)["text"].tolist()

  in_threads(read)
  assert files._reader.cache_info().currsize == 2


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
