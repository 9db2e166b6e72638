"""GPT-2: jtx beside `transformers` on PyTorch, in training and in generating.

In "step" both have the same network, weights, optimiser and rows of tokens. In "generate" prompts
of mixed lengths, all in one batch, are gone on with greedily, and in "one" a single prompt is; both
say the same tokens. The time to the first token is that of a batch of the same prompts. In
"experts" a smaller model's step with 8 experts, of which a token takes 2, is beside that of jtx's
own model without experts, whose feed-forward sub-layers are as wide as 2 of them.
"""

import contextlib
import functools
import time
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP = 1e-4, 1.0
PARTS = ("step", "generate", "one", "experts")
PEERS = ("transformers", "transformers_compiled")
FAMILY = "gpt2"
EXPERTS, ACTIVE = 8, 2  # of a layer, and of a token


class Size(NamedTuple):
  width: int = 768
  layers: int = 12
  heads: int = 12
  vocab: int = 50257
  positions: int = 1024
  rows: int = 8  # of a batch
  length: int = 256  # tokens of a row
  prompts: int = 32
  longest: int = 160  # tokens of a prompt; the shortest has 4
  new: int = 64  # tokens behind each
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx
  experts: int = 0  # of a layer; 0 is one feed-forward sub-layer


SIZES = {"base": Size(), "tiny": Size(width=32, layers=2, heads=2, vocab=97, positions=64, rows=8,
                                      length=16, prompts=6, longest=20, new=8)}


def make_config(size: Size):
  from configs import common
  c = common.get_config()
  ffn = dict(dim=4 * size.width)
  if size.experts:
    ffn = dict(dim=ffn["dim"] // ACTIVE, bias=False,
               experts=dict(number=size.experts, active=ACTIVE))
  block = dict(attention=dict(num_heads=size.heads, dropout=0.0), ffn=ffn, dropout=0.0)
  c.model = common.model("decoder", vocab_size=size.vocab, dtype=size.dtype, stack=dict(
      width=size.width, num_layers=size.layers, unroll=size.unroll, block=block,
      position=common.position("learned", max_length=size.positions)))
  c.objective = common.objective("lm")
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01, eps=1e-8)
  c.optim.schedule = common.schedule("constant")
  c.optim.lr, c.optim.clip_norm = LEARNING_RATE, CLIP
  c.steps, c.batch_size = 1000, size.rows
  return c.lock()


def batches(size: Size, number: int) -> list[dict[str, np.ndarray]]:
  """Noise, since only its shape matters."""
  random = np.random.default_rng(0)
  shape = size.rows, size.length
  return [{"text": random.integers(0, size.vocab, shape).astype(np.int32),
           "text_segment_ids": np.ones(shape, np.int32),
           "text_positions": np.broadcast_to(np.arange(size.length, dtype=np.int32), shape)}
          for _ in range(number)]


def prompts(size: Size, number: int) -> list[np.ndarray]:
  random = np.random.default_rng(1)
  lengths = np.linspace(4, size.longest, number).astype(int) if number > 1 else [size.longest // 2]
  return [random.integers(0, size.vocab, n).astype(np.int32) for n in lengths]


class System(sides.Turns):
  """One side, in a process of its own. A token is the unit.

  Args:
    size: of the model, a batch and the prompts.
    state: tensors to start from; None draws them.
    hf_config: of the model, for `transformers`.
  """

  def __init__(self, size: Size, state=None, hf_config=None):
    self.size, self.hf = size, hf_config
    self.start(state)
    self.batches = [self.placed(batch) for batch in batches(size, 4)]
    self.units = [size.rows * size.length] * len(self.batches)

  def said(self, number: int) -> list[list[int]]:
    """The tokens behind each of so many prompts."""
    return self.generate(prompts(self.size, number), self.size.new)

  def rate(self, number: int) -> float:
    """Tokens a second, all prompts together."""
    given = prompts(self.size, number)
    start = time.perf_counter()
    self.generate(given, self.size.new)
    return number * self.size.new / (time.perf_counter() - start)

  def first(self, number: int) -> float:
    """Seconds until every prompt has its first token."""
    given, times = prompts(self.size, number), []
    for _ in range(4):
      start = time.perf_counter()
      self.generate(given, 1)
      times.append(time.perf_counter() - start)
    return min(times[1:])


class Jtx(sides.JtxSide, System):
  """Our side."""

  def start(self, state) -> None:
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train.program import Program
    self.jax = jax
    config = make_config(self.size)
    self.mesh = sharding.make_mesh(config.mesh)
    self.model, objective = build.make_model(config, {})
    self.example = batches(self.size, 1)[0]
    self.program = Program(config, self.model, objective, example=self.example, mesh=self.mesh)
    self.state = self.program.init()

  def placed(self, batch):
    from jtx.parallel import sharding
    return sharding.to_device(batch, self.size.rows, sharding.batch_sharding(self.mesh))

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model)

  def loss(self) -> float:
    sums = self.sums(self.state.params, self.example)
    return float(sums["loss"][0] / sums["loss"][1])

  def parameters(self) -> int:
    return sum(x.size for x in self.jax.tree.leaves(self.state.params))

  def flops(self) -> float:
    """Matrix-product FLOPs of a token in training."""
    return self.program.flops(self.example) / (self.size.rows * self.size.length)

  @functools.cache
  def generator(self, new: int) -> Any:
    from jtx.data.tokenizers.utf8 import Bytes
    from jtx.inference.continuations import Limits, TextGenerator

    class Tokens(TextGenerator):
      """Without the texts, for which a tokenizer would be needed."""

      def behind(self, prompt, ids):
        return ""

    return Tokens(self.model, self.state.params, Bytes(), batch_size=self.size.prompts,
                  limits=Limits(max_new_tokens=new, end_ids=(self.size.vocab,)))

  def generate(self, given, new):
    return [list(best[0].tokens) for best in self.generator(new)(given)]


