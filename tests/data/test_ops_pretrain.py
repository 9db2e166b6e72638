"""Ops of pretraining: examples of documents, and the statistics of what is drawn."""

import collections
import functools
import itertools
import json

import numpy as np
import pytest
import tokenizers as hf

from jtx.config import ConfigError
from jtx.data import DataError
from jtx.data.ops_pretrain import (OPS, SENTENCE, SPECIAL, WORD, DocSentences, EncodeSentences,
                                   FullSentences, Mask, SegmentPair, SentencePair, Specials,
                                   SplitSentences)
from jtx.data.packing import Column
from jtx.data.pipeline import Prepared
from jtx.data.tokenizer_kinds import TOKENIZERS
from jtx.data.tokenizers import HuggingFace, Tokenizer

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e ##s ##t ' .".split()
BODY = 1000  # ids of generated text are from here up, each id once


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  return Tokenizer.load(path)


def with_template(single, pair, names=("<s>", "<pad>", "</s>", "<unk>", "<mask>")):
  """A byte-level tokenizer with the template given."""
  pieces = {p: i for i, p in enumerate([*names, *sorted(hf.pre_tokenizers.ByteLevel.alphabet())])}
  backend = hf.Tokenizer(hf.models.BPE(vocab=pieces, merges=[]))
  backend.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
  backend.post_processor = hf.processors.TemplateProcessing(
      single=single, pair=pair, special_tokens=[(n, i) for i, n in enumerate(names)])
  backend.add_special_tokens(list(names))
  return HuggingFace(json.loads(backend.to_str()), [1, 0, 2, 3])


@pytest.fixture(scope="module")
def roberta():
  return with_template("<s> $A </s>", "<s> $A </s> </s> $B </s>")


@pytest.fixture(scope="module", params=["bert", "roberta"])
def tokenizer(request):
  return request.getfixturevalue(request.param)


def message(error, call, *args):
  with pytest.raises(error) as e:
    call(*args)
  return str(e.value)


# ------------------------------------------------------------------- splitting and encoding


def split(*texts, language="en"):
  return SplitSentences(language)([{"id": i, "text": t} for i, t in enumerate(texts)], None)


