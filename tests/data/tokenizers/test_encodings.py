"""Texts, pairs and windows as an encoder reads them."""

import concurrent.futures
import json
import re

import numpy as np
import pytest
import tokenizers as hf

from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import ConfigError, DataError
from tests.data.tokenizers.vocabularies import byte_level


def plain(encoding):
  return [a.tolist() for a in encoding]


def names(tokenizer, encoding):
  return tokenizer.tokens(encoding.ids)


def test_a_pair_has_bert_types_texts_words_and_offsets(bert):
  [e] = bert.encode_texts(["The cats"], ["sat, sitting"], max_length=16)
  assert names(bert, e) == ["[CLS]", "the", "cat", "##s", "[SEP]", "sat", "[UNK]", "[UNK]", "[SEP]"]
  assert plain(e)[1:] == [
      [0, 0, 0, 0, 0, 1, 1, 1, 1],
      [-1, 0, 0, 0, -1, 1, 1, 1, -1],
      [-1, 0, 1, 1, -1, 0, 1, 2, -1],
      [[0, 0], [0, 3], [4, 7], [7, 8], [0, 0], [0, 3], [3, 4], [5, 12], [0, 0]]]
  assert [a.dtype for a in e] == [np.int32, np.int32, np.int8, np.int32, np.int32]


def test_a_single_text_and_empty_texts(bert):
  one, empty = bert.encode_texts(["a", ""], max_length=8)
  assert names(bert, one) == ["[CLS]", "a", "[SEP]"] and one.types.tolist() == [0, 0, 0]
  assert names(bert, empty) == ["[CLS]", "[SEP]"] and empty.offsets.shape == (2, 2)
  [pair] = bert.encode_texts([""], [""], max_length=8)
  assert names(bert, pair) == ["[CLS]", "[SEP]", "[SEP]"]
  assert bert.encode_texts([], max_length=8) == [] == bert.encode_texts([], [], max_length=8)


