"""Preparing a corpus: tokenising the training sources of a config once, into files."""

import collections
import contextlib
import fcntl
import json
import os
import re
from typing import Any, Callable, Iterator, Mapping

from absl import logging
import numpy as np

from jtx.config import ConfigDict
from jtx.config_files import write_json
from jtx.data import prepared, recipes
from jtx.data.corpus import files, writer
from jtx.data.dataset import Dataset
from jtx.data.sources.fingerprints import fingerprint
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.files import TOKENIZER_FILE, load_tokenizers, save_tokenizers
from jtx.errors import ConfigError

# What a run that was killed may leave: names of `writer.written` and of `write_json`.
TEMPORARY = re.compile(r"(\d{5,}\.(arrayrecord|npz)\.[0-9a-f]{32}|[a-z]+\.json)\.tmp")

Runner = Callable[[writer.Plan], None]


def prepare(data: ConfigDict, tokenizer: ConfigDict, output: str, *, shard_size: int,
            run: Runner = writer.make_shards) -> dict[str, Any]:
  """Makes all files of a corpus, or those that are missing or damaged.

  Args:
    data: a config's section; its training sources are prepared, by its ops before the layout.
    tokenizer: a config's section.
    output: the folder.
    shard_size: examples of a source that make a shard.
    run: makes the shards of a plan, where they are not made yet.

  Returns:
    The content of manifest.json.

  Raises:
    ConfigError: the folder has something else, or the config can't be used.
    DataError: a source can't be used, or none of its examples is left.
  """
  if os.path.exists(output) and not os.path.isdir(output):
    raise ConfigError(f"--output={output}: is a file; choose a new folder")
  os.makedirs(output, exist_ok=True)
  with locked(output):
    plan = begin(data, tokenizer, output, shard_size)
    run(plan)
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


def begin(data: ConfigDict, tokenizer: ConfigDict, output: str, shard_size: int) -> writer.Plan:
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
      "version": files.VERSION,
      "ops": files.described(recipes.build_ops(data.ops).prepare),
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
  record = files.Format.of(dataset.ops, dataset.tokenizers)
  begun |= {
      "labels": list(dataset.labels),
      "tokenizer_sha256": files.digest_of_tokenizers(dataset.tokenizer_texts()),
      "columns": record.to_json(),
  }
  if known is not None and known["tokenizer_sha256"] != begun["tokenizer_sha256"]:
    file = os.path.join(output, TOKENIZER_FILE)
    if saved is not None:
      raise ConfigError(f"{file}: is not the tokenizer that the folder was prepared with; restore"
                        " it, or choose another folder")
    if any(name.endswith(files.INDEX) for name in os.listdir(output)):
      raise ConfigError(f"--output={output}: was prepared with another tokenizer than the config"
                        " gives now; choose another folder")
    known = None
  if not os.path.exists(os.path.join(output, files.MANIFEST)):
    write_json(begun, os.path.join(output, files.UNFINISHED))
  save_tokenizers(dataset.tokenizer_texts(), output)

  offsets = np.cumsum([0, *map(len, sources)]).tolist()
  shards = tuple(
      writer.Shard(number, start, min(start + shard_size, len(source)), offset)
      for number, (source, offset) in enumerate(zip(sources, offsets))
      for start in range(0, len(source), shard_size))
  return writer.Plan(
      output=output, specs=tuple(data.train), path=data.path, sources=sources,
      ops=tuple(dataset.ops), tokenizers=dataset.tokenizers, format=record, shards=shards,
      begun=begun)


def remove_temporaries(output: str) -> None:
  for name in os.listdir(output):
    if TEMPORARY.fullmatch(name):
      os.remove(os.path.join(output, name))


def known_of(output: str) -> dict[str, Any] | None:
  """The manifest of a folder, finished or not, or None for an empty one.

  Raises:
    ConfigError: it has other files.
  """
  for name, keys in ((files.MANIFEST, files.BEGUN_KEYS + files.DONE_KEYS),
                     (files.UNFINISHED, files.BEGUN_KEYS)):
    path = os.path.join(output, name)
    if os.path.exists(path):
      return files.read_object(path, keys)
  if others := sorted(set(os.listdir(output)) - {files.UNFINISHED + ".tmp"}):
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
      "tokenizer": files.tokenizer_key(tree["tokenizer"]), "--shard_size": tree["shard_size"]}
  if found := files.difference(about(known), about(begun)):
    raise ConfigError(f"--output={output}: was prepared from another config: {found}; choose"
                      " another folder, or the same config to go on")


def finish(plan: writer.Plan) -> dict[str, Any]:
  """Writes the manifest, when all shards are made; returns what it holds."""
  shards = [files.read_index(plan.file(number, files.INDEX)).about
            for number in range(len(plan.shards))]
  manifest = {**plan.begun, "sources": [dict(source) for source in plan.begun["sources"]],
              "shards": shards}
  for number, source in enumerate(manifest["sources"]):
    own = [shard for shard in shards if shard["source"] == number]
    dropped = sum((collections.Counter(shard["dropped"]) for shard in own), collections.Counter())
    source |= {"kept": sum(shard["examples"] for shard in own), "dropped": dict(dropped)}
    prepared.tell_kept(source["name"], source["read"], source["kept"], dropped)
  remove_temporaries(plan.output)  # a machine of Beam that was lost may have left some
  write_json(manifest, os.path.join(plan.output, files.MANIFEST))
  with contextlib.suppress(FileNotFoundError):
    os.remove(os.path.join(plan.output, files.UNFINISHED))
  tokens = collections.Counter()
  for shard in shards:
    tokens.update(shard["tokens"])
  logging.info("%s: %d examples in %d shards; tokens of %s", plan.output,
               sum(shard["examples"] for shard in shards), len(shards),
               ", ".join(f"{field}: {count:,}" for field, count in tokens.items()))
  return manifest
