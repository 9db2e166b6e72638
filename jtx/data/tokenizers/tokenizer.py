"""Tokenizers: text to int32 ids and back, trained on a text or read from a file.

`encode` adds no special tokens; `encode_texts` adds those that an encoder reads. Tokenizers
that are trained by jtx have <pad>, <bos>, <eos> and <unk> as ids 0 to 3, and never map a
user's text to the first three, not even the text "<eos>". `jtx.data.tokenizers.kinds` has
what trains them.
"""

import functools
import json
import os
from typing import Any, Iterable, Sequence

import numpy as np
import tokenizers as hf

from jtx import storage
from jtx.data.tokenizers.encodings import MASKS, Encoder, Encoding
from jtx.errors import ConfigError, DataError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


class Tokenizer:
  """What all kinds share; a kind has `kind`, `encode_batch`, `decode`, `tokens` and `state`.

  Two tokenizers are equal if their contents are, and both JSON and pickle keep all of it.

  Attributes:
    vocab_size: the number of ids, specials included.
    pad_id, bos_id, eos_id, unk_id: the special ids.
    mask_id: the id that stands for a hidden token, or None where there is none.
  """

  kind: str
  vocab_size: int
  pad_id, bos_id, eos_id, unk_id = range(len(SPECIALS))
  mask_id: int | None = None
  special_ids: frozenset[int] = frozenset()  # others that no text has

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
                      " ops need; use 'bpe', 'byte_bpe', 'wordpiece', 'unigram', 'bytes' or 'file'")

  def encode_texts(self, first: Sequence, second: Sequence | None = None, *, max_length: int,
                   words: bool = False, special: bool = False) -> list[Encoding]:
    """Texts, or pairs of texts, with special tokens, cut to `max_length` tokens.

    Special tokens are put by the template of the tokenizer's file (BERT's, RoBERTa's), and for
    a tokenizer without one as <bos> A <eos> or <bos> A <eos> B <eos>, with types 0 and, from B
    on, 1. The longer of a pair is cut first, at its end.

    Args:
      first: str each; with `words`, a list of words each.
      second: the same number of them; None is none.
      max_length: tokens, the special ones counted.
      words: texts are split into words already. Byte-level BPE sees each with a space before it.
      special: the mask's name in a text, such as "[MASK]", is the mask. The names of all other
        special tokens are text, always.

    Raises:
      ConfigError: `max_length` holds the special tokens only, there is no mask though `special`
        is set, or the kind of tokenizer has no offsets.
    """
    return self._encoder(max_length, special).texts(first, second, words)

  def encode_words(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """The ids of each text, `[T]` int32, and `[T]` bool, whether a token begins a word.

    Raises:
      ConfigError: the kind of tokenizer has no words.
    """
    return self._encoder(None, False).words(texts)

  def plain_ids(self) -> np.ndarray:
    """The ids that are not of special tokens, sorted."""
    special = {self.pad_id, self.bos_id, self.eos_id, self.unk_id, self.mask_id, *self.special_ids}
    return np.array(sorted(set(range(self.vocab_size)) - special), np.int32)

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
    return self._encoder(None, False).windows(first, second, max_length, stride, max_first)

  def _encoder(self, max_length: int | None, special: bool) -> Encoder:
    if special and self.mask_id is None:
      raise ConfigError(f"the vocabulary has none of the special tokens {', '.join(MASKS)}, so no"
                        " text can have a mask")
    encoders = self.__dict__.setdefault("_encoders", {})
    if (max_length, special) not in encoders:
      text_ids = self.text_ids().copy()
      if special:
        text_ids[self.mask_id] = self.mask_id
      encoders[max_length, special] = Encoder(
          self.model(), (self.bos_id, self.eos_id), text_ids,
          self.mask_id if special else None, max_length)
    return encoders[max_length, special]

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

  @staticmethod
  def from_json(text: str) -> "Tokenizer":
    state = json.loads(text)
    return _KINDS[state.pop("kind")](**state)

  def save(self, path: str | os.PathLike[str]) -> None:
    with open(path, "w", encoding="utf-8") as f:
      f.write(self.to_json())

  @staticmethod
  def load(path: str | os.PathLike[str]) -> "Tokenizer":
    """Reads what `save` or a run wrote, a tokenizer.json of Hugging Face, or a vocab.txt of BERT.

    Args:
      path: the file, or the folder of a tokenizer.json or, without one, of a vocab.txt. A
        file that ends in .txt is a vocabulary: a WordPiece a line, the line number (from 0) is
        the id, "##" starts a piece inside a word. Whether it lowercases is told by
        `do_lower_case` in a tokenizer_config.json beside it (`strip_accents` and
        `tokenize_chinese_chars` are read there too); without that key it does unless a piece
        outside of brackets has a capital letter.

    Raises:
      DataError: the file is missing, is none of these, or is that of a run with several.
    """
    path = os.fspath(path)
    if storage.is_folder(path):
      path = _file_in(path)
    if path.endswith(".txt"):
      return _bert(path)
    try:
      state = json.loads(_read(path))
    except ValueError as e:
      raise DataError(f"{path}: not a tokenizer, not valid JSON ({e})") from e
    if isinstance(state, dict) and state.get("kind") in _KINDS:
      return _KINDS[state.pop("kind")](**state)
    if isinstance(state, dict) and "model" in state:
      try:
        backend = hf.Tokenizer.from_str(json.dumps(state))
      except Exception as e:  # `tokenizers` raises bare Exceptions
        raise DataError(f"{path}: not a tokenizer that this version reads ({e})") from e
      return HuggingFace(state, _foreign_specials(backend, path))
    if isinstance(state, dict) and state and all(map(_is_saved, state.values())):
      if len(set(state.values())) > 1:
        raise DataError(f"{path}: is of a run whose {' and '.join(state)} have a tokenizer each")
      return Tokenizer.from_json(next(iter(state.values())))
    raise DataError(f"{path}: neither a tokenizer that jtx saved nor a tokenizer.json")

  def __eq__(self, other: Any) -> bool:
    return isinstance(other, Tokenizer) and self.to_json() == other.to_json()

  def __hash__(self) -> int:
    return hash(self.to_json())

  def __reduce__(self) -> tuple[Any, ...]:
    return Tokenizer.from_json, (self.to_json(),)


class HuggingFace(Tokenizer):
  """A tokenizer of the `tokenizers` package.

  Args:
    model: the content of its tokenizer.json.
    specials: the ids of pad, bos, eos and unk.
  """

  kind = "huggingface"

  def __init__(self, model: dict[str, Any], specials: Sequence[int]):
    self._backend = hf.Tokenizer.from_str(json.dumps(model))
    self._backend.no_padding()
    self._backend.no_truncation()
    # A special token's name in a text is text ...
    self._backend.encode_special_tokens = True
    self.pad_id, self.bos_id, self.eos_id, self.unk_id = specials
    self.vocab_size = self._backend.get_vocab_size()
    # ... and unknown text to a model that has the name among its pieces, as Unigram may.
    self._text_id = np.arange(1 + max(self._backend.get_vocab().values()), dtype=np.int32)
    found = self._backend.get_added_tokens_decoder()
    self.special_ids = frozenset(i for i, t in found.items() if t.special)
    self._text_id[[self.pad_id, self.bos_id, self.eos_id, *self.special_ids]] = self.unk_id
    added = {t.content: i for i, t in found.items()}
    self.mask_id = next((added[name] for name in MASKS if name in added), None)

  def text_ids(self) -> np.ndarray:
    return self._text_id

  def model(self) -> dict[str, Any]:
    return json.loads(self._backend.to_str())

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
    return [self._text_id[np.array(e.ids, np.int32)] for e in encodings]

  def decode(self, ids: Iterable[int]) -> str:
    return self._backend.decode([int(i) for i in ids])

  def decode_batch(self, batch: Iterable[Iterable[int]]) -> list[str]:
    return self._backend.decode_batch([[int(i) for i in ids] for ids in batch])

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._backend.id_to_token(int(i)) for i in ids]

  def state(self) -> dict[str, Any]:
    return {"model": self.model(),
            "specials": [self.pad_id, self.bos_id, self.eos_id, self.unk_id]}


