"""The stream of batches is a function of (seed, step), whoever reads it and from where."""

import collections
import itertools
import multiprocessing
import pickle

from absl import logging
import numpy as np
import pytest

from jtx.config import section
from jtx.data import order, pipeline
from jtx.data import prepared as prepared_lib
from jtx.data.ops.masking import Mask
from jtx.data.ops.pretrain import DocSentences, FullSentences, SegmentPair, SentencePair
from jtx.data.ops.registry import OPS
from jtx.data.ops.sentences import EncodeSentences, SplitSentences
from jtx.data.ops.text import Clean, FilterLength, Tokenize
from jtx.data.order import Order, mixture_sizes
from jtx.data.packing import Pack, Pad
from jtx.data.pipeline import Phases, Stream, eval_batches, example_batch, iterate
from jtx.data.prepared import prepare, texts
from jtx.data.recipes import Recipe, build_ops
from jtx.data.tokenizers.kinds import wordpiece
from jtx.errors import ConfigError, DataError
from tests.helpers import one_fast

PACK = Pack(lengths=(24, 20), max_segments=4, open_rows=6)
PAD = Pad(lengths=(24, 20))
STEPS = 13


class ListSource:
  """Pairs of `size` examples whose words say where they come from."""

  def __init__(self, name, size):
    self.name, self.size = name, size

  def __len__(self):
    return self.size

  def __getitem__(self, i):
    return {"src": f"{self.name} {i} " + "s " * (i % 11), "tgt": f"{i} " + "t " * (i * 7 % 13)}


class Rows(list):
  name = "rows"


class Words:
  """A tokenizer: a number is its own id plus 10, other words are 3 to 9."""
  eos_id = 2

  def encode_batch(self, texts):
    ids = [[int(w) + 10 if w.isdigit() else 3 + ord(w[0]) % 7 for w in t.split()] for t in texts]
    return [np.array(i, np.int32) for i in ids]


TOKENIZERS = {"src": Words(), "tgt": Words()}


def recipe_of(layout, ops=()):
  return Recipe(list(ops), None, layout, [])


def prepared_of(*sizes, layout=PACK, ops=(Clean(), Tokenize())):
  sources = [ListSource(f"s{i}", n) for i, n in enumerate(sizes)]
  return prepare(sources, recipe_of(layout, ops), TOKENIZERS)


def stream_of(prepared, layout=PACK, counts=None, **edits):
  options = {"seed": 5, "batch_size": 8, "window": 50, "counts": counts or prepared.sizes}
  return Stream(prepared, recipe_of(layout), **options | edits)


def assert_same(a, b):
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].dtype == b[key].dtype
    np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def assert_same_all(batches, expected):
  batches = list(batches)
  assert len(batches) == len(expected)
  for a, b in zip(batches, expected):
    assert_same(a, b)


def ids_of(batches):
  """Example numbers in the order of the rows, padding left out."""
  ids = np.concatenate([b["ids"].reshape(-1) for b in batches])
  return ids[ids >= 0].tolist()


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


def test_trim_cuts_rows_to_a_bucket_of_the_whole_batch():
  layout = Pad(("src", "tgt"), (32, 8), trim=True, group=True)
  prepared, lengths = texts_of_many_lengths(layout)
  halves = [stream_of(prepared, layout, window=0, rows=rows) for rows in (range(4), range(4, 8))]
  seen = set()
  for step in range(38):
    parts = [half.batch(step) for half in halves]
    longest = max(lengths[ids_of(parts)])
    width = {part["src"].shape[1] for part in parts}
    assert width == {16 if longest <= 16 else 24 if longest <= 24 else 32}
    seen |= width
    assert parts[0]["tgt"].shape == (4, 8)  # already shorter than any bucket
    for part in parts:
      assert ((part["src_segment_ids"] > 0).sum(1) == lengths[part["ids"][:, 0]]).all()
  assert seen == {16, 24, 32}


def test_trimmed_evaluation_has_every_example_once():
  layout = Pad(("src", "tgt"), (32, 8), trim=True)
  prepared, _ = texts_of_many_lengths(layout)
  batches = list(eval_batches(prepared, recipe_of(layout), 7))
  assert ids_of(batches) == list(range(300))


# --------------------------------------------------------------------------------- mixtures


