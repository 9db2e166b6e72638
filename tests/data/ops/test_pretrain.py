"""Ops of pretraining: examples of documents, and the statistics of what is drawn."""

import collections
import itertools
import json

import numpy as np
import pytest
import tokenizers as hf

from jtx.data.op import Column
from jtx.data.ops.pretrain import DocSentences, FullSentences, SegmentPair, SentencePair, Specials
from jtx.data.ops.sentences import SENTENCE, SPECIAL, WORD, EncodeSentences, SplitSentences
from jtx.data.prepared import Prepared
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError, DataError
from tests.helpers import assert_share, chi_square

PIECES = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d e ##s ##t ' .".split()
BODY = 1000  # ids of generated text are from here up, each id once


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  return read_tokenizer(path)


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
  formed = op.bind({"text": tokenizer}).form(documents, numbers, {"text": length},
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
