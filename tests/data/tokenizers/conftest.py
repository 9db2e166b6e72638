"""Tokenizers that are trained once."""

import json

import pytest

from jtx import config
from jtx.data.sources.number_words import number_words
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.kinds import TOKENIZERS
from tests.data.tokenizers.trained import HOSTILE, TRAINED
from tests.data.tokenizers.vocabularies import PIECES, byte_level


@pytest.fixture(scope="module")
def texts():
  source = number_words("", "train")
  pairs = [source[i] for i in range(0, len(source), 40)]
  # Special names in the training text must not make them learnable either.
  return [text for pair in pairs for text in pair.values()] + HOSTILE * 50


@pytest.fixture(scope="module")
def trained(texts):
  kinds = {kind: config.build(TOKENIZERS, config.section(TOKENIZERS, kind, vocab_size=400),
                              iter(texts)) for kind in TRAINED}
  return kinds | {"bytes": TOKENIZERS["bytes"](iter(()))}


@pytest.fixture(scope="module")
def merges(tmp_path_factory):
  path = tmp_path_factory.mktemp("merges") / "bpe"
  path.write_text("#version: 0.2\nl o\nlo w</w>\ne r</w>\nn e\nne w\n", encoding="utf-8")
  return str(path)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
  path = tmp_path_factory.mktemp("bert") / "vocab.txt"
  path.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
  return read_tokenizer(path)


@pytest.fixture(scope="module")
def roberta():
  return HuggingFace(json.loads(byte_level(False).to_str()), [1, 0, 2, 3])
