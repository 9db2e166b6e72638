"""Tokenising a corpus: `experiments.prepare` beside `datasets.map`, and reading what it made.

Two ways to make tokens of documents, both with one tokenizer: `texts`, a document as a whole, and
`sentences`, split by the rules of Moses first and with marks of where sentences and words begin.
The peer does it as its users would, with the `tokenizers` package in a batched function; its
documents lie in its own format before the time starts, where ours are read from the source. Both
write files, and their numbers of tokens must be equal. Needs the package `datasets`.
"""

import functools
import json
import os
import shutil
import time
from typing import Any

import numpy as np

from benchmarks import harness

TASKS = ("texts", "sentences")
SYSTEMS = ("jtx", "datasets")


def make_config(task: str, source: str, tokenizer: str, length: int):
  """A config that pretrains on `source`; without `tokenizer` one is trained."""
  from configs import common
  c = common.get_config()
  c.data.train = (source,)
  kind = common.tokenizer("wordpiece", vocab_size=30_000, mask=True)
  c.tokenizer.kind = common.tokenizer("file", path=tokenizer) if tokenizer else kind
  pack = common.op("pack", fields=("text",), lengths=(length,))
  if task == "texts":
    c.data.ops = (common.op("tokenize", fields=("text",)), pack)
  else:
    c.data.ops = (common.op("split_sentences"), common.op("encode_sentences"),
                  common.op("full_sentences"), pack, common.op("mask"))
  return c


class Jtx:
  """Our side."""

  def __init__(self, workdir: str, workers: int, **config: Any):
    self.folder = os.path.join(workdir, "prepared")
    self.workers, self.config = (workers if workers > 1 else 0), config

  def make(self, task: str) -> tuple[int, float]:
    """Prepares the corpus: tokens, and seconds from opening the source to the manifest."""
    from jtx.data.corpus import writer
    from jtx.data.make_corpus import prepare
    folder = os.path.join(self.folder, task)
    shutil.rmtree(folder, ignore_errors=True)
    config = make_config(task, **self.config)
    start = time.perf_counter()
    manifest = prepare(config.data, config.tokenizer, folder, shard_size=1000,
                       run=functools.partial(writer.make_shards, workers=self.workers))
    seconds = time.perf_counter() - start
    return sum(shard["tokens"]["text"] for shard in manifest["shards"]), seconds

  def read(self, batch_size: int, batches: int) -> float:
    """Tokens a second of training batches, by one thread, from what `make` left."""
    from jtx.data.dataset import Dataset
    config = make_config("sentences", **self.config)
    config.data.train = ("prepared:" + os.path.join(os.path.abspath(self.folder), "sentences"),)
    config.data.window = 0
    data = Dataset(config.data, config.tokenizer)
    stream = data.train_stream(0, batch_size, range(batch_size))
    stream.batch(0)  # plans the first window
    start = time.perf_counter()
    tokens = sum(int((stream.batch(step)["text_segment_ids"] > 0).sum())
                 for step in range(1, 1 + batches))
    return tokens / (time.perf_counter() - start)


class Datasets:
  """The peer's side."""

  def __init__(self, workdir: str, workers: int, **config: Any):
    import datasets

    from jtx.data.dataset import Dataset
    datasets.disable_progress_bars()
    self.folder = os.path.join(workdir, "datasets")
    config = make_config("texts", **config)
    data = Dataset(config.data, config.tokenizer)
    source, = data.sources(config.data.train)
    shutil.rmtree(self.folder, ignore_errors=True)
    os.makedirs(self.folder)
    raw = os.path.join(self.folder, "raw.jsonl")
    with open(raw, "w", encoding="utf-8") as f:
      f.writelines(json.dumps({"text": source[i]["text"]}) + "\n" for i in range(len(source)))
    self.documents = datasets.load_dataset("json", data_files=raw, split="train",
                                           cache_dir=os.path.join(self.folder, "cache"))
    self.workers = workers if workers > 1 else None
    self.model = data.tokenizers["text"].model()
    self.eos = data.tokenizers["text"].eos_id

  def make(self, task: str) -> tuple[int, float]:
    """Maps the documents: tokens, and seconds."""
    folder = os.path.join(self.folder, task)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    function = {"texts": PeerTexts, "sentences": PeerSentences}[task](self.model, self.eos)
    start = time.perf_counter()
    # With a fingerprint given, it does not make one by pickling the function.
    mapped = self.documents.map(function, batched=True, num_proc=self.workers,
                                remove_columns=["text"], load_from_cache_file=False,
                                cache_file_name=os.path.join(folder, "mapped.arrow"),
                                new_fingerprint=task)
    seconds = time.perf_counter() - start
    return sum(map(len, mapped.with_format("numpy")["ids"])), seconds


