"""Ops that make the inputs of an encoder, for fine-tuning (Devlin et al. 2019, section 4).

All of them tokenise with the tokenizer of field "text". What an op leaves in an example beside its
columns is for evaluators, which run the same ops again.
"""

import dataclasses
from typing import Any, Iterable, Sequence

from absl import logging
import numpy as np

from jtx.data.example import Example, check_text, place
from jtx.data.op import TOKENIZER, Column, ExampleOp
from jtx.data.ops.labels import SHOWN, check_names, class_of, index_of, known_names, value_of
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError, DataError, ExampleError, listed
from jtx.ranges import Size, SizeOrNone

MAX_SPECIALS = 4  # of a pair: RoBERTa's, the most of all


@dataclasses.dataclass(frozen=True)
class Encode(ExampleOp):
  """One text or a pair of texts, with special tokens: `text` [T] and `text_types` [T].

  With `both_orders` there are `swapped` and `swapped_types`, too, the second text before the first.
  """
  texts: tuple[str, ...] = ("text",)  # keys of the example
  max_length: Size = 128  # tokens, the special ones counted; the longer of a pair is cut first
  both_orders: bool = False  # of a pair, for a head with both_orders

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if len(self.texts) not in (1, 2):
      raise ConfigError(f"op encode: texts={self.texts} must name one text or two")
    if self.both_orders and len(self.texts) != 2:
      raise ConfigError(f"op encode: both_orders=True is for a pair, and texts={self.texts}")
    check_max_length("encode", self.max_length, len(self.texts))

  @property
  def columns(self) -> dict[str, Column]:
    return {name: column for field in ("text", "swapped")[:1 + self.both_orders]
            for name, column in {field: Column("tokens"),
                                 f"{field}_types": Column(f"aligned:{field}")}.items()}

  @property
  def inputs(self) -> dict[str, str]:
    return dict(zip(("text", "second"), self.texts))

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field  # one tokenizer has all texts
    return texts_at("encode", example, self.texts)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode", self.texts, examples)
    columns = [[e[key] for e in examples] for key in self.texts]
    for field, ordered in (("text", columns), ("swapped", columns[::-1]))[:1 + self.both_orders]:
      encodings = tokenizers[TOKENIZER].encode_texts(*ordered, max_length=self.max_length)
      for e, encoding in zip(examples, encodings):
        e[field], e[f"{field}_types"] = encoding.ids, encoding.types
    return examples


def texts_at(op: str, example: Example, keys: Sequence[str]) -> list[str]:
  check_text(op, keys, [example])
  return [example[key] for key in keys]


def check_max_length(op: str, max_length: int, num_texts: int, key: str = "max_length") -> None:
  specials = MAX_SPECIALS if num_texts == 2 else 2
  if max_length <= specials:
    raise ConfigError(f"op {op}: {key}={max_length} must be more than {specials}, which special"
                      " tokens may take")


@dataclasses.dataclass(frozen=True)
class EncodeEach(ExampleOp):
  """Several texts, each by itself: `each_i` and `each_i_types` [T] of the i-th, from 0.

  A text and its pair come first, then hard negatives. The same key twice is the same text twice.
  `matched` is 1.
  """
  texts: tuple[str, ...] = ("text", "second")  # keys of the example, two or more
  max_length: Size = 128  # tokens of each text, the special ones counted
  query_length: SizeOrNone = 0  # the same of the first text, a query; 0 is max_length
  # The query is filled up to query_length with masks, which may stand for words that it lacks
  # (Khattab and Zaharia 2020, section 3.2)
  fill: bool = False

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if len(self.texts) < 2:
      raise ConfigError(f"op encode_each: texts={self.texts} must name two texts or more")
    check_max_length("encode_each", self.max_length, 1)
    if self.query_length:
      check_max_length("encode_each", self.query_length, 1, "query_length")
    if self.fill and not self.query_length:
      raise ConfigError("op encode_each: fill=True needs the query_length to fill queries up to")

  @property
  def columns(self) -> dict[str, Column]:
    return {name: column for i in range(len(self.texts))
            for name, column in {f"each_{i}": Column("tokens"),
                                 f"each_{i}_types": Column(f"aligned:each_{i}")}.items()
            } | {"matched": Column("example")}

  @property
  def inputs(self) -> dict[str, str]:
    return {"text": self.texts[0]}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return texts_at("encode_each", example, tuple(dict.fromkeys(self.texts)))

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode_each", self.texts, examples)
    columns = [(key, self.max_length) for key in self.texts]
    columns[0] = self.texts[0], self.query_length or self.max_length
    for column in dict.fromkeys(columns):
      key, max_length = column
      encodings = tokenizers[TOKENIZER].encode_texts([e[key] for e in examples],
                                                     max_length=max_length)
      for e, encoding in zip(examples, encodings):
        for i in (i for i, other in enumerate(columns) if other == column):
          e[f"each_{i}"], e[f"each_{i}_types"] = encoding.ids, encoding.types
    for e in examples:
      if self.fill:
        e["each_0"], e["each_0_types"] = filled(
            e["each_0"], e["each_0_types"], self.query_length, tokenizers[TOKENIZER])
      e["matched"] = np.int32(1)
    return examples


