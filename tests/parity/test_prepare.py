"""Preparing a corpus on Apache Beam, and beside `datasets`."""

import functools
import pathlib

import pytest

pytest.importorskip(
    "apache_beam", reason="Apache Beam is not installed: make test-parity installs it")
pytest.importorskip(
    "datasets", reason="the package `datasets` is not installed: see make test-parity")

from benchmarks import prepare
from configs import common
from jtx.data import make_corpus
from jtx.data.corpus import beam, writer

TEXT = "Ann met Bob. They went (at last).\n\nDr. Smith saw Kim.\nA line, and <eos> in it!\n"
# What runs a pipeline for DirectRunner, which looks for something to download first.
LOCAL = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"


def test_beam_writes_the_same_bytes(tmp_path):
  for name, number in (("a.txt", 35), ("b.txt", 11)):
    (tmp_path / name).write_text("\n".join(f"Text {i}. {TEXT * (i % 4)}" for i in range(number)))
  c = common.get_config()
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=100, mask=True)
  c.data.path, c.data.train = str(tmp_path), ("blank_lines:a.txt", "blank_lines:b.txt")
  c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"),
                common.op("segment_pair"),
                common.op("pack", fields=("text",), lengths=(24,), max_segments=4),
                common.op("mask"))
  on_beam = functools.partial(beam.make_shards, arguments=[f"--runner={LOCAL}"])
  for name, run in (("here", writer.make_shards), ("beam", on_beam)):
    make_corpus.prepare(c.data, c.tokenizer, str(tmp_path / name), shard_size=20, run=run)
  contents = lambda name: {path.name: path.read_bytes()
                           for path in pathlib.Path(tmp_path / name).iterdir()}
  assert contents("here") == contents("beam")
  assert sum(name.endswith(".arrayrecord") for name in contents("here")) > 3


def test_preparing_beside_datasets(tmp_path):
  (tmp_path / "docs.txt").write_text(TEXT * 20)
  result = prepare.run(str(tmp_path / "out"), f"blank_lines:{tmp_path}/docs.txt", rounds=1,
                       length=16, batch_size=2, batches=3)
  for task in prepare.TASKS:  # that the numbers of tokens are equal is checked there
    values = result["tasks"][task]["tokens_per_second"]
    assert result["tasks"][task]["ratio"]["median"] == pytest.approx(
        values["jtx"] / values["datasets"])
  assert result["tasks"]["texts"]["tokens"] == result["tasks"]["sentences"]["tokens"] + 21 > 400
  assert len(result["read"]["all"]) == 1
