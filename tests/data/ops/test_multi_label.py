"""Rows of 0 and 1 from lists, texts and arrays; names from the training data."""

import numpy as np
import pytest

from jtx.data import packing, prepared
from jtx.data.corpus.files import Format
from jtx.data.example import placed
from jtx.data.op import Column
from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.multi_label import MultiLabel
from jtx.data.packing import Pad
from jtx.data.sources.images import NpzSource
from jtx.errors import ConfigError, DataError

NAMES = ("art", "law", "war, peace")


def rows(*values, **fields):
  examples = [{"id": i, "label": v} for i, v in enumerate(values)]
  return [e["label"].tolist() for e in MultiLabel(names=NAMES, **fields)(examples, None)]


def test_lists_texts_and_numbers():
  assert rows(["law", "art"], [], "law", "", "art, law", "war, peace", [2], ("art", 1), 1) == [
      [1, 1, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0], [1, 1, 0], [0, 0, 1], [0, 0, 1], [1, 1, 0],
      [0, 1, 0]]
  assert rows("art|law", separator="|") == [[1, 1, 0]]
  assert rows(np.array([0, 1, 1]), np.array(["law"])) == [[0, 1, 1], [0, 1, 0]]


@pytest.mark.parametrize("value, message", [
    ("art,lwa", "example 0 has the label 'lwa'; valid are art, law, war, peace, in a list"),
    ([3], "example 0 has the label 3"),
    (["art", 0], "example 0 has the label 0 more than once"),
    (None, "example 0 has the labels None"),
    (0.5, "example 0 has the labels 0.5"),
])
def test_labels_that_can_not_be(value, message):
  with pytest.raises(DataError, match=message):
    rows(value)


def test_labels_that_can_not_be_are_placed():
  op, source = MultiLabel(names=NAMES), Source([{"label": "art"}, {"label": ["lwa"]}])
  source.line = lambda i: i + 1
  told = "has the label 'lwa'; valid are art, law, war, peace, in a list or in one text"
  with pytest.raises(DataError) as e, placed(source):
    op([{**source[i], "id": i} for i in range(2)], None)
  assert str(e.value) == f"mine: line 2: op multi_label: example 1 {told}"
  assert op.misfit(source[1]) == told
  assert {op.misfit(x) for x in (source[0], {}, {"label": None}, {"label": []}, {"label": ""},
                                 {"label": np.array([0, 1, 1])})} == {""}


class Source(list):
  name = "mine"


def test_names_are_those_of_the_training_data():
  source = Source([{"label": "b, a"}, {"label": ""}, {"label": ["c", "a"]}])
  op = MultiLabel()
  assert op.collect_names([source], ()) == ("a", "b", "c")
  assert MultiLabel(names=("a", "b")).columns == {"label": Column("example", "int8", (2,))}
  with pytest.raises(ConfigError, match="there are no names of labels"):
    op([{"id": 0, "label": "a"}], None)
  with pytest.raises(ConfigError, match="names has a more than once"):
    MultiLabel(names=("a", "a"))


COLUMNS = {"text": Column("tokens"), "label": Column("example", "int8", (3,))}


def test_rows_of_a_batch_have_all_labels_and_padding_none():
  examples = [{"text": np.array([5, 6]), "label": np.array(x, np.int8)}
              for x in ([1, 0, 1], [0, 1, 0])]
  layout = Pad(fields=("text",), lengths=(4,))
  batch = packing.assemble(layout, COLUMNS, [[examples[0]], [examples[1]], []], [[0], [1], []])
  assert batch["label"].dtype == np.int8
  assert batch["label"].tolist() == [[[1, 0, 1]], [[0, 1, 0]], [[0, 0, 0]]]
  assert prepared.join([], COLUMNS["label"]).shape == (0, 3)
  assert prepared.join([e["label"] for e in examples], COLUMNS["label"]).shape == (2, 3)


def test_a_prepared_corpus_keeps_them():
  example = {"id": 7, "text": np.array([5, 6, 9], np.int32), "label": np.array([1, 0, 1], np.int8)}
  stored = [{"name": "text", "kind": "tokens", "dtype": "int32", "stored": "<i4"},
            {"name": "label", "kind": "example", "dtype": "int8", "stored": "|i1", "shape": [3]}]
  kept = Format.from_json(stored)
  assert kept.to_json() == stored
  record = kept.encode(example)
  assert len(record) == kept.size(np.array([3])) == 8 + 4 + 12 + 3
  found = kept.decode(record, ("text", "label"))
  assert found["label"].tolist() == [1, 0, 1] and found["text"].tolist() == [5, 6, 9]


def test_images_have_labels_too(tmp_path):
  np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), np.uint8), labels=[[1, 0, 1], [0, 0, 0]])
  source = NpzSource("npz:a.npz", str(tmp_path / "a.npz"))
  assert source.classes == ("0", "1", "2")
  op = DecodeImage(channels=1, names=source.classes, multi_label=True)
  assert op.columns["label"] == Column("example", "int8", (3,))
  found = [op.augment({**source[i], "path": "x"}, None)["label"].tolist() for i in range(2)]
  assert found == [[1, 0, 1], [0, 0, 0]]
  assert op.label_of(["2", "0"], "x").tolist() == [1, 0, 1]
  with pytest.raises(DataError, match="op decode_image: x has the label '3'"):
    op.label_of(["3"], "x")
  with pytest.raises(DataError, match="x has the label array"):
    DecodeImage(channels=1, names=("0", "1")).label_of(np.array([1, 0]), "x")
