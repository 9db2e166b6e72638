"""The registry of tokenizers, and how each kind is trained on texts."""

import collections
import json
from typing import Any, Callable, Iterator

import tokenizers as hf

from jtx import hub, storage
from jtx.data.tokenizers.characters import Characters
from jtx.data.tokenizers.encodings import MASKS
from jtx.data.tokenizers.files import read_tokenizer
from jtx.data.tokenizers.huggingface import HuggingFace
from jtx.data.tokenizers.subword_nmt import SubwordNmt
from jtx.data.tokenizers.tokenizer import SPECIALS, Tokenizer
from jtx.data.tokenizers.utf8 import Bytes
from jtx.errors import ConfigError, DataError
from jtx.ranges import CountOrNone, Size, SizeOrNone


def _specials(mask: bool) -> list[str]:
  """Ids from 0 on: the special tokens, and the mask where it is asked for."""
  return [*SPECIALS, MASKS[0]] if mask else list(SPECIALS)


def _pieces(vocab_size: int, sentinels: int) -> int:
  """What a vocabulary has beside its sentinels; of no more than special tokens none is trained."""
  if vocab_size - sentinels <= len(SPECIALS):
    raise _too_small(vocab_size, sentinels)
  return vocab_size - sentinels


def _too_small(vocab_size: int, sentinels: int) -> ConfigError:
  also = f"sentinels={sentinels}, the " if sentinels else "the "
  return ConfigError(f"tokenizer: vocab_size={vocab_size} is too small to hold {also}special tokens"
                     " and every character of the texts")


def _train(backend: hf.Tokenizer, trainer: Any, texts: Iterator[str], mask: bool,
           sentinels: int) -> Tokenizer:
  too_small = _too_small(trainer.vocab_size + sentinels, sentinels)
  try:
    backend.train_from_iterator(_not_empty(texts), trainer)
  except Exception as e:  # a bare Exception of the Unigram trainer
    if "not large enough" in str(e):
      raise too_small from e
    raise
  if backend.get_vocab_size() > trainer.vocab_size:
    raise too_small
  model = json.loads(backend.to_str())
  model["added_tokens"] = model["added_tokens"][:len(_specials(mask))]
  if not sentinels:
    return HuggingFace(model, range(len(SPECIALS)))
  backend = hf.Tokenizer.from_str(json.dumps(model))
  backend.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(sentinels))])
  return HuggingFace(backend, range(len(SPECIALS)))


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


def bpe(texts: Iterator[str], *, vocab_size: Size = 16_000, min_frequency: CountOrNone = 2,
        lowercase: bool = False, split_digits: bool = False, mask: bool = False,
        sentinels: CountOrNone = 0) -> Tokenizer:
  """Byte-pair encoding over characters (Sennrich et al. 2016, arXiv:1508.07909).

  White space becomes one space. A space becomes "▁" before a word, so a text's own U+2581
  decodes as a space.

  Args:
    texts: what to train on; a character that is not in it becomes <unk>.
    vocab_size: ids at most, specials included.
    min_frequency: how often a pair must occur to be merged.
    lowercase: lowercases every text, also when encoding.
    split_digits: makes every digit a piece of its own.
    mask: has a mask token, [MASK].
    sentinels: has so many special tokens for hidden spans, <extra_id_0> and on, of which this one
      is the last id (T5 has 100).
  """
  backend = hf.Tokenizer(hf.models.BPE(unk_token="<unk>"))
  backend.normalizer = _normalizer(lowercase)
  backend.pre_tokenizer = _word_splitter(split_digits)
  backend.decoder = hf.decoders.Metaspace()
  trainer = hf.trainers.BpeTrainer(
      vocab_size=_pieces(vocab_size, sentinels), min_frequency=min_frequency,
      special_tokens=_specials(mask), show_progress=False)
  return _train(backend, trainer, texts, mask, sentinels)