# What other tokenizers call their pad, bos, eos and unk, best first.
_FOREIGN_SPECIALS = (
    ("<pad>", "[PAD]", "</s>", "<|endoftext|>"),
    ("<bos>", "<s>", "[CLS]", "<|endoftext|>"),
    ("<eos>", "</s>", "[SEP]", "<|endoftext|>"),
    ("<unk>", "[UNK]", "<|endoftext|>"),
)


def _foreign_specials(backend: hf.Tokenizer, path: str) -> list[int]:
  ids = []
  for names in _FOREIGN_SPECIALS:
    found = [i for i in map(backend.token_to_id, names) if i is not None]
    if not found:
      raise DataError(f"{path}: its vocabulary has none of the special tokens {', '.join(names)}")
    ids.append(found[0])
  return ids


class Bytes(Tokenizer):
  """UTF-8 bytes (Xue et al. 2022, ByT5, arXiv:2105.13626): id = byte + 4."""

  kind = "bytes"
  vocab_size = len(SPECIALS) + 256

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.frombuffer(t.encode("utf-8"), np.uint8).astype(np.int32) + len(SPECIALS)
            for t in texts]

  def decode(self, ids: Iterable[int]) -> str:
    low = len(SPECIALS)
    return bytes(int(i) - low for i in ids if i >= low).decode("utf-8", errors="replace")

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [SPECIALS[i] if i < len(SPECIALS) else _byte_name(int(i) - len(SPECIALS)) for i in ids]

  def model(self) -> dict[str, Any]:
    """Byte-level BPE without merges."""
    byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces = {name: i for i, name in enumerate(SPECIALS)}
    for byte in range(256):
      pieces[_byte_level_name(byte)] = byte + len(SPECIALS)
    backend = hf.Tokenizer(hf.models.BPE(vocab=pieces, merges=[]))
    backend.pre_tokenizer = byte_level
    return json.loads(backend.to_str())

  def state(self) -> dict[str, Any]:
    return {}


