"""A small T5 from scratch: jtx beside `transformers` on PyTorch, each for as many seconds.

Both begin with the same weights and read the same pairs of configs/t5_books.py in the same order,
with the same optimiser; jtx in packed rows, `transformers` each pair in a row of its own, padded to
the batch's longest. They take turns: ours makes so many updates, and the peer as many as it can in
the seconds that ours took, compiling included. The learning rate of both falls with the share of
their time. What they have learned is measured by one evaluator, `targets`, on held-out documents.
"""

import contextlib
import os
import time
from typing import Any, Iterator

import numpy as np

from benchmarks import harness, sides

Pair = tuple[np.ndarray, np.ndarray]  # of tokens
SIZES = {"base": "", "tiny": ",tiny"}  # arguments of the config
STEPS = 12_000
SMALLEST_RMS = 1e-3  # of a parameter, as in `adamw` with scale_by_rms


def make_config(data: str, size: str, steps: int):
  from experiments import cli
  c = cli.config_of([f"--config=configs/t5_books.py:corpus={data}{size}"])
  with c.unlocked():
    c.steps = steps
  return c


def pairs_of(batch: dict[str, np.ndarray]) -> Iterator[Pair]:
  """Inputs and targets of a batch of packed rows."""
  for row in range(len(batch["src"])):
    for number in range(1, int(batch["tgt_segment_ids"][row].max()) + 1):
      yield tuple(batch[f][row][batch[f"{f}_segment_ids"][row] == number] for f in ("src", "tgt"))


class Side:
  """A system in a process of its own."""

  def __init__(self, data: str, size: str, steps: int, tokenizers: dict[str, str] | None = None,
               folder: str = ""):
    from jtx.config import build
    from jtx.data.dataset import Dataset
    from jtx.train import schedules
    self.config, self.folder, self.done = make_config(data, size, steps), folder, 0
    c = self.config
    self.data = Dataset(c.data, c.tokenizer, tokenizers)
    self.stream = self.data.train_stream(c.seed, c.batch_size, range(c.batch_size))
    self.rate = build(schedules.SCHEDULES, c.optim.schedule, c.optim.lr, steps)
    self.start()


class Jtx(sides.JaxSide, Side):
  """Our side, which also evaluates."""

  def start(self) -> None:
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train import loop
    from jtx.train.program import Program
    self.jax, c = jax, self.config
    self.mesh = sharding.make_mesh(c.mesh)
    self.model, self.objective = build.make_model(c, self.data.info)
    self.batch = lambda step: sharding.to_device(
        loop.without_ids(self.stream.batch(step)), c.batch_size, sharding.batch_sharding(self.mesh))
    self.program = Program(c, self.model, self.objective, mesh=self.mesh,
                           example=self.data.example_batch(c.batch_size))
    self.state = self.program.init()

  def tokenizers(self) -> dict[str, str]:
    return self.data.tokenizer_texts()

  def save(self, folder: str) -> int:
    """Writes the weights for the peer; returns their number."""
    from jtx.interop import export
    params = self.jax.device_get(self.state.params)
    export.save(folder, self.model, params)
    return sum(x.size for x in self.jax.tree.leaves(params))

  def loss(self) -> float:
    """Nats a target token of the first batch."""
    sums = self.jax.jit(lambda params, batch: self.objective(
        self.model, params, batch, train=False))(self.state.params, self.batch(0))
    return float(sums["nll"][0] / sums["nll"][1])

  def train(self, updates: int) -> float:
    """Seconds of so many updates."""
    start = time.perf_counter()
    for _ in range(updates):
      self.state = self.program.step(self.state, self.batch(self.done))
      self.done += 1
    self.jax.block_until_ready(self.state)
    return time.perf_counter() - start

  def score(self, folder: str = "") -> dict[str, float]:
    """Of our weights, or those of a folder."""
    from jtx.evals import EVALS
    from jtx.evals.task import Task
    from jtx.interop import huggingface
    params = huggingface.load(folder)[1] if folder else self.state.params
    task = Task(self.config, self.model, self.objective, data=self.data, mesh=self.mesh)
    evaluator = EVALS["targets"](source=tuple(self.config.evals.targets.source))
    with self.jax.set_mesh(self.mesh):
      return dict(evaluator(task, params))


