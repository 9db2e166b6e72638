"""Batches by number: the same for any readers, resumed anywhere, in training and evaluation."""

import collections
import dataclasses
import itertools
import multiprocessing
import pickle

import numpy as np
import pytest

from jtx.data.ops.text import Tokenize
from jtx.data.order import Order
from jtx.data.packing import Pad
from jtx.data.pipeline import eval_batches, iterate
from jtx.data.prepared import prepare
from jtx.errors import ConfigError, DataError
from tests.data.streams import (
    PACK, PAD, STEPS, TOKENIZERS, Rows, Words, assert_same, assert_same_all, ids_of, prepared_of,
    recipe_of, stream_of)
from tests.helpers import one_fast


@pytest.fixture(scope="module")
def prepared():
  return prepared_of(97, 41)


@pytest.fixture(scope="module")
def batches(prepared):
  """STEPS batches of a mixture, over several windows and epochs."""
  stream = stream_of(prepared, counts=[70, 68])
  batches = [stream.batch(step) for step in range(STEPS)]
  assert stream.cursor(STEPS)[0] * 50 > 138  # the windows end in the second epoch or later
  return batches


def test_epochs(prepared):
  """Rows of one example each are counted exactly, and packed ones at the ends of windows."""
  stream = stream_of(prepared, PAD, counts=[70, 68])
  assert [stream.epochs(step) for step in range(40)] == pytest.approx(
      [step * 8 / 138 for step in range(40)])
  packed = stream_of(prepared, counts=[70, 68])
  epochs = [packed.epochs(step) for step in range(STEPS)]
  assert epochs[0] == 0 and epochs == sorted(epochs)
  for step in range(1, STEPS):
    window, first = packed._locate(step * 8 - 1)
    share = (step * 8 - first) / len(packed.plan(window).rows)
    assert epochs[step] == pytest.approx((window + share) * 50 / 138)
  resumed = stream_of(prepared, counts=[70, 68], cursor=packed.cursor(STEPS - 3))
  assert [resumed.epochs(step) for step in range(STEPS - 2, STEPS)] == epochs[-2:]


# ----------------------------------------------------------------- the same stream for all


@pytest.mark.parametrize("readers", [
    [range(8)],
    [range(0, 8, 2), range(1, 8, 2)],
    [range(4), range(4, 8)],
    [[0, 1, 4, 5], [2, 3, 6, 7]],
    [range(i, 8, 4) for i in range(4)],
    [range(2 * i, 2 * i + 2) for i in range(4)],
    [np.array([7, 0]), np.array([3, 5]), np.array([1, 2]), np.array([6, 4])],
], ids=["1", "2 interleaved", "2 contiguous", "2 in blocks", "4 interleaved", "4 contiguous",
        "4 in any order"])
def test_any_number_of_readers_reads_the_same_batches(prepared, batches, readers):
  streams = [stream_of(prepared, counts=[70, 68], rows=rows) for rows in readers]
  for step in range(STEPS):
    joined = {k: np.full_like(v, -7) for k, v in batches[step].items()}
    for rows, stream in zip(readers, streams):
      for key, value in stream.batch(step).items():
        assert len(value) == 8 // len(readers)
        joined[key][np.asarray(rows)] = value
    assert_same(joined, batches[step])