def test_order_has_exact_counts_every_epoch():
  order = Order([10, 30, 4], [14, 10, 20], 3)
  for epoch in range(6):
    examples = order.examples(44 * epoch, 44 * (epoch + 1))
    assert [((examples >= a) & (examples < b)).sum() for a, b in ((0, 10), (10, 40), (40, 44))] == (
        [14, 10, 20])


def test_a_source_is_gone_through_before_it_repeats():
  order = Order([10, 30, 4], [14, 10, 20], 3)
  examples = order.examples(0, 44 * 15)
  for low, size, count in ((0, 10, 14), (10, 30, 10), (40, 4, 20)):
    seen = collections.Counter(examples[(examples >= low) & (examples < low + size)].tolist())
    assert set(seen) == set(range(low, low + size))
    assert sum(seen.values()) == 15 * count
    assert max(seen.values()) - min(seen.values()) <= 1


def test_order_is_random_access_and_epochs_differ():
  order = Order([10, 30], [25, 15], 3)
  whole = order.examples(0, 200)
  for start, stop in ((0, 1), (39, 41), (35, 165), (40, 80), (199, 200)):
    part = Order([10, 30], [25, 15], 3).examples(start, stop)
    np.testing.assert_array_equal(part, whole[start:stop])
  assert len({tuple(whole[i:i + 40]) for i in range(0, 200, 40)}) == 5
  assert whole.tolist() != Order([10, 30], [25, 15], 4).examples(0, 200).tolist()


def test_sources_are_mixed_within_an_epoch_and_otherwise_in_the_next():
  first, second = Order([500, 500], [500, 500], 1).examples(0, 2000).reshape(2, 1000) < 500
  for half in (first[:500], first[500:], first == second):
    assert abs(half.mean() - 0.5) < 0.07  # three standard deviations of 500


def test_each_round_through_a_source_takes_another_order():
  order = Order([200, 1], [20, 180], 1)  # ten epochs are a round
  parts = [order.examples(200 * epoch, 200 * (epoch + 1)) for epoch in range(20)]
  drawn = [frozenset(part[part < 200].tolist()) for part in parts]
  assert frozenset(range(20)) not in drawn
  assert not set(drawn[:10]) & set(drawn[10:])


def test_a_source_of_weight_zero_is_left_out():
  examples = Order([5, 5], [10, 0], 0).examples(0, 30)
  assert collections.Counter(examples.tolist()) == {i: 6 for i in range(5)}


def test_the_mixture_reaches_the_rows():
  prepared = prepared_of(20, 60, layout=PAD)
  counts = mixture_sizes(prepared.sizes, (3.0, 1.0), None)
  assert counts == [60, 20]
  stream = stream_of(prepared, PAD, counts=counts, window=80, batch_size=8)
  for epoch in range(3):
    ids = ids_of([stream.batch(step) for step in range(10 * epoch, 10 * (epoch + 1))])
    seen = collections.Counter(ids)
    assert [seen[i] for i in range(20)] == [3] * 20
    assert sum(seen[i] for i in range(20, 80)) == 20 and max(seen[i] for i in range(20, 80)) == 1


@pytest.mark.parametrize("sizes, weights, smoothing, expected", [
    ([10, 30], (), None, [10, 30]),
    ([10, 30], (), 1.0, [10, 30]),
    ([10, 30], (), 0.0, [20, 20]),
    ([10, 30], (1.0, 1.0), None, [20, 20]),
    ([10, 30], (0.25, 0.75), None, [10, 30]),
    ([10, 30], (0, 2), None, [0, 40]),
    ([1, 1, 1], (2, 1, 1), None, [1, 1, 1]),  # of 1.5, 0.75, 0.75 the largest remainders go up
    ([5], (), 0.3, [5]),
    # 1000^0.7 = 125.89, 100^0.7 = 25.12, 10^0.7 = 5.01: of 1110, 895.4, 178.7 and 35.7
    ([1000, 100, 10], (), 0.7, [895, 179, 36]),
])
def test_mixture_sizes(sizes, weights, smoothing, expected):
  assert mixture_sizes(sizes, weights, smoothing) == expected