class Transformers(sides.TorchSide, Side):
  """T5ForConditionalGeneration, eager."""

  def start(self) -> None:
    import transformers
    self.open()
    self.model = transformers.T5ForConditionalGeneration.from_pretrained(self.folder)
    tokenizer = self.data.tokenizers["text"]
    self.model.config.decoder_start_token_id = tokenizer.bos_id
    self.model.config.pad_token_id = tokenizer.pad_id
    self.model.to(self.device).train()
    ours = self.config.optim.optimizer
    self.optimizer = self.torch.optim.AdamW(  # a group each, as the rates differ
        [{"params": [p]} for p in self.model.parameters()], betas=(ours.b1, ours.b2), eps=ours.eps,
        weight_decay=0.0)

  def train(self, seconds: float, share: float, part: float) -> int:
    """Updates that were made in the time: of the whole time the `part` behind `share` of it."""
    start, before = time.perf_counter(), self.done
    while (elapsed := time.perf_counter() - start) < seconds:
      self.update(share + part * elapsed / seconds)
      self.done += 1
    return self.done - before

  def update(self, share: float) -> None:
    """One update, by the schedule's rate after this share of the time."""
    self.loss_of(self.done).backward()
    self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip_norm)
    rate = float(self.rate(max(1, share * self.config.steps)))
    for group in self.optimizer.param_groups:
      parameter, = group["params"]
      rms = float(parameter.detach().square().mean().sqrt())
      group["lr"] = rate * max(rms, SMALLEST_RMS)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def loss(self) -> float:
    with self.torch.no_grad():
      return float(self.loss_of(0))

  def loss_of(self, step: int):
    """Of a batch, as a tensor."""
    sources, targets = zip(*pairs_of(self.stream.batch(step)))
    place = lambda rows, value: self.torch.from_numpy(sides.padded(rows, value)).long().to(
        self.device)
    return self.model(input_ids=place(sources, 0), labels=place(targets, -100),
                      attention_mask=place([np.ones_like(row) for row in sources], 0)).loss

  def save(self, folder: str) -> None:
    self.model.save_pretrained(folder)


def run(workdir: str, data: str, size: str, turns: int, steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    workdir: for the weights that both begin with, and those that the peer learns.
    data: a source of documents.
    size: of SIZES' values.
    turns: of each system; what they have learned is measured after half of them, and in the end.
    steps: our updates, of all turns.
  """
  folder = lambda name: os.path.join(workdir, name)
  of_data = dict(data=data, size=size, steps=steps)
  result: dict[str, Any] = {"suite": "equal_time", "machine": harness.machine(), "scores": []}
  with contextlib.ExitStack() as stack:
    start = lambda make, **more: stack.enter_context(
        contextlib.closing(harness.Worker(make, **of_data, **more)))
    ours = start(Jtx)
    result["parameters"] = ours.call("save", folder("start"))
    theirs = start(Transformers, tokenizers=ours.call("tokenizers"), folder=folder("start"))
    result["machine"] |= ours.call("about") | theirs.call("about")
    harness.check_equal({"jtx": ours.call("loss"), "transformers": theirs.call("loss")})
    seconds, updates = 0.0, {"jtx": 0, "transformers": 0}
    for turn in range(turns):
      own = steps * (turn + 1) // turns - updates["jtx"]
      spent = ours.call("train", own)
      seconds, updates["jtx"] = seconds + spent, updates["jtx"] + own
      updates["transformers"] += theirs.call("train", spent, turn / turns, 1 / turns)
      print(f"turn {turn + 1}/{turns}: {seconds:.0f} s each, updates {updates}", flush=True)
      if turn + 1 in (turns // 2, turns):
        theirs.call("save", folder("transformers"))
        scores = {"jtx": ours.call("score"),
                  "transformers": ours.call("score", folder("transformers"))}
        result["scores"].append({"seconds": seconds, "updates": dict(updates)} | scores)
        print(f"nats a token: {scores}", flush=True)
  return result
