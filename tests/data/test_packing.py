"""First fit keeps its promises for any lengths; rows hold what the plan says."""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest

from jtx.data.op import Column
from jtx.data.packing import Pack, Pad, assemble, folded
from jtx.errors import ConfigError


@st.composite
def problems(draw):
  """A Pack of one to three fields, and lengths that fit a row."""
  sizes = draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
  layout = Pack(fields=tuple("abc"[:len(sizes)]), lengths=tuple(sizes),
                max_segments=draw(st.integers(1, 6)), open_rows=draw(st.integers(1, 5)))
  examples = draw(st.lists(st.tuples(*(st.integers(0, n) for n in sizes)), max_size=60))
  return layout, np.array(examples, np.int64).reshape(-1, len(sizes))


def first_fit(layout, lengths):
  """The plan by the definition, with plain lists."""
  rows, open_rows = [], []
  for i, need in enumerate(lengths):
    row = next((r for r in open_rows if all(lengths[r].sum(0) + need <= layout.lengths)), None)
    if row is None:
      row = []
      rows.append(row)
      open_rows.append(row)
    row.append(i)
    full = any(lengths[row].sum(0) == layout.lengths) or len(row) == layout.max_segments
    if full:
      open_rows = [r for r in open_rows if r is not row]
    open_rows = open_rows[-layout.open_rows:]
  return rows


@given(problems())
@settings(deadline=None, max_examples=300, derandomize=True)
def test_pack_is_first_fit_over_the_open_rows(problem):
  layout, lengths = problem
  assert layout.plan(lengths) == first_fit(layout, lengths)


@given(problems())
@settings(deadline=None, derandomize=True)
def test_pack_places_every_example_once_within_the_limits(problem):
  layout, lengths = problem
  plan = layout.plan(lengths)
  assert sorted(i for row in plan for i in row) == list(range(len(lengths)))
  for row in plan:
    assert row == sorted(row) and 1 <= len(row) <= layout.max_segments
    assert (lengths[row].sum(0) <= layout.lengths).all()


@given(problems(), st.randoms(use_true_random=False))
@settings(deadline=None, derandomize=True)
def test_assembled_rows_hold_every_token_once(problem, random):
  layout, lengths = problem
  examples = [{f: np.array([random.randrange(1, 1000) for _ in range(n)], np.int32)
               for f, n in zip(layout.fields, row)} for row in lengths]
  plan = layout.plan(lengths)
  columns = dict.fromkeys(layout.fields, Column("tokens"))
  batch = assemble(layout, columns, [[examples[i] for i in row] for row in plan],
                   [[100 + i for i in row] for row in plan])
  assert batch["ids"].shape == (len(plan), layout.max_segments)
  for r, row in enumerate(plan):
    unused = layout.max_segments - len(row)
    assert batch["ids"][r].tolist() == [100 + i for i in row] + [-1] * unused
    for f, length in zip(layout.fields, layout.lengths):
      segments = batch[f"{f}_segment_ids"][r]
      for number, i in enumerate(row, 1):
        here = segments == number
        np.testing.assert_array_equal(batch[f][r][here], examples[i][f])
        np.testing.assert_array_equal(batch[f"{f}_positions"][r][here], np.arange(here.sum()))
      used = sum(len(examples[i][f]) for i in row)
      assert (segments[:used] > 0).all() and batch[f].shape[1] == length
      for key in (f, f"{f}_segment_ids", f"{f}_positions"):
        assert not batch[key][r, used:].any()


def test_pack_by_hand():
  layout = Pack(fields=("src", "tgt"), lengths=(6, 8), max_segments=3)
  lengths = np.array([[4, 2], [3, 7], [2, 1], [1, 1], [2, 1], [1, 5]])
  # 0 opens a row and 1 does not fit; 2 fills src of the first row, so 3 goes to the second,
  # whose tgt is then full.
  assert layout.plan(lengths) == [[0, 2], [1, 3], [4, 5]]


@given(st.data())
@settings(deadline=None, max_examples=200, derandomize=True)
def test_folded_rows_have_every_example_once_and_are_of_about_equal_length(data):
  rows, most, fields = (data.draw(st.integers(1, n)) for n in (6, 5, 3))
  number = data.draw(st.integers(0, rows * most))
  lengths = np.array(data.draw(st.lists(
      st.tuples(*[st.integers(0, 40)] * fields), min_size=number, max_size=number)),
                     np.int64).reshape(number, fields)
  plan = folded(lengths, rows, most)
  assert len(plan) == rows and sorted(i for row in plan for i in row) == list(range(number))
  assert all(row == sorted(row) and len(row) <= most for row in plan)
  if fields == 1 and number:
    # A row that has room for another example is not shorter than a longer one by more than
    # what that one got last, its shortest.
    totals = [int(lengths[row].sum()) for row in plan]
    for row, total in zip(plan, totals):
      if len(row) < most:
        assert all(total >= other - lengths[them].min() for them, other in zip(plan, totals)
                   if them)


