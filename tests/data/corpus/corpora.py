"""Configs of small corpora, prepared and not."""

import contextlib
import functools
import os
import pathlib

import numpy as np
import pytest

from configs import common, squad
from jtx.data import make_corpus
from jtx.data.corpus import writer
from jtx.data.dataset import Dataset


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


def flip(path, at, bit=1):
  data = bytearray(path.read_bytes())
  data[at] ^= bit
  path.write_bytes(data)