def test_split_sentences_ends_them_where_moses_does():
  [e] = split("Mr. Smith of the U.S. Navy went. He ran! \"Why?\" he said. No. 5 is alive... And")
  assert e["sentences"] == ["Mr. Smith of the U.S. Navy went.", "He ran!", '"Why?" he said.',
                            "No. 5 is alive...", "And"]
  assert e.keys() == {"id", "sentences"}
  text = "Das gilt bzw. Alles."  # an abbreviation in German
  assert [split(text, language=l)[0]["sentences"] for l in ("en", "de")] == [
      ["Das gilt bzw.", "Alles."], [text]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\r\n \t\r\n"])
def test_a_line_ends_a_sentence(end):
  [e] = split(f"  a title{end}a line. Two\t{end}{end}")
  assert e["sentences"] == ["a title", "a line.", "Two"]


def test_documents_without_text_are_dropped():
  assert [e["id"] for e in split("", "a", " \n\r\n\t\u00a0", "b", "\u2028")] == [1, 3]
  assert split() == []


def test_split_sentences_says_what_is_wrong():
  for language in ("xx", "zh", "EN", ""):
    assert message(ConfigError, SplitSentences, language) == (
        f"op split_sentences: language={language!r} is not one that the library has rules for; try"
        " 'en'")
  assert message(DataError, SplitSentences(), [{"id": 7, "title": "x", "text": 3}], None) == (
      "op split_sentences: example 7 has no text 'text'; its texts are: title")


def test_encode_sentences_marks_words_and_sentences(bert):
  op = EncodeSentences()
  done = op([{"id": 0, "sentences": ["as b's.", "e", "at"]}, {"id": 1, "sentences": ["\u200b", ""]},
             {"id": 2, "sentences": ["", "zst [MASK]"]}], {"text": bert})
  assert [e["id"] for e in done] == [0, 2]  # the other has no tokens
  assert bert.tokens(done[0]["text"]) == ["a", "##s", "b", "'", "[UNK]", ".", "e", "a", "##t"]
  both = SENTENCE | WORD
  assert done[0]["text_marks"].tolist() == [both, 0, WORD, WORD, WORD, WORD, both, both, 0]
  assert bert.tokens(done[1]["text"]) == ["[UNK]"] * 4 and bert.mask_id not in done[1]["text"]
  assert done[1]["text_marks"].tolist() == [both, WORD, WORD, WORD]
  assert op.columns == {"text": Column("tokens"), "text_marks": Column("aligned:text", "uint8")}
  for e in done:
    assert (e["text"].dtype, e["text_marks"].dtype) == (np.int32, np.uint8)
  assert op.texts_of({"id": 0, "sentences": ["a", "b"]}, "text") == ["a", "b"]
  assert op.tokenizer_fields == ("text",)


def test_encode_sentences_needs_sentences(bert):
  expected = ("op encode_sentences: example 4 has no sentences, which 'split_sentences' makes; it"
              " has 'id', 'text'")
  example = {"id": 4, "text": "a"}
  assert message(DataError, EncodeSentences(), [example], {"text": bert}) == expected
  assert message(DataError, EncodeSentences().texts_of, example, "text") == expected


# ------------------------------------------------------------------------ special tokens


@pytest.mark.parametrize("single, pair, expected", [
    ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1", (([0], [2]), ([0], [2], [2]), 1)),
    ("<s> $A </s>", "<s> $A </s> </s> $B </s>", (([0], [2]), ([0], [2, 2], [2]), 0)),
    ("$A </s>", "$A </s> $B </s>", (([], [2]), ([], [2], [2]), 0)),  # as T5's
    ("<s> $A", "<s> $A <s> $B:1", (([0], []), ([0], [0], []), 1)),  # as Llama's
    ("<s> <unk> $A </s>", "<s> $A $B:1 </s>", (([0, 3], [2]), ([0], [], [2]), 1)),
], ids=["bert", "roberta", "t5", "llama", "two before"])
def test_special_tokens_are_where_the_template_puts_them(single, pair, expected):
  got = Specials.of(with_template(single, pair))
  assert ([x.tolist() for x in got.single], [x.tolist() for x in got.pair], got.second_type) == (
      list(expected[0]), list(expected[1]), expected[2])


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "bytes"])
def test_special_tokens_of_tokenizers_trained_here(kind):
  options = {} if kind == "bytes" else {"vocab_size": 300}
  got = Specials.of(TOKENIZERS[kind](iter(["bcd bcde " * 5]), **options))  # without an a
  assert [x.tolist() for x in got.single] == [[1], [2]]
  assert [x.tolist() for x in got.pair] == [[1], [2], [2]] and got.second_type == 1


# ---------------------------------------------------------------------- examples of documents


def documents_of(*lengths):
  """Documents whose sentences have these lengths; no id is in them twice."""
  sizes = [sum(n) for n in lengths]
  marks = np.full(sum(sizes), WORD, np.uint8)
  offsets = np.cumsum([0, *sizes])
  for start, n in zip(offsets, lengths):
    marks[start + np.cumsum([0, *n[:-1]])] |= SENTENCE
  text = BODY + np.arange(len(marks), dtype=np.int32)
  columns = EncodeSentences.columns
  return Prepared(columns, {"text": text, "text_marks": marks}, {"text": offsets},
                  np.arange(len(lengths)) * 3 + 5, [len(lengths)])


def drawn_documents(seed, number, longest_sentence=30, sentences=(1, 4, 25)):
  """Documents of one sentence and of many."""
  rng = np.random.default_rng(seed)
  counts = rng.geometric(1 / rng.choice(sentences, number))
  return documents_of(*(rng.integers(1, longest_sentence + 1, n).tolist() for n in counts))


