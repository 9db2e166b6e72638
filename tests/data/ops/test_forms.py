"""A form that makes two fields of different lengths of documents, through the whole pipeline."""

import dataclasses
import functools

import numpy as np
import pytest

from configs import common
from jtx.config import section
from jtx.data import make_corpus
from jtx.data.corpus import writer
from jtx.data.dataset import Dataset
from jtx.data.op import TOKENIZER, Column, FormOp
from jtx.data.ops.forms import Formed, Opened
from jtx.data.ops.registry import OPS
from jtx.data.recipes import build_ops
from jtx.errors import ConfigError


class Halves(Formed):
  """A piece of a document in two parts: `before`, and `after` with an end token."""

  def __init__(self, documents, end, pieces, columns):
    self.documents, self.end, self.pieces = documents, end, pieces
    starts, cuts, stops = np.array([piece[1:] for piece in pieces]).T
    ids = np.array([documents.ids[number] * 1000 + start for number, start, *_ in pieces])
    super().__init__(columns, {"before": cuts - starts, "after": stops - cuts + 1}, ids)

  def example(self, i):
    number, start, cut, stop = self.pieces[i]
    text = self.documents.example(number)["text"]
    return {"before": text[start:cut], "after": np.append(text[cut:stop], self.end),
            "kept": np.arange(cut - start, dtype=np.int32), "where": np.int32(cut)}


@dataclasses.dataclass(frozen=True)
class Halve(FormOp):
  """Cuts documents into pieces, and pieces at a random place."""
  end: int = -1

  needs = ("text",)
  columns = {"before": Column("tokens"), "after": Column("tokens"),
             "kept": Column("aligned:before"), "where": Column("example")}

  def bind(self, tokenizers):
    return dataclasses.replace(self, end=tokenizers[TOKENIZER].eos_id)

  def form(self, documents, numbers, lengths, rng):
    pieces = []
    for number in numbers.tolist():
      size = len(documents.example(number)["text"])
      longest = lengths["before"] // 2
      for start in range(0, size, longest):
        stop = min(start + longest, size)
        least = max(start, stop - lengths["after"] + 1)
        pieces.append((number, start, int(rng.integers(least, stop + 1)), stop))
    return Halves(Opened(documents), self.end, pieces, self.columns)


FIELDS = ("before", "after")


@pytest.fixture(autouse=True)
def halve(monkeypatch):
  monkeypatch.setitem(OPS, "halve", Halve)


@pytest.fixture
def config(tmp_path):
  rng = np.random.default_rng(0)
  words = [" ".join(rng.choice(["ant", "bee", "fly", "cow"], n)) for n in rng.integers(1, 40, 30)]
  (tmp_path / "corpus.txt").write_text("\n".join(words) + "\n")
  c = common.get_config()
  c.data.path, c.data.train = str(tmp_path), ("text:corpus.txt",)
  c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"), common.op("halve"),
                common.op("pack", fields=FIELDS, lengths=(12, 9), max_segments=3))
  c.tokenizer.kind = common.tokenizer("wordpiece", vocab_size=60)
  c.data.window = 8
  return c


def texts_of(dataset):
  """The tokens of each document."""
  documents = dataset.prepared_train
  return {int(documents.ids[i]): documents.example(i)["text"].tolist()
          for i in range(len(documents))}


def segments(batch):
  """(before, after, kept, where) of each example in a batch, with its id."""
  for r, ids in enumerate(batch["ids"]):
    for s, number in enumerate(ids[ids >= 0].tolist(), 1):
      one = {f: batch[f][r][batch[f"{f}_segment_ids"][r] == s].tolist() for f in FIELDS}
      kept = batch["kept"][r][batch["before_segment_ids"][r] == s].tolist()
      yield number, one["before"], one["after"], kept, int(batch["where"][r, s - 1])


