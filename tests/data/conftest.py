"""Fixtures of tests of data."""

from absl import logging
import numpy as np
import pytest

from jtx.data.tokenizers.kinds import wordpiece
from tests.data.streams import Rows, words_of


@pytest.fixture(scope="module")
def corpus():
  """30 documents of many lengths, with the tokenizer of their words."""
  rng = np.random.default_rng(0)
  source = Rows()
  for n in range(30):
    sentences = [" ".join(words_of(w) for w in rng.integers(0, 30, rng.integers(1, 9)))
                 for _ in range(rng.integers(1, 15))]
    source.append({"text": ".\n".join(sentences) + "."})
  source[7:7] = [{"text": " \r\n"}]  # is dropped
  tokenizer = wordpiece(iter(e["text"] for e in source), vocab_size=200, min_frequency=1, mask=True)
  return source, {"text": tokenizer}


@pytest.fixture
def warnings(monkeypatch):
  lines = []
  monkeypatch.setattr(logging, "warning", lambda line, *args: lines.append(line % args))
  return lines