def byte_bpe(texts: Iterator[str], *, vocab_size: Size = 16_000, min_frequency: CountOrNone = 2,
             split_digits: bool = False, mask: bool = False,
             sentinels: CountOrNone = 0) -> Tokenizer:
  """Byte-level BPE (Radford et al. 2019, GPT-2, section 2.2): every text round-trips.

  Args:
    texts: what to train on.
    vocab_size: ids at most, specials and the 256 bytes included.
    min_frequency: how often a pair must occur to be merged.
    split_digits: makes every digit a piece of its own.
    mask: has a mask token, [MASK].
    sentinels: so many special tokens for hidden spans, <extra_id_0> and on; T5 has 100.
  """
  backend = hf.Tokenizer(hf.models.BPE(unk_token=None))
  byte_level = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
  digits = [hf.pre_tokenizers.Digits(individual_digits=True)] if split_digits else []
  backend.pre_tokenizer = hf.pre_tokenizers.Sequence([*digits, byte_level])
  backend.decoder = hf.decoders.ByteLevel()
  trainer = hf.trainers.BpeTrainer(
      vocab_size=_pieces(vocab_size, sentinels), min_frequency=min_frequency,
      special_tokens=_specials(mask),
      initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
  return _train(backend, trainer, texts, mask, sentinels)


def wordpiece(texts: Iterator[str], *, vocab_size: Size = 16_000, min_frequency: CountOrNone = 2,
              lowercase: bool = True, mask: bool = False,
              sentinels: CountOrNone = 0) -> Tokenizer:
  """WordPiece with BERT's normalisation (Devlin et al. 2019, arXiv:1810.04805).

  Args:
    texts: what to train on; a word with a character that is not in it becomes <unk>.
    vocab_size: ids at most, specials included.
    min_frequency: how often a pair must occur to be merged.
    lowercase: lowercases every text and strips accents, as BERT's uncased models do.
    mask: has a mask token, [MASK].
    sentinels: so many special tokens for hidden spans, <extra_id_0> and on; T5 has 100.
  """
  backend = hf.Tokenizer(hf.models.WordPiece(unk_token="<unk>"))
  backend.normalizer = hf.normalizers.BertNormalizer(lowercase=lowercase)
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.decoder = hf.decoders.WordPiece()
  texts = list(texts)
  continuations = _continuations(backend, texts)
  trainer = hf.trainers.WordPieceTrainer(
      vocab_size=_pieces(vocab_size, sentinels), min_frequency=min_frequency,
      special_tokens=[*_specials(mask), *continuations], show_progress=False)
  return _train(backend, trainer, iter(texts), mask, sentinels)


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


def unigram(texts: Iterator[str], *, vocab_size: Size = 16_000, lowercase: bool = False,
            split_digits: bool = False, mask: bool = False,
            sentinels: CountOrNone = 0) -> Tokenizer:
  """A unigram language model (Kudo 2018, arXiv:1804.10959).

  The trainer sums in no fixed order, so the scores of two trainings differ in the third decimal
  and the order of ids may; the other kinds train the same every time.

  Args:
    texts: what to train on; a character that is not in it becomes <unk>.
    vocab_size: ids at most, specials included.
    lowercase: lowercases every text, also when encoding.
    split_digits: makes every digit a piece of its own.
    mask: has a mask token, [MASK].
    sentinels: so many special tokens for hidden spans, <extra_id_0> and on; T5 has 100.
  """
  backend = hf.Tokenizer(hf.models.Unigram())
  backend.normalizer = _normalizer(lowercase)
  backend.pre_tokenizer = _word_splitter(split_digits)
  backend.decoder = hf.decoders.Metaspace()
  trainer = hf.trainers.UnigramTrainer(
      vocab_size=_pieces(vocab_size, sentinels), special_tokens=_specials(mask), unk_token="<unk>",
      show_progress=False)
  return _train(backend, trainer, texts, mask, sentinels)


def byte_tokenizer(texts: Iterator[str], *, byt5: bool = False) -> Tokenizer:
  """UTF-8 bytes; nothing is trained.

  Args:
    texts: not looked at.
    byt5: has ByT5's ids.
  """
  del texts
  return Bytes(byt5)


def characters(texts: Iterator[str], *, unknown: bool = False) -> Tokenizer:
  """The characters of the texts, sorted.

  Args:
    texts: all that it shall know the characters of.
    unknown: other characters become <unk>; else a text that has one is an error.
  """
  return Characters("".join(sorted(set().union(*_not_empty(texts)))), unknown)


def subword_nmt(texts: Iterator[str], *, merges: str, vocab_size: SizeOrNone = 0) -> Tokenizer:
  """subword-nmt's BPE with given merges; the vocabulary is the pieces of `texts`.

  Args:
    texts: what to take the pieces from.
    merges: the merge file that `subword-nmt learn-bpe` or `learn-joint-bpe-and-vocab` wrote.
    vocab_size: keeps the most frequent pieces, this many ids with the specials; 0 keeps all.

  Raises:
    DataError: the file is missing, or a line is not a merge.
  """
  try:
    lines = storage.read_text(merges).rstrip("\n").split("\n")
  except OSError as e:
    raise DataError(f"{merges}: {e.strerror}") from e
  except UnicodeDecodeError as e:
    raise DataError(f"{merges}: not valid UTF-8 ({e.reason} at byte {e.start})") from e
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
  """A tokenizer that needs no training.

  Args:
    texts: not looked at.
    path: what `read_tokenizer` reads: a saved tokenizer, a tokenizer.json of Hugging Face, a
      vocab.txt of BERT, or the folder of one of these.

  Raises:
    ConfigError: there is no such file.
  """
  del texts
  if not (storage.exists(path) or hub.is_name(path)):
    raise ConfigError(f"config.tokenizer.kind.path={path!r}, which the argument vocab of a config"
                      " sets, is no file or folder of a tokenizer; leave vocab out for one that is"
                      " trained, whose size is --config.tokenizer.kind.vocab_size")
  return read_tokenizer(path)


TOKENIZERS: dict[str, Callable[..., Tokenizer]] = {
    "bpe": bpe,
    "byte_bpe": byte_bpe,
    "wordpiece": wordpiece,
    "unigram": unigram,
    "bytes": byte_tokenizer,
    "characters": characters,
    "subword_nmt": subword_nmt,
    "file": from_file,
}