def test_mixture_sizes_follow_the_smoothing_formula():
  sizes = [4_500_000, 200_000, 31_014, 7]
  for s in (0.1, 0.3, 0.5, 0.7, 0.99):
    counts = mixture_sizes(sizes, (), s)
    exact = np.array(sizes, float) ** s
    exact *= sum(sizes) / exact.sum()
    assert sum(counts) == sum(sizes)
    assert (np.abs(counts - exact) < 1).all()


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 1.0, 1.0), (-1.0, 2.0), (0.0, 0.0),
                                     (float("nan"), 1.0), (float("inf"), 1.0)])
def test_bad_weights(weights):
  with pytest.raises(ConfigError) as e:
    mixture_sizes([10, 30], weights, None)
  assert str(e.value) == (
      f"data.weights={weights}: needs a weight of 0 or more for each of the 2 sources")


def test_weights_and_smoothing_exclude_each_other():
  with pytest.raises(ConfigError, match="data.weights and data.smoothing exclude each other"):
    mixture_sizes([10, 30], (1.0, 1.0), 0.7)


# ------------------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("layout, batch_size", [(PACK, 8), (PAD, 8), (PAD, 69), (PACK, 1)])
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


# ------------------------------------------------------------------------------ preparation


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


def configs(*names, **edits):
  return [section(OPS, name, **edits.get(name, {})) for name in names]


def test_build_ops():
  recipe = build_ops(configs("clean", "tokenize", "filter_length", "pack",
                             pack={"lengths": (9, 8)}))
  assert recipe == ([Clean(), Tokenize(), FilterLength()], None, Pack(lengths=(9, 8)), [], ())


TEXT = {"fields": ("text",), "lengths": (24,)}
MAKERS = ("'tokenize', 'label', 'number', 'encode', 'encode_words', 'encode_windows',"
          " 'encode_choices', 'encode_sentences'")


@pytest.mark.parametrize("ops, message", [
    (configs("clean", "tokenize"),
     "data.ops (clean, tokenize): needs one layout, 'pack' or 'pad', or 'images' for"
     " images"),
    (configs("tokenize", "pack", "clean"),
     "data.ops (tokenize, pack, clean): 'clean' does not work on batches, so it stands before the"
     " layout"),
    (configs("tokenize", "pad", "pack"),
     "data.ops (tokenize, pad, pack): needs one layout, 'pack' or 'pad', or 'images' for"
     " images"),
    (configs("clean", "pack"),
     "data.ops (clean, pack): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("tokenize", "tokenize", "pack"),
     "data.ops (tokenize, tokenize, pack): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("filter_length", "tokenize", "pack"),
     "data.ops: 'filter_length' counts tokens, so it stands after 'tokenize'"),
    (configs("tokenize", "pad", tokenize={"fields": ("text",)}),
     "data.ops: 'pad' has fields=('src', 'tgt'), but 'tokenize' makes only ('text',)"),
    (configs("tokenize", "filter_length", "pad", filter_length={"fields": ("source",)}),
     "data.ops: 'filter_length' has fields=('source',), but 'tokenize' makes only ('src', 'tgt')"),
    # Ops of pretraining out of their places.
    (configs("segment_pair", "encode_sentences", "pad"),
     "data.ops (segment_pair, encode_sentences, pad): 'segment_pair' forms examples of documents;"
     " there is one such op at most, right before the layout"),
    (configs("encode_sentences", "doc_sentences", "full_sentences", "pad"),
     "data.ops (encode_sentences, doc_sentences, full_sentences, pad): 'doc_sentences' forms"
     " examples of documents; there is one such op at most, right before the layout"),
    (configs("encode_sentences", "pad", "full_sentences"),
     "data.ops (encode_sentences, pad, full_sentences): 'full_sentences' forms examples of"
     " documents; there is one such op at most, right before the layout"),
    (configs("pad", "encode_sentences"),
     "data.ops (pad, encode_sentences): 'encode_sentences' does not work on batches, so it stands"
     " before the layout"),
    (configs("encode_sentences", "mask", "pad", pad=TEXT),
     "data.ops (encode_sentences, mask, pad): 'mask' works on batches, so it stands after the"
     " layout"),
    (configs("full_sentences", "pad"),
     "data.ops (full_sentences, pad): needs one op that makes tokens, such as " + MAKERS
     + ", before the layout"),
    (configs("encode_sentences", "full_sentences", "pad"),
     "data.ops: 'pad' has fields=('src', 'tgt'), but 'encode_sentences' makes only ('text',)"),
    (configs("encode_sentences", "full_sentences", "pad", pad={**TEXT, "group": True}),
     "data.ops (encode_sentences, full_sentences, pad): group=True is for examples, and"
     " 'full_sentences' fills its rows"),
    (configs("encode", "sentence_pair", "pad", pad=TEXT),
     "data.ops (encode, sentence_pair, pad): 'sentence_pair' needs what 'encode_sentences' makes"),
    (configs("encode", "pad", "mask", pad=TEXT),
     "data.ops (encode, pad, mask): 'mask' needs what 'encode_sentences' makes"),
    (configs("tokenize", "pad", "mask"),
     "data.ops (tokenize, pad, mask): 'mask' needs what 'encode_sentences' makes"),
    (configs("encode_sentences", "pad", "mask", "mask", pad=TEXT),
     "data.ops (encode_sentences, pad, mask, mask): there is one op at most that works on batches"),
])
def test_build_ops_says_what_is_wrong(ops, message):
  with pytest.raises(ConfigError) as e:
    build_ops(ops)
  assert str(e.value) == message


