"""Images that are read when asked for, and broken ones."""

import collections
import pickle
import threading

import numpy as np
import pytest

from jtx.data.lazy import LazyExamples, Tally
from jtx.data.pipeline import eval_batches, iterate
from jtx.errors import BadExample, ConfigError, DataError
from tests.data.image_files import (
    REASON, Listed, assert_same, configs, error_of, lazily, numbered, png, stream_of)


def with_broken(count, broken):
  """Pictures of one class, of which those at some places are no images."""
  return Listed([{"image": b"x" if i in broken else png(i, (8, 8)), "label": 0, "path": f"{i}.png"}
                 for i in range(count)], ("a",))


PLAIN = lambda **fields: configs("decode_image", "images", decode_image={"names": ("a",), **fields},
                                 images={"size": 8})


def test_a_broken_image_is_a_row_of_padding(warnings):
  stream = stream_of(with_broken(20, {3, 11}), ops=PLAIN(), window=0, batch_size=5)
  seen = collections.Counter()
  for step in range(12):  # three epochs
    batch = stream.batch(step)
    assert (batch["real"] == (batch["ids"] >= 0)).all()
    for r in range(5):
      number = int(batch["ids"][r, 0])
      seen[number] += 1
      assert (batch["image"][r] == max(number, 0)).all() and batch["label"][r] == 0
  assert seen == {-1: 6} | {i: 3 for i in range(20) if i not in (3, 11)}
  assert sorted(warnings) == [f"{i}.png: {REASON}; it is left out" for i in (11, 3)]
  assert (stream.prepared.tally.read, stream.prepared.tally.bad) == (60, 6)


def test_broken_images_are_the_same_rows_for_all_readers():
  make = lambda **edits: stream_of(with_broken(20, {3, 11}), ops=PLAIN(), **edits)
  whole = [make().batch(step) for step in range(5)]
  assert any((b["real"] == 0).any() for b in whole)
  parts = [make(rows=range(4)), make(rows=range(4, 8))]
  for step in range(5):
    joined = [part.batch(step) for part in parts]
    assert_same({k: np.concatenate([j[k] for j in joined]) for k in joined[0]}, whole[step])


def test_too_many_broken_images_end_a_run(warnings):
  # One in 50 is more than a hundredth; it is judged from the hundredth image on.
  stream = stream_of(with_broken(50, {7}), ops=PLAIN(), batch_size=10, window=0)
  for step in range(9):
    stream.batch(step)
  message = error_of(DataError, stream.batch, 9)
  assert message == ("2 of the 100 images read so far can't be used (2.0%), which is more than op"
                     f" decode_image's max_bad=0.01; the last of them: 7.png: {REASON}")
  assert len(warnings) == 1
  borne = stream_of(with_broken(50, {7}), ops=PLAIN(max_bad=0.03), batch_size=10, window=0)
  for step in range(30):
    borne.batch(step)


@pytest.mark.parametrize("threads, workers", [(2, 0), (1, 1)])
def test_the_error_comes_through_threads_and_workers(threads, workers):
  stream = stream_of(with_broken(20, set(range(20))), ops=PLAIN(), batch_size=50)
  with pytest.raises(DataError, match="images read so far can't be used"):
    list(iterate(stream, 0, 5, threads=threads, workers=workers))


def test_evaluation_judges_small_splits_at_their_end(warnings):
  examples, recipe = lazily(with_broken(20, {4}), ops=PLAIN())
  batches = []
  with pytest.raises(DataError, match=r"1 of the 20 images read so far can't be used \(5.0%\)"):
    for batch in eval_batches(examples, recipe, 8):
      batches.append(batch)
  ids = np.concatenate([b["ids"] for b in batches]).ravel().tolist()
  assert ids == [*range(4), -1, *range(5, 20), *[-1] * 4]
  examples, recipe = lazily(with_broken(20, {4}), ops=PLAIN(max_bad=0.05))
  assert len(list(eval_batches(examples, recipe, 8))) == 3
  assert warnings == [f"4.png: {REASON}; it is left out"] * 2


def test_the_tally_is_exact_under_threads(warnings):
  tally = Tally(0.5)
  def count():
    for i in range(500):
      tally.add(BadExample(f"{i % 7}", "x") if i % 4 == 0 else None)
  threads = [threading.Thread(target=count) for _ in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (tally.read, tally.bad) == (4000, 1000) and len(warnings) == 7
  fresh = pickle.loads(pickle.dumps(tally))
  assert (fresh.read, fresh.bad, fresh.max_bad) == (0, 0, 0.5)


def test_examples_are_named_by_their_source_where_they_have_no_path():
  examples = LazyExamples([numbered(3), numbered(4, name="other")], [], {}, Tally(0.0))
  assert [examples.example(i)["path"] for i in (2, 3, 6)] == [
      "listed, example 2", "other, example 0", "other, example 3"]
  assert [examples.example(i)["id"] for i in (2, 3, 6)] == [2, 3, 6]
  source = Listed([{"image": np.zeros((8, 8), np.uint8), "label": 0}], ("a",), "npz:x")
  message = error_of(DataError, stream_of(source, ops=PLAIN(), batch_size=1).batch, 0)
  assert message == ("op decode_image: the image of npz:x, example 0 is an array [8, 8], and"
                     " channels=3 needs [H, W, 3]")


def test_an_image_of_another_size_names_the_ops_that_change_it():
  message = error_of(ConfigError, stream_of(numbered(3, size=(6, 9)), ops=PLAIN(
      names=("a", "b", "c"))).batch, 0)
  assert message.startswith("data.ops: listed, example ")
  assert message.endswith(" is of 9 x 6 pixels after all ops and 'images' has size=8; one of"
                          " 'inception_crop', 'pad_crop' and 'resize', with the same size, makes it"
                          " of that size")
