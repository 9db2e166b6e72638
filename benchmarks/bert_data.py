"""The config and the texts of the benchmark of BERT, and its batches for each system."""

import functools
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

RATE = 0.15
LEARNING_RATE, CLIP = 1e-4, 1.0

Batch = dict[str, np.ndarray]


class Size(NamedTuple):
  model: str  # a size of configs/bert.py
  rows: int = 16  # of a batch
  length: int = 128  # tokens of a row
  vocab_size: int = 0  # rows of the embedding, some of them never used; 0 is the tokenizer's
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx


SIZES = {name: Size(name) for name in ("base", "large", "tiny")}


def make_config(data: str, size: Size, seed: int = 0):
  """The config of BERT's pretraining without a second task, on full rows."""
  from configs import common
  from experiments import cli
  corpus = data or "embedded:pydocs:train"
  c = cli.config_of([f"--config=configs/bert.py:size={size.model},form=full_sentences,"
                     f"corpus={corpus}", f"--config.seed={seed}",
                     "--config.tokenizer.kind.vocab_size=" + ("30522" if data else "8000")])
  c = c.copy_and_resolve_references()
  common.apply(c.unlock(), {
      "phases": (), "batch_size": size.rows, "steps": 1000, "optim.lr": LEARNING_RATE,
      "optim.schedule": common.schedule("constant"), "optim.optimizer.eps": 1e-6,
      "model.stack.unroll": size.unroll, "model.dtype": size.dtype, "data.window": 0})
  c.data.ops[-2].lengths = (size.length,)
  return c.lock()


@functools.cache
def load_texts(data: str, length: int) -> dict[str, Any]:
  """The data of all systems: examples of token ids with their special tokens.

  Returns:
    `full`, rows without padding, and `sentences`, lists of int32 arrays; and what the networks are
    made from.
  """
  from jtx.data.dataset import Dataset
  from jtx.data.ops.sentences import SENTENCE
  dataset = Dataset((c := make_config(data, Size("base", length=length))).data, c.tokenizer)
  prepared, tokenizer = dataset.prepared_train, dataset.tokenizers["text"]
  stream = dataset.train_stream(0, 256, range(256))
  window = stream.plan(0)
  full = np.concatenate([window.examples.example(i)["text"]
                         for row in window.rows[:2048] for i in row])
  full = [*full[:len(full) // length * length].reshape(-1, length)]
  sentences = []
  for i in range(len(prepared)):
    example = prepared.example(i)
    starts = np.flatnonzero(example["text_marks"] & SENTENCE)[1:]
    for ids in np.split(example["text"], starts)[:500]:
      ids = ids[:length - 2]
      sentences.append(np.concatenate([[tokenizer.bos_id], ids, [tokenizer.eos_id]]))
  order = np.random.default_rng(0).permutation(len(sentences))[:20_000]
  return {"full": full, "sentences": [sentences[i].astype(np.int32) for i in order],
          "ids": dict(vocab_size=tokenizer.vocab_size, pad=tokenizer.pad_id,
                      mask=tokenizer.mask_id, ends=(tokenizer.bos_id, tokenizer.eos_id)),
          "info": dataset.info, "tokenizers": dataset.tokenizer_texts()}


def masked(ids: np.ndarray, about: Mapping[str, Any], seed: int) -> tuple[np.ndarray, np.ndarray]:
  """An example with 15 % of its tokens hidden, and their labels, -100 at all others."""
  rng = np.random.default_rng(seed)
  free = np.flatnonzero(~np.isin(ids, about["ends"]))
  labels = np.full(len(ids), -100, np.int32)
  if not len(free):
    return ids, labels
  chosen = rng.choice(free, max(1, round(RATE * len(free))), replace=False)
  labels[chosen] = ids[chosen]
  hidden = ids.copy()
  draw = rng.random(len(chosen))
  random = rng.integers(about["vocab_size"], size=len(chosen))
  hidden[chosen] = np.where(draw < 0.8, about["mask"], np.where(draw < 0.9, random, ids[chosen]))
  return hidden, labels


def padded(examples: Sequence[tuple[np.ndarray, np.ndarray]], pad_id: int) -> Batch:
  """One example a row: `ids`, `mask` and `labels` [B, longest]."""
  size = (len(examples), max(len(ids) for ids, _ in examples))
  batch = {"ids": np.full(size, pad_id, np.int32), "mask": np.zeros(size, np.int32),
           "labels": np.full(size, -100, np.int32)}
  for r, (ids, labels) in enumerate(examples):
    batch["ids"][r, :len(ids)], batch["labels"][r, :len(ids)] = ids, labels
    batch["mask"][r, :len(ids)] = 1
  return batch


def packed(examples: Sequence[tuple[np.ndarray, np.ndarray]], size: Size,
           rows: int) -> list[Batch]:
  """jtx's batches of `rows` rows, several examples a row."""
  from jtx.data.op import Column
  from jtx.data.packing import Pack, assemble
  layout = Pack(fields=("text",), lengths=(size.length,))
  columns = {"text": Column("tokens"), "labels": Column("aligned:text")}
  plan = layout.plan(np.array([[len(ids)] for ids, _ in examples]))
  slots = round(RATE * size.length) + 2
  batches = []
  for start in range(0, len(plan) - rows + 1, rows):
    part = plan[start:start + rows]
    batch = assemble(layout, columns, [[{"text": examples[i][0], "labels": examples[i][1]}
                                        for i in row] for row in part], part)
    labels = np.where(batch["text_segment_ids"] > 0, batch.pop("labels"), -100)
    # The hidden places first, in order; a row with more than there are slots loses the last.
    order = np.argsort(labels < 0, axis=1, kind="stable")[:, :slots].astype(np.int32)
    found = np.take_along_axis(labels, order, 1)
    batch |= {"text_types": np.zeros_like(batch["text"]), "mlm_positions": order,
              "mlm_labels": np.where(found < 0, -1, found).astype(np.int32)}
    batches.append(batch)
  return batches
