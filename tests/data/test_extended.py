"""More tokens for a vocabulary, and what two have in common."""

import json

import numpy as np
import pytest
import tokenizers as hf

from jtx.data.tokenizers import extended
from jtx.data.tokenizers.extended import Overlap
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.kinds import byte_bpe, unigram, wordpiece
from jtx.errors import ConfigError, DataError

GENERAL = ["a cat sat on the mat", "the dog ran", "we see us go", "in or out of it"] * 2
DOMAIN = ["consent of the consenting", "consent or dissent", "the cookies in cookies"]
KINDS = {"wordpiece": wordpiece, "byte_bpe": byte_bpe}


def made(kind):
  return KINDS[kind](iter(GENERAL + ["abcdefghijklmnopqrstuvwxyz " * 2]), vocab_size=300)


@pytest.mark.parametrize("kind", KINDS)
def test_old_ids_stay_and_new_tokens_stand_for_their_old_pieces(kind):
  old = made(kind)
  new = extended.extend(old, DOMAIN, 20)
  assert new.first == old.vocab_size
  assert new.tokenizer.vocab_size == old.vocab_size + len(new.pieces)
  assert new.tokenizer.tokens(range(old.vocab_size)) == old.tokens(range(old.vocab_size))
  old_ids, new_ids = old.encode_batch(DOMAIN), new.tokenizer.encode_batch(DOMAIN)
  assert sum(map(len, new_ids)) < sum(map(len, old_ids))
  for text, ids, before in zip(DOMAIN, new_ids, old_ids):
    pieces = [new.pieces[i - new.first] if i >= new.first else (i,) for i in ids]
    # A word that is longer matches other pieces first, so what stays the same is what is written.
    assert old.decode(np.concatenate(pieces)) == old.decode(before) == new.tokenizer.decode(ids)
  assert max(max(ids) for ids in new_ids) >= new.first
  assert new.tokenizer.encode_batch(GENERAL[:1])[0].tolist() == old.encode(GENERAL[0]).tolist()


def test_the_most_frequent_pair_is_joined_first_and_then_its_neighbours():
  """By hand: abab has the pair ab four times, then abab twice."""
  vocab = {name: i for i, name in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", "a", "b", "c"])}
  backend = hf.Tokenizer(hf.models.BPE(vocab, [], unk_token="<unk>"))
  backend.pre_tokenizer = hf.pre_tokenizers.Whitespace()
  old = HuggingFace(backend, range(4))
  new = extended.extend(old, ["abab ca", "abab ca", "cb x"], 2)
  assert new.tokenizer.tokens([7, 8]) == ["ab", "abab"] and new.pieces == ((4, 5), (4, 5, 4, 5))
  assert new.tokenizer.encode("abab ca").tolist() == [8, 6, 4]
  three = extended.extend(old, ["abab ca", "abab ca", "cb x"], 9)  # what is there but once is not
  assert three.tokenizer.tokens(range(7, 10)) == ["ab", "abab", "ca"] and len(three.pieces) == 3


def test_what_can_not_be_extended():
  with pytest.raises(DataError, match="no token can be added"):
    extended.extend(made("wordpiece"), ["the"], 5)
  with pytest.raises(ConfigError, match="only one of WordPiece or BPE can"):
    extended.extend(unigram(iter(GENERAL), vocab_size=40), DOMAIN, 5)


def test_the_overlap_of_two_vocabularies():
  a, b = (HuggingFace({**json.loads(hf.Tokenizer(hf.models.WordPiece(
      {name: i for i, name in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *words])},
      unk_token="<unk>")).to_str())}, range(4)) for words in ("abcd", "cdefgh"))
  assert extended.overlap(a, b) == Overlap(4, 6, 2) and extended.overlap(b, a).share == 0.5
  with pytest.raises(ConfigError, match="WordPiece and of BPE of bytes can't be compared"):
    extended.overlap(a, made("byte_bpe"))
