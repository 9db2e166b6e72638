"""The op of words that are predicted, and the vocabulary that it collects."""

import numpy as np
import pytest

from jtx.data.ops.words import WordTargets
from jtx.data.tokenizers.characters import Characters
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError

NAMES = ("<bos>", "<eos>", "<unk>", "a", "bé")


def rows_of(text, **fields):
  op = WordTargets(names=NAMES, **fields)
  return [(Bytes().decode(e["text"]), e["text"], e["text_targets"])
          for e in op([{"text": text, "id": 0}], {"text": Bytes()})]


def test_targets_stand_at_first_bytes():
  (text, ids, targets), = rows_of(" bé  a\nccc ")
  assert text == "bé a ccc" and ids[0] == 1 and ids[-1] == 2
  assert targets.tolist() == [0, 4, -1, -1, -1, 3, -1, 2, -1, -1, 1]
  assert ids.dtype == targets.dtype == np.int32


def test_longer_texts_become_rows_of_words():
  rows = rows_of("a bé ccc a a a", max_words=3, max_length=11)
  assert [text for text, *_ in rows] == ["a bé ccc", "a a a"]
  rows = rows_of("a bé ccc a", max_words=9, max_length=8)
  assert [text for text, *_ in rows] == ["a bé", "ccc a"]
  assert rows_of("abcdefghij", max_length=6)[0][0] == "abcd"
  assert rows_of(" \n") == []


def test_the_vocabulary_is_of_the_most_frequent_words():
  class Source(list):
    name = "source"

  texts = Source([{"text": "b a b <eos> <eos>"}, {"text": "c a b a d"}])
  assert WordTargets(vocab_size=6).collect_names([texts], ()) == (
      "<bos>", "<eos>", "<unk>", "a", "b", "c")


def test_refusals():
  with pytest.raises(ConfigError, match="config.tokenizer.kind must be 'bytes'"):
    WordTargets(names=NAMES)([{"text": "a", "id": 0}], {"text": Characters("a")})
  with pytest.raises(ConfigError, match="vocab_size=3 must be more than 3"):
    WordTargets(vocab_size=3)
  with pytest.raises(ConfigError, match="max_length=2 must be more than 2"):
    WordTargets(max_length=2)