def form(op, tokenizer, documents, length, numbers=None, seed=0):
  numbers = np.arange(len(documents)) if numbers is None else np.array(numbers)
  formed = op.bind({"text": tokenizer}).form(documents, numbers, length,
                                             np.random.default_rng(seed))
  return formed, [formed.example(i) for i in range(len(formed))]


def runs(ids):
  """Texts, and the special tokens before, between and behind them, as lists."""
  parts = [list(part) for _, part in itertools.groupby(ids.tolist(), lambda i: i < BODY)]
  return parts[1::2], parts[::2]


def edges(documents, longest):
  """Ids that may begin a text: sentences do, and the pieces of those that are too long."""
  marks, offsets = documents.values["text_marks"], documents.offsets["text"]
  starts = np.flatnonzero(marks & SENTENCE)
  assert set(offsets[:-1].tolist()) <= set(starts.tolist())
  return {BODY + start + cut for start, stop in zip(starts, [*starts[1:], len(marks)])
          for cut in range(0, stop - start, longest)} | {BODY + len(marks)}


def places(documents, ids):
  """The document that an id is of."""
  return np.searchsorted(documents.offsets["text"], np.asarray(ids) - BODY, "right") - 1


def check_example(formed, i, example, documents, length):
  """What holds for examples of every form."""
  ids = example["text"]
  assert len(ids) == formed.lengths(np.array([i]), ("text",))[0, 0] <= length
  body = ids >= BODY
  np.testing.assert_array_equal(example["text_marks"] == SPECIAL, ~body)
  np.testing.assert_array_equal(example["text_marks"][body],
                                documents.values["text_marks"][ids[body] - BODY])
  assert [example[k].dtype for k in ("text", "text_marks", "text_types")] == [
      np.int32, np.uint8, np.int32]
  assert formed.columns.keys() == example.keys()
  first = ids[body][0]
  document = places(documents, first)
  assert formed.ids[i] >> 32 == documents.ids[document]
  assert formed.ids[i] & 0xFFFFFFFF == first - BODY - documents.offsets["text"][document]


def test_full_sentences_by_hand(bert, roberta):
  documents = documents_of([3, 4], [5], [2, 2, 9], [1])
  for tokenizer, (start, end) in ((bert, (2, 3)), (roberta, (0, 2))):
    formed, examples = form(FullSentences(), tokenizer, documents, 12)
    a, b, c, d = (list(range(BODY + i, BODY + j)) for i, j in ((0, 7), (7, 16), (16, 25), (25, 26)))
    assert [e["text"].tolist() for e in examples] == [
        [start, *a, end], [start, *b[:5], end, *b[5:], end], [start, *c, end], [start, *d, end]]
    # With a token less in a row, the 2 + 2 tokens no longer fit behind the 5, but 2 do.
    _, examples = form(FullSentences(), tokenizer, documents, 11)
    assert examples[1]["text"].tolist() == [start, *b[:5], end, *b[5:7], end]
    _, examples = form(DocSentences(), tokenizer, documents, 12)
    assert [runs(e["text"])[0] for e in examples] == [[a], [b[:5]], [b[5:]], [c], [d]]
    _, examples = form(FullSentences(), tokenizer, documents, 12, numbers=[3, 1, 0])
    assert [runs(e["text"])[0] for e in examples] == [[d, b[:5]], [a]]