def filled(ids: np.ndarray, types: np.ndarray, length: int,
           tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
  """The ids and types of a text with masks behind it, up to `length` tokens.

  Raises:
    ConfigError: the tokenizer has no mask.
  """
  if tokenizer.mask_id is None:
    raise ConfigError("op encode_each: fill=True fills queries up with masks, and the tokenizer has"
                      " none; set it to False")
  more = (0, max(length - len(ids), 0))
  return np.pad(ids, more, constant_values=tokenizer.mask_id), np.pad(types, more)


# -------------------------------------------------------------------------------- tags


@dataclasses.dataclass(frozen=True)
class EncodeWords(ExampleOp):
  """Words with a tag each: `text`, `text_types` and `tags` [T].

  A word's tag stands at its first token; other tokens have -1. A word that `max_length` cuts
  off, or that has no token at all (a control character), has no tag, so a score must count
  it as wrong. Beside the columns an example gets `text_words` [T] int32, the number of the
  word that a token is of, -1 for a special token, and `word_tags`, the tag names of all words.
  """
  max_length: Size = 128  # tokens, the special ones counted; words beyond are cut off
  names: tuple[str, ...] = ()  # the tags in order; () is those of the training sources

  named = True
  tokenizer_fields = (TOKENIZER,)
  inputs = {"words": "words"}

  def __post_init__(self):
    check_names("encode_words", self.names)
    check_max_length("encode_words", self.max_length, 1)

  @property
  def columns(self) -> dict[str, Column]:
    return {"text": Column("tokens"), "text_types": Column("aligned:text"),
            "tags": Column("aligned:text")}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return [" ".join(_words(example))]

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    if not self.names:
      raise ConfigError("op encode_words: names is empty; it must name the tags in order")
    words = [_words(e) for e in examples]
    tags = [self._tags(e) for e in examples]
    encodings = tokenizers[TOKENIZER].encode_texts(words, max_length=self.max_length, words=True)
    for e, encoding, numbers in zip(examples, encodings, tags):
      e["text"], e["text_types"] = encoding.ids, encoding.types
      e["text_words"], e["word_tags"] = encoding.word, [self.names[n] for n in numbers]
      first = np.diff(encoding.word, prepend=-1) != 0
      e["tags"] = np.full(len(encoding.ids), -1, np.int32)
      places = first & (encoding.word >= 0)
      e["tags"][places] = np.array(numbers, np.int32)[encoding.word[places]]
    return examples

  def collect_names(self, sources: Sequence[Any], ops: Sequence[Any]) -> tuple[str, ...]:
    known = () if ops else known_names("encode_words", "tags", sources)
    names = known or tag_names(sources, ops)
    logging.info("%d tags: %s", len(names), " ".join(names))
    return names

  def _tags(self, example: Example) -> list[int]:
    tags = value_of("encode_words", example, "tags")
    if len(tags) != len(example["words"]):
      raise ExampleError("encode_words", example["id"], f"has {len(example['words'])} words,"
                         f" but {len(tags)} tags")
    if reason := self.misfit(example):
      raise ExampleError("encode_words", example["id"], reason)
    return [index_of(tag, self.names) for tag in tags]

  def misfit(self, example: Example) -> str:
    for word, tag in zip(example.get("words", ()), example.get("tags", ())):
      if index_of(tag, self.names) is None:
        return f"has the tag {tag!r} at word {word!r}; valid are {listed(self.names, SHOWN)}"
    return ""


def _words(example: Example) -> list[str]:
  words = value_of("encode_words", example, "words")
  if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
    raise ExampleError("encode_words", example["id"], f"has words={words!r}, which is not a"
                       " list of words")
  return list(words)


HASH_TAGS = {"O", "#"}  # that a word "#" may have alone


def tag_names(sources: Iterable, ops: Sequence[Any] = ()) -> tuple[str, ...]:
  """The tags that sources have, for the `names` of `encode_words`: "O" first, then by name.

  Args:
    sources: of examples with `tags`.
    ops: what runs over an example before `encode_words` does.

  Raises:
    DataError: an example without tags, or with tags that are no names, or that is a comment.
  """
  found, after_hash = set(), {}  # tags of words, and where the first word of a sentence is "#"
  for source in sources:
    for i in range(len(source)):
      examples = [{**source[i], "id": i}]
      for op in ops:
        examples = op(examples, None)
      for e in examples:
        tags = value_of("encode_words", e, "tags")
        if not all(isinstance(tag, str) for tag in tags):
          raise DataError(f"{source.name}: example {i} has tags={list(tags)!r}, which are no names;"
                          " write them in order into the names of 'encode_words'")
        hashed = next(iter(e.get("words") or ()), "") == "#"
        after_hash |= {tag: place(source, i) for tag in tags[:hashed] if tag not in after_hash}
        found.update(tags[hashed:])
  for tag in (tag for tag in after_hash if tag not in found | HASH_TAGS):
    raise DataError(f"{after_hash[tag]}: reads as the word '#' with the tag {tag!r}, which no other"
                    " word has; take comments out of the data, or where it is a word write the tags"
                    " in order into the names of 'encode_words'")
  found |= after_hash.keys()
  return tuple(sorted(found, key=lambda name: (name != "O", name)))


# ---------------------------------------------------------------------------- choices


@dataclasses.dataclass(frozen=True)
class EncodeChoices(ExampleOp):
  """A prompt with each of C endings: `choice_i` and `choice_i_types` [T], i < C, and `label`.

  The label is the number of the right choice, from 0: an int, or its digits.
  """
  prompt: str  # key of the prompt in an example
  choices: tuple[str, ...]  # keys of the endings, two or more
  label: str = "label"  # key of the right choice's number, from 0
  max_length: Size = 64  # tokens of a prompt and an ending, the special ones counted

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if len(self.choices) < 2:
      raise ConfigError(f"op encode_choices: choices={self.choices} must name two endings or more")
    check_max_length("encode_choices", self.max_length, 2)

  @property
  def columns(self) -> dict[str, Column]:
    columns = {}
    for i in range(len(self.choices)):
      columns |= {f"choice_{i}": Column("tokens"),
                  f"choice_{i}_types": Column(f"aligned:choice_{i}")}
    return {**columns, "label": Column("example")}

  @property
  def inputs(self) -> dict[str, str | tuple[str, ...]]:
    return {"prompt": self.prompt, "choices": self.choices}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return texts_at("encode_choices", example, (self.prompt, *self.choices))

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode_choices", (self.prompt, *self.choices), examples)
    numbers = tuple(map(str, range(len(self.choices))))
    prompts = [e[self.prompt] for e in examples]
    columns = [tokenizers[TOKENIZER].encode_texts(prompts, [e[key] for e in examples],
                                                  max_length=self.max_length)
               for key in self.choices]
    for e, encodings in zip(examples, zip(*columns)):
      e["label"] = np.int32(class_of("encode_choices", e, self.label, numbers))
      for i, encoding in enumerate(encodings):
        e[f"choice_{i}"], e[f"choice_{i}_types"] = encoding.ids, encoding.types
    return examples
