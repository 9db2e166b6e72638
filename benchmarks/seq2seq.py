"""T5 small: jtx beside `transformers` on PyTorch, in training and in generating.

Both have the same network, weights, optimiser and pairs of texts. These are noise of real lengths,
a token for four characters: a sentence of the documentation of Python's library, and the one behind
it. jtx packs several pairs into a row; `transformers` pads batches of as many pairs, in random
order, to their longest. What counts is tokens of pairs, without padding. In "generate" sources of
mixed lengths, all in one batch, are answered greedily by so many tokens each, by both alike.
"""

import contextlib
import functools
import time
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP = 1e-4, 1.0
START = 0  # the token before a target's first, T5's padding
PARTS = ("step", "generate")
PEERS = ("transformers", "transformers_compiled")
FAMILY = "t5"
FIELDS = ("src", "tgt")

Pair = tuple[np.ndarray, np.ndarray]  # of tokens


class Size(NamedTuple):
  model: str = "t5_small"  # of `jtx.interop.presets.ENCDECS`
  edits: tuple[tuple[str, int], ...] = ()  # of its config.json
  vocab: int = 32128
  rows: int = 16  # of a batch of jtx's
  length: int = 128  # tokens of a row on each side
  pairs: int = 4096  # that there are
  sources: int = 32  # that are answered in a turn
  new: int = 64  # tokens of an answer
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx


SIZES = {"base": Size(), "tiny": Size(
    edits=(("d_model", 32), ("d_kv", 8), ("d_ff", 64), ("num_layers", 2), ("num_decoder_layers", 2),
           ("num_heads", 4)), vocab=97, rows=4, length=64, pairs=64, sources=6, new=8)}


def make_config(size: Size):
  from configs import common
  from jtx.interop import huggingface
  from jtx.interop.presets import ENCDECS
  published = ENCDECS[size.model] | dict(size.edits) | {"vocab_size": size.vocab,
                                                        "dropout_rate": 0.0}
  c = common.get_config()
  c.model = common.model("encdec", **huggingface.fields_for(published, {"seq2seq"}, size.model))
  common.apply(c, {"model.dtype": size.dtype, "model.encoder.unroll": size.unroll,
                   "model.decoder.unroll": size.unroll})
  c.objective = common.objective("seq2seq", label_smoothing=0.0, bos_id=START)
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01, eps=1e-8)
  c.optim.schedule = common.schedule("constant")
  c.optim.lr, c.optim.clip_norm = LEARNING_RATE, CLIP
  c.steps, c.batch_size = 1000, size.rows
  return c.lock()


