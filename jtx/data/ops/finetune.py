"""Ops that make an encoder's inputs and labels, for fine-tuning (Devlin et al. 2019, section 4).

An op that makes inputs tells them in `columns` (see `jtx.data.packing.Column`). All of them
tokenise with the tokenizer of field "text". What an op leaves in an example beside its
columns is for evaluators, which run the same ops again.
"""

import dataclasses
import math
from typing import Any, Callable, Iterable, Mapping, Sequence

import numpy as np

from jtx.data.example import Example, check_text
from jtx.data.packing import Column
from jtx.data.tokenizers.encodings import Encoding
from jtx.errors import ConfigError, DataError

TOKENIZER = "text"  # the field whose tokenizer these ops take
MAX_SPECIALS = 4  # of a pair: RoBERTa's, the most of all


@dataclasses.dataclass(frozen=True)
class Encode:
  """One text or a pair of texts, with special tokens: `text` [T] and `text_types` [T]."""
  texts: tuple[str, ...] = ("text",)  # keys of the example
  max_length: int = 128  # tokens, the special ones counted; the longer of a pair is cut first

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if len(self.texts) not in (1, 2):
      raise ConfigError(f"op encode: texts={self.texts} must name one text or two")
    _check_max_length("encode", self.max_length, len(self.texts))

  @property
  def columns(self) -> dict[str, Column]:
    return {"text": Column("tokens"), "text_types": Column("aligned:text")}

  def texts_of(self, example: Example, field: str) -> list[str]:
    """What a tokenizer of `field` is trained on."""
    del field  # one tokenizer has all texts
    return _texts("encode", example, self.texts)

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode", self.texts, examples)
    columns = [[e[key] for e in examples] for key in self.texts]
    encodings = tokenizers[TOKENIZER].encode_texts(*columns, max_length=self.max_length)
    for e, encoding in zip(examples, encodings):
      e["text"], e["text_types"] = encoding.ids, encoding.types
    return examples


def _texts(op: str, example: Example, keys: Sequence[str]) -> list[str]:
  check_text(op, keys, [example])
  return [example[key] for key in keys]


def _check_max_length(op: str, max_length: int, num_texts: int) -> None:
  specials = MAX_SPECIALS if num_texts == 2 else 2
  if max_length <= specials:
    raise ConfigError(f"op {op}: max_length={max_length} must be more than {specials}, which"
                      " special tokens may take")


# ------------------------------------------------------------------------------ labels


@dataclasses.dataclass(frozen=True)
class Label:
  """The class of an example as `label`: a name is looked up, an int is an index of `names`."""
  key: str = "label"
  names: tuple[str, ...] = ("0", "1")

  def __post_init__(self):
    check_names("label", self.names)
    if not self.names:
      raise ConfigError("op label: names is empty; it must name the classes in order")

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      e["label"] = np.int32(_class("label", e, self.key, self.names))
    return examples


def check_names(op: str, names: Sequence[str]) -> None:
  """Raises ConfigError where a name of a class or tag stands more than once."""
  if double := sorted({name for name in names if names.count(name) > 1}):
    raise ConfigError(f"op {op}: names has {', '.join(double)} more than once")


def _value(op: str, example: Example, key: str) -> Any:
  if key not in example:
    keys = ", ".join(k for k in example if k != "id")
    raise DataError(f"op {op}: example {example['id']} has no {key!r}; it has {keys}")
  return example[key]


def _class(op: str, example: Example, key: str, names: Sequence[str]) -> int:
  index = _index(_value(op, example, key), names)
  if index is None:
    raise DataError(f"op {op}: example {example['id']} has {key}={example[key]!r}; valid are"
                    f" {', '.join(names)}, or their numbers 0 to {len(names) - 1}"
                    + (" (-1 stands for an unknown label)" if str(example[key]) == "-1" else ""))
  return index


def _index(value: Any, names: Sequence[str]) -> int | None:
  """The place of a name in `names`, or of an int that is a place; None if it is neither."""
  if isinstance(value, str):
    return names.index(value) if value in names else None
  if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
    return int(value) if 0 <= value < len(names) else None
  return None


@dataclasses.dataclass(frozen=True)
class Number:
  """A number to be predicted, as `label`, float32: example[key] times `scale`."""
  key: str
  scale: float = 1.0

  @property
  def columns(self) -> dict[str, Column]:
    return {"label": Column("example", "float32")}

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    for e in examples:
      value = _value("number", e, self.key)
      try:
        number = float(value)
      except (TypeError, ValueError):
        number = math.nan
      if not math.isfinite(number):
        raise DataError(f"op number: example {e['id']} has {self.key}={value!r}, which is not a"
                        " finite number")
      e["label"] = np.float32(number * self.scale)
    return examples