class PeerTexts:
  """The function for `datasets.map`, for documents as a whole."""

  def __init__(self, model: dict[str, Any], eos: int):
    import tokenizers
    self.tokenizer = tokenizers.Tokenizer.from_str(json.dumps(model))
    self.tokenizer.encode_special_tokens = True  # their names in a text are text, as for ours
    self.eos = eos

  def __call__(self, batch: dict[str, list[str]]) -> dict[str, list]:
    encodings = self.tokenizer.encode_batch_fast(batch["text"], add_special_tokens=False)
    return {"ids": [[*e.ids, self.eos] for e in encodings]}


class PeerSentences(PeerTexts):
  """The same for documents that are split into sentences first."""

  def __init__(self, model: dict[str, Any], eos: int):
    import sentence_splitter
    super().__init__(model, eos)
    self.splitter = sentence_splitter.SentenceSplitter(language="en")

  def __call__(self, batch: dict[str, list[str]]) -> dict[str, list]:
    result: dict[str, list] = {"ids": [], "marks": []}
    for text in batch["text"]:
      lines = filter(None, map(str.strip, text.splitlines()))
      sentences = [s for line in lines for s in self.splitter.split(line)]
      ids, marks = [], []
      for e in self.tokenizer.encode_batch(sentences, add_special_tokens=False):
        ids += e.ids
        first = np.diff(np.array(e.word_ids, np.int64), prepend=-1) != 0
        mark = np.where(first, 2, 0).astype(np.uint8)
        mark[:1] |= 1
        marks.append(mark)
      result["ids"].append(ids)
      result["marks"].append(np.concatenate([np.zeros(0, np.uint8), *marks]))
    return result


def run(workdir: str, source: str, tokenizer: str = "", workers: int = 1, rounds: int = 5,
        length: int = 128, batch_size: int = 256, batches: int = 100) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    workdir: for all files.
    source: documents; see `jtx.data.sources.registry.open_source`.
    tokenizer: a tokenizer's file; "" trains one on the documents first.
    workers: processes of each system; 1 is the system's own alone.
    rounds: turns of each system.
    length: tokens of a row that is read.
    batch_size: rows of a batch that is read.
    batches: that are read in a turn.
  """
  os.makedirs(workdir, exist_ok=True)
  config = dict(source=source, tokenizer=tokenizer, length=length)
  if not tokenizer:
    from jtx.data.dataset import Dataset
    trained = make_config("texts", **config)
    config["tokenizer"] = os.path.join(os.path.abspath(workdir), "tokenizer.json")
    Dataset(trained.data, trained.tokenizer).tokenizers["text"].save(config["tokenizer"])
  # In this process, since both start processes of their own, which those of a Worker can't.
  systems = {name: make(workdir, workers, **config)
             for name, make in zip(SYSTEMS, (Jtx, Datasets))}
  results: dict[str, Any] = {}
  for task in TASKS:
    tokens = {name: system.make(task)[0] for name, system in systems.items()}  # and warms up
    if len(set(tokens.values())) != 1:
      raise RuntimeError(f"{task}: the systems do not make equal tokens, but {tokens}")

    def turn(system: Any, task: str = task) -> float:
      count, seconds = system.make(task)
      return count / seconds

    values = harness.alternate(
        rounds, {name: functools.partial(turn, system) for name, system in systems.items()})
    results[task] = {
        "tokens": tokens["jtx"], "all": values,
        "tokens_per_second": {name: harness.median(rates) for name, rates in values.items()},
        "ratio": harness.ratio(values, *SYSTEMS)}
  rates = [systems["jtx"].read(batch_size, batches) for _ in range(rounds)]
  return {"suite": "prepare", "workers": workers, "machine": harness.machine(), "tasks": results,
          "read": {"tokens_per_second": harness.median(rates), "all": rates}}