@functools.cache
def drawn(size: Size) -> list[Pair]:
  """The pairs, in random order."""
  from jtx.data.ops.sentences import SplitSentences
  from jtx.data.sources.registry import open_source
  source, split, lengths = open_source("embedded:pydocs:train"), SplitSentences(), []
  tokens = lambda sentence: min(1 + len(sentence) // 4, size.length)
  for i in range(len(source)):
    if len(lengths) > 2 * size.pairs:  # half of which are drawn
      break
    for document in split([dict(source[i])], {}):
      sizes = list(map(tokens, document["sentences"]))
      lengths += zip(sizes, sizes[1:])
  random = np.random.default_rng(0)
  chosen = random.permutation(len(lengths))[:size.pairs]
  return [tuple(random.integers(2, size.vocab, n) for n in lengths[i]) for i in chosen]


def packed(size: Size) -> list[dict[str, np.ndarray]]:
  """Batches of rows that hold all pairs, but for the last ones."""
  from jtx.data.op import Column
  from jtx.data.packing import Pack, assemble
  layout = Pack(FIELDS, (size.length,) * 2)
  pairs = [dict(zip(FIELDS, pair)) for pair in drawn(size)]
  plan = layout.plan(np.array([[len(pair[f]) for f in FIELDS] for pair in pairs]))
  plans = [plan[i:i + size.rows] for i in range(0, len(plan) - size.rows + 1, size.rows)]
  columns = {f: Column("tokens") for f in FIELDS}
  made = [assemble(layout, columns, [[pairs[i] for i in row] for row in rows], rows)
          for rows in plans]
  return [{key: x for key, x in batch.items() if key != "ids"} for batch in made]


def pairs_of_a_batch(size: Size) -> int:
  """How many pairs a batch of packed rows has, on average."""
  batches = packed(size)
  return round(sum(int(b["tgt_segment_ids"].max(1).sum()) for b in batches) / len(batches))


class System(sides.Turns):
  """One side, in a process of its own. A token of a pair is the unit.

  Args:
    size: of the model and of batches.
    state: tensors to start from; None draws them.
    hf_config: of the model, for `transformers`.
  """

  def __init__(self, size: Size, state=None, hf_config=None):
    self.size, self.hf = size, hf_config
    self.start(state)

  def sources(self) -> list[np.ndarray]:
    return [pair[0] for pair in drawn(self.size)[:self.size.sources]]

  def rate(self) -> float:
    """Tokens of answers a second."""
    start = time.perf_counter()
    self.answers()
    return self.size.sources * self.size.new / (time.perf_counter() - start)


class Jtx(sides.JtxSide, System):
  """Our side."""

  def start(self, state) -> None:
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train.program import Program
    self.jax, size = jax, self.size
    config = make_config(size)
    mesh = sharding.make_mesh(config.mesh)
    self.model, self.objective = build.make_model(config, {})
    host = packed(size)
    self.program = Program(config, self.model, self.objective, example=host[0], mesh=mesh)
    self.state = self.program.init()
    place = sharding.batch_sharding(mesh)
    self.batches = [sharding.to_device(batch, size.rows, place) for batch in host]
    self.units = [sum(int((b[f"{f}_segment_ids"] > 0).sum()) for f in FIELDS) for b in host]

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model)

  def loss(self) -> float:
    """Nats a target token of some pairs, a row each."""
    batch = {}
    for field, rows in zip(FIELDS, zip(*drawn(self.size)[:8])):
      batch |= self.row_each(field, rows)
    objective = functools.partial(self.objective, self.model, train=False)
    sums = self.jax.jit(objective)(self.state.params, batch)
    return float(sums["loss"][0] / sums["loss"][1])

  def row_each(self, field: str, rows: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    text, lengths = sides.padded(rows, 0), np.array([[len(row)] for row in rows])
    places = np.arange(text.shape[1], dtype=np.int32)
    return {field: text, f"{field}_segment_ids": (places < lengths).astype(np.int32),
            f"{field}_positions": np.broadcast_to(places, text.shape)}

  def flops(self) -> float:
    """Matrix-product FLOPs of a token of a pair in training."""
    return self.program.flops_per_step / (sum(self.units) / len(self.units))

  def answers(self) -> list[list[int]]:
    from jtx.inference.decode import Beam, Ends
    from jtx.inference.generate import generate
    size = self.size
    out = generate(  # no token ends a target
        self.model, Beam(beam=1), size.new, Ends((size.vocab,), START), params=self.state.params,
        batch=self.row_each("src", self.sources()),
        prompt=np.full((size.sources, 1), START, np.int32))
    return np.asarray(out.tokens)[:, 0].tolist()


class Transformers(sides.TorchSide, System):
  """T5ForConditionalGeneration, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    config = transformers.T5Config(**self.hf | {"decoder_start_token_id": START,
                                                "pad_token_id": START})
    self.model = self.pretrained(transformers.T5ForConditionalGeneration, config, state)
    self.start_training(dynamic=True, lr=LEARNING_RATE)
    pairs, number = drawn(self.size), pairs_of_a_batch(self.size)
    batches = [pairs[i:i + number] for i in range(0, len(pairs) - number + 1, number)]
    self.batches = [self.placed(batch) for batch in batches]
    self.units = [sum(len(a) + len(b) for a, b in batch) for batch in batches]

  def placed(self, pairs: Sequence[Pair]) -> dict[str, Any]:
    sources, targets = zip(*pairs)
    place = lambda rows, value: self.torch.from_numpy(sides.padded(rows, value)).long().to(
        self.device)
    return {"input_ids": place(sources, START), "labels": place(targets, -100),
            "attention_mask": place([np.ones(len(s), int) for s in sources], 0)}

  def step(self, batch) -> None:
    with self.autocast():
      loss = self.run(**batch, use_cache=False).loss
    self.update(loss, CLIP)

  def loss(self) -> float:
    with self.torch.no_grad(), self.autocast():
      return float(self.model(**self.placed(drawn(self.size)[:8])).loss)

  def answers(self) -> list[list[int]]:
    inputs = self.placed([(source, source) for source in self.sources()])
    inputs.pop("labels")
    self.model.eval()
    with self.torch.no_grad(), self.autocast():
      out = self.model.generate(**inputs, do_sample=False, num_beams=1, eos_token_id=None,
                                max_new_tokens=self.size.new, min_new_tokens=self.size.new)
    self.model.train()
    return out[:, 1:].tolist()


class TransformersCompiled(Transformers):
  compiled = True


SYSTEMS = {"transformers": Transformers, "transformers_compiled": TransformersCompiled}


def run(size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    size: of the model and of batches.
    parts: of PARTS.
    peers: of PEERS; in generating only "transformers" takes part.
    rounds: turns of each system.
    steps: updates of a turn.
  """
  result = {"suite": "seq2seq", "size": size._asdict(), "rounds": rounds,
            "pairs_of_a_batch": pairs_of_a_batch(size), "machine": harness.machine()}
  if "step" in parts:
    result["step"] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, FAMILY, "tokens_per_s", rounds, steps,
        result["machine"], size=size)
  if "generate" in parts:
    result["generate"] = generated(size, rounds)
  return result


def generated(size: Size, rounds: int) -> dict[str, Any]:
  """Answers of both systems to the same sources."""
  with contextlib.ExitStack() as stack:
    start = lambda make, **more: stack.enter_context(
        contextlib.closing(harness.Worker(make, size=size, **more)))
    ours = start(Jtx)
    workers = {"jtx": ours, "transformers": start(
        Transformers, state=ours.call("weights", FAMILY), hf_config=ours.call("hf_config"))}
    said = [worker.call("answers") for worker in workers.values()]  # compiles, too
    values = harness.alternate(rounds, {name: functools.partial(worker.call, "rate")
                                        for name, worker in workers.items()})
    return {"tokens_per_s": {name: harness.median(rates) for name, rates in values.items()},
            "all": values, "ratio": harness.ratio(values, "jtx", "transformers"),
            "identical": float(np.mean([a == b for a, b in zip(*said)]))}