class Transformers(sides.TorchSide, System):
  """GPT2LMHeadModel, eager, its attention by SDPA."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    self.model = self.pretrained(transformers.GPT2LMHeadModel,
                                 transformers.GPT2Config(**self.hf), state)
    self.start_training(lr=LEARNING_RATE)

  def placed(self, batch):
    ids = self.torch.from_numpy(batch["text"]).long().to(self.device)
    return {"input_ids": ids, "labels": ids}

  def step(self, batch) -> None:
    with self.autocast():
      loss = self.run(**batch, use_cache=False).loss
    self.update(loss, CLIP)

  def loss(self) -> float:
    with self.torch.no_grad(), self.autocast():
      return float(self.model(**self.placed(batches(self.size, 1)[0])).loss)

  def generate(self, given, new):
    longest = max(map(len, given))
    padded = lambda fill: self.torch.tensor(
        [[0] * (longest - len(x)) + fill(x) for x in given]).to(self.device)
    self.model.eval()
    with self.torch.no_grad(), self.autocast():
      out = self.model.generate(
          padded(np.ndarray.tolist), attention_mask=padded(lambda x: [1] * len(x)), do_sample=False,
          max_new_tokens=new, min_new_tokens=new, pad_token_id=0, eos_token_id=None)
    self.model.train()
    return out[:, longest:].tolist()


class TransformersCompiled(Transformers):
  compiled = True


SYSTEMS = {"transformers": Transformers, "transformers_compiled": TransformersCompiled}


def run(size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    size: of the model, a batch and the prompts.
    parts: of PARTS.
    peers: of PEERS; in generating only "transformers" takes part.
    rounds: turns of each system.
    steps: updates of a turn.
  """
  result = {"suite": "lm", "size": size._asdict(), "rounds": rounds, "machine": harness.machine()}
  if "step" in parts:
    result["step"] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, FAMILY, "tokens_per_s", rounds, steps,
        result["machine"], size=size)
  if "experts" in parts:
    result["experts"] = experts(size, rounds, steps)
  if left := [part for part in parts if part in ("generate", "one")]:
    result |= generated(size, left, rounds)
  return result


def experts(size: Size, rounds: int, steps: int) -> dict[str, Any]:
  """Steps with and without experts, on the same rows.

  `ratio` is the seconds of a step with experts over those without.
  """
  size = size._replace(width=min(size.width, 512), layers=min(size.layers, 6),
                       heads=min(size.heads, 8), vocab=min(size.vocab, 8192))
  with contextlib.ExitStack() as stack:
    workers = {name: stack.enter_context(contextlib.closing(harness.Worker(
        Jtx, size=size._replace(experts=number))))
        for name, number in (("dense", 0), ("experts", EXPERTS))}
    harness.warm_up(workers.values())
    values = harness.alternate(rounds, {name: functools.partial(worker.call, "turn", steps)
                                        for name, worker in workers.items()})
    return {"size": size._asdict(), "all": values,
            "tokens_per_s": {name: harness.median(rates) for name, rates in values.items()},
            "ratio": harness.ratio(values, "dense", "experts"),
            "parameters": {name: worker.call("parameters") for name, worker in workers.items()},
            "flops": {name: worker.call("flops") for name, worker in workers.items()}}


def generated(size: Size, parts: Sequence[str], rounds: int) -> dict[str, Any]:
  """The parts of generating, beside `transformers`."""
  result = {}
  with contextlib.ExitStack() as stack:
    start = lambda make, **more: stack.enter_context(
        contextlib.closing(harness.Worker(make, size=size, **more)))
    ours = start(Jtx)
    workers = {"jtx": ours, "transformers": start(
        Transformers, state=ours.call("weights", FAMILY), hf_config=ours.call("hf_config"))}
    for part in parts:
      number = size.prompts if part == "generate" else 1
      said = {name: worker.call("said", number) for name, worker in workers.items()}
      same = np.mean([a == b for a, b in zip(*said.values())])
      turns = {name: functools.partial(worker.call, "rate", number)
               for name, worker in workers.items()}
      values = harness.alternate(rounds, turns)
      result[part] = {
          "tokens_per_s": {name: harness.median(rates) for name, rates in values.items()},
          "all": values, "ratio": harness.ratio(values, "jtx", "transformers"),
          "identical": float(same), "prompts": number,
          "first_token_s": {name: worker.call("first", number)
                            for name, worker in workers.items()}}
  return result
