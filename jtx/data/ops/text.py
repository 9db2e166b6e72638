"""Ops on texts before and after they become tokens: fields, cleaning, tokens, lengths."""

import dataclasses
from typing import Any, Mapping
import unicodedata

import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.op import Column, ExampleOp
from jtx.errors import ConfigError, ExampleError
from jtx.ranges import CountOrNone, NotNegative


@dataclasses.dataclass(frozen=True)
class Fields(ExampleOp):
  """Renames: "src=translation.en" makes `src` of the nested value; other keys are dropped."""
  keep: tuple[str, ...] = ("src=src", "tgt=tgt")

  renames = True

  def __post_init__(self):
    for entry in self.keep:
      if entry.count("=") != 1:
        raise ConfigError(f"op fields: keep entry {entry!r} is not of the form new=old")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    pairs = [entry.split("=") for entry in self.keep]
    return [{"id": e["id"], **{new: _follow(e, old) for new, old in pairs}} for e in examples]


def _follow(example: Example, path: str) -> Any:
  value = example
  for part in path.split("."):
    if not isinstance(value, Mapping) or part not in value:
      keys = ", ".join(k for k in value if k != "id") if isinstance(value, Mapping) else "no keys"
      raise ExampleError("fields", example["id"], f"has no {path!r}; it has {keys}")
    value = value[part]
  return value


@dataclasses.dataclass(frozen=True)
class Clean(ExampleOp):
  """Unicode NFC and single spaces; drops examples with an empty field."""
  fields: tuple[str, ...] = ("src", "tgt")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("clean", self.fields, examples)
    for e in examples:
      for f in self.fields:
        e[f] = " ".join(unicodedata.normalize("NFC", e[f]).split())
    return [e for e in examples if all(e[f] for f in self.fields)]


@dataclasses.dataclass(frozen=True)
class Lowercase(ExampleOp):
  fields: tuple[str, ...] = ("src", "tgt")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("lowercase", self.fields, examples)
    for e in examples:
      for f in self.fields:
        e[f] = e[f].lower()
    return examples


@dataclasses.dataclass(frozen=True)
class Tokenize(ExampleOp):
  """Text to token ids, each field by its tokenizer, with the end token appended."""
  fields: tuple[str, ...] = ("src", "tgt")

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("tokenize", self.fields, examples)
    for f in self.fields:
      eos = np.array([tokenizers[f].eos_id], np.int32)
      for e, ids in zip(examples, tokenizers[f].encode_batch([e[f] for e in examples])):
        e[f] = np.concatenate([np.asarray(ids, np.int32), eos])
    return examples

  @property
  def columns(self) -> dict[str, Column]:
    return dict.fromkeys(self.fields, Column("tokens"))

  @property
  def tokenizer_fields(self) -> tuple[str, ...]:
    return self.fields

  def texts_of(self, example: Example, field: str) -> list[str]:
    return [example[field]]


@dataclasses.dataclass(frozen=True)
class FilterLength(ExampleOp):
  """Drops examples with a field of too many tokens, the end token counted, or too few."""
  fields: tuple[str, ...] = ("src", "tgt")
  max_length: CountOrNone = 256
  min_length: CountOrNone = 1
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
