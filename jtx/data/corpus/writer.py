"""Writing the shards of a prepared corpus, in any number of processes.

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
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import threading
from typing import Any, Iterator, NamedTuple
import uuid

from absl import logging
from array_record.python import array_record_module as array_record
import numpy as np

from jtx.data import prepared
from jtx.data.corpus import files
from jtx.data.example import placed
from jtx.data.sources.registry import Source, open_source
from jtx.errors import DataError

# A record a chunk, for reading at random. A shard is written by one thread; others make others.
WRITER = "group_size:1,zstd:3,max_parallelism:1"


class Shard(NamedTuple):
  """Examples of one source that are prepared together."""
  source: int  # number of the source
  start: int  # examples of it
  stop: int
  offset: int  # id of the source's first example


@dataclasses.dataclass(frozen=True)
class Plan:
  """All that a process needs to make any of the shards. It can be pickled."""
  output: str
  specs: tuple[str, ...]
  path: str  # that they are relative to
  sources: tuple[Source, ...] | None  # what they open; None is not opened yet
  ops: tuple[Any, ...]
  tokenizers: dict[str, Any]
  format: files.Format
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


def make_shard(plan: Plan, number: int) -> bool:
  """Writes a shard and its index; returns False where they were there."""
  if is_finished(plan, number):
    return False
  shard, source = plan.shards[number], plan.sources[plan.shards[number].source]
  ids, counts, dropped = [], [], collections.Counter()
  records, index = (plan.file(number, ending) for ending in (files.RECORDS, files.INDEX))
  with written(records) as temporary:
    writer = array_record.ArrayRecordWriter(temporary, WRITER)
    try:
      for start in range(shard.start, shard.stop, prepared.CHUNK):
        places = range(start, min(start + prepared.CHUNK, shard.stop))
        examples = [{**source[i], "id": shard.offset + i} for i in places]
        with placed(source, shard.offset):
          examples = prepared.run_ops(plan.ops, examples, plan.tokenizers, dropped)
        for example in examples:
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
    f.write(files.index_bytes(files.Index(np.array(ids, np.int64), counts, about)))
  return True


def close(writer: array_record.ArrayRecordWriter, path: str) -> None:
  """Raises DataError where a file could not be written, as on a full disk."""
  try:
    writer.close()
  except RuntimeError as e:
    raise DataError(f"{path}: can't be written ({e})") from e


def is_finished(plan: Plan, number: int) -> bool:
  """Whether a shard's files are there and good."""
  records, path = (plan.file(number, ending) for ending in (files.RECORDS, files.INDEX))
  try:
    index = files.read_index(path)
    files.check_size(records, index.about["bytes"])
  except DataError:
    return False
  with open(path, "rb") as f:  # the zip archive does not check all of its own bytes
    if f.read() != files.index_bytes(index):
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


def make_shards(plan: Plan, workers: int = 0) -> None:
  """Makes all shards, in this process or in `workers` others."""
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
