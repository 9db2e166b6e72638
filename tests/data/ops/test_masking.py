"""Ops that hide tokens: the rule, its statistics, and what they leave alone."""

import functools

import numpy as np
import pytest

from jtx.data.ops.masking import Mask, PredictNext
from jtx.data.ops.sentences import SPECIAL, WORD
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError
from tests.helpers import assert_share, chi_square, one_fast

PLAIN = 40  # ids of text: few, so that a random one is often the same


class Vocabulary:
  mask_id = 4

  def plain_ids(self):
    return np.arange(5, 5 + PLAIN, dtype=np.int32)


def masked(op, batch, seed=0):
  bound = op.bind({"text": Vocabulary()})
  generators = [np.random.default_rng([seed, r]) for r in range(len(batch["text"]))]
  return bound.alter(batch, generators)


@functools.cache
def drawn_batch(seed, rows, length):
  """Rows of two texts, with special tokens around and between them, then padding."""
  rng = np.random.default_rng(seed)
  batch = {k: np.zeros((rows, length), d) for k, d in (
      ("text", np.int32), ("text_segment_ids", np.int32), ("text_marks", np.uint8))}
  for r in range(rows):
    n = int(rng.integers(3, length + 1))
    special = np.isin(np.arange(n), (0, rng.integers(1, n), n - 1))
    batch["text"][r, :n] = np.where(special, 2, rng.integers(5, 5 + PLAIN, n))
    batch["text_segment_ids"][r, :n] = 1
    begins = np.isin(np.arange(n), np.cumsum(rng.integers(1, 5, n)))  # words of 1 to 4 tokens
    batch["text_marks"][r, :n] = np.where(special, SPECIAL, np.where(begins, WORD, 0))
  return batch


def free_of(batch):
  return (batch["text_segment_ids"] > 0) & (batch["text_marks"] != SPECIAL)


def check_slots(op, batch, done):
  """Places and labels are those of what was chosen; nothing else is touched. [R, T] bool."""
  labels, at = done["mlm_labels"], done["mlm_positions"]
  full = max(1, round(op.rate * batch["text"].shape[1]))
  assert labels.shape == at.shape == (len(labels), op.slots or full)
  assert labels.dtype == at.dtype == done["text"].dtype == np.int32
  assert done.keys() == batch.keys() - {"text_marks"} | {"mlm_positions", "mlm_labels"}
  used = labels >= 0
  assert (np.diff(used.astype(int), axis=1) <= 0).all()  # empty slots are the last
  assert (labels[~used] == -1).all() and (at[~used] == 0).all()
  assert (np.diff(at, axis=1) > 0)[used[:, 1:]].all()  # in order, none twice
  chosen = np.zeros(batch["text"].shape, bool)
  rows = np.nonzero(used)[0]
  chosen[rows, at[used]] = True
  assert chosen.sum() == used.sum()
  np.testing.assert_array_equal(labels[used], batch["text"][rows, at[used]])
  np.testing.assert_array_equal(done["text"][~chosen], batch["text"][~chosen])
  assert not (chosen & ~free_of(batch)).any()  # special tokens and padding are never chosen
  np.testing.assert_array_equal(done["text_segment_ids"], batch["text_segment_ids"])
  return chosen


