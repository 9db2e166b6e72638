"""Examples after the ops that run once, in memory."""

from absl import logging
import numpy as np
import pytest

from jtx.data import prepared as prepared_lib
from jtx.data.ops.text import Clean, FilterLength, Tokenize
from jtx.data.packing import Pack
from jtx.data.prepared import texts
from jtx.errors import DataError
from tests.data.streams import ListSource, assert_same, prepared_of, stream_of


def test_prepare_keeps_tokens_ids_and_sizes():
  ops = (Clean(), Tokenize(), FilterLength(max_length=11))
  prepared = prepared_of(30, 20, ops=ops)
  # The source has 2 words, i % 11 more and the end; the target 1 and i * 7 % 13 and the end.
  kept = [[i for i in range(n) if 3 + i % 11 <= 11 and 2 + i * 7 % 13 <= 11] for n in (30, 20)]
  assert 0 < len(kept[1]) < 20
  assert prepared.sizes == [len(k) for k in kept] and len(prepared) == sum(prepared.sizes)
  assert prepared.ids.tolist() == kept[0] + [30 + i for i in kept[1]]
  for n, i in enumerate(prepared.ids):
    i = int(i) if i < 30 else int(i) - 30
    assert prepared.example(n)["tgt"].tolist() == [i + 10, *[3 + ord("t") % 7] * (i * 7 % 13), 2]
  assert {t.dtype for t in prepared.values.values()} == {np.dtype(np.int32)}
  np.testing.assert_array_equal(
      prepared.lengths(np.arange(len(prepared)), ("tgt", "src")),
      [[len(prepared.example(n)[f]) for f in ("tgt", "src")] for n in range(len(prepared))])


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prepare_is_the_same_in_chunks_of_any_size(monkeypatch, chunk):
  ops = (Clean(), Tokenize(), FilterLength(max_length=11))
  expected = prepared_of(30, 20, ops=ops)
  monkeypatch.setattr(prepared_lib, "CHUNK", chunk)
  prepared = prepared_of(30, 20, ops=ops)
  assert_same(prepared.values, expected.values)
  assert_same(prepared.offsets, expected.offsets)
  np.testing.assert_array_equal(prepared.ids, expected.ids)
  assert prepared.sizes == expected.sizes


def test_prepare_drops_and_counts_what_is_longer_than_a_row(monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda line, *args: lines.append(line % args))
  layout = Pack(lengths=(10, 8))
  ops = (Clean(), Tokenize(), FilterLength(max_length=12))
  prepared = prepared_of(30, 3, layout=layout, ops=ops)
  lengths = [(3 + i % 11, 2 + i * 7 % 13) for i in range(30)]
  filtered = [n for n in lengths if max(n) <= 12]
  kept = [n for n in filtered if n[0] <= 10 and n[1] <= 8]
  assert prepared.lengths(np.arange(len(kept)), ("src", "tgt")).tolist() == [list(n) for n in kept]
  assert lines == [
      f"s0: {len(kept)} of 30 examples (dropped: filter_length: {30 - len(filtered)},"
      f" longer than a row: {len(filtered) - len(kept)})",
      "s1: 2 of 3 examples (dropped: longer than a row: 1)"]


def test_prepare_logs_no_drops_where_there_are_none(monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda line, *args: lines.append(line % args))
  prepared_of(30)
  assert lines == ["s0: 30 of 30 examples"]


@pytest.mark.parametrize("read, kept, dropped, told", [
    (26, 123, {}, "123 examples, made of 26"),
    (26, 20, {"filter_length": 40}, "20 examples, made of 26 (dropped: filter_length: 40)"),
    (26, 20, {"filter_length": 6}, "20 of 26 examples (dropped: filter_length: 6)")])
def test_examples_of_an_op_that_makes_several_are_told_as_such(read, kept, dropped, told,
                                                               monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda line, *args: lines.append(line % args))
  prepared_lib.tell_kept("s0", read, kept, dropped)
  assert lines == [f"s0: {told}"]


def test_a_source_without_examples_left_is_named():
  with pytest.raises(DataError) as e:
    prepared_of(2, ops=(Clean(), Tokenize(), FilterLength(min_length=5)))
  assert str(e.value) == "s0: data.ops dropped all of its 2 examples (filter_length: 2)"


def test_fields_that_no_layout_lists_are_not_kept():
  layout = Pack(fields=("tgt",), lengths=(20,))
  prepared = prepared_of(30, layout=layout)
  assert prepared.values.keys() == {"tgt"}
  batch = stream_of(prepared, layout).batch(0)
  assert batch.keys() == {"tgt", "tgt_segment_ids", "tgt_positions", "ids"}


def test_texts_are_what_the_ops_before_tokenize_leave(monkeypatch):
  monkeypatch.setattr(prepared_lib, "CHUNK", 2)
  ops = [Clean(), Tokenize(), FilterLength(max_length=1)]
  source = ListSource("s0", 3)
  assert list(texts([source], ops, ("src", "tgt"))) == [
      "s0 0", "0", "s0 1 s", "1 t t t t t t t", "s0 2 s s", "2 t"]
  assert list(texts([source, source], ops, ("tgt",))) == (
      ["0", "1 t t t t t t t", "2 t"] * 2)
