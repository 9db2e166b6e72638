"""Reading a prepared corpus: `data.train=prepared:FOLDER`."""

import bisect
import collections
import functools
import os
from typing import Any, Mapping, Sequence
import zlib

from array_record.python import array_record_module as array_record
import numpy as np

from jtx import storage
from jtx.data import prepared
from jtx.data.corpus import files
from jtx.data.op import Column
from jtx.errors import ConfigError, DataError

PREFIX = "prepared:"  # of the source's spec
OPEN_FILES = 256  # that a reader keeps; many systems allow a process 1024


def folders(specs: Sequence[str], path: str) -> list[str]:
  """The folders of the sources `prepared:FOLDER`; none where no source is one.

  Raises:
    ConfigError: some sources are prepared, and others are not, or one is in a bucket.
  """
  found = [storage.join(path, spec.removeprefix(PREFIX)) for spec in specs
           if spec.startswith(PREFIX)]
  if found and len(found) != len(specs):
    raise ConfigError(f"data.train={tuple(specs)} mixes prepared sources with others; prepare all"
                      " of them, together or each into its folder")
  for folder in filter(storage.is_remote, found):
    raise ConfigError(f"{PREFIX}{folder}: a prepared corpus is read from a disk; copy it to one, or"
                      " mount the bucket as a folder")
  return found


def check(folder: str, ops: Sequence[Any], labels: Sequence[str],
          tokenizers: Mapping[str, str]) -> None:
  """Raises ConfigError where a folder does not hold what a run would make of its sources.

  Args:
    folder: of `prepared:FOLDER`.
    ops: of the config, before names are filled in.
    labels: of the run.
    tokenizers: of the run, as tokenizer.json has them.
  """
  manifest = files.read_manifest(folder)
  about = lambda ops, labels: {"data": {"ops": ops}, "labels": list(labels)}
  theirs = [files.with_defaults(op) for op in manifest["ops"]]
  found = files.difference(about(theirs, manifest["labels"]), about(files.described(ops), labels))
  if found:
    raise ConfigError(f"{folder}: was prepared by another config: {found}; train with the ops that"
                      " it was prepared by, or prepare the corpus again, into another folder")
  if manifest["tokenizer_sha256"] != files.digest_of_tokenizers(tokenizers):
    raise ConfigError(f"{folder}: was prepared with another tokenizer than the one of this"
                      " run; prepare the corpus again, into another folder")


class PreparedFiles:
  """The examples of prepared corpora, read when asked for; a Stream takes them as Prepared.

  In memory are the ids and token counts. Threads may share it; pickled, it is opened anew.

  Args:
    folders: with equal ops and tokenizers; one goes on where the one before ends.
    columns: that examples have here, of those in the files.
    fields: whose tokens are counted.
    limits: examples with more tokens in a field are left out.

  Raises:
    DataError: a file is missing, damaged or not what the manifest says, or a source has no
      example left.
  """

  def __init__(self, folders: Sequence[str], columns: Mapping[str, Column], fields: Sequence[str],
               limits: Mapping[str, int]):
    self.folders, self.columns, self.limits = tuple(folders), dict(columns), dict(limits)
    self.fields = tuple(fields)
    self.sizes: list[int] = []
    self.digests: list[str] = []  # of the kept examples of each source, as of its own examples
    self._paths: list[str] = []
    self._offsets: list[int] = []  # of each shard: what is added to the ids of its folder
    self._lengths: list[int] = []  # of each shard: its records
    self._reader = functools.lru_cache(OPEN_FILES)(self._open)
    parts, offset = [], 0
    for folder in folders:
      manifest = files.read_manifest(folder)
      self._format = files.Format.from_json(manifest["columns"])
      parts += self._read_folder(folder, manifest, offset)
      offset += sum(source["read"] for source in manifest["sources"])
    ids, counts, kept = (np.concatenate(arrays) for arrays in zip(*parts))
    self._starts = np.cumsum([0, *self._lengths]).tolist()
    self.ids, self._counts = ids[kept], counts[kept]
    # Where an example is among all records; None is at its own number.
    self._places = None if kept.all() else np.flatnonzero(kept)

  def _read_folder(self, folder: str, manifest: Mapping[str, Any],
                   offset: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Ids and counts of a folder's shards, and which of their examples fit a row."""
    limits = np.array([self.limits.get(f, np.iinfo(np.int32).max) for f in self._format.fields])
    parts, kept_by_source, sums = [], collections.Counter(), collections.Counter()
    for shard in manifest["shards"]:
      path = os.path.join(folder, shard["file"])
      files.check_size(path, shard["bytes"])
      index = files.read_index(path.removesuffix(files.RECORDS) + files.INDEX)
      if index.about != shard:
        raise DataError(f"{path.removesuffix(files.RECORDS) + files.INDEX}: is not the index of the"
                        f" shard that {files.MANIFEST} tells of; {files.AGAIN}")
      kept = (index.counts <= limits).all(1)
      kept_by_source[shard["source"]] += int(kept.sum())
      for what, array in (("ids", index.ids), ("counts", index.counts[kept])):
        key = shard["source"], what
        sums[key] = zlib.crc32(array, sums[key])
      parts.append((index.ids + offset, index.counts, kept))
      self._paths.append(path)
      self._offsets.append(offset)
      self._lengths.append(len(kept))
    for number, source in enumerate(manifest["sources"]):
      kept = kept_by_source[number]
      dropped = source["dropped"] | {prepared.TOO_LONG: source["kept"] - kept}
      prepared.tell_kept(source["name"], source["read"], kept, dropped)
      self.sizes.append(kept)
      self.digests.append(f"{source['fingerprint']} {sums[number, 'ids']:08x}"
                          f" {sums[number, 'counts']:08x}")
    return parts

  def __reduce__(self):
    return PreparedFiles, (self.folders, self.columns, self.fields, self.limits)

  def __len__(self) -> int:
    return len(self.ids)

  def lengths(self, examples: np.ndarray, fields: Sequence[str]) -> np.ndarray:
    """[examples, fields] token counts."""
    columns = [self._format.fields.index(f) for f in fields]
    return self._counts[examples][:, columns].astype(np.int64)

  def example(self, i: int) -> dict[str, np.ndarray]:
    """Reads an example.

    Raises:
      DataError: its shard is damaged.
    """
    place = int(i if self._places is None else self._places[i])
    shard = bisect.bisect_right(self._starts, place) - 1
    number = place - self._starts[shard]
    try:
      record, = self._reader(shard).read([number])
    except (RuntimeError, ValueError, IndexError) as e:
      raise DataError(f"{self._paths[shard]}: record {number} can't be read"
                      f" ({files.first_line(e)}); {files.AGAIN}") from e
    head = self._format.head(self.ids[i] - self._offsets[shard], self._counts[i])
    if not record.startswith(head) or len(record) != self._format.size(self._counts[i]):
      raise DataError(f"{self._paths[shard]}: record {number} is not the one that the shard's index"
                      f" tells of; {files.AGAIN}")
    return self._format.decode(record, self.columns)

  def _open(self, shard: int) -> array_record.ArrayRecordReader:
    files.check_size(self._paths[shard], None)
    return array_record.ArrayRecordReader(
        self._paths[shard], options="readahead_buffer_size:0,max_parallelism:0",
        file_reader_buffer_size=1 << 15)
