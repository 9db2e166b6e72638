"""Masks, ids of no special token, and tokens that begin words."""

import json
import pickle

import numpy as np
import pytest
import tokenizers as hf

from jtx import config
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.data.tokenizers.tokenizer import SPECIALS
from tests.data.tokenizers.trained import HOSTILE, TRAINED


@pytest.fixture(scope="module")
def masked(texts):
  """Trained with a mask, on texts that have its name."""
  return {kind: TOKENIZERS[kind](iter(texts + ["[MASK] a[MASK]b <mask>"] * 50), vocab_size=401,
                                 mask=True) for kind in TRAINED}


@pytest.mark.parametrize("kind", TRAINED)
def test_a_mask_is_one_more_special_token(trained, masked, kind):
  t = masked[kind]
  assert t.tokens(range(5)) == [*SPECIALS, "[MASK]"] and t.mask_id == 4
  assert t.special_ids == {0, 1, 2, 3, 4} and 350 < t.vocab_size <= 401
  assert trained[kind].mask_id is None and trained[kind].special_ids == {0, 1, 2, 3}
  [e] = t.encode_texts(["one [MASK] two"], max_length=40, special=True)
  assert (e.ids == t.mask_id).sum() == 1 and e.offsets[e.ids == t.mask_id].tolist() == [[4, 10]]
  assert t.decode(e.ids) == t.decode(t.encode("one  two"))  # special ids are skipped
  for other in (from_json(t.to_json()), pickle.loads(pickle.dumps(t))):
    assert other == t and (other.mask_id, other.special_ids) == (t.mask_id, t.special_ids)
    np.testing.assert_array_equal(other.plain_ids(), t.plain_ids())


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_a_mask_changes_nothing_else(trained, texts, kind):
  t = TOKENIZERS[kind](iter(texts), vocab_size=401, mask=True)
  plain = trained[kind].tokens(range(trained[kind].vocab_size))
  assert t.tokens(range(t.vocab_size)) == [*plain[:4], "[MASK]", *plain[4:]]
  for text, ids in zip(texts, trained[kind].encode_batch(texts)):
    np.testing.assert_array_equal(t.encode(text), np.where(ids >= 4, ids + 1, ids))


@pytest.mark.parametrize("kind", TRAINED)
def test_the_name_of_the_mask_in_a_text_is_text(masked, kind):
  t = masked[kind]
  for text in ("[MASK]", "a[MASK]b [MASK] <mask>", "▁[MASK] Ġ[MASK] ##[MASK]", *HOSTILE):
    for ids in (t.encode(text), t.encode_words([text])[0][0]):
      assert len(ids) and not np.isin(ids, (t.pad_id, t.bos_id, t.eos_id, t.mask_id)).any()


@pytest.mark.parametrize("kind", TRAINED)
def test_a_vocabulary_without_room_for_the_mask(kind):
  """A letter and the specials: with a mask there is one id too few."""
  texts = ["aa"] if kind == "wordpiece" else ["a"]  # which has "a" and "##a"
  size = {"bpe": 6, "byte_bpe": 260, "wordpiece": 6, "unigram": 6}[kind]
  options = {} if kind == "unigram" else {"min_frequency": 9}
  assert TOKENIZERS[kind](iter(texts), vocab_size=size, **options).vocab_size <= size
  with pytest.raises(config.ConfigError, match=f"vocab_size={size} is too small"):
    TOKENIZERS[kind](iter(texts), vocab_size=size, mask=True, **options)


def test_plain_ids_are_those_of_no_special_token(trained, masked, merges, tmp_path):
  for kind in TRAINED:
    for t, first in ((trained[kind], 4), (masked[kind], 5)):
      assert t.plain_ids().tolist() == list(range(first, t.vocab_size))
      assert t.plain_ids().dtype == np.int32
  assert trained["bytes"].plain_ids().tolist() == list(range(4, 260))
  t = TOKENIZERS["subword_nmt"](iter(["low"]), merges=merges)
  assert t.plain_ids().tolist() == [4]
  # Special tokens of a file are where they are; BERT's unused ones are not special.
  pieces = ["[PAD]", "[unused1]", "a", "[UNK]", "[CLS]", "b", "[SEP]", "[MASK]", "c"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces), encoding="utf-8")
  t = read_tokenizer(tmp_path)
  assert (t.tokens(t.plain_ids()), t.mask_id) == (["[unused1]", "a", "b", "c"], 7)