# -------------------------------------------------------------------------------- tags


@dataclasses.dataclass(frozen=True)
class EncodeWords:
  """Words with a tag each: `text`, `text_types` and `tags` [T].

  A word's tag stands at its first token; other tokens have -1. A word that `max_length` cuts
  off, or that has no token at all (a control character), has no tag, so a score must count
  it as wrong. Beside the columns an example gets `text_words` [T] int32, the number of the
  word that a token is of, -1 for a special token, and `word_tags`, the tag names of all words.
  """
  max_length: int = 128
  names: tuple[str, ...] = ()  # the tags in order, as `tag_names` collects them

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    check_names("encode_words", self.names)
    _check_max_length("encode_words", self.max_length, 1)

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

  def _tags(self, example: Example) -> list[int]:
    tags = _value("encode_words", example, "tags")
    if len(tags) != len(example["words"]):
      raise DataError(f"op encode_words: example {example['id']} has {len(example['words'])} words,"
                      f" but {len(tags)} tags")
    numbers = [_index(tag, self.names) for tag in tags]
    if None in numbers:
      place = numbers.index(None)
      raise DataError(f"op encode_words: example {example['id']} has the tag {tags[place]!r} at"
                      f" word {example['words'][place]!r}; valid are {', '.join(self.names)}")
    return numbers


def _words(example: Example) -> list[str]:
  words = _value("encode_words", example, "words")
  if not isinstance(words, (list, tuple)) or not all(isinstance(w, str) for w in words):
    raise DataError(f"op encode_words: example {example['id']} has words={words!r}, which is not a"
                    " list of words")
  return list(words)


def tag_names(sources: Iterable, ops: Sequence[Any] = ()) -> tuple[str, ...]:
  """The tags that sources have, for the `names` of `encode_words`: "O" first, then by name.

  Args:
    sources: of examples with `tags`.
    ops: what runs over an example before `encode_words` does.

  Raises:
    DataError: an example without tags, or with tags that are no names.
  """
  found = set()
  for source in sources:
    for i in range(len(source)):
      examples = [{**source[i], "id": i}]
      for op in ops:
        examples = op(examples, None)
      for e in examples:
        tags = _value("encode_words", e, "tags")
        if not all(isinstance(tag, str) for tag in tags):
          raise DataError(f"{source.name}: example {i} has tags={list(tags)!r}, which are no names;"
                          " write them in order into the names of 'encode_words'")
        found.update(tags)
  return tuple(sorted(found, key=lambda name: (name != "O", name)))


# ----------------------------------------------------------------------- reading tests


@dataclasses.dataclass(frozen=True)
class EncodeWindows:
  """A question and its context, in windows: `text`, `text_types` [T], `start` and `end`.

  An example becomes one example a window, all with its id; windows overlap by `stride`
  tokens. `start` and `end` are the places in `text` of the first and last token of the first
  answer, or 0 and 0 (the first special token) where the window does not hold all of it.
  Beside the columns an example keeps its `context`, has `answers` as a list of `text` and
  `answer_start`, and gets `text_offsets` [T, 2] int32: first character of a token in the context
  and the one after the last, -1 outside of it. A token's characters may begin with a space.
  """
  max_length: int = 384  # tokens of a window with question and special tokens
  stride: int = 128  # tokens
  max_question: int = 64  # tokens; a longer question is cut

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if min(self.stride, self.max_question - 1) < 0:
      raise ConfigError(f"op encode_windows: stride={self.stride} must not be negative, and"
                        f" max_question={self.max_question} must be positive")
    least = self.max_question + self.stride + MAX_SPECIALS
    if self.max_length <= least:
      raise ConfigError(f"op encode_windows: max_length={self.max_length} must be more than"
                        f" {least}, the sum of max_question={self.max_question},"
                        f" stride={self.stride} and {MAX_SPECIALS} special tokens")

  @property
  def columns(self) -> dict[str, Column]:
    return {"text": Column("tokens"), "text_types": Column("aligned:text"),
            "start": Column("example"), "end": Column("example")}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return _texts("encode_windows", example, ("question", "context"))

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode_windows", ("question", "context"), examples)
    encodings = tokenizers[TOKENIZER].encode_windows(
        [e["question"] for e in examples], [e["context"] for e in examples],
        max_length=self.max_length, stride=self.stride, max_first=self.max_question)
    results = []
    for e, windows in zip(examples, encodings):
      answers = _answers(e)
      answer = _span(answers[0], e) if answers else None
      for number, window in enumerate(windows):
        ends = (number == 0, number == len(windows) - 1)
        start, end = _place(answer, window, *ends)
        offsets = np.where(window.text[:, None] == 1, window.offsets, -1)
        results.append({**e, "answers": answers, "text": window.ids, "text_types": window.types,
                        "text_offsets": offsets, "start": np.int32(start), "end": np.int32(end)})
    return results