def test_roberta_template_has_two_ends_between_texts_and_one_type(roberta):
  [e] = roberta.encode_texts(["ab a"], ["b"], max_length=16)
  assert names(roberta, e) == ["<s>", "ab", "Ġa", "</s>", "</s>", "b", "</s>"]
  assert e.types.tolist() == [0] * 7
  assert e.text.tolist() == [-1, 0, 0, -1, -1, 1, -1]
  assert e.offsets.tolist() == [[0, 0], [0, 2], [3, 4], [0, 0], [0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece", "unigram", "bytes"])
def test_tokenizers_trained_here_put_bos_and_eos(kind):
  options = {} if kind == "bytes" else {"vocab_size": 320}
  texts = ["the cat sat on the mat", "a dog ran off"] * 20
  t = TOKENIZERS[kind](iter(texts), **options)
  [pair] = t.encode_texts(["the cat"], ["a dog <eos>"], max_length=64)
  a, b = t.encode("the cat"), t.encode("a dog <eos>")
  assert pair.ids.tolist() == [t.bos_id, *a, t.eos_id, *b, t.eos_id]
  assert pair.types.tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
  assert pair.text.tolist() == [-1, *[0] * len(a), -1, *[1] * len(b), -1]
  assert (pair.ids == t.eos_id).sum() == 2  # the text "<eos>" is not one
  [one] = t.encode_texts(["the cat"], max_length=64)
  assert one.ids.tolist() == [t.bos_id, *a, t.eos_id]
  where = [one.offsets[one.word == w] for w in (0, 1)]
  assert ["the cat"[w[:, 0].min():w[:, 1].max()].strip() for w in where] == ["the", "cat"]


@pytest.mark.parametrize("split_digits", [False, True])
def test_byte_level_words_have_the_space_that_they_have_in_a_text(split_digits):
  t = TOKENIZERS["byte_bpe"](iter(["the cat sat 19 times", "a 28 dog"] * 20), vocab_size=300,
                             split_digits=split_digits)
  words = ["the", "cat", "a19", "ß"]
  [e] = t.encode_texts([words], max_length=64, words=True)
  assert e.ids[1:-1].tolist() == t.encode(" the cat a19 ß").tolist()
  for number, word in enumerate(words):  # offsets count in the word, without the space
    own = e.offsets[e.word == number]
    assert (own.min(), own.max()) == (0, len(word))


def test_roberta_words_equal_the_package_with_a_prefix_space(roberta):
  sentences = [["ab", "a", "b"], ["b"], ["ba", "abab", "a!"]]
  reference = byte_level(True)
  for words, e in zip(sentences, roberta.encode_texts(sentences, max_length=32, words=True)):
    expected = reference.encode(words, is_pretokenized=True)
    assert e.ids.tolist() == expected.ids
    assert e.word.tolist() == [-1 if w is None else w for w in expected.word_ids]
    assert e.offsets.tolist() == [list(o) for o in expected.offsets]


def test_words_stay_words_and_an_empty_one_has_no_token(bert):
  [e] = bert.encode_texts([["cats,", "", "The"]], max_length=16, words=True)
  assert names(bert, e) == ["[CLS]", "cat", "##s", "[UNK]", "the", "[SEP]"]
  assert e.word.tolist() == [-1, 0, 0, 0, 2, -1]
  [pair] = bert.encode_texts([["a", "b"]], [["c"]], max_length=16, words=True)
  assert names(bert, pair) == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]


def test_empty_byte_level_words_have_no_token(roberta):
  [e] = roberta.encode_texts([["ab", "", "a"]], max_length=16, words=True)
  assert e.word[e.text == 0].tolist() == [0, 0, 2]


@pytest.mark.parametrize("lengths, kept", [
    ((6, 2), (3, 2)), ((2, 6), (2, 3)), ((6, 6), (2, 3)), ((1, 3), (1, 3)), ((5, 0), (5, 0)),
    ((0, 9), (0, 5))])
def test_the_longer_text_is_cut_first(bert, lengths, kept):
  first, second = (" ".join("a" * n) for n in lengths)
  [e] = bert.encode_texts([first], [second], max_length=8)
  assert ((e.text == 0).sum(), (e.text == 1).sum()) == kept
  [one] = bert.encode_texts([" ".join("abcdef")], max_length=5)
  assert names(bert, one) == ["[CLS]", "a", "b", "c", "[SEP]"]


def test_no_call_changes_another(bert):
  before = bert.to_json()
  text = " ".join("abcdef" * 3)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    lengths = [3 + i % 15 for i in range(300)]
    cut = list(pool.map(lambda n: len(bert.encode_texts([text], max_length=n)[0].ids), lengths))
  assert cut == lengths
  assert len(bert.encode(text)) == 18 and bert.to_json() == before
  assert len(bert.encode_windows(["a"], [text], max_length=40, stride=2)[0]) == 1


@pytest.mark.parametrize("kind", ["bert", "roberta", "bytes"])
def test_half_of_a_surrogate_pair_is_no_text(kind, bert, roberta):
  t = {"bert": bert, "roberta": roberta, "bytes": TOKENIZERS["bytes"](iter(()))}[kind]
  bad, said = "a\udc80", r"text 2: has '\udc80' at character 1, half of a surrogate pair, which"
  for call in (lambda: t.encode_batch(["a", bad]), lambda: t.encode_words(["a", bad]),
               lambda: t.encode_texts(["a", bad], max_length=8),
               lambda: t.encode_texts(["a", "b"], ["c", bad], max_length=8),
               lambda: t.encode_texts([["a"], ["b", bad]], max_length=8, words=True),
               lambda: t.encode_windows(["a", "b"], ["c", bad], max_length=9, stride=1)):
    with pytest.raises(DataError, match=re.escape(said)):
      call()


def test_max_length_must_hold_more_than_the_special_tokens(bert):
  with pytest.raises(ConfigError) as e:
    bert.encode_texts(["a"], ["b"], max_length=3)
  assert str(e.value) == "max_length=3 leaves no room for text beside 3 special tokens"
  assert len(bert.encode_texts(["a b"], max_length=3)[0].ids) == 3


def test_names_of_special_tokens_are_text_but_the_mask_may_be_let_in(bert, roberta):
  assert (bert.mask_id, roberta.mask_id) == (4, 4)
  text = "a [MASK] [SEP] mask"
  [e] = bert.encode_texts([text], max_length=20)
  assert names(bert, e)[1:-1] == ["a", "[", "mask", "]", "[", "sep", "]", "mask"]
  [e] = bert.encode_texts([text], max_length=20, special=True)
  assert names(bert, e)[1:-1] == ["a", "[MASK]", "[", "sep", "]", "mask"]
  assert e.offsets[2].tolist() == [2, 8] and e.text[2] == 0
  [e] = roberta.encode_texts(["ab <mask> </s>"], max_length=20, special=True)
  assert names(roberta, e)[:3] == ["<s>", "ab", "<mask>"]
  assert (e.ids == roberta.eos_id).sum() == 1


def test_a_mask_that_is_not_there_is_an_error():
  t = TOKENIZERS["bytes"](iter(()))
  assert t.mask_id is None
  with pytest.raises(ConfigError, match=r"none of the special tokens \[MASK\], <mask>, so no text"):
    t.encode_texts(["a"], max_length=9, special=True)


def test_kinds_without_offsets_are_named(tmp_path):
  (tmp_path / "bpe").write_text("#version: 0.2\nl o\n", encoding="utf-8")
  t = TOKENIZERS["subword_nmt"](iter(["lo"]), merges=str(tmp_path / "bpe"))
  for call in (lambda: t.encode_texts(["lo"], max_length=9),
               lambda: t.encode_windows(["lo"], ["lo"], max_length=9, stride=1)):
    with pytest.raises(ConfigError, match="'subword_nmt' has no words and offsets.*use 'bpe'"):
      call()


def test_bytes_have_the_same_ids_for_encoders():
  t = TOKENIZERS["bytes"](iter(()))
  texts = ["".join(map(chr, range(256))), "日本語 😀\r\n\x00", "<pad>", " a  b "]
  for text, e in zip(texts, t.encode_texts(texts, max_length=4000)):
    assert e.ids[1:-1].tolist() == t.encode(text).tolist()


# ------------------------------------------------------------------------------ windows


def test_windows_overlap_by_stride_and_hold_the_question(bert):
  text = " ".join("abcdefabcd")
  [windows] = bert.encode_windows(["the cat"], [text], max_length=9, stride=2)
  assert [names(bert, w)[:4] for w in windows] == [["[CLS]", "the", "cat", "[SEP]"]] * 4
  assert ["".join(names(bert, w)[4:-1]) for w in windows] == ["abcd", "cdef", "efab", "abcd"]
  for w in windows:
    assert w.types.tolist() == [0] * 4 + [1] * 5
    assert w.text.tolist() == [-1, 0, 0, -1, 1, 1, 1, 1, -1]
    got = [text[s:e] for s, e in w.offsets[w.text == 1]]
    assert got == names(bert, w)[4:-1]
  assert windows[1].word[windows[1].text == 1].tolist() == [2, 3, 4, 5]


def test_windows_equal_the_package_own(bert):
  """Truncation of the second text only, with the stride, as the package does it itself."""
  backend = hf.Tokenizer.from_str(json.dumps(bert.model()))
  text = "the cats sat on mat " * 7 + "a"
  for stride in (0, 1, 3):
    backend.enable_truncation(12, stride=stride, strategy="only_second")
    encoded = backend.encode("a cats", text)
    [windows] = bert.encode_windows(["a cats"], [text], max_length=12, stride=stride)
    assert [w.ids.tolist() for w in windows] == [e.ids for e in (encoded, *encoded.overflowing)]
    assert [w.offsets.tolist() for w in windows] == [
        [list(o) for o in e.offsets] for e in (encoded, *encoded.overflowing)]


def test_a_text_that_fits_is_one_window_and_questions_can_be_cut(bert):
  long = " ".join("abcdef")
  whole, cut = bert.encode_windows([long, long], ["the", "the cat sat"], max_length=11, stride=1)
  assert len(whole) == 1 and len(whole[0].ids) == 10
  assert ["".join(names(bert, w)[8:-1]) for w in cut] == ["thecat", "catsat"]
  [short] = bert.encode_windows([long], ["the cat sat"], max_length=11, stride=1, max_first=2)
  assert names(bert, short[0]) == ["[CLS]", "a", "b", "[SEP]", "the", "cat", "sat", "[SEP]"]
  [empty] = bert.encode_windows(["a"], [""], max_length=11, stride=1)
  assert [names(bert, w) for w in empty] == [["[CLS]", "a", "[SEP]", "[SEP]"]]


def test_a_first_text_that_leaves_no_room_is_named(bert):
  with pytest.raises(DataError) as e:
    bert.encode_windows(["a", "a b c d"], ["e", "e"], max_length=9, stride=2)
  assert str(e.value) == (
      "pair 1: a first text of 4 tokens and 3 special tokens leave 2 of max_length=9 for a window"
      " of the second, which must be more than stride=2")