@pytest.mark.parametrize("op", [FullSentences(), DocSentences()], ids=["full", "doc"])
@pytest.mark.parametrize("length", [4, 9, 20, 64, 300])
def test_rows_have_every_token_once_in_whole_sentences(tokenizer, op, length):
  documents = drawn_documents(1, 60)
  numbers = np.random.default_rng(2).permutation(60)
  formed, examples = form(op, tokenizer, documents, length, numbers)
  specials = Specials.of(tokenizer)
  before, after = (x.tolist() for x in specials.single)
  room, whole = length - 2, edges(documents, length - 2)
  every, rows = [], []
  for i, e in enumerate(examples):
    check_example(formed, i, e, documents, length)
    assert not e["text_types"].any()
    texts, around = runs(e["text"])
    assert around == [before, *[after] * len(texts)]
    for text in texts:
      assert text[0] in whole and text[-1] + 1 in whole  # no sentence is split, if it need not be
      assert len(set(places(documents, text))) == 1
      every += text
    assert op.crosses or len(texts) == 1
    rows.append((texts, len(e["text"]) - 2))
  expected = [BODY + t for n in numbers for t in range(*documents.offsets["text"][n:n + 2])]
  assert every == expected
  assert len(set(formed.ids.tolist())) == len(formed)
  # A row ends where the next sentence has no room, and for doc_sentences where the document does.
  end_of = dict(itertools.pairwise(sorted(whole)))
  for (texts, used), (following, _) in zip(rows, rows[1:]):
    start = following[0][0]
    sentence = end_of[start] - start
    crosses = places(documents, start) != places(documents, texts[-1][0])
    assert used + len(after) * crosses + sentence > room or (crosses and not op.crosses)


def test_a_document_that_comes_twice_in_a_row_is_separated_from_itself(bert):
  documents = documents_of([2, 1])
  formed, examples = form(FullSentences(), bert, documents, 9, numbers=[0, 0, 0])
  once = [BODY, BODY + 1, BODY + 2]
  assert [e["text"].tolist() for e in examples] == [[2, *once, 3, *once, 3], [2, *once, 3]]
  assert formed.lengths(np.arange(2), ("text",)).tolist() == [[9], [5]]


def test_sentences_longer_than_a_row_are_cut(bert):
  documents = documents_of([23, 2])
  _, examples = form(DocSentences(), bert, documents, 12)
  assert [e["text"][1:-1].tolist() for e in examples] == [
      list(range(BODY + i, BODY + j)) for i, j in ((0, 10), (10, 20), (20, 25))]
  _, examples = form(SentencePair(order=True), bert, documents, 13)  # 10 tokens for both
  assert {len(t) for e in examples for t in runs(e["text"])[0]} == {5, 3, 2}


@pytest.mark.parametrize("op, length, text", [
    (FullSentences(), 2, "rows of 2 tokens have no room for text beside 2 special tokens"),
    (DocSentences(), 1, "rows of 1 tokens have no room for text beside 2 special tokens"),
    (SegmentPair(), 4, "rows of 4 tokens have no room for two texts beside 3 special tokens"),
    (SentencePair(order=True), 3,
     "rows of 3 tokens have no room for two texts beside 3 special tokens"),
])
def test_rows_without_room_for_text(bert, op, length, text):
  documents = documents_of([3, 1], [3, 2])
  assert message(ConfigError, form, op, bert, documents, length) == f"data.ops: {text}"
  assert form(op, bert, documents, 5)[1]


# --------------------------------------------------------------------------------- pairs

PAIRS = {"segments": SegmentPair(), "sentences": SentencePair(),
         "segment order": SegmentPair(order=True), "sentence order": SentencePair(order=True)}


@pytest.fixture(scope="module")
def corpus():
  return drawn_documents(3, 500)


def texts_of(example):
  """Both texts, and the special tokens around them."""
  (a, b), specials = runs(example["text"])
  return a, b, specials


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("length", [20, 128])
def test_pairs_are_what_their_labels_say(tokenizer, corpus, name, length):
  op = PAIRS[name]
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
@pytest.mark.parametrize("windows", [1, 60])
def test_half_of_the_pairs_are_wrong_and_lengths_do_not_tell_which(bert, name, windows):
  documents = drawn_documents(4, 2400)
  parts = np.split(np.random.default_rng(5).permutation(len(documents)), windows)
  examples = [e for w, part in enumerate(parts)
              for e in form(PAIRS[name], bert, documents, 64, part, seed=w)[1]]
  lengths, labels = statistics(examples)
  assert len(labels) > 6000
  assert abs(labels.mean() - 0.5) < 3 * 0.5 / np.sqrt(len(labels))
  assert_same_means(lengths, labels)


