"""Training and beam search of Transformer base: jtx beside `transformers`' Marian on PyTorch.

Equal weights, pairs, loss and optimiser, so what differs is how they are computed: jtx packs
several pairs into a row and compiles; Marian runs eagerly on padded batches of as many
sentences, in random order, as its users have them, and a second time of similar length.
"""

import contextlib
import functools
import os
import random
import time
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, marian, sides
from benchmarks.nmt_marian import (
    ALPHA, BEAM, CLIP, LEARNING_RATE, LENGTH, Marian, Pair, Tokens, pad)


class Size(NamedTuple):
  layers: dict[str, Any]  # keys of an encoder's section
  rows: int = 32  # of a batch of jtx's
  sentences: int = 64  # of a batch that is translated
  checkpoint_every: int = 50  # updates of the model that translates
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx


SIZES = {
    "base": Size(dict(width=512, num_layers=6,
                      block=dict(attention=dict(num_heads=8), ffn=dict(dim=2048)))),
    "tiny": Size(dict(width=64, num_layers=2,
                      block=dict(attention=dict(num_heads=4), ffn=dict(dim=128)))),
}

PARTS = ("train", "translate")
TURNS = {"transformers": ("random", False), "transformers_by_length": ("by_length", False),
         "transformers_compiled": ("random", True)}  # order of sentences, and torch.compile


