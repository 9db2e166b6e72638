"""Models of SentencePiece (Kudo and Richardson 2018) as tokenizers, of the kind Unigram.

A .model file is a protocol buffer, of which this reads the few fields that say how texts are split.
"""

import struct
from typing import Any, Iterator, Mapping, NamedTuple

import tokenizers as hf

from jtx.errors import DataError

# Fields of ModelProto, and of the messages in it.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, TYPE = 1, 2, 3
MODEL_TYPE, BYTE_FALLBACK = 3, 35
CHARSMAP, DUMMY_PREFIX, TRIMS, ESCAPES = 2, 3, 4, 5
UNIGRAM = 1  # a model type, and the default
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # types of pieces
SPACE = "\u2581"
END, UNK, PAD = "</s>", "<unk>", "<pad>"
FOREIGN = "\0"  # before the name of a piece that no text is split into, since none has it
T5_SPECIALS = ["<pad>", "</s>", "<unk>"]
T5_SENTINELS = 100  # that its files leave out


class Model(NamedTuple):
  """What a model file says."""
  names: list[str]  # of the pieces
  scores: list[float]
  kinds: list[int]
  charsmap: bytes  # of its normalizer; b"" is none


def parsed(content: bytes, path: str) -> Model:
  """A model that has been read.

  Raises:
    DataError: it is no such model, or of a kind that is not Unigram.
  """
  try:
    fields = list(_fields(content))
    pieces = [dict(_fields(value)) for number, value in fields if number == PIECES]
    trainer, normalizer = ({n: v for number, value in fields if number == which
                            for n, v in _fields(value)} for which in (TRAINER, NORMALIZER))
    names = [piece[PIECE].decode() for piece in pieces]
    scores = [struct.unpack("<f", piece[SCORE])[0] if SCORE in piece else 0.0 for piece in pieces]
    kinds = [piece[TYPE] if TYPE in piece else NORMAL for piece in pieces]
    kinds.index(UNKNOWN)
  except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as e:
    raise DataError(f"{path}: not a model of SentencePiece") from e
  kind = trainer[MODEL_TYPE] if MODEL_TYPE in trainer else UNIGRAM
  if kind != UNIGRAM or (BYTE_FALLBACK in trainer and trainer[BYTE_FALLBACK]):
    raise DataError(f"{path}: is not of the kind Unigram without bytes, which jtx reads; a"
                    " tokenizer.json of it, as transformers saves it, is read")
  if not all(normalizer[flag] if flag in normalizer else True
             for flag in (DUMMY_PREFIX, TRIMS, ESCAPES)):
    raise DataError(f"{path}: does not put a space before a text, or keeps spaces as they are,"
                    " which jtx does not do")
  return Model(names, scores, kinds, normalizer[CHARSMAP] if CHARSMAP in normalizer else b"")


def backend_of(content: bytes, path: str, sentinels: int | None = None) -> hf.Tokenizer:
  """The tokenizer of a model; its control pieces are special tokens, and </s> ends a text.

  Args:
    content: of the file.
    path: of it, for errors.
    sentinels: `<extra_id_...>` that are added, so that the first is the last id; None is as many
      as T5 has where the model begins with its special tokens and has none, and otherwise none.

  Raises:
    DataError: as `parsed`.
  """
  model = parsed(content, path)
  special = [n for n, kind in zip(model.names, model.kinds) if kind in (UNKNOWN, CONTROL)]
  backend = _unigram(list(zip(model.names, model.scores)), model.kinds.index(UNKNOWN), special,
                     model.charsmap)
  if sentinels is None:
    has_them = any(name.lstrip(SPACE).startswith("<extra_id_") for name in model.names)
    sentinels = T5_SENTINELS if model.names[:3] == T5_SPECIALS and not has_them else 0
  backend.add_special_tokens([f"<extra_id_{i}>" for i in reversed(range(sentinels))])
  return backend


def marian_backend(content: bytes, path: str, ids: Mapping[str, int]) -> hf.Tokenizer:
  """The tokenizer of one side of a Marian folder, whose ids are those of its vocab.json.

  Pieces of the other side have ids, too. Those of one character stand for it where the model does
  not know it; no text is split into the others. (`transformers` looks for a run of such characters
  as a whole.) A language code such as >>deu<< is a token where it stands.

  Args:
    content: of source.spm or target.spm.
    path: of it, for errors.
    ids: by the names of pieces, from 0.

  Raises:
    DataError: as `parsed`, or ids that do not count from 0, or without </s> and <unk>.
  """
  model = parsed(content, path)
  whole = all(type(i) is int for i in ids.values())
  names = sorted(ids, key=ids.__getitem__) if whole else []
  if [ids[name] for name in names] != list(range(len(ids))) or not {END, UNK} <= ids.keys():
    raise DataError(f"{path}: the vocab.json beside it has no ids from 0 on, or no {END} or {UNK}")
  scores = dict(zip(model.names, model.scores))
  codes = [name for name in names if name.startswith(">>") and name.endswith("<<")]
  special = [name for name in (END, UNK, PAD) if name in ids]
  own, least = scores.keys() | {*codes, *special}, min(model.scores) - 1
  pieces = [(name if name in own or len(name) == 1 else FOREIGN + name, scores.get(name, least))
            for name in names]
  backend = _unigram(pieces, ids[UNK], special, model.charsmap)
  backend.decoder = hf.decoders.Sequence([hf.decoders.Replace(FOREIGN, ""), backend.decoder])
  backend.add_tokens([hf.AddedToken(name, normalized=False) for name in codes])
  return backend


def _unigram(pieces: list[tuple[str, float]], unknown: int, special: list[str],
             charsmap: bytes) -> hf.Tokenizer:
  """A tokenizer of pieces with their scores; </s> ends a text where it is special."""
  backend = hf.Tokenizer(hf.models.Unigram(pieces, unknown, False))
  steps = [hf.normalizers.Strip(), hf.normalizers.Replace(hf.Regex(" {2,}"), " ")]
  if charsmap:
    steps.insert(0, hf.normalizers.Precompiled(charsmap))
  backend.normalizer = hf.normalizers.Sequence(steps)
  backend.pre_tokenizer = hf.pre_tokenizers.Metaspace(SPACE, prepend_scheme="always")
  backend.decoder = hf.decoders.Metaspace(SPACE, prepend_scheme="always")
  backend.add_special_tokens(special)
  if END in special:
    backend.post_processor = hf.processors.TemplateProcessing(
        single=f"$A {END}", pair=f"$A {END} $B {END}",
        special_tokens=[(END, backend.token_to_id(END))])
  return backend


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
  """Numbers and values of a message's fields: whole numbers, and bytes of all others."""
  at = 0
  while at < len(content):
    key, at = _varint(content, at)
    kind = key & 7
    if kind == 0:
      value, at = _varint(content, at)
    else:
      size = {1: 8, 5: 4}[kind] if kind != 2 else None
      if size is None:
        size, at = _varint(content, at)
      value, at = content[at:at + size], at + size
      if len(value) != size:
        raise ValueError("a field is cut off")
    yield key >> 3, value


def _varint(content: bytes, at: int) -> tuple[int, int]:
  """A whole number of seven bits a byte, and the place behind it."""
  value = shift = 0
  while True:
    byte = content[at]
    value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
    if byte < 128:
      return value, at