def test_build_ops_names_the_place_of_an_unknown_op():
  config = section(OPS, "clean")
  config.name = "claen"
  with pytest.raises(ConfigError, match=r"data.ops\[1\].name: unknown name 'claen'; did you mean"):
    build_ops([*configs("tokenize"), config, *configs("pack")])


def test_rng_is_a_function_of_the_seed_and_the_path():
  def draw(*args):
    return int(order.rng(*args).bit_generator.random_raw())
  assert draw(1, "window", 2) == draw(1, "window", 2) == 17990685520323583636
  paths = [(1, "window", 2), (2, "window", 2), (1, "epoch", 2), (1, "window", 3),
           (1, "window", 2, 1)]
  assert len({draw(*path) for path in paths}) == len(paths)


# ------------------------------------------------------- documents: formed and masked anew

FORMS = {"full": FullSentences(), "doc": DocSentences(), "segments": SegmentPair(),
         "sentences": SentencePair(), "order": SegmentPair(order=True)}
LAYOUTS = {"pad": Pad(("text",), (24,)), "trim": Pad(("text",), (24,), trim=True),
           "pack": Pack(("text",), (40,), max_segments=4)}


def words_of(number):
  return [f"{a}{b}" for a in "bdfgkl" for b in "aeiou"][number % 30]


@pytest.fixture(scope="module")
def corpus():
  """30 documents of many lengths, with the tokenizer of their words."""
  rng = np.random.default_rng(0)
  source = Rows()
  for n in range(30):
    sentences = [" ".join(words_of(w) for w in rng.integers(0, 30, rng.integers(1, 9)))
                 for _ in range(rng.integers(1, 15))]
    source.append({"text": ".\n".join(sentences) + "."})
  source[7:7] = [{"text": " \r\n"}]  # is dropped
  tokenizer = wordpiece(iter(e["text"] for e in source), vocab_size=200, min_frequency=1, mask=True)
  return source, {"text": tokenizer}


def documents_of(corpus, form=None, layout=LAYOUTS["pad"], alter=(Mask(),)):
  """Prepared documents and the bound recipe."""
  source, tokenizers = corpus
  recipe = Recipe([SplitSentences(), EncodeSentences()], form, layout, list(alter))
  return prepare([source], recipe, tokenizers), recipe.bind(tokenizers)


def document_stream(prepared, recipe, **edits):
  options = {"seed": 5, "batch_size": 8, "window": 7, "counts": prepared.sizes}
  return Stream(prepared, recipe, **options | edits)


@pytest.fixture(scope="module", params=[(f, l) for f in FORMS for l in ("pad", "pack")]
                + [("doc", "trim"), (None, "pack")], ids=str)
def formed(request, corpus):
  """Documents, recipe, and STEPS batches over several windows."""
  name, layout = request.param
  if name is None:  # every document is an example
    prepared, recipe = documents_of(corpus, None, Pack(("text",), (120,), max_segments=3))
  else:
    prepared, recipe = documents_of(corpus, FORMS[name], LAYOUTS[layout])
  stream = document_stream(prepared, recipe)
  batches = [stream.batch(step) for step in range(STEPS)]
  assert stream.cursor(STEPS)[0] > 1
  return prepared, recipe, batches