def _answers(example: Example) -> list[dict[str, Any]]:
  answers = _value("encode_windows", example, "answers")
  if isinstance(answers, Mapping):  # TFDS has a dict of lists
    return [dict(zip(answers, values)) for values in zip(*answers.values())]
  return answers


def _span(answer: Mapping[str, Any], example: Example) -> tuple[int, int] | None:
  """First character of an answer and the one after the last; None if it is white space."""
  text, start = answer["text"], answer["answer_start"]
  if example["context"][start:start + len(text)] != text:
    raise DataError(f"op encode_windows: example {example['id']} has the answer {text!r}, which is"
                    f" not at character {start} of its context; ops must not change the context")
  # No token begins with white space that the tokenizer drops.
  start += len(text) - len(text.lstrip())
  return (start, start + len(text.strip())) if text.strip() else None


def _place(answer: tuple[int, int] | None, window: Encoding, is_first: bool,
           is_last: bool) -> tuple[int, int]:
  """Places of an answer's first and last token in a window, or (0, 0)."""
  places = np.flatnonzero(window.text == 1)
  if answer is None or not len(places):
    return 0, 0
  # A window has the text from its first token on, and up to its last; what the tokenizer drops
  # before the first token of all belongs to the first window.
  if not is_first and answer[0] < window.offsets[places[0], 0]:
    return 0, 0
  if not is_last and answer[1] > window.offsets[places[-1], 1]:
    return 0, 0
  inside = places[(window.offsets[places, 0] < answer[1]) & (window.offsets[places, 1] > answer[0])]
  return (int(inside[0]), int(inside[-1])) if len(inside) else (0, 0)


# ---------------------------------------------------------------------------- choices


@dataclasses.dataclass(frozen=True)
class EncodeChoices:
  """A prompt with each of C endings: `choice_i` and `choice_i_types` [T], i < C, and `label`.

  The label is the number of the right choice, from 0: an int, or its digits.
  """
  prompt: str  # keys of the example
  choices: tuple[str, ...]
  label: str = "label"
  max_length: int = 64  # tokens of a prompt and an ending, the special ones counted

  tokenizer_fields = (TOKENIZER,)

  def __post_init__(self):
    if len(self.choices) < 2:
      raise ConfigError(f"op encode_choices: choices={self.choices} must name two endings or more")
    _check_max_length("encode_choices", self.max_length, 2)

  @property
  def columns(self) -> dict[str, Column]:
    columns = {}
    for i in range(len(self.choices)):
      columns |= {f"choice_{i}": Column("tokens"),
                  f"choice_{i}_types": Column(f"aligned:choice_{i}")}
    return {**columns, "label": Column("example")}

  def texts_of(self, example: Example, field: str) -> list[str]:
    del field
    return _texts("encode_choices", example, (self.prompt, *self.choices))

  def __call__(self, examples: list[Example], tokenizers) -> list[Example]:
    check_text("encode_choices", (self.prompt, *self.choices), examples)
    numbers = tuple(map(str, range(len(self.choices))))
    prompts = [e[self.prompt] for e in examples]
    columns = [tokenizers[TOKENIZER].encode_texts(prompts, [e[key] for e in examples],
                                                  max_length=self.max_length)
               for key in self.choices]
    for e, encodings in zip(examples, zip(*columns)):
      e["label"] = np.int32(_class("encode_choices", e, self.label, numbers))
      for i, encoding in enumerate(encodings):
        e[f"choice_{i}"], e[f"choice_{i}_types"] = encoding.ids, encoding.types
    return examples


OPS: dict[str, Callable[..., Any]] = {
    "label": Label,
    "number": Number,
    "encode": Encode,
    "encode_words": EncodeWords,
    "encode_windows": EncodeWindows,
    "encode_choices": EncodeChoices,
}
