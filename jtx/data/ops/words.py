"""The words that a language model over characters predicts, of texts of any length."""

import collections
import dataclasses
from typing import Any, ClassVar, Mapping, Sequence

from absl import logging
import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.data.ops.labels import check_names
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError
from jtx.ranges import Size

BEGIN, END, UNKNOWN = OTHERS = ("<bos>", "<eos>", "<unk>")


@dataclasses.dataclass(frozen=True)
class WordTargets(ExampleOp):
  """Bytes of up to `max_words` words, between begin and end: `text` and `text_targets` [T].

  White space parts words. A longer text or document becomes several examples, in its order. The
  target of a word, the number that it has in the vocabulary, is at its first byte, and -1 is
  elsewhere; begin and end are words, too. A word that is longer than a row is cut.
  """
  max_words: Size = 30  # of an example, begin and end not counted
  max_length: Size = 256  # bytes of an example, begin and end counted
  vocab_size: Size = 8000  # the most frequent words, and begin, end and unknown, are told apart
  names: tuple[str, ...] = ()  # these words; () is those of the training sources

  named = True
  names_key: ClassVar[str] = "output_vocab_size"
  tokenizer_fields = (TOKENIZER,)
  columns = {"text": Column("tokens"), "text_targets": Column("aligned:text")}

  def __post_init__(self):
    check_names("word_targets", self.names)
    if self.max_length < 3:
      raise ConfigError(f"op word_targets: max_length={self.max_length} must be more than 2, which"
                        " begin and end take")
    if self.vocab_size <= len(OTHERS):
      raise ConfigError(f"op word_targets: vocab_size={self.vocab_size} must be more than"
                        f" {len(OTHERS)}, for {', '.join(OTHERS)}")

  @property
  def number_of_names(self) -> int:
    """At most: small data may have fewer words."""
    return len(self.names) or self.vocab_size

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    check_text("word_targets", ("text",), [example])
    return [example["text"]]

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    """The most frequent words, the first in the alphabet of those that are equally frequent."""
    counts = collections.Counter()
    for source in sources:
      for i in range(len(source)):
        examples = [{**source[i], "id": i}]
        for op in ops:
          examples = op(examples, None)
        check_text("word_targets", ("text",), examples)
        counts.update(word for e in examples for word in e["text"].split())
    for name in OTHERS:
      counts.pop(name, None)
    words = sorted(counts, key=lambda word: (-counts[word], word))[:self.vocab_size - len(OTHERS)]
    logging.info("%d words, of %d, are told apart: %.2f %% of the text", len(words), len(counts),
                 100 * sum(counts[w] for w in words) / max(counts.total(), 1))
    return (*OTHERS, *words)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    if not isinstance(tokenizers[TOKENIZER], Bytes):
      raise ConfigError("op word_targets reads bytes: config.tokenizer.kind must be 'bytes', not"
                        f" {tokenizers[TOKENIZER].kind!r}")
    check_text("word_targets", ("text",), examples)
    numbers = {name: i for i, name in enumerate(self.names)}
    return [{**e, **row_of(part, numbers, tokenizers[TOKENIZER])}
            for e in examples for part in self._parts(e["text"])]

  def _parts(self, text: str) -> list[list[tuple[str, bytes]]]:
    """The words of each example, and their bytes."""
    parts, room = [], 0
    for word in text.split():
      content = word.encode("utf-8")[:self.max_length - 2]
      if not parts or len(parts[-1]) == self.max_words or len(content) + 1 > room:
        parts.append([])
        room = self.max_length - 1  # a space stands between words only
      parts[-1].append((word, content))
      room -= len(content) + 1
    return parts


def row_of(part: Sequence[tuple[str, bytes]], numbers: Mapping[str, int],
           tokenizer: Bytes) -> Example:
  """The columns of an example of words and their bytes, with the numbers of words by name."""
  words, contents = zip(*part)
  content = np.frombuffer(b" ".join(contents), np.uint8).astype(np.int32) + tokenizer.low
  text = np.concatenate([[tokenizer.bos_id], content, [tokenizer.eos_id]]).astype(np.int32)
  targets = np.full(len(text), -1, np.int32)
  starts = 1 + np.cumsum([0, *(len(c) + 1 for c in contents[:-1])])
  targets[starts] = [numbers.get(word, numbers[UNKNOWN]) for word in words]
  targets[0], targets[-1] = numbers[BEGIN], numbers[END]
  return {"text": text, "text_targets": targets}
