"""Prepared corpora that do not fit the config, or are damaged."""

import filecmp
import json
import shutil

import numpy as np
import pytest

from configs import common, tag
from jtx.data import make_corpus
from jtx.data.corpus import reader
from jtx.data.tokenizers.files import load_tokenizers
from jtx.errors import ConfigError, DataError
from tests.data.corpus.corpora import (
    assert_same, contents, dataset, ended_at, flip, prepare, small_config, with_prepared)
from tests.data.tokenizers.vocabularies import byte_level

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
    (other_key, r"data.ops\[2\].name is None there and 'filter_length' here"),
    (other_tokenizer, "tokenizer.kind.vocab_size is 60 there and 50 here"),
    (other_kind, "tokenizer.kind.name is 'bpe' there and 'bytes' here"),
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


def test_a_corpus_keeps_the_ends_that_its_texts_were_prepared_with(tmp_path):
  folder = tmp_path / "model"
  folder.mkdir()
  byte_level(False, template=False).save(str(folder / "tokenizer.json"))
  config = common.apply(small_config(tmp_path), {
      "tokenizer.kind": common.tokenizer("file", path=str(folder))})
  prepare(config, tmp_path / "D", shard_size=6)
  (folder / "config.json").write_text('{"model_type": "gpt2"}')
  found = dataset(with_prepared(config, tmp_path / "D"))
  assert found.prepared_train and found.tokenizers["text"].has_ends


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
    (other_kind, "D: was prepared with another tokenizer: tokenizer.kind.name is 'bpe'"),
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


def test_a_corpus_in_a_bucket():
  with pytest.raises(ConfigError, match="^prepared:gs://b/c: a prepared corpus is read from"):
    reader.folders(["prepared:gs://b/c"], "/nowhere")