def test_folded_by_hand():
  # 9, 8 and 7 open the rows; 6 joins 7, 5 joins 8, 4 joins 9, and 3 goes to the shortest, 9 + 4,
  # which is the first of three alike.
  lengths = np.array([[4], [7], [3], [9], [6], [8], [5]])
  assert folded(lengths, 3, 3) == [[0, 2, 3], [5, 6], [1, 4]]
  assert folded(lengths, 4, 2) == [[3], [2, 5], [0, 1], [4, 6]]
  # A row is as long as its longest field: 4 and 4 are shorter than 5 and 0.
  assert folded(np.array([[5, 0], [4, 4], [1, 1]]), 2, 2) == [[0], [1, 2]]


def test_a_row_of_several_is_as_long_as_they_may_be():
  layout = Pad(("a", "b"), (10, 6), max_segments=3)
  assert layout.fit(np.array([[7, 2]])).lengths == layout.fit(None).lengths == (30, 18)
  assert Pad(("a", "b"), (10, 6), trim=True, max_segments=3).fit(
      np.array([[3, 0], [2, 17]])).lengths == (24, 18)


def test_max_segments_closes_a_row():
  ones = np.ones((7, 1), int)
  layout = Pack(fields=("text",), lengths=(100,), max_segments=3)
  assert layout.plan(ones) == [[0, 1, 2], [3, 4, 5], [6]]


def test_only_the_last_open_rows_are_looked_at():
  lengths = np.array([[6], [7], [8], [2], [4]])
  row = {"fields": ("text",), "lengths": (10,)}
  assert Pack(**row, open_rows=3).plan(lengths) == [[0, 3], [1], [2], [4]]
  assert Pack(**row, open_rows=2).plan(lengths) == [[0], [1, 3], [2], [4]]
  assert Pack(**row, open_rows=1).plan(lengths) == [[0], [1], [2, 3], [4]]


def test_rows_are_over_nine_tenths_full():
  rng = np.random.default_rng(0)
  lengths = np.clip(rng.lognormal(3.2, 0.6, (8000, 1)).astype(int), 1, 128)
  layout = Pack(fields=("text",), lengths=(128,))
  assert lengths.sum() / (128 * len(layout.plan(lengths))) > 0.95

  # Pairs: a row closes when either field is full, here a little before the other.
  pairs = np.concatenate([lengths, np.clip(lengths * rng.normal(1, 0.15, (8000, 1)), 1, 128)], 1)
  pairs = pairs.astype(int)
  fill = pairs.sum(0) / (128 * len(Pack(lengths=(128, 128)).plan(pairs)))
  assert (fill > 0.9).all()


def test_pad_is_one_example_a_row():
  layout = Pad(fields=("src", "tgt"), lengths=(3, 2))
  assert layout.plan(np.ones((3, 2), int)) == [[0], [1], [2]]
  columns = dict.fromkeys(("src", "tgt"), Column("tokens"))
  batch = assemble(layout, columns, [[{"src": np.array([5, 6]), "tgt": np.array([7])}], []],
                   [[40], []])
  expected = {
      "src": [[5, 6, 0], [0, 0, 0]],
      "src_segment_ids": [[1, 1, 0], [0, 0, 0]],
      "src_positions": [[0, 1, 0], [0, 0, 0]],
      "tgt": [[7, 0], [0, 0]],
      "tgt_segment_ids": [[1, 0], [0, 0]],
      "tgt_positions": [[0, 0], [0, 0]],
      "ids": [[40], [-1]],
  }
  assert {k: v.tolist() for k, v in batch.items()} == expected
  assert {k: v.dtype for k, v in batch.items()} == {
      k: np.dtype(np.int64 if k == "ids" else np.int32) for k in expected}


@pytest.mark.parametrize("layout", [Pack, Pad])
@pytest.mark.parametrize("lengths", [(128,), (128, 128, 128), ()])
def test_a_length_for_each_field(layout, lengths):
  with pytest.raises(ConfigError) as e:
    layout(lengths=lengths)
  assert str(e.value) == (f"op {layout.__name__.lower()}: lengths={lengths} must give a"
                          " length for each of the fields src, tgt")


def test_what_is_aligned_with_tokens_and_what_an_example_has_one_of():
  layout = Pack(fields=("text",), lengths=(6,), max_segments=3)
  columns = {"text": Column("tokens"), "tags": Column("aligned:text"),
             "score": Column("example", "float32")}
  examples = [{"text": [5, 6], "tags": [-1, 2], "score": 0.5},
              {"text": [7, 8, 9], "tags": [3, -1, 4], "score": 1.5}]
  batch = assemble(layout, columns, [examples, examples[1:]], [[40, 41], [41]])
  assert batch["text"].tolist() == [[5, 6, 7, 8, 9, 0], [7, 8, 9, 0, 0, 0]]
  assert batch["tags"].tolist() == [[-1, 2, 3, -1, 4, 0], [3, -1, 4, 0, 0, 0]]
  assert batch["text_segment_ids"].tolist() == [[1, 1, 2, 2, 2, 0], [1, 1, 1, 0, 0, 0]]
  assert batch["score"].tolist() == [[0.5, 1.5, 0], [1.5, 0, 0]]
  assert batch["score"].dtype == np.float32 and batch["tags"].dtype == np.int32