def test_two_fields_of_documents_are_packed_together(config):
  dataset = Dataset(config.data, config.tokenizer)
  assert dataset.prepared_train.columns.keys() == {"text"}  # all that the form reads
  texts, end = texts_of(dataset), dataset.tokenizers["text"].eos_id
  stream = dataset.train_stream(3, 4, range(4))
  shapes = {name: a.shape for name, a in dataset.example_batch(4).items()}
  seen, number, most = {}, 0, 0
  while stream.cursor(number)[0] == 0:
    batch = stream.batch(number)
    assert {name: a.shape for name, a in batch.items() if name != "ids"} == shapes
    assert (batch["before"].shape, batch["after"].shape) == ((4, 12), (4, 9))
    for place, before, after, kept, cut in segments(batch):
      text, start = texts[place // 1000], place % 1000
      assert start + len(before) == cut and kept == list(range(len(before)))
      assert text[start:cut] == before and text[cut:cut + len(after) - 1] + [end] == after
      seen[place] = len(before) + len(after) - 1
    most = max(most, (batch["ids"] >= 0).sum(1).max())
    number += 1
  assert most == 3  # examples a row
  # Of the first window's documents, every token is in one example.
  documents = {place // 1000 for place in seen}
  in_window = [d for d in documents
               if sum(n for place, n in seen.items() if place // 1000 == d) == len(texts[d])]
  assert len(in_window) >= 7 and number > 1


def test_batches_are_a_function_of_seed_and_step(config):
  dataset = Dataset(config.data, config.tokenizer)
  stream = dataset.train_stream(3, 4, range(4))
  batches = [stream.batch(step) for step in range(12)]
  last = stream.cursor(11)
  assert last[0] > 1
  for step in (11, 0, 5):
    again = dataset.train_stream(3, 4, range(4)).batch(step)
    assert_same(again, batches[step])
  assert_same(dataset.train_stream(3, 4, range(4), cursor=last).batch(11), batches[11])
  parts = [dataset.train_stream(3, 4, rows).batch(7) for rows in ((1, 3), (0, 2))]
  for name, whole in batches[7].items():
    np.testing.assert_array_equal(parts[0][name], whole[1::2], err_msg=name)
    np.testing.assert_array_equal(parts[1][name], whole[::2], err_msg=name)
  other = dataset.train_stream(4, 4, range(4)).batch(0)
  assert any((other[name] != batches[0][name]).any() for name in other)


def test_a_prepared_corpus_makes_the_same_batches(config, tmp_path):
  expected = Dataset(config.data, config.tokenizer).train_stream(3, 4, range(4))
  make_corpus.prepare(config.data, config.tokenizer, str(tmp_path / "D"), shard_size=7,
                      run=functools.partial(writer.make_shards, workers=0))
  config.data.train = (f"prepared:{tmp_path / 'D'}",)
  dataset = Dataset(config.data, config.tokenizer)
  stream = dataset.train_stream(3, 4, range(4))
  for step in (0, 9, 4):
    assert_same(stream.batch(step), expected.batch(step))
  assert dataset.num_train_rows() > 10


def assert_same(got, expected):
  assert got.keys() == expected.keys()
  for name in expected:
    np.testing.assert_array_equal(got[name], expected[name], err_msg=name)
    assert got[name].dtype == expected[name].dtype


def build(*names, **edits):
  return build_ops([section(OPS, name, **edits.get(name, {})) for name in names])


@pytest.mark.parametrize("names, edits, message", [
    (("encode_sentences", "halve", "pad"), {},
     "data.ops: 'pad' has fields=('src', 'tgt'), but 'halve' makes only ('before', 'after')"),
    (("tokenize", "halve", "pad"), {"pad": {"fields": FIELDS}},
     "data.ops (tokenize, halve, pad): 'halve' needs what 'word_targets' or 'encode_messages' or"
     " 'encode_sentences' makes"),
    (("encode_sentences", "halve", "pad", "mask"), {"pad": {"fields": FIELDS}},
     "data.ops (encode_sentences, halve, pad, mask): 'mask' needs what 'encode_sentences' makes"),
    (("encode_sentences", "filter_length", "halve", "pad"),
     {"pad": {"fields": FIELDS}, "filter_length": {"fields": FIELDS}},
     "data.ops: 'filter_length' has fields=('before', 'after'), but 'encode_sentences' makes only"
     " ('text',)"),
])
def test_fields_are_checked_against_what_makes_them(names, edits, message):
  with pytest.raises(ConfigError) as e:
    build(*names, **edits)
  assert str(e.value) == message


def test_a_layout_may_leave_a_field_out():
  recipe = build("encode_sentences", "halve", "pad", pad={"fields": ("after",), "lengths": (9,)})
  assert recipe.layout.fields == ("after",) and recipe.prepared_fields() == ("text",)
  assert set(recipe.prepared_columns()) == {"text"}
