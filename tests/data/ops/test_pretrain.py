"""Pretraining examples formed of sentences, and the special tokens around them."""

import itertools

import numpy as np
import pytest

from jtx.data.ops.pretrain import DocSentences, FullSentences, SegmentPair, SentencePair, Specials
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError
from tests.data.ops.documents import (
    BODY, check_example, documents_of, drawn_documents, edges, form, message, places, runs,
    with_template)
from tests.helpers import one_fast

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


def test_the_last_token_of_xlnet_is_of_a_third_type():
  tokenizer = with_template("$A </s> <s>:2", "$A </s> $B:1 </s>:1 <s>:2")
  documents = documents_of([3, 4], [5, 2], [2, 3])
  _, examples = form(SegmentPair(), tokenizer, documents, 12)
  for e in examples:
    _, (first, second) = runs(e["text"])  # there is no token before the first
    assert e["text"][-2:].tolist() == [2, 0]
    assert e["text_types"].tolist() == [0] * (len(first) + 1) + [1] * (len(second) + 1) + [2]
  _, examples = form(DocSentences(), tokenizer, documents, 12)
  assert examples[0]["text_types"].tolist() == [0] * 8 + [2]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "bytes"])
def test_special_tokens_of_tokenizers_trained_here(kind):
  options = {} if kind == "bytes" else {"vocab_size": 300}
  got = Specials.of(TOKENIZERS[kind](iter(["bcd bcde " * 5]), **options))  # without an a
  assert [x.tolist() for x in got.single] == [[1], [2]]
  assert [x.tolist() for x in got.pair] == [[1], [2], [2]] and got.second_type == 1


# ---------------------------------------------------------------------- examples of documents


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
@pytest.mark.parametrize("length", one_fast(20, 4, 9, 64, 300))
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