def write_data(folder: str, number: int) -> None:
  """Files of pairs, of one to five of the embedded dates, times and other number words each.

  One side has each in English or in German, and the other side in the other language, so that
  both are about as long.
  """
  from jtx.data.sources.number_words import number_words
  os.makedirs(folder, exist_ok=True)
  for split, pairs in (("train", number), ("val", number // 30)):
    drawn, words = random.Random(split), number_words("", split)
    both = [], []
    for _ in range(pairs):
      values = [words[drawn.randrange(len(words))] for _ in range(drawn.randint(1, 5))]
      values = [drawn.sample((value["src"], value["tgt"]), 2) for value in values]
      for side, texts in zip(both, zip(*values)):
        side.append(", ".join(texts) + "\n")
    for ending, side in zip(("en", "de"), both):
      with open(os.path.join(folder, f"{split}.{ending}"), "w", encoding="utf-8") as f:
        f.writelines(side)


def make_config(data: str, size: Size, steps: int):
  from configs import common, nmt_text
  c = nmt_text.get_config(f"length={LENGTH}")
  common.apply(c, {"model.encoder": {**size.layers, "unroll": size.unroll},
                    "model.dtype": size.dtype})  # the decoder follows
  common.apply(c, {"model.encoder.block": {**marian.block_options(), "dropout": 0.1}})
  c.data.path = os.path.abspath(data) if data else ""
  if not data:
    c.data.train = ("embedded:number_words/date:train",)
    c.tokenizer.kind.vocab_size = 500
    for evaluator in c.evals.values():
      evaluator.source = ("embedded:number_words/date:val",)
  c.batch_size, c.steps, c.log_every = size.rows, steps, 10
  c.optim.lr, c.optim.clip_norm = LEARNING_RATE, CLIP
  c.optim.optimizer = common.optimizer("adamw", b1=0.9, b2=0.98, weight_decay=0.01)
  c.optim.schedule = common.schedule("linear", warmup=max(steps // 5, 1))
  c.checkpoint.every, c.checkpoint.keep, c.checkpoint.average = size.checkpoint_every, 1, 1
  c.decode.method = common.method("beam", beam=BEAM, alpha=ALPHA, penalty="power", early_stop=True)
  c.decode.batch_size, c.trackers = size.sentences, ()
  del c.evals.val
  c.evals.val_loss.every = 2 * size.checkpoint_every
  return c


class Jtx(sides.Turns, sides.JtxSide):
  """Our side. Loads the model of `workdir`, training it first where it is not finished.

  A useful target token is the unit.
  """

  def __init__(self, workdir: str, data: str, size: Size, steps: int):
    import jax

    from jtx.parallel import sharding
    from jtx.saved.workdir import load_run
    from jtx.train import loop
    from jtx.train.program import Program
    config = make_config(data, size, steps).lock()
    loop.run(config, workdir)
    self.task, self.params, _ = load_run(workdir)
    task = self.task
    self.program = Program(config, task.model, task.objective,
                           example=task.data.example_batch(config.batch_size), mesh=task.mesh)
    place = sharding.batch_sharding(task.mesh)
    rows = sharding.local_rows(config.batch_size, place)
    stream = task.data.train_stream(1, config.batch_size, rows)
    self.batches, self.sentences = [], 0
    for batch in map(stream.batch, range(64)):
      self.sentences += int((batch["ids"] >= 0).sum())
      self.batches.append(sharding.to_device(loop.without_ids(batch), config.batch_size, place))
    self.sentences //= len(self.batches)  # of a batch, on average
    self.units = [int((np.asarray(b["tgt_segment_ids"]) > 0).sum()) for b in self.batches]
    self.state, self.jax = self.program.init(), jax

  def sentences_per_batch(self) -> int:
    return self.sentences

  def pairs(self, split: str, limit: int) -> list[Pair]:
    """Token ids of pairs, cleaned and short enough."""
    data = self.task.data
    specs = data.data.train if split == "train" else self.task.config.evals.val_loss.source
    tokens = [data.tokenizers[f] for f in ("src", "tgt")]
    examples = data.examples(tuple(specs), limit)
    both = [t.encode_batch([e[f] for e in examples]) for f, t in zip(("src", "tgt"), tokens)]
    pairs = [tuple([*map(int, ids), t.eos_id] for ids, t in zip(pair, tokens))
             for pair in zip(*both)]
    return [pair for pair in pairs if max(map(len, pair)) <= LENGTH]

  def peer(self) -> dict[str, Any]:
    """The fields of Marian's config."""
    target = self.task.data.tokenizers["tgt"]
    ids = dict(bos_id=target.bos_id, eos_id=target.eos_id, pad_id=target.pad_id)
    state = marian.state_dict(self.jax.device_get(self.params), LENGTH)
    return dict(config=marian.config(self.task.model, max_length=LENGTH, **ids), state=state)

  def nll(self, pairs: Sequence[Pair]) -> float:
    """Nats a target token, dropout off."""
    batch = {}
    for field, side in zip(("src", "tgt"), zip(*pairs)):
      batch[field] = pad(side, 0)
      batch[f"{field}_segment_ids"] = (np.arange(batch[field].shape[1])
                                       < np.array([[len(t)] for t in side])).astype(np.int32)
      batch[f"{field}_positions"] = np.broadcast_to(
          np.arange(batch[field].shape[1], dtype=np.int32), batch[field].shape)
    objective = functools.partial(self.task.objective, self.task.model, train=False)
    sums = self.jax.jit(objective)(self.params, batch)
    return float(sums["nll"][0] / sums["nll"][1])

  def end_training(self) -> None:
    self.state = self.batches = None

  def start_translating(self, sentences: int) -> None:
    from jtx.inference.translate import Translator
    data = self.task.data
    self.texts = [e["src"] for e in data.examples(tuple(self.task.config.evals.val_loss.source))]
    self.texts = self.texts[:sentences]
    self.translator = Translator(self.task.model, self.params, data.tokenizers,
                                 self.task.config.decode, mesh=self.task.mesh)

  def sources(self) -> list[Tokens]:
    source = self.task.data.tokenizers["src"]
    return [[*map(int, ids[:LENGTH - 1]), source.eos_id]
            for ids in source.encode_batch(self.texts)]

  def translate(self) -> float:
    """Sentences a second, tokenising and detokenising included."""
    start = time.perf_counter()
    self.hypotheses = self.translator(self.texts)
    return len(self.texts) / (time.perf_counter() - start)

  def translations(self) -> list[Tokens]:
    return [list(h[0].tokens) for h in self.hypotheses]

  def train_flops(self) -> float:
    """Matrix-product FLOPs of a useful target token."""
    return self.program.flops_per_step / (sum(self.units) / len(self.units))

  def translate_flops(self, source: float, target: float) -> float:
    """Matrix-product FLOPs of a sentence of these mean lengths, on its real tokens."""
    import jax.numpy as jnp

    from jtx.train import flops
    S, T = round(source), round(target)
    field = lambda name, B, n: {name: jnp.zeros((B, n), jnp.int32),
                                f"{name}_segment_ids": jnp.ones((B, n), jnp.int32),
                                f"{name}_positions": jnp.zeros((B, n), jnp.int32)}
    model, src, tgt = self.task.model, field("src", 1, S), field("tgt", 1, T)
    encode = lambda p: model.apply({"params": p}, src, method="encode")[0]
    memory = jnp.zeros((1, S, model.encoder.width))
    decode = lambda p: model.apply(
        {"params": p}, model.apply({"params": p}, {**src, **tgt, "tgt_in": tgt["tgt"]}, memory,
                                   method="decode")[0], method="logits")
    return flops.count(encode, self.params) + BEAM * flops.count(decode, self.params)


def run(workdir: str, data: str, size: Size, parts: Sequence[str], rounds: int,
        pretrain_steps: int, steps: int, sentences: int,
        peers: Sequence[str] = ("transformers", "transformers_by_length"),
        result: dict[str, Any] | None = None) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    workdir: of the model that is trained first, and translates.
    data: folder of the pairs; "" is number words.
    size: of the model and of batches.
    parts: "train", "translate" or both.
    rounds: turns of each system.
    pretrain_steps: updates of the model that translates.
    steps: updates of a turn.
    sentences: that are translated in a turn.
    peers: that train; keys of TURNS.
    result: is filled, part by part; None is a new one.
  """
  with contextlib.ExitStack() as stack:
    start = lambda make, **kwargs: stack.enter_context(
        contextlib.closing(harness.Worker(make, **kwargs)))
    ours = start(Jtx, workdir=workdir, data=data, size=size, steps=pretrain_steps)
    peer, pairs = ours.call("peer"), ours.call("pairs", "train", 0)
    some, sentences_per_batch = ours.call("pairs", "val", 64), ours.call("sentences_per_batch")
    ours.begin("nll", some)  # while the peer starts
    ours.begin("warm_up")
    theirs = start(Marian, pairs=pairs, batch=sentences_per_batch, dtype=size.dtype, **peer)
    nll = {"jtx": ours.answer(), "transformers": theirs.call("nll", some)}
    harness.check_equal(nll, size.dtype)
    seconds = ours.answer()

    result = {} if result is None else result
    result |= {
        "suite": "nmt", "data": "own" if data else "number_words", "rounds": rounds,
        "pretrain_steps": pretrain_steps, "nll": nll,
        "machine": harness.machine() | ours.call("about") | theirs.call("about")}
    if "train" in parts:
      turns = {"jtx": functools.partial(ours.call, "turn", steps)} | {
          name: functools.partial(theirs.call, "train", steps, *TURNS[name]) for name in peers}
      result["train"] = measure(ours, theirs, turns, rounds, "target_tokens_per_s",
                                ours.call("train_flops"), {"jtx": seconds})
    ours.call("end_training")
    theirs.call("end_training", peer["state"])
    if "translate" in parts:
      result["translate"] = translate(ours, theirs, rounds, sentences, size.sentences)
  return result


def translate(ours: harness.Worker, theirs: harness.Worker, rounds: int, sentences: int,
              batch: int) -> dict[str, Any]:
  """Beam search of both, and the share of sentences on which they agree token for token."""
  ours.call("start_translating", sentences)
  sources = ours.call("sources")
  theirs.call("start_translating", sources, batch)
  turns = {"jtx": functools.partial(ours.call, "translate"),
           "transformers": functools.partial(theirs.call, "translate", "random")}
  begin = time.perf_counter()
  ours.call("translate")  # compiles, and gives the lengths
  seconds = time.perf_counter() - begin
  outputs = ours.call("translations")
  flops = ours.call("translate_flops", mean_length(sources), mean_length(outputs) + 1)
  result = measure(ours, theirs, turns, rounds, "sentences_per_s", flops, {"jtx": seconds})
  other = theirs.call("translations")
  result |= {
      "sentences": len(sources), "source_tokens": mean_length(sources),
      "target_tokens": mean_length(outputs) + 1,
      "identical": sum(a == b for a, b in zip(outputs, other)) / len(outputs)}
  left = harness.time_left()
  if left is None or left > 2 * len(sources) / result["sentences_per_s"]["transformers"]:
    result["transformers_by_length_once"] = theirs.call("translate", "by_length")
  return result


def measure(ours: harness.Worker, theirs: harness.Worker, turns: dict[str, Any], rounds: int,
            unit: str, flops: float, warm: dict[str, float]) -> dict[str, Any]:
  """Takes turns, after one of each peer to warm up, and sums up; see `harness.measure`.

  `warm` are seconds of warming up.
  """
  for name, turn in turns.items():
    if name not in warm:
      start = time.perf_counter()
      turn()
      warm[name] = time.perf_counter() - start
  workers = {"jtx": ours, "transformers": theirs}
  return {**harness.measure(workers, turns, rounds, unit, flops), "warm_up_s": warm}


def mean_length(rows: Sequence[Tokens]) -> float:
  return sum(map(len, rows)) / len(rows)
