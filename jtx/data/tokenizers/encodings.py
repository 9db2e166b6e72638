"""Texts and pairs of texts as an encoder reads them: with special tokens, types and offsets."""

import contextlib
import itertools
import json
import re
from typing import Any, Iterator, Mapping, NamedTuple, Sequence, Set

import numpy as np
import tokenizers as hf

from jtx.errors import ConfigError, DataError

# What a tokenizer.json calls the mask token.
MASKS = ("[MASK]", "<mask>")
SURROGATE = re.compile("[\ud800-\udfff]")


class Encoding(NamedTuple):
  """A text or a pair as T tokens."""
  ids: np.ndarray  # [T] int32
  types: np.ndarray  # [T] int32, as the tokenizer's template gives them
  text: np.ndarray  # [T] int8: 0 or 1, which text the token is of; -1 for a special token
  word: np.ndarray  # [T] int32: number of the word in its text; -1 for a special token
  # [T, 2] int32: first character and the one after the last, in the text; or in the word, where
  # the texts are lists of words. Some tokenizers count the space before a word to it.
  offsets: np.ndarray


@contextlib.contextmanager
def told(*groups: Sequence[Any] | None) -> Iterator[None]:
  """Tells of a text that is no Unicode, such as Python has of broken input.

  Args:
    *groups: texts, or lists of words.

  Raises:
    DataError: one of them has half of a surrogate pair; the sentence counts from 1.
  """
  try:
    yield
  except (TypeError, UnicodeEncodeError):
    for texts in groups:
      for number, text in enumerate(texts or (), 1):
        for part in [text] if isinstance(text, str) else text:
          if found := SURROGATE.search(part):
            raise DataError(f"text {number}: has {found.group()!r} at character {found.start()},"
                            " half of a surrogate pair, which is no character") from None
    raise


def found_in_texts(model: Mapping[str, Any], named: Set[int]) -> dict[str, Any]:
  """The content of a tokenizer.json by which texts may name some of its special tokens."""
  # The package always finds names of added tokens that are not special.
  added = [t | {"special": t["special"] and t["id"] not in named} for t in model["added_tokens"]]
  return {**model, "added_tokens": added}


def is_byte_level(backend: hf.Tokenizer) -> bool:
  return '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["pre_tokenizer"])


def template(backend: hf.Tokenizer, before: int | None, between: int | None,
             after: int | None) -> hf.processors.PostProcessor:
  """What puts special tokens, by their ids, around a text and between the two of a pair.

  None is nothing.
  """
  names = {i: backend.id_to_token(i) for i in (before, between, after) if i is not None}
  piece = lambda i, kind: [] if i is None else [f"{names[i]}:{kind}"]
  first = [*piece(before, 0), "$A:0"]
  made = hf.processors.TemplateProcessing(
      single=[*first, *piece(after, 0)],
      pair=[*first, *piece(between, 0), "$B:1", *piece(after, 1)],
      special_tokens=[(name, i) for i, name in names.items()])
  if not is_byte_level(backend):
    return made
  return hf.processors.Sequence([hf.processors.ByteLevel(trim_offsets=True), made])


def before_text(backend: hf.Tokenizer) -> tuple[int, ...]:
  """The special tokens that a template puts before a text."""
  found = backend.encode("a")
  pairs = itertools.takewhile(lambda pair: pair[1], zip(found.ids, found.special_tokens_mask))
  return tuple(i for i, _ in pairs)


def has_template(model: Mapping[str, Any]) -> bool:
  """Whether the content of a tokenizer.json says what stands around a text, be it nothing."""
  found = model.get("post_processor") or {}
  return any(part["type"] == "TemplateProcessing" for part in (found, *found.get("processors", ()))
             if part)


