"""Tokenizers: text to int32 ids and back, trained on a text or read from a file.

A tokenizer adds no special tokens of its own. Those that are trained here have <pad>,
<bos>, <eos> and <unk> as ids 0 to 3, and never map a user's text to the first three, not
even the text "<eos>". `TOKENIZERS` holds what makes them: functions of the training texts.
"""

import collections
import functools
import json
import os
from typing import Any, Callable, Iterable, Iterator, Sequence

import numpy as np
import tokenizers as hf

from jtx.config import ConfigError
from jtx.data import DataError

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>")


class Tokenizer:
  """What all kinds share; a kind has `kind`, `encode_batch`, `decode`, `tokens` and `state`.

  Two tokenizers are equal if their contents are, and both JSON and pickle keep all of it.

  Attributes:
    vocab_size: the number of ids, specials included.
    pad_id, bos_id, eos_id, unk_id: the special ids.
  """

  kind: str
  vocab_size: int
  pad_id, bos_id, eos_id, unk_id = range(len(SPECIALS))

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
    """Reads what `save` wrote, or a tokenizer.json of Hugging Face.

    Raises:
      DataError: the file is missing, or is neither.
    """
    try:
      with open(path, encoding="utf-8") as f:
        state = json.load(f)
    except OSError as e:
      raise DataError(f"{path}: {e.strerror}") from e
    except ValueError as e:
      raise DataError(f"{path}: not a tokenizer, not valid JSON ({e})") from e
    if isinstance(state, dict) and state.get("kind") in _KINDS:
      return _KINDS[state.pop("kind")](**state)
    if isinstance(state, dict) and "model" in state:
      try:
        backend = hf.Tokenizer.from_str(json.dumps(state))
      except Exception as e:  # `tokenizers` raises bare Exceptions
        raise DataError(f"{path}: not a tokenizer that this version reads ({e})") from e
      return HuggingFace(state, _foreign_specials(backend, str(path)))
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
    self._text_id[[self.pad_id, self.bos_id, self.eos_id]] = self.unk_id

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
    return {"model": json.loads(self._backend.to_str()),
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

  def state(self) -> dict[str, Any]:
    return {}


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


# What the config names


def _train(backend: hf.Tokenizer, trainer: Any, texts: Iterator[str]) -> Tokenizer:
  too_small = ConfigError(f"tokenizer: vocab_size={trainer.vocab_size} is too small to hold the "
                          "special tokens and every character of the texts")
  try:
    backend.train_from_iterator(_not_empty(texts), trainer)
  except Exception as e:  # a bare Exception of the Unigram trainer
    if "not large enough" in str(e):
      raise too_small from e
    raise
  if backend.get_vocab_size() > trainer.vocab_size:
    raise too_small
  model = json.loads(backend.to_str())
  model["added_tokens"] = model["added_tokens"][:len(SPECIALS)]
  return HuggingFace(model, range(len(SPECIALS)))


def _not_empty(texts: Iterator[str]) -> Iterator[str]:
  empty = True
  for text in texts:
    empty = False
    yield text
  if empty:
    raise DataError("no text to train a tokenizer on")


def _word_splitter(split_digits: bool) -> hf.pre_tokenizers.PreTokenizer:
  """Words with their leading space; punctuation stands alone.

  That no piece crosses punctuation also means that no merge can build "<eos>".
  """
  steps = [hf.pre_tokenizers.Metaspace(), hf.pre_tokenizers.Punctuation("isolated")]
  if split_digits:
    steps.append(hf.pre_tokenizers.Digits(individual_digits=True))
  return hf.pre_tokenizers.Sequence(steps)


def _normalizer(lowercase: bool) -> hf.normalizers.Normalizer:
  """Single spaces: a tab or line break would be unknown, and decode to nothing."""
  steps = [hf.normalizers.Replace(hf.Regex(r"\s+"), " "), hf.normalizers.Strip()]
  return hf.normalizers.Sequence([*steps, hf.normalizers.Lowercase()] if lowercase else steps)


def bpe(texts: Iterator[str], *, vocab_size: int = 16_000, min_frequency: int = 2,
        lowercase: bool = False, split_digits: bool = False) -> Tokenizer:
  """Byte-pair encoding over characters (Sennrich et al. 2016, arXiv:1508.07909).

  White space becomes one space. A space becomes "▁" before a word, so a text's own U+2581
  decodes as a space.

  Args:
    texts: what to train on; a character that is not in it becomes <unk>.
    vocab_size: ids at most, specials included.
    min_frequency: how often a pair must occur to be merged.
    lowercase: lowercases every text, also when encoding.
    split_digits: makes every digit a piece of its own.
  """
  backend = hf.Tokenizer(hf.models.BPE(unk_token="<unk>"))
  backend.normalizer = _normalizer(lowercase)
  backend.pre_tokenizer = _word_splitter(split_digits)
  backend.decoder = hf.decoders.Metaspace()
  trainer = hf.trainers.BpeTrainer(
      vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(SPECIALS),
      show_progress=False)
  return _train(backend, trainer, texts)


def byte_bpe(texts: Iterator[str], *, vocab_size: int = 16_000, min_frequency: int = 2,
             split_digits: bool = False) -> Tokenizer:
  """Byte-level BPE (Radford et al. 2019, GPT-2, section 2.2): every text round-trips.

  Args as for `bpe`; `vocab_size` includes the 256 bytes.
  """
  backend = hf.Tokenizer(hf.models.BPE(unk_token=None))
  byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
  digits = [hf.pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
  backend.pre_tokenizer = hf.pre_tokenizers.Sequence([*digits, byte_level])
  backend.decoder = hf.decoders.ByteLevel()
  trainer = hf.trainers.BpeTrainer(
      vocab_size=vocab_size, min_frequency=min_frequency, special_tokens=list(SPECIALS),
      initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
  return _train(backend, trainer, texts)


def wordpiece(texts: Iterator[str], *, vocab_size: int = 16_000, min_frequency: int = 2,
              lowercase: bool = True) -> Tokenizer:
  """WordPiece with BERT's normalisation (Devlin et al. 2019, arXiv:1810.04805).

  Args as for `bpe`; `lowercase` also strips accents, as BERT's uncased models do.
  """
  backend = hf.Tokenizer(hf.models.WordPiece(unk_token="<unk>"))
  backend.normalizer = hf.normalizers.BertNormalizer(lowercase=lowercase)
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.decoder = hf.decoders.WordPiece()
  texts = list(texts)
  continuations = _continuations(backend, texts)
  trainer = hf.trainers.WordPieceTrainer(
      vocab_size=vocab_size, min_frequency=min_frequency,
      special_tokens=[*SPECIALS, *continuations], show_progress=False)
  return _train(backend, trainer, iter(texts))


def _continuations(backend: hf.Tokenizer, texts: list[str]) -> list[str]:
  """"##" and each character that is inside a word of `texts`, sorted.

  The trainer numbers these as a hash map happens to order its words, and breaks ties
  between merges by the numbers, so two trainings differ. Given as special tokens they are
  numbered first, in this order.
  """
  inside = set()
  for text in texts:
    for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text)):
      inside.update(word[1:])
  return ["##" + c for c in sorted(inside)]


def unigram(texts: Iterator[str], *, vocab_size: int = 16_000, lowercase: bool = False,
            split_digits: bool = False) -> Tokenizer:
  """A unigram language model (Kudo 2018, arXiv:1804.10959).

  Args as for `bpe`. The trainer sums in no fixed order, so the scores of two trainings differ
  in the third decimal and the order of ids may; the other kinds train the same every time.
  """
  backend = hf.Tokenizer(hf.models.Unigram())
  backend.normalizer = _normalizer(lowercase)
  backend.pre_tokenizer = _word_splitter(split_digits)
  backend.decoder = hf.decoders.Metaspace()
  trainer = hf.trainers.UnigramTrainer(
      vocab_size=vocab_size, special_tokens=list(SPECIALS), unk_token="<unk>",
      show_progress=False)
  return _train(backend, trainer, texts)


def byte_tokenizer(texts: Iterator[str]) -> Tokenizer:
  """UTF-8 bytes; nothing is trained."""
  del texts
  return Bytes()


def subword_nmt(texts: Iterator[str], *, merges: str, vocab_size: int = 0) -> Tokenizer:
  """subword-nmt's BPE with given merges; the vocabulary is the pieces of `texts`.

  Args:
    texts: what to take the pieces from.
    merges: the merge file that `subword-nmt learn-bpe` or `learn-joint-bpe-and-vocab` wrote.
    vocab_size: keeps the most frequent pieces, this many ids with the specials; 0 keeps all.

  Raises:
    DataError: the file is missing, or a line is not a merge.
  """
  try:
    with open(merges, encoding="utf-8") as f:
      lines = f.read().rstrip("\n").split("\n")
  except OSError as e:
    raise DataError(f"{merges}: {e.strerror}") from e
  header = lines[0].startswith("#version:")
  version = 2 if lines[0] == "#version: 0.2" else 1
  lines = [line.strip("\r ") for line in lines]
  for number, line in enumerate(lines[header:], 1 + header):
    if line.count(" ") != 1:
      raise DataError(f"{merges}:{number}: a merge is two symbols and a space, not {line!r}")
  splitter = SubwordNmt(lines[header:], (), version)
  counts = collections.Counter(piece for t in _not_empty(texts) for piece in splitter.segment(t))
  pieces = sorted(counts, key=lambda piece: (-counts[piece], piece))
  if vocab_size:
    pieces = pieces[:max(vocab_size - len(SPECIALS), 0)]
  return SubwordNmt(lines[header:], pieces, version)


def from_file(texts: Iterator[str], *, path: str) -> Tokenizer:
  """A saved tokenizer, or a tokenizer.json of Hugging Face, whose texts it does not need."""
  del texts
  return Tokenizer.load(path)


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "bpe": bpe,
    "byte_bpe": byte_bpe,
    "wordpiece": wordpiece,
    "unigram": unigram,
    "bytes": byte_tokenizer,
    "subword_nmt": subword_nmt,
    "file": from_file,
}
