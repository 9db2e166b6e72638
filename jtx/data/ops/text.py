"""Ops on texts before and after they become tokens: fields, cleaning, tokens, lengths."""

import dataclasses
import unicodedata

import numpy as np

from jtx.data.example import Example, check_text, follow
from jtx.data.op import Column, ExampleOp
from jtx.data.tokenizers.characters import UnknownCharacters
from jtx.errors import ConfigError, ExampleError, nearest
from jtx.ranges import Count, CountOrNone, NotNegative, Size


@dataclasses.dataclass(frozen=True)
class Fields(ExampleOp):
  """Renames: "src=translation.en" makes `src` of the nested value; other keys are dropped."""
  keep: tuple[str, ...] = ("src=src", "tgt=tgt")  # "new=old"; old may be a path, "translation.en"

  renames = True

  def __post_init__(self):
    for entry in self.keep:
      if entry.count("=") != 1:
        raise ConfigError(f"op fields: keep entry {entry!r} is not of the form new=old")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    pairs = [entry.split("=") for entry in self.keep]
    return [{"id": e["id"], **{new: follow("fields", e, old) for new, old in pairs}}
            for e in examples]


@dataclasses.dataclass(frozen=True)
class Clean(ExampleOp):
  """Unicode NFC and single spaces; drops examples with an empty field."""
  fields: tuple[str, ...] = ("src", "tgt")  # keys of the example

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("clean", self.fields, examples)
    for e in examples:
      for f in self.fields:
        e[f] = " ".join(unicodedata.normalize("NFC", e[f]).split())
    return [e for e in examples if all(e[f] for f in self.fields)]


@dataclasses.dataclass(frozen=True)
class Lowercase(ExampleOp):
  """Texts in lower case."""
  fields: tuple[str, ...] = ("src", "tgt")  # keys of the example

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("lowercase", self.fields, examples)
    for e in examples:
      for f in self.fields:
        e[f] = e[f].lower()
    return examples


STARTS = {"begin": "bos", "end": "eos"}  # roles of the tokens of `Tokenize.start`


@dataclasses.dataclass(frozen=True)
class Tokenize(ExampleOp):
  """Text to token ids, each field by its tokenizer, between its begin and end tokens."""
  fields: tuple[str, ...] = ("src", "tgt")  # keys of the example
  begin: bool = False  # a begin token stands before the text's
  end: bool = True  # and an end token behind
  start: str = "begin"  # the token that starts the decoder of an encoder-decoder, or "end"
  lengths: tuple[Size, ...] = ()  # tokens that each field is cut to, these two too; () cuts none

  def __post_init__(self):
    if self.start not in STARTS:
      raise ConfigError(f"op tokenize: start={self.start!r}: {nearest(self.start, STARTS)}")
    if self.lengths and (len(self.lengths) != len(self.fields)
                         or min(self.lengths) <= self.begin + self.end):
      raise ConfigError(f"op tokenize: lengths={self.lengths} needs a number above"
                        f" {self.begin + self.end} for each of fields={self.fields}")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("tokenize", self.fields, examples)
    for i, f in enumerate(self.fields):
      before = np.array([tokenizers[f].bos_id] if self.begin else [], np.int32)
      after = np.array([tokenizers[f].eos_id] if self.end else [], np.int32)
      room = self.lengths[i] - len(before) - len(after) if self.lengths else None
      for e, ids in zip(examples, _encoded("tokenize", examples, f, tokenizers[f])):
        e[f] = np.concatenate([before, np.asarray(ids[:room], np.int32), after])
    return examples

  @property
  def start_role(self) -> str:
    return STARTS[self.start]

  @property
  def columns(self) -> dict[str, Column]:
    return dict.fromkeys(self.fields, Column("tokens"))

  @property
  def tokenizer_fields(self) -> tuple[str, ...]:
    return self.fields

  def texts_of(self, example: Example, field: str) -> list[str]:
    return [example[field]]


def _encoded(op: str, examples: list[Example], field: str, tokenizer) -> list[np.ndarray]:
  """The ids of a field of all examples; of a text that has none the error names the example."""
  try:
    return tokenizer.encode_batch([e[field] for e in examples])
  except UnknownCharacters:
    for e in examples:
      try:
        tokenizer.encode(e[field])
      except UnknownCharacters as error:
        raise ExampleError(op, e["id"], str(error)) from error
    raise


@dataclasses.dataclass(frozen=True)
class FilterLength(ExampleOp):
  """Drops examples with a field of too many tokens, the end token counted, or too few."""
  fields: tuple[str, ...] = ("src", "tgt")  # whose tokens are counted
  max_length: Count = 256  # tokens of each field, at most
  min_length: CountOrNone = 1  # tokens of each field, at least
  max_ratio: NotNegative = 0.0  # longest to shortest field; 0 is no limit

  @property
  def counted(self) -> tuple[str, ...]:
    return self.fields

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    def keeps(e):
      lengths = [len(e[f]) for f in self.fields]
      return (max(lengths) <= self.max_length and min(lengths) >= self.min_length
              and not (self.max_ratio and max(lengths) > self.max_ratio * min(lengths)))
    return [e for e in examples if keeps(e)]