def test_documents_any_number_of_readers_reads_the_same(formed):
  prepared, recipe, batches = formed
  for readers in ([range(4), range(4, 8)], [[5, 0], [1, 7, 2], [3, 4, 6]]):
    streams = [document_stream(prepared, recipe, rows=rows) for rows in readers]
    for step in range(STEPS):
      joined = {k: np.full_like(v, 99) for k, v in batches[step].items()}
      for rows, stream in zip(readers, streams):
        for key, value in stream.batch(step).items():
          joined[key][np.asarray(rows)] = value
      assert_same(joined, batches[step])


def test_documents_resume_at_any_step_with_and_without_cursor(formed):
  prepared, recipe, batches = formed
  whole = document_stream(prepared, recipe)
  for step in range(STEPS):
    cursor = whole.cursor(step)
    for edit in ({}, {"cursor": cursor}):
      stream = pickle.loads(pickle.dumps(document_stream(prepared, recipe, **edit)))
      assert stream.cursor(step) == cursor
      assert_same(stream.batch(step), batches[step])
      assert_same(stream.batch(STEPS - 1), batches[STEPS - 1])


def test_documents_are_the_same_for_threads_and_as_the_example_says(formed):
  prepared, recipe, batches = formed
  stream = document_stream(prepared, recipe)
  assert_same_all(iterate(stream, 0, STEPS, threads=3, workers=0), batches)
  example = example_batch(recipe, 8)
  assert example.keys() == batches[0].keys() - {"ids"}
  trimmed = getattr(recipe.layout, "trim", False)
  for key, value in example.items():
    assert value.dtype == batches[0][key].dtype and not value[value != -1].any()
    assert value.shape == batches[0][key].shape or trimmed


def test_documents_another_seed_gives_other_batches(formed):
  prepared, recipe, batches = formed
  other = document_stream(prepared, recipe, seed=6).batch(0)
  assert other["text"].tolist() != batches[0]["text"].tolist()


def test_worker_processes_read_the_same_documents(corpus):
  prepared, recipe = documents_of(corpus, SegmentPair())
  stream = document_stream(prepared, recipe)
  expected = [stream.batch(step) for step in range(4)]
  assert_same_all(iterate(stream, 0, 4, threads=1, workers=1), expected)


def unmasked(batch):
  """Rows of a batch, as they were before tokens were hidden."""
  text = batch["text"].copy()
  for r, (at, labels) in enumerate(zip(batch["mlm_positions"], batch["mlm_labels"])):
    text[r, at[labels >= 0]] = labels[labels >= 0]
  return text


def rows_by_content(batches):
  """Of every row that has text: what it was before tokens were hidden -> where they were."""
  return {text[segments > 0].tobytes(): (at.tobytes(), masked.tobytes())
          for batch in batches for text, segments, at, masked in zip(
              unmasked(batch), batch["text_segment_ids"], batch["mlm_positions"], batch["text"])}


def epochs_of(stream, number, windows=1):
  """The rows of whole epochs, in batches of one row."""
  assert stream.batch_size == 1
  epochs = [[] for _ in range(number)]
  for step in itertools.count():
    epoch = stream.cursor(step)[0] // windows
    if epoch == number:
      return epochs
    epochs[epoch].append(stream.batch(step))


def test_epochs_have_the_same_documents_with_other_masks(corpus):
  """doc_sentences makes the same rows in every epoch; what is hidden in them is drawn anew."""
  prepared, recipe = documents_of(corpus, DocSentences())
  epochs = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 3)
  first, second, third = map(rows_by_content, epochs)
  assert first.keys() == second.keys() == third.keys() and len(first) == len(epochs[0]) > 50
  for a, b in ((first, second), (second, third)):
    assert sum(a[row] == b[row] for row in a) < 0.2 * len(a)  # short rows have few places
  orders = [[row.tobytes() for batch in epoch for row in unmasked(batch)] for epoch in epochs]
  assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("name", ["segments", "sentences", "order", "full"])
def test_epochs_form_other_examples(corpus, name):
  prepared, recipe = documents_of(corpus, FORMS[name])
  first, second = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 2)
  a, b = (rows_by_content(epoch).keys() for epoch in (first, second))
  assert len(a & b) < 0.5 * min(len(a), len(b))