@pytest.mark.parametrize("op", [
    Mask(),
    Mask(rate=0.15, slots=20),
    Mask(rate=0.3, split=(1.0, 0.0, 0.0)),
    Mask(rate=0.4, split=(0.0, 1.0, 0.0), slots=300),
    Mask(rate=0.15, split=(0.0, 0.2, 0.8)),
    Mask(rate=0.01, split=(0.5, 0.3, 0.2)),
    Mask(rate=1.0, split=(0.25, 0.25, 0.5)),
    Mask(rate=0.15, whole_words=True),
    Mask(rate=0.3, split=(0.6, 0.3, 0.1), whole_words=True, slots=25),
], ids=repr)
def test_a_million_tokens_are_masked_as_the_rule_says(op):
  batch = drawn_batch(7, 3900, 512)
  free = free_of(batch)
  assert free.sum() > 980_000
  done = masked(op, batch)
  chosen = check_slots(op, batch, done)
  slots = done["mlm_labels"].shape[1]
  number = [n and min(slots, max(1, round(op.rate * n))) for n in map(int, free.sum(1))]
  if op.whole_words:
    assert (chosen.sum(1) <= number).all()
    assert (chosen.sum(1) == number).mean() > 0.9
  else:
    np.testing.assert_array_equal(chosen.sum(1), number)
  mask, other, same = op.split
  before, after = batch["text"][chosen], done["text"][chosen]
  total, again = len(before), other / PLAIN  # a random token may be the same
  assert_share((after == Vocabulary.mask_id).sum(), total, mask)
  assert_share((after == before).sum(), total, same + again)
  changed = after[(after != before) & (after != Vocabulary.mask_id)]
  assert_share(len(changed), total, other - again)
  if other:
    assert abs(chi_square(np.bincount(changed, minlength=5 + PLAIN)[5:])) < 3
    assert changed.min() >= 5 and changed.max() < 5 + PLAIN
  else:
    assert len(changed) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 4, 10, 17, 50, 57])
@pytest.mark.parametrize("rate, slots", [(0.15, 0), (0.5, 0), (0.5, 3), (0.15, 5), (1.0, 100)])
def test_the_number_chosen_is_the_rounded_share(n, rate, slots):
  batch = {"text": np.full((1, 60), 7, np.int32), "text_marks": np.zeros((1, 60), np.uint8),
           "text_segment_ids": (np.arange(60) < n)[None].astype(np.int32)}
  done = masked(Mask(rate=rate, slots=slots), batch)
  expected = min(slots or max(1, round(rate * 60)), max(1, round(rate * n)))
  assert check_slots(Mask(rate=rate, slots=slots), batch, done).sum() == expected


@pytest.mark.parametrize("whole_words", one_fast(True, False))
def test_every_place_is_as_likely(whole_words):
  """Of 40 tokens that may be hidden, in two parts of a row, 6 are; also where they are words."""
  rows, places_ = 8000, np.r_[1:25, 26:42]
  batch = {"text": np.full((rows, 50), 7, np.int32),
           "text_segment_ids": np.ones((rows, 50), np.int32),
           "text_marks": np.full((rows, 50), SPECIAL, np.uint8)}
  batch["text_marks"][:, places_] = WORD
  op = Mask(rate=0.15, whole_words=whole_words)
  chosen = check_slots(op, batch, masked(op, batch))[:, places_]
  assert (chosen.sum(1) == 6).all()
  # 6 are drawn without replacement, so counts differ less than independent ones.
  counts, p = chosen.sum(0), 6 / 40
  assert abs(((counts - rows * p) ** 2 / (rows * p * (1 - p))).sum() * 39 / 40 - 39) < (
      3 * np.sqrt(2 * 39))
  pairs = (chosen.T.astype(float) @ chosen)[np.triu_indices(40, 1)]  # and every two of them
  p = 6 * 5 / (40 * 39)
  assert np.abs(pairs - rows * p).max() < 4.5 * np.sqrt(rows * p * (1 - p))


@pytest.mark.parametrize("rate, slots", [(0.15, 0), (0.4, 0), (0.4, 9)])
def test_words_are_hidden_whole_or_not_at_all(rate, slots):
  batch = drawn_batch(8, 600, 80)
  op = Mask(rate=rate, split=(1.0, 0.0, 0.0), whole_words=True, slots=slots)
  chosen = check_slots(op, batch, masked(op, batch))
  free = free_of(batch)
  some = 0
  for r in range(600):
    words: list[list[int]] = []
    for t in np.flatnonzero(free[r]):
      if not words or batch["text_marks"][r, t] & WORD or words[-1][-1] != t - 1:
        words.append([])
      words[-1].append(t)
    n = sum(map(len, words))
    number = n and min(slots or round(rate * 80), max(1, round(rate * n)))
    left = number - chosen[r].sum()
    for word in words:
      hidden = chosen[r, word]
      assert hidden.all() or not hidden.any()
      assert hidden.all() or len(word) > left  # else there was room for one more
      some += bool(hidden.all()) and len(word) > 1
    assert left >= 0
  assert some > 500


