"""The files of a prepared corpus, which `experiments.prepare` tokenised once.

A folder has

  tokenizer.json       as a workdir has it
  00000.arrayrecord    examples of one source, a record each; 00001.arrayrecord goes on
  00000.npz            index of it: `ids` [n] int64, the number that an example has among all of
                       all sources; `counts` [n, F] int32, its tokens in each of the F fields;
                       `about`, JSON in bytes: what manifest.json will say of the shard
  manifest.json        the ops, tokenizer and sources that it was made with; its shards. It is
                       written last; before, there is unfinished.json with what is known by then

A record is, without gaps and little-endian,

  int64                the example's id
  int32 [F]            its tokens in each field; a field is a column of the kind "tokens"
  columns              in the manifest's order, in the dtype that it calls `stored`: as many values
                       as the field has tokens, or where the column's kind is "example" one, or as
                       many as its `shape` says

Tokens are stored as uint16 where every id of the vocabulary fits, else as int32; all else in its
column's dtype, so that marks take a byte. Records are compressed one by one (zstd), each with a
checksum of its own.
"""

import dataclasses
import functools
import hashlib
import io
import json
import math
import os
from typing import Any, Mapping, NamedTuple, Sequence
import zipfile

import numpy as np

from jtx import config, config_files, storage
from jtx.data import recipes
from jtx.data.op import Column
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import DataError

VERSION = 1
MANIFEST, UNFINISHED = "manifest.json", "unfinished.json"
RECORDS, INDEX = ".arrayrecord", ".npz"  # endings of a shard's files
# Keys that manifest.json and unfinished.json have, and those that only the former has.
BEGUN_KEYS = ("version", "ops", "labels", "tokenizer", "tokenizer_sha256", "shard_size", "columns",
              "sources")
DONE_KEYS = ("shards",)
AGAIN = "run the command that prepared it again, which makes anew what is damaged"


class Stored(NamedTuple):
  """A column as the files have it."""
  name: str
  column: Column
  dtype: np.dtype


def number_of(column: Column, field: int | None, counts: np.ndarray) -> int:
  """How many values of a column a record has, given its tokens in each of the fields."""
  return math.prod(column.shape) if field is None else int(counts[field])