def _byte_level_name(byte: int) -> str:
  """The character that GPT-2's byte-level BPE writes for a byte: itself if it can be seen."""
  seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  if byte in seen:
    return chr(byte)
  return chr(0x100 + sorted(set(range(0x100)) - set(seen)).index(byte))


def _byte_name(byte: int) -> str:
  return chr(byte) if 0x20 < byte < 0x7F else f"0x{byte:02X}"


class SubwordNmt(Tokenizer):
  """subword-nmt's BPE: `corn@@ ers`, words split at spaces.

  Sennrich et al. 2016, "Neural Machine Translation of Rare Words with Subword Units",
  arXiv:1508.07909, section 3.2; the merge file's version 0.2, where the end of a word is
  part of its last character, and 0.1, where it is a symbol of its own.

  Args:
    merges: the lines of the merge file, best first, without the version line.
    pieces: the vocabulary without the specials; other pieces are <unk>.
    version: 1 or 2, for a merge file of version 0.1 or 0.2.
  """

  kind = "subword_nmt"

  def __init__(self, merges: Sequence[str], pieces: Sequence[str], version: int = 2):
    self._merges, self._pieces, self._version = list(merges), list(pieces), version
    # The first of equal merges counts.
    self._rank = {tuple(m.split(" ")): i for i, m in reversed(list(enumerate(merges)))}
    self._names = [*SPECIALS, *pieces]
    self._id = {piece: i for i, piece in enumerate(pieces, len(SPECIALS))}
    self.vocab_size = len(self._names)
    self._split_word = functools.lru_cache(maxsize=1 << 17)(self._split_word_uncached)

  def segment(self, text: str) -> list[str]:
    """The pieces of `text`; all but a word's last end in "@@"."""
    return [piece for word in text.split(" ") if word for piece in self._split_word(word)]

  def _split_word_uncached(self, word: str) -> tuple[str, ...]:
    end = "</w>"
    parts = [*word[:-1], word[-1] + end] if self._version == 2 else [*word, end]
    while len(parts) > 1:
      best = min(zip(parts, parts[1:]), key=lambda pair: self._rank.get(pair, len(self._rank)))
      if best not in self._rank:
        break
      merged, i = [], 0
      while i < len(parts):
        if tuple(parts[i:i + 2]) == best:
          merged.append(parts[i] + parts[i + 1])
          i += 2
        else:
          merged.append(parts[i])
          i += 1
      parts = merged
    parts = parts[:-1] if parts[-1] == end else [*parts[:-1], parts[-1].removesuffix(end)]
    return (*(p + "@@" for p in parts[:-1]), parts[-1])

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    return [np.array([self._id.get(p, self.unk_id) for p in self.segment(t)], np.int32)
            for t in texts]

  def decode(self, ids: Iterable[int]) -> str:
    pieces = [self._names[i] for i in ids if i >= len(SPECIALS)]
    return (" ".join(pieces) + " ").replace("@@ ", "").rstrip(" ")

  def tokens(self, ids: Iterable[int]) -> list[str]:
    return [self._names[i] for i in ids]

  def state(self) -> dict[str, Any]:
    return {"merges": self._merges, "pieces": self._pieces, "version": self._version}


