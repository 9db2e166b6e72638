"""Preparing a corpus: the same bytes for any workers, and after a run that was killed."""

import dataclasses
import os

import pytest

from jtx.data import make_corpus
from jtx.data.corpus import files as files_lib
from jtx.data.corpus import writer
from jtx.errors import DataError
from tests.data.corpus.corpora import (
    contents, dataset, ended_at, flip, prepare, small_config, with_prepared)


@pytest.mark.parametrize("workers", [1, 3])
def test_worker_processes_write_the_same_bytes(tmp_path, workers):
  config = small_config(tmp_path)
  prepare(config, tmp_path / "here", shard_size=4)
  prepare(config, tmp_path / "there", shard_size=4, workers=workers)
  assert contents(tmp_path / "here") == contents(tmp_path / "there")


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