@dataclasses.dataclass(frozen=True)
class Format:
  """How examples are written and read."""
  stored: tuple[Stored, ...]

  @classmethod
  def of(cls, ops: Sequence[Any], tokenizers: Mapping[str, Any]) -> "Format":
    """The format of what some ops make."""
    small = max(len(t.text_ids()) for t in tokenizers.values()) <= 1 << 16
    made = {name: column for op in ops for name, column in op.columns.items()}
    dtype = lambda column: "uint16" if column.kind == "tokens" and small else column.dtype
    return cls(tuple(Stored(name, column, np.dtype(dtype(column)).newbyteorder("<"))
                     for name, column in made.items()))

  @classmethod
  def from_json(cls, columns: Sequence[Mapping[str, str]]) -> "Format":
    shape = lambda c: tuple(c["shape"]) if "shape" in c else ()
    return cls(tuple(Stored(c["name"], Column(c["kind"], c["dtype"], shape(c)),
                            np.dtype(c["stored"])) for c in columns))

  def to_json(self) -> list[dict[str, str]]:
    return [{"name": name, "kind": column.kind, "dtype": column.dtype, "stored": dtype.str}
            | ({"shape": list(column.shape)} if column.shape else {})
            for name, column, dtype in self.stored]

  @functools.cached_property
  def fields(self) -> tuple[str, ...]:
    return tuple(name for name, column, _ in self.stored if column.kind == "tokens")

  @functools.cached_property
  def _places(self) -> tuple[tuple[Stored, int | None], ...]:
    """Each column with the number of the field that it is as long as."""
    fields = (recipes.field_of(name, column) for name, column, _ in self.stored)
    return tuple((stored, None if field is None else self.fields.index(field))
                 for stored, field in zip(self.stored, fields))

  def head(self, number: int, counts: np.ndarray) -> bytes:
    """The first bytes of a record."""
    return np.array(number, "<i8").tobytes() + np.asarray(counts, "<i4").tobytes()

  def size(self, counts: np.ndarray) -> int:
    """Bytes of a record."""
    return 8 + 4 * len(self.fields) + sum(
        stored.dtype.itemsize * number_of(stored.column, field, counts)
        for stored, field in self._places)

  def counts(self, example: Mapping[str, Any]) -> list[int]:
    return [len(example[f]) for f in self.fields]

  def encode(self, example: Mapping[str, Any]) -> bytes:
    parts = [self.head(example["id"], self.counts(example))]
    parts += [np.asarray(example[name], dtype).tobytes() for name, _, dtype in self.stored]
    return b"".join(parts)

  def decode(self, record: bytes, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Some columns of a record, as the ops made them."""
    counts = np.frombuffer(record, "<i4", len(self.fields), 8)
    example, at = {}, 8 + counts.nbytes
    for (name, column, dtype), field in self._places:
      count = number_of(column, field, counts)
      if name in names:
        values = np.frombuffer(record, dtype, count, at).astype(column.dtype)
        example[name] = values.reshape(column.shape)[()] if field is None else values
      at += count * dtype.itemsize
    return example


# -------------------------------------------------------------------- manifest and index


def described(ops: Sequence[Any]) -> list[dict[str, Any]]:
  """Ops by name and keys, for JSON; those that a config leaves out have their defaults."""
  names = {constructor: name for name, constructor in OPS.items()}
  plain = [{"name": names[type(op)]} | {key: getattr(op, key) for key in config.fields(type(op))}
           for op in ops]
  return json.loads(json.dumps(plain))


def with_defaults(section: Mapping[str, Any],
                  registry: config.Registry = OPS) -> dict[str, Any]:
  """An op as `described` gave it, or another named section, with keys that it has got since."""
  return {**json.loads(config.section(registry, section["name"]).to_json()), **section}


def difference(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
  """A clause on the first key of a config in which two JSON objects differ, or ""."""
  theirs, ours = (config_files.flatten(config_files.from_plain(tree)) for tree in (theirs, ours))
  for key in sorted(theirs.keys() | ours.keys(), key=lambda key: (not key.endswith(".name"), key)):
    if theirs.get(key) != ours.get(key):
      return f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
  return ""


def tokenizer_key(section: Mapping[str, Any]) -> dict[str, Any]:
  """A config's `tokenizer` section, without where a tokenizer that is not trained is read from.

  Keys that older folders do not have are there with their defaults.
  """
  kind = with_defaults(section["kind"], TOKENIZERS)
  if kind["name"] == "file":
    del kind["path"]
  return {"delimiters": [], **section, "kind": kind}


def digest_of_tokenizers(texts: Mapping[str, str]) -> str:
  """SHA-256 of the object in tokenizer.json, as JSON with sorted keys."""
  return hashlib.sha256(json.dumps(dict(texts), sort_keys=True).encode()).hexdigest()


def read_object(path: str, keys: Sequence[str]) -> dict[str, Any]:
  """The content of manifest.json or unfinished.json.

  Raises:
    DataError: it is damaged, or of another version.
  """
  try:
    found = storage.parse_json(storage.read_text(path))
  except ValueError as e:
    raise DataError(f"{path}: is not valid JSON ({e})") from e
  version = found.get("version") if isinstance(found, dict) else None
  if version != VERSION:
    raise DataError(f"{path}: is of version {version}, and this jtx reads version {VERSION};"
                    " prepare the corpus again, into another folder")
  if missing := [key for key in keys if key not in found]:
    raise DataError(f"{path}: has no {missing[0]!r}; {AGAIN}")
  return found


def read_manifest(folder: str) -> dict[str, Any]:
  """The manifest of a folder.

  Raises:
    DataError: it has none, or one that can't be used.
  """
  path = os.path.join(folder, MANIFEST)
  if not os.path.exists(path):
    if os.path.exists(os.path.join(folder, UNFINISHED)):
      raise DataError(f"{folder}: its preparation is not finished; run the same command again to go"
                      " on with it")
    raise DataError(f"{path}: does not exist; a folder that experiments.prepare made has one")
  return read_object(path, BEGUN_KEYS + DONE_KEYS)


class Index(NamedTuple):
  """A shard's index."""
  ids: np.ndarray  # [n] int64
  counts: np.ndarray  # [n, F] int32
  about: dict[str, Any]


def read_index(path: str) -> Index:
  """Raises DataError where a shard's index is missing or damaged."""
  try:
    with np.load(path) as arrays:
      about = json.loads(arrays["about"].tobytes())
      return Index(arrays["ids"], arrays["counts"], about)
  except FileNotFoundError as e:
    raise DataError(f"{path}: does not exist, though it is the index of a shard; {AGAIN}") from e
  except (zipfile.BadZipFile, ValueError, KeyError, OSError, EOFError, RuntimeError) as e:
    raise DataError(f"{path}: is damaged ({first_line(e)}); {AGAIN}") from e


def index_bytes(index: Index) -> bytes:
  """A shard's index as the bytes of a file."""
  about = np.frombuffer(json.dumps(index.about).encode(), np.uint8)
  file = io.BytesIO()
  np.savez(file, ids=index.ids, counts=index.counts, about=about)
  return file.getvalue()


def first_line(error: Exception) -> str:
  return (str(error).strip() or type(error).__name__).split("\n")[0]


def check_size(path: str, size: int | None) -> None:
  """Raises DataError where a shard is missing, or has another size than the manifest says."""
  try:
    found = os.path.getsize(path)
  except OSError as e:
    raise DataError(f"{path}: {e.strerror}, though {MANIFEST} lists it; {AGAIN}") from e
  if size not in (None, found):
    raise DataError(f"{path}: has {found} bytes and not the {size} that {MANIFEST} says; {AGAIN}")