def words_of(tokenizer, text):
  """The pieces of each word."""
  [(ids, begins)] = tokenizer.encode_words([text])
  assert (ids.dtype, begins.dtype) == (np.int32, bool) and ids.shape == begins.shape
  np.testing.assert_array_equal(ids, tokenizer.encode(text))
  words = []
  for piece, first in zip(tokenizer.tokens(ids), begins):
    words += [piece] if first else []
    words[-1] += "" if first else f" {piece}"
  return [word.replace(" ", "") for word in words]


@pytest.mark.parametrize("kind, words", [
    ("bpe", ["▁one", "▁twenty", "-", "two", ",", "▁1987", ".", "▁", "-"]),
    ("unigram", ["▁one", "▁twenty", "-", "two", ",", "▁1987", ".", "▁", "-"]),
    ("wordpiece", ["one", "twenty", "-", "two", ",", "1987", ".", "-"]),
    ("byte_bpe", ["one", "Ġtwenty", "-", "two", ",", "Ġ1987", ".", "Ġ", "Ġ-"]),
    ("bytes", ["one", "0x20twenty", "-", "two", ",", "0x201987", ".", "0x20", "0x20-"]),
])
def test_words_are_those_of_the_splitter(trained, kind, words):
  found = words_of(trained[kind], "one twenty-two, 1987.  -")
  assert [word.replace("##", "") for word in found] == words


def test_pieces_of_a_wordpiece_begin_words_unless_marked(trained, texts):
  t = trained["wordpiece"]
  encoded = t.encode_words(texts)
  assert [ids.tolist() for ids, _ in encoded] == [ids.tolist() for ids in t.encode_batch(texts)]
  inside = 0
  for ids, begins in encoded:
    marked = [piece.startswith("##") for piece in t.tokens(ids)]
    assert begins.tolist() == [not m for m in marked]
    inside += sum(marked)
  assert inside > 1000


def test_texts_without_words(trained):
  for kind in (*TRAINED, "bytes"):
    (ids, begins), (one, _) = trained[kind].encode_words(["", "eine"])
    assert ids.shape == begins.shape == (0,) and begins.dtype == bool and len(one)
    assert trained[kind].encode_words([]) == []


def test_a_kind_without_words_is_named(merges):
  t = TOKENIZERS["subword_nmt"](iter(["low"]), merges=merges)
  with pytest.raises(config.ConfigError, match="'subword_nmt' has no words and offsets.*use 'bpe'"):
    t.encode_words(["low"])


def test_special_names_among_the_pieces_of_a_model_are_unknown_text():
  """As XLM-R's and T5's: Unigram, words split at spaces only, so a name is a piece."""
  pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<extra_0>", "▁", "▁a", "m", "b"]
  backend = hf.Tokenizer(hf.models.Unigram([(p, -1.0) for p in pieces], 3, False))
  backend.pre_tokenizer = hf.pre_tokenizers.Metaspace()
  backend.add_special_tokens(pieces[:6])
  t = HuggingFace(json.loads(backend.to_str()), [1, 0, 2, 3])
  text = "a<mask> <extra_0> b"
  expected = ["▁a", "<unk>", "▁", "<unk>", "▁", "b"]
  assert t.tokens(t.encode(text)) == expected
  assert t.tokens(t.encode_words([text])[0][0]) == expected
  [e] = t.encode_texts([text], max_length=20)
  assert t.tokens(e.ids) == ["<s>", *expected, "</s>"]
  [e] = t.encode_texts(["a <mask> <extra_0>"], max_length=20, special=True)
  assert t.tokens(e.ids) == ["<s>", "▁a", "▁", "<mask>", "▁", "<unk>", "</s>"]
  assert t.tokens(t.plain_ids()) == ["▁", "▁a", "m", "b"]