@pytest.mark.parametrize("form", [SegmentPair(order=True), SentencePair(order=True)])
def test_one_document_makes_other_pairs_in_every_epoch(corpus, form):
  """With one document the order of documents is no part of what changes."""
  source = Rows([max(corpus[0], key=lambda e: len(e["text"]))])
  prepared, recipe = documents_of((source, corpus[1]), form, alter=())
  epochs = epochs_of(document_stream(prepared, recipe, batch_size=1, window=0), 6)
  made = {tuple(sorted(b["text"].tobytes() + b["label"].tobytes() for b in epoch))
          for epoch in epochs}
  assert len(made) == 6


@pytest.mark.parametrize("name", ["full", "doc"])
@pytest.mark.parametrize("window", [0, 6])
def test_every_token_of_every_document_comes_once_an_epoch(corpus, name, window):
  prepared, recipe = documents_of(corpus, FORMS[name])
  stream = document_stream(prepared, recipe, batch_size=1, window=window)
  windows = 1 if not window else 5  # of 30 documents
  special = [corpus[1]["text"].bos_id, corpus[1]["text"].eos_id]
  for epoch in epochs_of(stream, 3, windows):
    tokens = np.concatenate([unmasked(batch)[batch["text_segment_ids"] > 0] for batch in epoch])
    counts = np.bincount(tokens[~np.isin(tokens, special)], minlength=200)
    np.testing.assert_array_equal(counts, np.bincount(prepared.values["text"], minlength=200))


def test_empty_documents_are_dropped_and_counted(corpus, monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "info", lambda line, *args: lines.append(line % args))
  prepared, _ = documents_of(corpus, DocSentences())
  assert lines == ["rows: 30 of 31 examples (dropped: split_sentences: 1)"]
  assert prepared.ids.tolist() == [*range(7), *range(8, 31)]
  # Documents are longer than a row, and kept.
  lengths = prepared.lengths(np.arange(30), ("text",))
  assert lengths.max() > 24 and len(prepared.values["text_marks"]) == lengths.sum()


def test_sources_without_text_are_named(corpus):
  recipe = Recipe([SplitSentences(), EncodeSentences()], DocSentences(), LAYOUTS["pad"], [])
  with pytest.raises(DataError) as e:
    prepare([Rows([{"text": ""}, {"text": "\n"}])], recipe, corpus[1])
  assert str(e.value) == "rows: data.ops dropped all of its 2 examples (split_sentences: 2)"
  with pytest.raises(DataError, match=r"op encode_sentences: example 0 has no sentences, which"):
    prepare([Rows([{"text": "a"}])], recipe._replace(prepare=[EncodeSentences()]), corpus[1])


def test_a_window_of_one_document_has_no_pairs(corpus):
  prepared, recipe = documents_of(corpus, SegmentPair())
  with pytest.raises(DataError, match="needs two documents or more .* put more into data.window"):
    document_stream(prepared, recipe, window=1).batch(0)
  with pytest.raises(ConfigError, match="data.ops: rows of 3 tokens have no room for two texts"):
    document_stream(prepared, recipe._replace(layout=Pad(("text",), (3,)))).batch(0)


@pytest.mark.parametrize("batch_size", [8, 5])
def test_evaluation_of_documents_is_the_same_every_time(formed, batch_size):
  prepared, recipe, _ = formed
  first, again = (list(eval_batches(prepared, recipe, batch_size)) for _ in range(2))
  assert_same_all(again, first)
  ids = ids_of(first)
  assert len(set(ids)) == len(ids)
  examples = pipeline.planned(recipe, prepared, np.arange(len(prepared)),
                              order.rng(0, "form", 0)).examples
  assert sorted(ids) == sorted(examples.ids.tolist())
  assert all(len(batch["ids"]) == batch_size for batch in first)
  assert sum(int((batch["mlm_labels"] >= 0).any(1).sum()) for batch in first) == sum(
      int((batch["ids"][:, 0] >= 0).sum()) for batch in first)
  for rows in ([0, 3], range(4, 5)):
    expected = [{k: v[np.asarray(rows)] for k, v in batch.items()} for batch in first]
    assert_same_all(eval_batches(prepared, recipe, batch_size, rows), expected)


