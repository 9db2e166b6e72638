"""Making the files of `jtx.data.corpus.reader`, shard by shard, in any number of processes.

A shard is a function of the sources, the ops and the tokenizers, so whoever makes it writes the
same bytes. Every file is written under a temporary name and then renamed; a shard is finished
when its records have the digest that its index, written after them, tells. So what a killed
run left is kept, and the result does not show that it was killed.
"""

import collections
import concurrent.futures
from concurrent.futures.process import BrokenProcessPool
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import threading
from typing import Any, Iterator, Mapping, NamedTuple, Sequence
import uuid

from absl import logging
from array_record.python import array_record_module as array_record
import numpy as np

from jtx.config import ConfigDict, write_json
from jtx.data import recipes
from jtx.data.corpus import reader
from jtx.data.dataset import Dataset
from jtx.data.sources.registry import Source, open_source
from jtx.data.tokenizers.files import TOKENIZER_FILE, load_tokenizers, save_tokenizers
from jtx.errors import ConfigError, DataError

# A record a chunk, for reading at random. A shard is written by one thread; others make others.
WRITER = "group_size:1,zstd:3,max_parallelism:1"
SAMPLES = 64  # examples of a source by which it is known again
# What a run that was killed may leave: names of `written` and of `write_json`.
TEMPORARY = re.compile(r"(\d{5,}\.(arrayrecord|npz)\.[0-9a-f]{32}|[a-z]+\.json)\.tmp")


class Shard(NamedTuple):
  """Examples of one source that are prepared together."""
  source: int  # number of the source
  start: int  # examples of it
  stop: int
  offset: int  # id of the source's first example


@dataclasses.dataclass(frozen=True)
class Plan:
  """What a process needs to know to make any of the shards. It can be pickled."""
  output: str
  specs: tuple[str, ...]
  path: str  # that they are relative to
  sources: tuple[Source, ...] | None  # what they open; None is not opened yet
  ops: tuple[Any, ...]
  tokenizers: dict[str, Any]
  format: reader.Format
  shards: tuple[Shard, ...]
  begun: dict[str, Any]  # what unfinished.json holds

  def closed(self) -> "Plan":
    """The plan for another machine, without the sources, which may be large."""
    return dataclasses.replace(self, sources=None)

  def opened(self) -> "Plan":
    """The plan with its sources."""
    return dataclasses.replace(
        self, sources=tuple(open_source(spec, self.path) for spec in self.specs))

  def file(self, number: int, ending: str) -> str:
    return os.path.join(self.output, f"{number:05d}{ending}")


def prepare(data: ConfigDict, tokenizer: ConfigDict, output: str, *, shard_size: int,
            workers: int = 0, beam: Sequence[str] | None = None) -> dict[str, Any]:
  """Makes all files of a corpus, or those that are missing or damaged.

  Args:
    data: a config's section; its training sources are prepared, by its ops before the layout.
    tokenizer: a config's section.
    output: the folder.
    shard_size: examples of a source that make a shard.
    workers: processes; 0 is this one.
    beam: arguments of the Apache Beam pipeline that makes the shards instead; None is none.

  Returns:
    What manifest.json holds.

  Raises:
    ConfigError: the folder has something else, or the config can't be used.
    DataError: a source can't be used, or none of its examples is left.
  """
  if os.path.exists(output) and not os.path.isdir(output):
    raise ConfigError(f"--output={output}: is a file; choose a new folder")
  os.makedirs(output, exist_ok=True)
  with locked(output):
    plan = begin(data, tokenizer, output, shard_size)
    if beam is not None:
      from jtx.data.corpus import beam as on_beam
      on_beam.make_shards(plan, beam)
    else:
      make_shards(plan, workers)
    return finish(plan)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
  """Keeps other processes of this machine out of a folder; ends with the process at the latest.

  Raises:
    ConfigError: one is at it.
  """
  descriptor = os.open(folder, os.O_RDONLY)
  try:
    try:
      fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
      raise ConfigError(f"--output={folder}: another process is preparing it") from e
    except OSError as e:  # some network file systems
      logging.warning("%s can't be locked (%s), so make sure that no other process prepares it",
                      folder, e.strerror)
    yield
  finally:
    os.close(descriptor)


# ---------------------------------------------------------------------- before and after