@pytest.mark.parametrize("threads, workers", [
    (1, 0), (3, 0), (2, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_threads_and_workers_read_the_same_batches(prepared, batches, threads, workers):
  stream = stream_of(prepared, counts=[70, 68])
  assert_same_all(iterate(stream, 0, STEPS, threads=threads, workers=workers), batches)


@pytest.mark.parametrize("workers", one_fast(0, 2))
def test_reading_ahead_from_a_cursor_by_one_of_several_readers(prepared, batches, workers):
  cursor = stream_of(prepared, counts=[70, 68]).cursor(9)
  stream = stream_of(prepared, counts=[70, 68], rows=[1, 2, 7], cursor=cursor)
  expected = [{k: v[[1, 2, 7]] for k, v in b.items()} for b in batches[9:]]
  assert_same_all(iterate(stream, 9, STEPS, threads=2, workers=workers), expected)


def test_resume_at_any_step_with_and_without_cursor(prepared, batches):
  whole = stream_of(prepared, counts=[70, 68])
  for step in range(STEPS):
    cursor = whole.cursor(step)
    for edit in ({}, {"cursor": cursor}):
      stream = stream_of(prepared, counts=[70, 68], **edit)
      assert stream.cursor(step) == cursor
      assert_same(stream.batch(step), batches[step])
      assert_same(stream.batch(STEPS - 1), batches[STEPS - 1])


def test_batches_before_the_cursor_are_right_too(prepared, batches):
  stream = stream_of(prepared, counts=[70, 68])
  stream = stream_of(prepared, counts=[70, 68], cursor=stream.cursor(STEPS - 1))
  for step in (STEPS - 1, 2, 7, 0, STEPS - 1):
    assert_same(stream.batch(step), batches[step])


def test_the_cursor_saves_planning(prepared):
  stream = stream_of(prepared, counts=[70, 68])
  cursor = stream.cursor(STEPS)
  planned = []
  stream = stream_of(prepared, counts=[70, 68], cursor=cursor, rows=[0])
  plan = stream.plan
  stream.plan = lambda w: planned.append(w) or plan(w)
  stream.batch(STEPS)
  assert set(planned) == {cursor[0]} and cursor[0] > 2


def test_order_of_reading_and_pickling_do_not_matter(prepared, batches):
  stream = stream_of(prepared, counts=[70, 68])
  for step in np.random.default_rng(0).permutation(STEPS):
    assert_same(stream.batch(int(step)), batches[step])
    stream = pickle.loads(pickle.dumps(stream))


def test_iterate_ends_at_stop_and_can_be_closed_early(prepared, batches):
  stream = stream_of(prepared, counts=[70, 68])
  assert list(iterate(stream, 5, 5, threads=2, workers=0)) == []
  assert list(iterate(stream, 6, 5, threads=2, workers=0)) == []
  iterator = iterate(stream, 3, STEPS, threads=2, workers=0)
  assert_same(next(iterator), batches[3])
  iterator.close()
  assert_same_all(iterate(stream, STEPS - 1, STEPS, threads=2, workers=0), batches[-1:])


def test_closing_ends_the_workers(prepared, batches):
  before = set(multiprocessing.active_children())
  iterator = iterate(stream_of(prepared, counts=[70, 68]), 0, 10**6, threads=1, workers=1)
  assert_same(next(iterator), batches[0])
  iterator.close()
  for child in set(multiprocessing.active_children()) - before:
    child.join(20)
    assert not child.is_alive()


def test_a_worker_that_is_ended_from_outside(prepared, batches):
  before = set(multiprocessing.active_children())
  iterator = iterate(stream_of(prepared, counts=[70, 68]), 0, 10**6, threads=1, workers=1)
  assert_same(next(iterator), batches[0])
  for child in set(multiprocessing.active_children()) - before:
    child.kill()
  with pytest.raises(DataError, match=r"workers=1: .* from outside.* exit code -9\); the same"):
    for _ in iterator:
      pass


# --------------------------------------------------------------------- what the rows hold


def test_rows_hold_the_tokens_of_their_ids(prepared, batches):
  index = {int(i): n for n, i in enumerate(prepared.ids)}
  for batch in batches:
    assert batch["src"].shape == (8, 24) and batch["tgt"].shape == (8, 20)
    assert batch["ids"].shape == (8, 4) and batch["ids"].dtype == np.int64
    for r, ids in enumerate(batch["ids"]):
      for segment, i in enumerate(ids[ids >= 0], 1):
        source, number = (0, i) if i < 97 else (1, i - 97)
        words = f"s{source} {number} " + "s " * (number % 11)
        expected = [*Words().encode_batch([words])[0], Words.eos_id]
        here = batch["src_segment_ids"][r] == segment
        assert batch["src"][r][here].tolist() == expected
        assert batch["src_positions"][r][here].tolist() == list(range(len(expected)))
        example = prepared.example(index[int(i)])
        assert example["src"].tolist() == expected
        assert batch["tgt"][r][batch["tgt_segment_ids"][r] == segment].tolist() == (
            example["tgt"].tolist())


def test_seed_changes_the_order_and_nothing_else_does(prepared, batches):
  assert ids_of([stream_of(prepared, counts=[70, 68], seed=6).batch(0)]) != ids_of(batches[:1])
  again = stream_of(prepared_of(97, 41), counts=[70, 68])
  assert_same(again.batch(3), batches[3])


def test_each_example_once_an_epoch():
  prepared = prepared_of(60)
  stream = stream_of(prepared, window=12, batch_size=1)  # an epoch is five windows
  epochs = [[], [], []]
  for step in itertools.count():
    epoch = stream.cursor(step)[0] // 5
    if epoch == 3:
      break
    epochs[epoch] += ids_of([stream.batch(step)])
  assert all(sorted(ids) == list(range(60)) for ids in epochs)
  assert len({tuple(ids) for ids in epochs}) == 3


@pytest.mark.parametrize("window", [8, 7])
def test_windows_may_cross_the_end_of_an_epoch(window):
  stream = stream_of(prepared_of(40, layout=PAD), PAD, window=window, batch_size=4)
  ids = ids_of([stream.batch(step) for step in range(70)])
  assert collections.Counter(ids) == {i: 7 for i in range(40)}
  order = Order([40], [40], 5).examples(0, 280).tolist()
  for start in range(0, 280, window):  # a window's rows are shuffled among themselves
    assert sorted(ids[start:start + window]) == sorted(order[start:start + window])
  assert ids != order
  shuffles = {tuple(order[start:start + window].index(i) for i in ids[start:start + window])
              for start in range(0, 280, window)}
  assert len(shuffles) > 200 / window  # each window in another way


def test_a_batch_may_span_many_windows():
  prepared = prepared_of(30)
  stream = stream_of(prepared, window=2, batch_size=32)
  ids = ids_of([stream.batch(step) for step in range(4)])
  whole = Order(prepared.sizes, prepared.sizes, 5).examples(0, len(ids))
  assert collections.Counter(ids) == collections.Counter(whole.tolist())


def test_window_must_be_positive(prepared):
  with pytest.raises(ConfigError, match="data.window=-1 must be positive, or 0 for an epoch"):
    stream_of(prepared, window=-1)


def test_window_0_is_an_epoch():
  """Each epoch has every example once, wherever its batches begin."""
  stream = stream_of(prepared_of(30, layout=PAD), PAD, window=0, batch_size=4)
  ids = ids_of(stream.batch(step) for step in range(23))
  for epoch in range(3):
    assert sorted(ids[30 * epoch:30 * (epoch + 1)]) == list(range(30))
  assert ids[:30] != ids[30:60]


def texts_of_many_lengths(layout):
  """300 examples of 1 to 24 tokens in the first field, and 1 in the second."""
  lengths = np.random.default_rng(0).integers(1, 25, 300)
  source = Rows({"src": " ".join(["1"] * n), "tgt": "1"} for n in lengths)
  prepared = prepare([source], recipe_of(layout, [Tokenize()]), TOKENIZERS)
  return prepared, lengths + 1  # and an end token


@pytest.mark.parametrize("batch_size", [8, 7])
def test_group_puts_similar_lengths_into_a_batch(batch_size):
  layout = Pad(("src", "tgt"), (32, 8), group=True)
  prepared, lengths = texts_of_many_lengths(layout)
  stream = stream_of(prepared, layout, window=0, batch_size=batch_size)
  number = 3 * 300 // batch_size
  rows = [ids_of([stream.batch(step)]) for step in range(number)]
  spreads = [np.ptp(lengths[row]) for row in rows]
  # But for the batches at the ends of an epoch, a batch has a few neighbouring lengths.
  assert sum(spread > 3 for spread in spreads) <= 4
  # Every epoch has all examples, and other batches of them in another order.
  flat = [i for row in rows for i in row]
  assert sorted(flat[:300]) == sorted(flat[300:600]) == list(range(300))
  first = [int(np.mean(lengths[row])) for row in rows[:30]]
  assert first != sorted(first)
  assert not {frozenset(row) for row in rows[:30]} & {frozenset(row) for row in rows[38:68]}
  again = stream_of(prepared, layout, window=0, batch_size=batch_size, cursor=stream.cursor(50))
  assert_same(again.batch(50), stream.batch(50))


@pytest.mark.parametrize("per_doubling, widths", [(2, (16, 24, 32)), (4, (16, 20, 24, 28))])
def test_trim_cuts_rows_to_a_bucket_of_the_whole_batch(per_doubling, widths):
  layout = Pad(("src", "tgt"), (32, 8), trim=True, group=True, per_doubling=per_doubling)
  prepared, lengths = texts_of_many_lengths(layout)
  halves = [stream_of(prepared, layout, window=0, rows=rows) for rows in (range(4), range(4, 8))]
  seen = set()
  for step in range(38):
    parts = [half.batch(step) for half in halves]
    longest = max(lengths[ids_of(parts)])
    width = {part["src"].shape[1] for part in parts}
    assert width == {min(w for w in widths if longest <= w)}
    seen |= width
    assert parts[0]["tgt"].shape == (4, 8)  # already shorter than any bucket
    for part in parts:
      assert ((part["src_segment_ids"] > 0).sum(1) == lengths[part["ids"][:, 0]]).all()
  assert seen == set(widths)


def test_trimmed_evaluation_has_every_example_once():
  layout = Pad(("src", "tgt"), (32, 8), trim=True)
  prepared, _ = texts_of_many_lengths(layout)
  batches = list(eval_batches(prepared, recipe_of(layout), 7))
  assert ids_of(batches) == list(range(300))


@pytest.mark.parametrize("window", [0, 50])
@pytest.mark.parametrize("trim, widths", [(False, [128]), (True, [48, 56, 64, 80])])
def test_rows_of_several_have_the_examples_of_as_many_rows_of_one(window, trim, widths):
  """The same ones in each batch, for any reader and from any step, and next to no padding."""
  alone, together = (Pad(("src", "tgt"), (32, 8), trim=trim, per_doubling=4, max_segments=n)
                     for n in (1, 4))
  prepared, lengths = texts_of_many_lengths(alone)
  one = stream_of(prepared, alone, window=window, batch_size=24)
  several = stream_of(prepared, together, window=window, batch_size=6)
  halves = [stream_of(prepared, together, window=window, batch_size=6, rows=rows,
                      cursor=several.cursor(20)) for rows in (range(3), range(3, 6))]
  epochs = []
  for step in range(28):  # two epochs, the first of which ends within a batch
    batch = several.batch(step)
    assert sorted(ids_of([batch])) == sorted(ids_of([one.batch(step)]))
    assert batch["ids"].shape == (6, 4) and (batch["ids"] >= 0).all()
    used = (batch["src_segment_ids"] > 0).sum(1)
    assert (used == lengths[batch["ids"]].sum(1)).all() and used.min() > 0.8 * used.max()
    assert batch["src"].shape[1] == min(width for width in widths if used.max() <= width)
    epochs.append(several.epochs(step))
    joined = [half.batch(step) for half in halves]
    assert_same({key: np.concatenate([part[key] for part in joined]) for key in batch}, batch)
  assert epochs == [one.epochs(step) for step in range(28)]


# ------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("layout, batch_size", [
    (PACK, 8), (PAD, 8), (PAD, 69), (PACK, 1),
    (dataclasses.replace(PAD, max_segments=3), 4), (dataclasses.replace(PAD, max_segments=50), 1)])
def test_evaluation_has_every_example_once(prepared, layout, batch_size):
  batches = list(eval_batches(prepared, recipe_of(layout), batch_size))
  assert all(len(b["ids"]) == batch_size for b in batches)
  ids = ids_of(batches)
  assert sorted(ids) == list(range(138))
  if layout is PAD:
    assert ids == list(range(138))
  rows = np.concatenate([b["ids"][:, 0] for b in batches])
  used = (rows >= 0).sum()
  assert (rows[:used] >= 0).all() and len(rows) - used < batch_size  # padding is at the end only
  tokens = sum(int((b["tgt_segment_ids"] > 0).sum()) for b in batches)
  assert tokens == len(prepared.values["tgt"])
  for key in ("src", "tgt", "src_segment_ids", "tgt_segment_ids", "src_positions", "tgt_positions"):
    assert not batches[-1][key][batches[-1]["ids"][:, 0] < 0].any()


def test_evaluation_pads_its_last_batch():
  prepared = prepared_of(10, layout=PAD)
  batches = list(eval_batches(prepared, recipe_of(PAD), 4))
  assert [b["ids"][:, 0].tolist() for b in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, -1, -1]]


def test_evaluation_readers_share_the_batches(prepared):
  for layout in (PACK, PAD):
    whole = list(eval_batches(prepared, recipe_of(layout), 8))
    for rows in ([0, 3, 6], [7, 1], range(4, 8)):
      expected = [{k: v[np.asarray(rows)] for k, v in b.items()} for b in whole]
      assert_same_all(eval_batches(prepared, recipe_of(layout), 8, rows), expected)


@pytest.mark.parametrize("layout", [PACK, PAD, dataclasses.replace(PAD, max_segments=3)])
def test_rows_beyond_a_batch_are_padding(prepared, layout):
  """So that devices which do not divide a batch have the same examples in each."""
  for whole, filled in zip(eval_batches(prepared, recipe_of(layout), 6),
                           eval_batches(prepared, recipe_of(layout), 6, range(8)), strict=True):
    assert_same({key: rows[:6] for key, rows in filled.items()}, whole)
    padding = {key: rows[6:] for key, rows in filled.items()}
    assert (padding.pop("ids") == -1).all() and not any(rows.any() for rows in padding.values())
