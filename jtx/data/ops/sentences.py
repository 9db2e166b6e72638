"""Ops that split documents into sentences, and sentences into tokens."""

import dataclasses
import functools
import re
from typing import Callable

import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.errors import ConfigError, ExampleError

# No rule of Moses ends a sentence elsewhere, and most lines have no such place.
MAY_END = re.compile(r"[.?!]\W")

# Bits of `text_marks`.
SENTENCE, WORD, SPECIAL = 1, 2, 4  # begins a sentence; begins a word; is a special token


@dataclasses.dataclass(frozen=True)
class SplitSentences(ExampleOp):
  """Splits `text` into `sentences` by the rules of Moses (Koehn et al. 2007) for a language.

  A line is at least a sentence; white space at its ends is dropped. Documents without any text
  are dropped.
  """
  language: str = "en"  # code of the language, such as "en" or "de"

  def __post_init__(self):
    _splitter(self.language)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("split_sentences", ("text",), examples)
    split = _splitter(self.language)
    for e in examples:
      lines = filter(None, map(str.strip, e.pop("text").splitlines()))
      e["sentences"] = [s for line in lines for s in split(line)]
    return [e for e in examples if e["sentences"]]


@functools.cache
def _splitter(language: str) -> Callable[[str], list[str]]:
  import sentence_splitter
  try:
    by_rules = sentence_splitter.SentenceSplitter(language=language).split
  except sentence_splitter.SentenceSplitterException as e:
    raise ConfigError(f"op split_sentences: language={language!r} is not one that the library has"
                      " rules for; try 'en'") from e
  one = lambda line: [re.sub(" +", " ", line)]  # as the rules do, too
  return lambda line: by_rules(line) if MAY_END.search(line) else one(line)


@dataclasses.dataclass(frozen=True)
class EncodeSentences(ExampleOp):
  """The tokens of all `sentences` of a document as `text`, and `text_marks` of where they begin."""

  columns = {"text": Column("tokens"), "text_marks": Column("aligned:text", "uint8")}
  tokenizer_fields = (TOKENIZER,)

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return _sentences(example)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      encodings = tokenizers[TOKENIZER].encode_words(_sentences(e))
      encodings = [(ids, first) for ids, first in encodings if len(ids)]
      ids, marks = [np.zeros(0, np.int32)], [np.zeros(0, np.uint8)]
      for tokens, begins_word in encodings:
        mark = np.where(begins_word, WORD, 0).astype(np.uint8)
        mark[0] |= SENTENCE
        ids.append(tokens)
        marks.append(mark)
      e["text"], e["text_marks"] = np.concatenate(ids), np.concatenate(marks)
    return [e for e in examples if len(e["text"])]


def _sentences(example: Example) -> list[str]:
  if "sentences" not in example:
    raise ExampleError("encode_sentences", example["id"], "has no sentences, which"
                       f" 'split_sentences' makes; it has {', '.join(map(repr, example))}")
  return example["sentences"]


def boundaries(marks: np.ndarray, longest: int) -> list[int]:
  """Where the sentences of a document begin, and its end; longer ones are cut into pieces."""
  starts = [*np.flatnonzero(marks & SENTENCE).tolist(), len(marks)]
  cut = []
  for start, stop in zip(starts, starts[1:]):
    cut.extend(range(start, stop, longest))
  return [*cut, len(marks)]