def begin(data: ConfigDict, tokenizer: ConfigDict, output: str, shard_size: int) -> Plan:
  """Writes the tokenizer and what the corpus is made of, or goes on with what is there.

  Raises:
    ConfigError: there is something else.
  """
  if not data.train:
    raise ConfigError("data.train: no source is named")
  if recipes.build_ops(data.ops).augment:
    raise ConfigError("data.ops work on images, which are read as training goes on; only texts can"
                      " be prepared")
  sources = tuple(open_source(spec, data.path) for spec in data.train)
  begun = {
      "version": reader.VERSION,
      "ops": reader.described(recipes.build_ops(data.ops).prepare),
      "tokenizer": json.loads(tokenizer.to_json()),
      "shard_size": shard_size,
      "sources": [{"name": source.name, "read": len(source), "fingerprint": fingerprint(source)}
                  for source in sources],
  }
  known = known_of(output)
  if known is not None:
    check_same(known, begun, output)
  remove_temporaries(output)
  # A tokenizer that is not trained is read again, since its file may have changed.
  trained = tokenizer.kind.name != "file"
  saved = load_tokenizers(output) if known is not None and trained else None
  dataset = Dataset(data, tokenizer, saved, known and known["labels"])
  form = reader.Format.of(dataset.ops, dataset.tokenizers)
  begun |= {
      "labels": list(dataset.labels),
      "tokenizer_sha256": reader.digest_of_tokenizers(dataset.tokenizer_texts()),
      "columns": form.to_json(),
  }
  if known is not None and known["tokenizer_sha256"] != begun["tokenizer_sha256"]:
    file = os.path.join(output, TOKENIZER_FILE)
    if saved is not None:
      raise ConfigError(f"{file}: is not the tokenizer that the folder was prepared with; restore"
                        " it, or choose another folder")
    if any(name.endswith(reader.INDEX) for name in os.listdir(output)):
      raise ConfigError(f"--output={output}: was prepared with another tokenizer than the config"
                        " gives now; choose another folder")
    known = None
  if not os.path.exists(os.path.join(output, reader.MANIFEST)):
    write_json(begun, os.path.join(output, reader.UNFINISHED))
  save_tokenizers(dataset.tokenizer_texts(), output)

  offsets = np.cumsum([0, *map(len, sources)]).tolist()
  shards = tuple(
      Shard(number, start, min(start + shard_size, len(source)), offset)
      for number, (source, offset) in enumerate(zip(sources, offsets))
      for start in range(0, len(source), shard_size))
  return Plan(output, tuple(data.train), data.path, sources, tuple(dataset.ops),
              dataset.tokenizers, form, shards, begun)


def remove_temporaries(output: str) -> None:
  for name in os.listdir(output):
    if TEMPORARY.fullmatch(name):
      os.remove(os.path.join(output, name))


def fingerprint(source: Source) -> str:
  """A digest of some of a source's examples, the first and the last among them."""
  places = np.linspace(0, len(source) - 1, min(SAMPLES, len(source))).astype(int).tolist()
  text = json.dumps([source[i] for i in places], sort_keys=True, default=_plain)
  return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
  if isinstance(value, (np.ndarray, np.generic)):
    return value.tolist()
  return value.hex() if isinstance(value, bytes) else repr(value)


def known_of(output: str) -> dict[str, Any] | None:
  """What a folder is made of, or None for an empty one.

  Raises:
    ConfigError: it has other files.
  """
  for name, keys in ((reader.MANIFEST, reader.BEGUN_KEYS + reader.DONE_KEYS),
                     (reader.UNFINISHED, reader.BEGUN_KEYS)):
    path = os.path.join(output, name)
    if os.path.exists(path):
      return reader.read_object(path, keys)
  if others := sorted(set(os.listdir(output)) - {reader.UNFINISHED + ".tmp"}):
    raise ConfigError(f"--output={output}: has {others[0]} and is no folder that"
                      " experiments.prepare made; choose a new one")
  return None


def check_same(known: Mapping[str, Any], begun: Mapping[str, Any], output: str) -> None:
  """Raises ConfigError where a folder was prepared from another config or other sources."""
  for old, new in zip(known["sources"], begun["sources"]):
    if old["name"] == new["name"] and old | new != old:
      raise ConfigError(f"--output={output}: was prepared from other data: the examples of"
                        f" {new['name']} have changed since; choose another folder")
  about = lambda tree: {
      "data": {"ops": tree["ops"], "train": [source["name"] for source in tree["sources"]]},
      "tokenizer": reader.tokenizer_key(tree["tokenizer"]), "--shard_size": tree["shard_size"]}
  if found := reader.difference(about(known), about(begun)):
    raise ConfigError(f"--output={output}: was prepared from another config: {found}; choose"
                      " another folder, or the same config to go on")