class Encoder:
  """A tokenizer of the `tokenizers` package, set up once for what it is asked for.

  Truncation is a setting of the package's tokenizer object, which threads share, so every
  setting has an object of its own, and nothing is set after it is made.

  Args:
    model: the content of a tokenizer.json.
    ends: ids of what stands before a text and after each text, for a tokenizer whose own
      template adds nothing; None is nothing.
    text_id: [V] int32, the id that a token has in a text.
    named: ids of the special tokens that a text may name.
    max_length: tokens that a text or pair is cut to; None does not cut.
    side: "left" or "right", at which it is cut.
  """

  def __init__(self, model: dict[str, Any], ends: tuple[int, int] | None, text_id: np.ndarray,
               named: Set[int], max_length: int | None, *, side: str = "right"):
    self._backend = hf.Tokenizer.from_str(json.dumps(found_in_texts(model, named)))
    self._backend.encode_special_tokens = True
    self._backend.no_padding()
    self._backend.no_truncation()
    self._byte_level = is_byte_level(self._backend)
    if ends is not None and not self._backend.num_special_tokens_to_add(False):
      self._backend.post_processor = template(self._backend, ends[0], ends[1], ends[1])
    self._text_id, self._max_length = text_id, max_length
    if max_length is not None:
      self._backend.enable_truncation(max_length, strategy="longest_first", direction=side)

  def texts(self, first: Sequence, second: Sequence | None, words: bool) -> list[Encoding]:
    """See `Tokenizer.encode_texts`."""
    specials = self._backend.num_special_tokens_to_add(second is not None)
    if self._max_length <= specials:
      raise ConfigError(f"max_length={self._max_length} leaves no room for text beside {specials}"
                        " special tokens")
    spaced, given = words and self._byte_level, (first, second)
    if spaced:  # a word's first token is another with a space before it
      first, second = (t and [[f" {w}" if w else w for w in ws] for ws in t]
                       for t in (first, second))
    inputs = list(first) if second is None else list(zip(first, second, strict=True))
    with told(*given):
      encoded = self._backend.encode_batch(inputs, is_pretokenized=words)
    return [self._encoding(e, int(spaced)) for e in encoded]

  def words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """See `Tokenizer.encode_words`."""
    results = []
    with told(texts):
      encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
    for e in encoded:
      ids, words = np.array(e.ids, np.int64), np.array(e.word_ids, np.int64)
      results.append((self._text_id[ids], np.diff(words, prepend=-1) != 0))
    return results

  def marked(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """See `Tokenizer.encode_marked`."""
    with told(texts):
      encoded = self._backend.encode_batch(list(texts), add_special_tokens=False)
    return [(self._text_id[np.array(e.ids, np.int64)],
             np.array(e.offsets, np.int32).reshape(-1, 2)) for e in encoded]

  def windows(self, first: Sequence[str], second: Sequence[str], max_length: int, stride: int,
              max_first: int | None) -> list[list[Encoding]]:
    """See `Tokenizer.encode_windows`."""
    specials = self._backend.num_special_tokens_to_add(True)
    with told(first, second):
      pairs = zip(*(self._backend.encode_batch(list(texts), add_special_tokens=False)
                    for texts in (first, second)), strict=True)
    results = []
    for number, (a, b) in enumerate(pairs):
      if max_first is not None:
        a.truncate(max_first)
      room = max_length - specials - len(a)
      if room <= stride:
        raise DataError(f"pair {number}: a first text of {len(a)} tokens and {specials} special"
                        f" tokens leave {max(room, 0)} of max_length={max_length} for a window of"
                        f" the second, which must be more than stride={stride}")
      b.truncate(room, stride=stride)
      results.append([self._encoding(self._backend.post_process(a, window), 0)
                      for window in (b, *b.overflowing)])
    return results

  def _encoding(self, e: hf.Encoding, added: int) -> Encoding:
    """`added`: characters put before each word."""
    text = np.array([-1 if t is None else t for t in e.sequence_ids], np.int8)
    word = np.array([-1 if w is None else w for w in e.word_ids], np.int32)
    ids = np.array(e.ids, np.int32)
    offsets = np.array(e.offsets, np.int32).reshape(-1, 2)
    return Encoding(ids=np.where(text < 0, ids, self._text_id[ids]),
                    types=np.array(e.type_ids, np.int32), text=text,
                    word=np.where(text < 0, -1, word), offsets=np.maximum(offsets - added, 0))