_KINDS = {c.kind: c for c in (HuggingFace, Bytes, SubwordNmt)}


# Reading files


def _is_saved(text: Any) -> bool:
  """Whether `to_json` wrote it."""
  return isinstance(text, str) and text.startswith('{"kind": ')


def _read(path: str) -> str:
  try:
    return storage.read_text(path)
  except OSError as e:
    raise DataError(f"{path}: {e.strerror}") from e
  except UnicodeDecodeError as e:
    raise DataError(f"{path}: not a tokenizer, not valid UTF-8 ({e.reason})") from e


def _file_in(folder: str) -> str:
  for name in ("tokenizer.json", "vocab.txt"):
    path = os.path.join(folder, name)
    if storage.exists(path):
      return path
  raise DataError(f"{folder}: has neither a tokenizer.json nor a vocab.txt")


# Classes that split a text as BERT does, without "Tokenizer" and "TokenizerFast".
_LIKE_BERT = ("Bert", "DistilBert", "Electra", "LayoutLM", "MobileBert", "RealmBert", "SqueezeBert")
# Keys of tokenizer_config.json and what they are if absent; None is decided by the vocabulary,
# and for the accents by whether it lowercases.
_BERT_OPTIONS = {"do_lower_case": None, "strip_accents": None, "tokenize_chinese_chars": True}


def _bert(path: str) -> Tokenizer:
  """BERT's WordPiece (Devlin et al. 2019, section 3) with the vocabulary of a file."""
  pieces = _read(path).removesuffix("\n").split("\n")
  ids: dict[str, int] = {}
  for number, piece in enumerate(p.removesuffix("\r") for p in pieces):
    if not piece or piece in ids:
      what = "names no piece" if not piece else f"has {piece!r} once more"
      raise DataError(f"{path}:{number + 1}: {what}; a vocabulary has one piece a line")
    ids[piece] = number
  missing = [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if name not in ids]
  if missing:
    raise DataError(f"{path}: not a vocabulary of BERT, it has no {', '.join(missing)}")
  options = _bert_options(os.path.join(os.path.dirname(path), "tokenizer_config.json"))
  if options["do_lower_case"] is None:
    options["do_lower_case"] = not any(
        p != p.lower() for p in ids if not (p.startswith("[") and p.endswith("]")))
  return _bert_tokenizer(ids, options)


def _bert_options(path: str) -> dict[str, bool | None]:
  """`_BERT_OPTIONS` with what a tokenizer_config.json sets, if there is such a file."""
  if not os.path.exists(path):
    return dict(_BERT_OPTIONS)
  try:
    config = json.loads(_read(path))
    kind = config.get("tokenizer_class") or "BertTokenizer"
  except (ValueError, AttributeError) as e:
    raise DataError(f"{path}: not a JSON object ({e})") from e
  if kind.removesuffix("Fast").removesuffix("Tokenizer") not in _LIKE_BERT:
    raise DataError(f"{path}: tokenizer_class {kind!r} does not split texts as BERT does; a"
                    " tokenizer.json beside it would be read instead")
  options = _BERT_OPTIONS | {key: config[key] for key in _BERT_OPTIONS if key in config}
  for key, value in options.items():
    if not isinstance(value, bool) and value is not _BERT_OPTIONS[key]:
      raise DataError(f"{path}: {key} is {value!r}; valid are true and false")
  return options


def _bert_tokenizer(ids: dict[str, int], options: dict[str, bool | None]) -> Tokenizer:
  backend = hf.Tokenizer(hf.models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
  backend.normalizer = hf.normalizers.BertNormalizer(
      clean_text=True, lowercase=options["do_lower_case"],
      strip_accents=options["strip_accents"],
      handle_chinese_chars=options["tokenize_chinese_chars"])
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.decoder = hf.decoders.WordPiece()
  backend.add_special_tokens(
      [name for name in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if name in ids])
  backend.post_processor = hf.processors.TemplateProcessing(
      single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
      special_tokens=[(name, ids[name]) for name in ("[CLS]", "[SEP]")])
  return HuggingFace(json.loads(backend.to_str()),
                     [ids[name] for name in ("[PAD]", "[CLS]", "[SEP]", "[UNK]")])
