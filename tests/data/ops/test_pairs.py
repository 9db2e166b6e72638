"""Pairs of texts: right and wrong second texts, and their lengths."""

import collections
import itertools

import numpy as np
import pytest

from jtx.data.ops.pretrain import FullSentences, SegmentPair, SentencePair, Specials
from jtx.errors import DataError
from tests.data.ops.documents import (
    BODY, check_example, documents_of, drawn_documents, edges, form, message, places, runs)
from tests.helpers import assert_share, chi_square, one_fast

PAIRS = {"segments": SegmentPair(), "sentences": SentencePair(),
         "segment order": SegmentPair(order=True), "sentence order": SentencePair(order=True)}


@pytest.fixture(scope="module")
def corpus():
  return drawn_documents(3, 500)


@pytest.fixture(scope="module")
def few():
  """Enough for what every single pair has to be."""
  return drawn_documents(3, 120)


def texts_of(example):
  """Both texts, and the special tokens around them."""
  (a, b), specials = runs(example["text"])
  return a, b, specials


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("length", [20, 128])
def test_pairs_are_what_their_labels_say(tokenizer, few, name, length):
  op, corpus = PAIRS[name], few
  formed, examples = form(op, tokenizer, corpus, length)
  template = [x.tolist() for x in Specials.of(tokenizer).pair]
  room = length - sum(map(len, template))
  whole = edges(corpus, room // 2)
  ends = set(corpus.offsets["text"].tolist())
  end_of = dict(itertools.pairwise(sorted(whole)))
  second_types = Specials.of(tokenizer).second_type
  covered = []
  for i, e in enumerate(examples):
    check_example(formed, i, e, corpus, length)
    a, b, specials = texts_of(e)
    assert specials == template
    split_at = len(template[0]) + len(a) + len(template[1])
    assert e["text_types"].tolist() == (
        [0] * split_at + [second_types] * (len(e["text"]) - split_at))
    for text in (a, b):
      assert text[0] in whole and text[-1] + 1 in whole
      assert places(corpus, text[0]) == places(corpus, text[-1])
      if isinstance(op, SentencePair):
        assert end_of[text[0]] == text[-1] + 1
    assert e["label"].dtype == np.int32 and e["label"] in (0, 1)
    if e["label"] and op.order:
      a, b = b, a
    if e["label"] and not op.order:
      assert places(corpus, a[0]) != places(corpus, b[0])
      covered += a
    else:
      assert b[0] == a[-1] + 1 and places(corpus, a[0]) == places(corpus, b[0])
      covered += a + b
  # What a wrong second text took the place of is used by the next pair, so that nothing is left
  # of a document but what is too little for a pair; and nothing is used twice.
  assert len(set(covered)) == len(covered)
  covered = set(covered)
  left = [i for i in range(BODY, BODY + len(corpus.values["text"])) if i not in covered]
  pieces = np.split(left, np.flatnonzero((np.diff(left) != 1) | np.isin(left[1:], list(whole))) + 1)
  assert all(p[0] in whole and p[-1] + 1 in whole for p in pieces)
  documents = places(corpus, [p[0] for p in pieces])
  assert len(set(documents.tolist())) == len(documents)  # a sentence of a document at most
  assert all(p[-1] + 1 - BODY in ends or op.order and p[0] - BODY in ends for p in pieces)


def statistics(examples):
  """Lengths of both texts, and labels."""
  lengths = np.array([[len(t) for t in texts_of(e)[:2]] for e in examples])
  return lengths, np.array([e["label"] for e in examples])


def assert_same_means(values, labels, errors=4):
  for x in (values[:, 0], values[:, 1], values.sum(1), (values**2).sum(1)):
    a, b = x[labels == 0], x[labels == 1]
    assert abs(a.mean() - b.mean()) < errors * np.sqrt(a.var() / len(a) + b.var() / len(b))


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("windows", one_fast(60, 1))
def test_half_of_the_pairs_are_wrong_and_lengths_do_not_tell_which(bert, name, windows):
  documents = drawn_documents(4, 2400)
  parts = np.split(np.random.default_rng(5).permutation(len(documents)), windows)
  examples = [e for w, part in enumerate(parts)
              for e in form(PAIRS[name], bert, documents, 64, part, seed=w)[1]]
  lengths, labels = statistics(examples)
  assert len(labels) > 6000
  assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
  assert_same_means(lengths, labels)


def test_wrong_second_texts_are_of_any_other_document(bert):
  """50 equal documents of sentences of one token: all others are as likely."""
  documents = documents_of(*[[1] * 40] * 50)
  counts = np.zeros(50)
  for seed in range(40):
    _, examples = form(SentencePair(), bert, documents, 5, seed=seed)
    for e in examples:
      if e["label"]:
        a, b, _ = texts_of(e)
        counts[(places(documents, b[0]) - places(documents, a[0])) % 50] += 1
  assert counts[0] == 0 and counts.sum() > 20_000
  assert abs(chi_square(counts[1:])) < 3


def test_a_wrong_second_text_is_the_nearest_in_length_longer_or_shorter(bert):
  """Document i has a sentence of one token and one of i: a pair, whose neighbours are i +- 1."""
  documents = documents_of(*([1, i] for i in range(1, 41)))
  moves = collections.Counter()
  for seed in range(60):
    _, examples = form(SentencePair(), bert, documents, 90, seed=seed)
    assert len(examples) == 40
    for e in examples:
      a, b, _ = texts_of(e)
      own = places(documents, a[0]) + 1
      if 1 < own < 40 and e["label"]:
        moves[len(b) - own] += 1
      elif e["label"]:
        assert abs(len(b) - own) == 1
  assert set(moves) == {-1, 1}
  assert_share(moves[1], moves.total(), 0.5)


def test_where_segments_end_is_uniform_and_a_tenth_are_shorter(bert):
  """Sentences of one token: a pair is as long as what was drawn for it."""
  documents = documents_of(*[[1] * 3000] * 20)
  room = 32
  _, examples = form(SegmentPair(short=0.0), bert, documents, room + 3)
  lengths, labels = statistics(examples)
  right = lengths[labels == 0]
  assert (right.sum(1) == room).mean() > 0.98  # but for those at a document's end
  full = right[right.sum(1) == room]
  assert abs(chi_square(np.bincount(full[:, 0], minlength=room)[1:])) < 3
  _, examples = form(SegmentPair(short=1.0), bert, documents, room + 3)
  lengths, labels = statistics(examples)
  totals = lengths[labels == 0].sum(1)
  assert abs(chi_square(np.bincount(totals, minlength=room + 1)[2:])) < 3
  _, examples = form(SegmentPair(), bert, documents, room + 3)
  lengths, labels = statistics(examples)
  shorter = (lengths[labels == 0].sum(1) < room).mean()
  p = 0.1 * (room - 2) / (room - 1)  # the length drawn, of 2 to room, may be that of a row
  assert abs(shorter - p) < 3 * np.sqrt(p * (1 - p) / (labels == 0).sum()) + 0.005


def test_a_document_twice_in_a_window_is_not_another_document(bert):
  documents = documents_of([2] * 9, [2] * 9)
  for seed in range(20):
    _, examples = form(SegmentPair(), bert, documents, 12, numbers=[0, 0, 0, 1], seed=seed)
    for e in examples:
      a, b, _ = texts_of(e)
      assert (places(documents, a[0]) != places(documents, b[0])) == e["label"]


def test_pairs_of_which_nothing_fits_are_left_out(bert):
  """Beside 10 tokens of 16 there is room for 6, and the other document's sentences have 8."""
  documents = documents_of([5, 5, 6] * 6, [8] * 12)
  labels = set()
  for seed in range(10):
    formed, examples = form(SegmentPair(short=0.0), bert, documents, 19, seed=seed)
    for i, e in enumerate(examples):
      check_example(formed, i, e, documents, 19)
      a, b, _ = texts_of(e)
      assert (places(documents, a[0]) != places(documents, b[0])) == e["label"]
      if e["label"]:
        labels.add((len(a), len(b)))
  assert labels and all(a + b <= 16 for a, b in labels) and (10, 8) not in labels


def test_pairs_need_two_documents_and_two_sentences(bert):
  two = ("a second text from another document needs two documents or more that have two sentences;"
         " put more into data.window")
  for documents in (documents_of([3, 3]), documents_of([3, 3], [4]), documents_of([3], [4])):
    for op in (SegmentPair(), SentencePair()):
      assert message(DataError, form, op, bert, documents, 20) == two
  assert message(DataError, form, SegmentPair(), bert, documents_of([3, 3]), 20, [0, 0]) == two
  [example] = form(SegmentPair(order=True), bert, documents_of([3, 3], [4]), 20)[1]
  assert sorted(example["text"].tolist())[3:] == list(range(BODY, BODY + 6))
  assert message(DataError, form, SegmentPair(order=True), bert, documents_of([3], [4]), 20) == (
      "no example of 20 tokens can be formed of 2 documents")


@pytest.mark.parametrize("op", [FullSentences(), *PAIRS.values()])
def test_what_is_formed_is_a_function_of_the_generator(bert, op):
  documents = drawn_documents(6, 80)
  first, again, other = (form(op, bert, documents, 30, seed=seed)[1] for seed in (1, 1, 2))
  plain = lambda examples: [[e[k].tolist() for k in sorted(e)] for e in examples]
  assert plain(first) == plain(again)
  assert (plain(first) != plain(other)) == (op in PAIRS.values())
