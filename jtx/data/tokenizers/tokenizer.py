"""The base class of tokenizers: text to int32 ids and back.

`encode` adds no special tokens; `encode_texts` adds those that an encoder reads. Tokenizers
that are trained by jtx have <pad>, <bos>, <eos> and <unk> as ids 0 to 3, and never map a
user's text to the first three, not even the text "<eos>". `jtx.data.tokenizers.kinds` trains
tokenizers, and `jtx.data.tokenizers.files` reads them.
"""

import json
import os
from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from jtx.data.tokenizers.encodings import MASKS, Encoder, Encoding
from jtx.errors import ConfigError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


class Tokenizer:
  """The base of all kinds; a kind has `kind`, `encode_batch`, `decode`, `tokens` and `state`.

  Two tokenizers are equal if their contents are, and both JSON and pickle keep all of it.

  Attributes:
    vocab_size: the number of ids, specials included.
    pad_id, bos_id, eos_id, unk_id: the special ids.
    mask_id: the id of the mask, which stands for a masked token, or None where there is none.
    special_ids: other special ids.
    named_ids: those of them that a text may name.
    sentinel_ids: of tokens that stand for hidden spans, in the order in which a text uses them.
    has_ends: whether `encode_texts` puts tokens around a text for which no template is told.
    truncation_side: at which end `encode_texts` cuts texts, "left" or "right".
    chat_template: in Jinja, of conversations, or "" where it brings none; see `jtx.data.chat`.
  """

  kind: str
  vocab_size: int
  pad_id, bos_id, eos_id, unk_id = range(len(SPECIALS))
  mask_id: int | None = None
  special_ids: frozenset[int] = frozenset()
  named_ids: frozenset[int] = frozenset()
  sentinel_ids: Sequence[int] = ()
  roles: Mapping[str, int] = {}  # where a tokenizer has more of them than these
  has_ends: bool = True
  truncation_side: str = "right"
  chat_template: str = ""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of each text, `[T]` int32."""
    raise NotImplementedError

  def decode(self, ids: Iterable[int]) -> str:
    """The text of `ids`; special ids are skipped."""
    raise NotImplementedError

  def tokens(self, ids: Iterable[int]) -> list[str]:
    """The piece that each id stands for, as the vocabulary writes it."""
    raise NotImplementedError

  def state(self) -> dict[str, Any]:
    """JSON-able keyword arguments that make this tokenizer again."""
    raise NotImplementedError

  def model(self) -> dict[str, Any]:
    """The content of a tokenizer.json that encodes as this does.

    Raises:
      ConfigError: there is none for this kind.
    """
    raise ConfigError(f"a tokenizer of kind {self.kind!r} has no words and offsets, which encoders'"
                      " ops need; use 'bpe', 'byte_bpe', 'wordpiece', 'unigram', 'bytes',"
                      " 'characters' or 'file'")

  def encode_texts(self, first: Sequence, second: Sequence | None = None, *, max_length: int,
                   words: bool = False, special: bool = False) -> list[Encoding]:
    """Texts, or pairs of texts, with special tokens, cut to `max_length` tokens.

    Special tokens are put by the template of the tokenizer's file (BERT's, RoBERTa's), and for
    a tokenizer without one as <bos> A <eos> or <bos> A <eos> B <eos>, with types 0 and, from B
    on, 1, unless it is of a model of others, such as GPT-2, which then reads none. The longer
    of a pair is cut first, at its end, or at its beginning where `truncation_side` is "left".

    Args:
      first: str each; with `words`, a list of words each.
      second: the same number of them; None is none.
      max_length: tokens, the special ones counted.
      words: texts are split into words already. Byte-level BPE sees each with a space before it.
      special: the mask's name in a text, such as "[MASK]", is the mask. The names of all other
        special tokens that have a role are text, always.

    Raises:
      ConfigError: `max_length` holds the special tokens only, there is no mask though `special`
        is set, or the kind of tokenizer has no offsets.
    """
    if special and self.mask_id is None:
      raise ConfigError(f"the vocabulary has none of the special tokens {', '.join(MASKS)}, so no"
                        " text can have a mask")
    named = frozenset({self.mask_id} if special else ())
    return self._encoder(max_length, named).texts(first, second, words)

  @property
  def ends(self) -> tuple[int, int] | None:
    """What stands before a text and behind each, where no template is told; None is nothing."""
    return (self.bos_id, self.eos_id) if self.has_ends else None

  @property
  def has_begin(self) -> bool:
    """Whether a token begins texts; in its place T5's have padding, with which targets begin."""
    return self.bos_id != self.pad_id or self.bos_id == self.eos_id  # as GPT-2's, of all three

  def begin_ids(self) -> tuple[int, ...]:
    """The special tokens that stand before a text that is gone on with."""
    return (self.bos_id,)

  def encode_words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of each text, `[T]` int32, and `[T]` bool, whether a token begins a word.

    Raises:
      ConfigError: the kind of tokenizer has no words.
    """
    return self._encoder(None).words(texts)

  def encode_marked(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Texts in which the name of a special token is this token, as chat templates write them.

    Returns:
      The ids of each text, `[T]` int32, and `[T, 2]` int32, the first character of each token and
      the one after the last.

    Raises:
      ConfigError: the kind of tokenizer has no offsets.
    """
    return self._encoder(None, frozenset(self._special_ids())).marked(texts)

  def special_names(self) -> dict[str, str]:
    """The names of special tokens by those of chat templates, such as "eos_token"."""
    ids = {"bos": self.bos_id, "eos": self.eos_id, "pad": self.pad_id, "unk": self.unk_id}
    if self.mask_id is not None:
      ids["mask"] = self.mask_id
    return {f"{role}_token": self.tokens([i])[0] for role, i in (ids | dict(self.roles)).items()}

  def control_names(self) -> list[str]:
    """The names of special tokens that a text must not bring into a chat template."""
    return self.tokens(sorted(self._special_ids() - {self.unk_id, self.pad_id}))

  def _special_ids(self) -> set[int]:
    found = {self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id, *self.special_ids}
    return found - {None}

  def plain_ids(self) -> np.ndarray:
    """The ids that are not of special tokens, sorted."""
    return np.array(sorted(set(range(self.vocab_size)) - self._special_ids()), np.int32)

  def encode_windows(self, first: Sequence[str], second: Sequence[str], *, max_length: int,
                     stride: int, max_first: int | None = None) -> list[list[Encoding]]:
    """Pairs with the second text in overlapping windows: a list of encodings a pair.

    Args:
      first: a question each.
      second: the text that it is about.
      max_length: tokens of a window, with the first text and the special tokens.
      stride: tokens of the second text that a window shares with the next.
      max_first: tokens that the first text is cut to; None does not cut.

    Raises:
      DataError: a first text leaves no more room for the second than `stride`.
      ConfigError: the kind of tokenizer has no offsets.
    """
    return self._encoder(None).windows(first, second, max_length, stride, max_first)

  def _encoder(self, max_length: int | None, named: frozenset[int] = frozenset()) -> Encoder:
    """`named` are special tokens that a text may name beside `named_ids`."""
    encoders = self.__dict__.setdefault("_encoders", {})
    if (max_length, named) not in encoders:
      text_ids = self.text_ids().copy()
      text_ids[list(named)] = list(named)
      encoders[max_length, named] = Encoder(
          self.model(), self.ends, text_ids, named=self.named_ids | named, max_length=max_length,
          side=self.truncation_side)
    return encoders[max_length, named]

  def text_ids(self) -> np.ndarray:
    """[V] int32: the id that each piece has in a text."""
    return np.arange(self.vocab_size, dtype=np.int32)

  def encode(self, text: str) -> np.ndarray:
    """The ids of `text`, `[T]` int32."""
    return self.encode_batch([text])[0]

  def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
    return [self.decode(ids) for ids in batch]

  def to_json(self) -> str:
    return json.dumps({"kind": self.kind, **self.state()}, ensure_ascii=False)

  def save(self, path: str | os.PathLike[str]) -> None:
    with open(path, "w", encoding="utf-8") as f:
      f.write(self.to_json())

  def __eq__(self, other: Any) -> bool:
    return isinstance(other, Tokenizer) and self.to_json() == other.to_json()

  def __hash__(self) -> int:
    return hash(self.to_json())

  def __reduce__(self) -> tuple[Any, ...]:
    return _made, (type(self), self.state())


def _made(kind: type[Tokenizer], state: dict[str, Any]) -> Tokenizer:
  return kind(**state)