def chi_square(counts, expected=None):
  """Standard deviations by which the counts are less even than chance makes them."""
  counts = np.asarray(counts, float)
  expected = counts.mean() if expected is None else expected
  freedom = len(counts) - 1
  return (((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


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


def test_bad_shares_of_short_pairs():
  for short in (-0.1, 1.5, float("nan")):
    assert message(ConfigError, lambda: SegmentPair(short=short)) == (
        f"op segment_pair: short={short} must be a fraction, 0 to 1")


@pytest.mark.parametrize("op", [FullSentences(), *PAIRS.values()])
def test_what_is_formed_is_a_function_of_the_generator(bert, op):
  documents = drawn_documents(6, 80)
  first, again, other = (form(op, bert, documents, 30, seed=seed)[1] for seed in (1, 1, 2))
  plain = lambda examples: [[e[k].tolist() for k in sorted(e)] for e in examples]
  assert plain(first) == plain(again)
  assert (plain(first) != plain(other)) == (op in PAIRS.values())


# ------------------------------------------------------------------------------- masking

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


def assert_share(count, total, p, errors=3):
  assert abs(count - p * total) <= errors * np.sqrt(total * p * (1 - p))


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


@pytest.mark.parametrize("whole_words", [False, True])
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
    (dict(rate=0.0), "rate=0.0 must be above 0 and at most 1"),
    (dict(rate=1.1), "rate=1.1 must be above 0 and at most 1"),
    (dict(rate=float("nan")), "rate=nan must be above 0 and at most 1"),
    (dict(split=(0.8, 0.1)), "split=(0.8, 0.1) must be three shares"),
    (dict(split=(0.8, 0.1, 0.2)), "split=(0.8, 0.1, 0.2) must be three shares"),
    (dict(split=(1.1, 0.0, -0.1)), "split=(1.1, 0.0, -0.1) must be three shares"),
    (dict(split=()), "split=() must be three shares"),
    (dict(slots=-1), "slots=-1 must not be negative"),
])
def test_bad_masks(fields, text):
  rest = " (mask, random token, the same) that add up to 1" if "shares" in text else ""
  assert message(ConfigError, lambda: Mask(**fields)) == f"op mask: {text}{rest}"


def test_a_tokenizer_without_a_mask():
  tokenizer = TOKENIZERS["wordpiece"](iter(["a b"]), vocab_size=20, min_frequency=1)
  expected = ("op mask: the tokenizer has no mask token; one that is trained here gets it by"
              " tokenizer.kind.mask=True")
  for t in (tokenizer, TOKENIZERS["bytes"](iter(()))):
    assert message(ConfigError, Mask().bind, {"text": t}) == expected
  with_mask = TOKENIZERS["wordpiece"](iter(["a b"]), vocab_size=20, min_frequency=1, mask=True)
  bound = Mask().bind({"text": with_mask})
  assert bound.mask_id == 4 and bound.plain_ids.tolist() == list(range(5, with_mask.vocab_size))


def test_predict_next_labels_a_token_by_the_next_of_its_text():
  batch = {"text": np.array([[5, 6, 7, 8, 9, 0]], np.int32),
           "text_segment_ids": np.array([[1, 1, 2, 2, 2, 0]], np.int32),
           "text_marks": np.zeros((1, 6), np.uint8)}
  done = OPS["predict_next"]().bind({}).alter(batch, [None])
  assert done["mlm_labels"].tolist() == [[6, -1, 8, 9, -1, -1]]
  assert done["mlm_positions"].tolist() == [[0, 1, 2, 3, 4, 5]]
  assert "text_marks" not in done and done["text"] is batch["text"]