def finish(plan: Plan) -> dict[str, Any]:
  """Writes the manifest, when all shards are made; returns what it holds."""
  shards = [reader.read_index(plan.file(number, reader.INDEX)).about
            for number in range(len(plan.shards))]
  manifest = {**plan.begun, "sources": [dict(source) for source in plan.begun["sources"]],
              "shards": shards}
  for number, source in enumerate(manifest["sources"]):
    own = [shard for shard in shards if shard["source"] == number]
    dropped = sum((collections.Counter(shard["dropped"]) for shard in own), collections.Counter())
    source |= {"kept": sum(shard["examples"] for shard in own), "dropped": dict(dropped)}
    recipes.tell_kept(source["name"], source["read"], source["kept"], dropped)
  remove_temporaries(plan.output)  # a machine of Beam that was lost may have left some
  write_json(manifest, os.path.join(plan.output, reader.MANIFEST))
  with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(plan.output, reader.UNFINISHED))
  tokens = collections.Counter()
  for shard in shards:
    tokens.update(shard["tokens"])
  logging.info("%s: %d examples in %d shards; tokens of %s", plan.output,
               sum(shard["examples"] for shard in shards), len(shards),
               ", ".join(f"{field}: {count:,}" for field, count in tokens.items()))
  return manifest


# -------------------------------------------------------------------------------- shards


def make_shard(plan: Plan, number: int) -> bool:
  """Writes a shard and its index; returns False where they were there."""
  if is_finished(plan, number):
    return False
  shard, source = plan.shards[number], plan.sources[plan.shards[number].source]
  ids, counts, dropped = [], [], collections.Counter()
  records, index = (plan.file(number, ending) for ending in (reader.RECORDS, reader.INDEX))
  with written(records) as temporary:
    writer = array_record.ArrayRecordWriter(temporary, WRITER)
    try:
      for start in range(shard.start, shard.stop, recipes.CHUNK):
        places = range(start, min(start + recipes.CHUNK, shard.stop))
        examples = [{**source[i], "id": shard.offset + i} for i in places]
        for example in recipes.run_ops(plan.ops, examples, plan.tokenizers, dropped):
          writer.write(plan.format.encode(example))
          ids.append(example["id"])
          counts.append(plan.format.counts(example))
    finally:
      close(writer, records)
    counts = np.array(counts, np.int32).reshape(-1, len(plan.format.fields))
    about = {
        "file": os.path.basename(records), "source": shard.source, "examples": len(ids),
        "tokens": dict(zip(plan.format.fields, counts.sum(0, dtype=np.int64).tolist())),
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "bytes": os.path.getsize(temporary), "sha256": sha256(temporary)}
  with written(index) as temporary, open(temporary, "wb") as f:
    f.write(reader.index_bytes(reader.Index(np.array(ids, np.int64), counts, about)))
  return True


def close(writer: array_record.ArrayRecordWriter, path: str) -> None:
  """Raises DataError where a file could not be written, as on a full disk."""
  try:
    writer.close()
  except RuntimeError as e:
    raise DataError(f"{path}: can't be written ({e})") from e


def is_finished(plan: Plan, number: int) -> bool:
  """Whether a shard's files are there and good."""
  records, path = (plan.file(number, ending) for ending in (reader.RECORDS, reader.INDEX))
  try:
    index = reader.read_index(path)
    reader.check_size(records, index.about["bytes"])
  except DataError:
    return False
  with open(path, "rb") as f:  # the zip archive does not check all of its own bytes
    if f.read() != reader.index_bytes(index):
      return False
  return sha256(records) == index.about["sha256"]


def sha256(path: str) -> str:
  with open(path, "rb") as f:
    return hashlib.file_digest(f, "sha256").hexdigest()


@contextlib.contextmanager
def written(path: str) -> Iterator[str]:
  """A name to write a file under, which gets its own name when all went well."""
  temporary = f"{path}.{uuid.uuid4().hex}.tmp"
  try:
    yield temporary
    os.replace(temporary, path)
  except BaseException:
    with contextlib.suppress(FileNotFoundError):
      os.remove(temporary)
    raise


def make_shards(plan: Plan, workers: int) -> None:
  """Makes all shards, in this process or in others."""
  numbers = range(len(plan.shards))
  if not workers:
    for number in numbers:
      tell_made(plan, number, make_shard(plan, number))
    return
  pool = concurrent.futures.ProcessPoolExecutor(
      min(workers, len(plan.shards)), multiprocessing.get_context("spawn"), start_worker, (plan,))
  try:
    made = [pool.submit(make_in_worker, number) for number in numbers]
    for number, future in enumerate(made):
      tell_made(plan, number, future.result())
  except BrokenProcessPool as e:
    raise DataError(f"{plan.output}: a worker process was ended from outside, perhaps for want of"
                    " memory; the same command goes on, and --workers may be lower") from e
  finally:
    pool.shutdown(cancel_futures=True)


def tell_made(plan: Plan, number: int, new: bool) -> None:
  logging.info("shard %d of %d %s", number + 1, len(plan.shards), "made" if new else "was there")


_plan: Plan  # of a worker process


def start_worker(plan: Plan) -> None:
  """Prepares a worker process, which ends when its parent does, even if that is killed."""
  global _plan
  _plan = plan
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a worker is a core

  def follow() -> None:
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)

  threading.Thread(target=follow, daemon=True).start()


def make_in_worker(number: int) -> bool:
  return make_shard(_plan, number)