def test_words_end_at_special_tokens_texts_and_pieces():
  bound = Mask(rate=1 / 3, whole_words=True).bind({"text": Vocabulary()})
  marks = np.array([SPECIAL, 0, 0, SPECIAL, 0, 0, WORD, 0, SPECIAL], np.uint8)
  free = np.flatnonzero(marks != SPECIAL)  # 6 tokens, of which 2 are chosen
  seen = {tuple(bound.choose(free, marks, 9, np.random.default_rng(s)).tolist()) for s in range(40)}
  assert seen == {(1, 2), (4, 5), (6, 7)}
  wide = np.array([WORD, 0, 0, 0], np.uint8)  # a word longer than what may be hidden
  assert bound.choose(np.arange(4), wide, 9, np.random.default_rng(0)).tolist() == []


def test_rows_are_masked_alone_and_as_their_generators_say():
  batch = drawn_batch(9, 12, 64)
  whole = masked(Mask(), batch)
  op = Mask().bind({"text": Vocabulary()})
  for rows in ([3], [11, 0, 5]):
    part = op.alter({k: v[rows] for k, v in batch.items()},
                    [np.random.default_rng([0, r]) for r in rows])
    for key in whole:
      np.testing.assert_array_equal(part[key], whole[key][rows])
  other = masked(Mask(), batch, seed=1)
  used = whole["mlm_labels"] >= 0
  assert (other["mlm_positions"] != whole["mlm_positions"])[used].mean() > 0.5


def test_masking_leaves_its_input_alone_and_rows_of_padding_empty():
  batch = {k: v.copy() for k, v in drawn_batch(10, 3, 40).items()}
  batch["text_segment_ids"][1] = 0
  before = {k: v.copy() for k, v in batch.items()}
  done = masked(Mask(), batch)
  for key in before:
    np.testing.assert_array_equal(batch[key], before[key])
  assert (done["mlm_labels"][1] == -1).all() and (done["mlm_labels"][[0, 2]] >= 0).any(1).all()


@pytest.mark.parametrize("fields, text", [
    (dict(split=(0.8, 0.1)), "split=(0.8, 0.1) must be three shares"),
    (dict(split=(0.8, 0.1, 0.2)), "split=(0.8, 0.1, 0.2) must be three shares"),
    (dict(split=()), "split=() must be three shares"),
])
def test_bad_masks(fields, text):
  with pytest.raises(ConfigError) as e:
    Mask(**fields)
  assert str(e.value) == f"op mask: {text} (mask, random token, the same) that add up to 1"


def test_a_tokenizer_without_a_mask():
  tokenizer = TOKENIZERS["wordpiece"](iter(["a b"]), vocab_size=20, min_frequency=1)
  expected = ("op mask: the tokenizer has no mask token; one that is trained here gets it by"
              " tokenizer.kind.mask=True")
  for t in (tokenizer, TOKENIZERS["bytes"](iter(()))):
    with pytest.raises(ConfigError) as e:
      Mask().bind({"text": t})
    assert str(e.value) == expected
  with_mask = TOKENIZERS["wordpiece"](iter(["a b"]), vocab_size=20, min_frequency=1, mask=True)
  bound = Mask().bind({"text": with_mask})
  assert bound.mask_id == 4 and bound.plain_ids.tolist() == list(range(5, with_mask.vocab_size))


def test_predict_next_labels_a_token_by_the_next_of_its_text():
  batch = {"text": np.array([[5, 6, 7, 8, 9, 0]], np.int32),
           "text_segment_ids": np.array([[1, 1, 2, 2, 2, 0]], np.int32),
           "text_marks": np.zeros((1, 6), np.uint8)}
  done = PredictNext().bind({}).alter(batch, [None])
  assert done["mlm_labels"].tolist() == [[6, -1, 8, 9, -1, -1]]
  assert done["mlm_positions"].tolist() == [[0, 1, 2, 3, 4, 5]]
  assert "text_marks" not in done and done["text"] is batch["text"]