def test_rows_of_pairs_have_labels_of_their_texts(corpus):
  """Packed, each text of a row has its own label and types, which do not go over into the next."""
  prepared, recipe = documents_of(corpus, SegmentPair(), LAYOUTS["pack"], alter=())
  stream = document_stream(prepared, recipe)
  seen = collections.Counter()
  for step in range(6):
    batch = stream.batch(step)
    assert batch["label"].shape == (8, 4) == batch["ids"].shape
    assert batch["text_marks"].dtype == np.uint8
    for r in range(8):
      for segment in range(1, 1 + int((batch["ids"][r] >= 0).sum())):
        here = batch["text_segment_ids"][r] == segment
        text, types = batch["text"][r, here], batch["text_types"][r, here]
        ends = np.flatnonzero(text == 2)
        assert text[0] == 1 and len(ends) == 2 and ends[1] == len(text) - 1
        assert types.tolist() == [0] * (ends[0] + 1) + [1] * (len(text) - ends[0] - 1)
        seen[int(batch["label"][r, segment - 1])] += 1
      assert not batch["label"][r, int((batch["ids"][r] >= 0).sum()):].any()
  assert min(seen[0], seen[1]) > 20 and set(seen) == {0, 1}


# -------------------------------------------------------------------------------- phases


@pytest.fixture(scope="module")
def two_phases(corpus):
  """A function that makes Phases of 4 steps of 8 short rows, then 4 longer ones."""
  prepared, recipe = documents_of(corpus, SegmentPair())
  long = recipe._replace(layout=Pad(("text",), (48,)))

  def make(rows=(None, None), cursor=(0, 0), active=0):
    cursors = [cursor if i == active else (0, 0) for i in range(2)]
    return Phases([
        document_stream(prepared, recipe, window=4, rows=rows[0], cursor=cursors[0]),
        document_stream(prepared, long, window=4, seed=5 + (1 << 32), batch_size=4, rows=rows[1],
                        cursor=cursors[1])], [0, 4])
  return make


def test_phases_change_batches_at_their_steps(two_phases):
  phases = two_phases()
  sizes = [phases.batch_size(step) for step in range(9)]
  assert sizes == [8] * 4 + [4] * 5
  batches = [phases.batch(step) for step in range(9)]
  assert [batch["text"].shape for batch in batches] == [(8, 24)] * 4 + [(4, 48)] * 5
  assert [batch["mlm_labels"].shape[1] for batch in batches] == [4] * 4 + [7] * 5  # 15 %
  assert max(int((b["text_segment_ids"] > 0).sum(1).max()) for b in batches[4:]) > 40
  alone = two_phases().streams
  for step in range(9):
    assert_same(batches[step], alone[step >= 4].batch(step - 4 * (step >= 4)))
  assert_same_all(iterate(phases, 2, 7, threads=2, workers=0), batches[2:7])


def test_phases_resume_by_cursor_within_a_phase(two_phases):
  whole = two_phases()
  batches = [whole.batch(step) for step in range(12)]
  assert whole.cursor(4) == (0, 0) != whole.cursor(3)
  assert whole.cursor(11)[0] > 0  # in another window than the phase began in
  for step in range(12):
    resumed = two_phases(cursor=whole.cursor(step), active=int(step >= 4))
    assert resumed.cursor(step) == whole.cursor(step)
    assert_same_all((resumed.batch(s) for s in range(step, 12)), batches[step:])


def test_phases_are_read_in_parts(two_phases):
  whole = two_phases()
  parts = [two_phases(rows=(range(4), range(2))), two_phases(rows=(range(4, 8), range(2, 4)))]
  for step in (0, 3, 4, 8):
    joined = [part.batch(step) for part in parts]
    assert_same({k: np.concatenate([j[k] for j in joined]) for k in joined[0]}, whole.batch(step))


def test_a_phase_without_steps_is_passed_over(corpus):
  prepared, recipe = documents_of(corpus, DocSentences())
  streams = [document_stream(prepared, recipe, batch_size=n) for n in (1, 2, 3)]
  phases = Phases(streams, [0, 2, 2])
  assert [phases.batch_size(step) for step in range(4)] == [1, 1, 3, 3]
