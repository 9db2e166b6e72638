"""Updates of fine-tuning a sentence classifier: jtx beside `transformers` on PyTorch.

Both have the same encoder, fresh head, optimiser and batches, of sentences of similar length. jtx
pads a batch to one of few lengths, for which its step is compiled; the peer pads to the longest.
What counts is sentences by the second.
"""

import functools
import os
import random
import re
from typing import Any, NamedTuple, Sequence

from benchmarks import finetune, harness, sides

LEARNING_RATE, CLIP = 5e-5, 1.0
PEERS = ("transformers", "transformers_compiled")


class Size(NamedTuple):
  model: str  # an encoder of jtx/interop/presets.py, with fresh weights
  rows: int = 32  # sentences of a batch
  max_length: int = 64  # tokens
  sentences: int = 7000
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx


def write_data(folder: str, number: int) -> None:
  """Sentences of the documentation of Python's library; the class says whether "the" is in it."""
  from jtx.data.sources.documents import pydocs
  sentences = [" ".join(s.split()) for _, text in pydocs("train")
               for s in re.split(r"(?<=[.!?])\s+|\n\n+", text)]
  sentences = [s for s in sentences if 3 <= len(s.split()) <= 50]
  chosen = random.Random(0).sample(sentences, min(number, len(sentences)))
  os.makedirs(folder, exist_ok=True)
  for name, part in (("dev", chosen[::10]), ("train", chosen)):
    with open(os.path.join(folder, f"{name}.tsv"), "w", encoding="utf-8") as f:
      f.writelines(f"{s}\t{int('the' in s.lower().split())}\n" for s in part)


def make_config(data: str, size: Size):
  from configs import common
  from experiments import cli
  c = cli.config_of([f"--config=configs/classify.py:model={size.model},batch={size.rows},group,"
                     f"max_length={size.max_length},lr={LEARNING_RATE},epochs=1",
                     f"--config.data.path={os.path.abspath(data)}"])
  common.apply(c.unlock(), {
      "steps": 1000, "optim.schedule": common.schedule("constant"), "optim.optimizer.eps": 1e-8,
      "model.stack.unroll": size.unroll, "model.dtype": size.dtype})
  return c.lock()


class System(sides.Turns):
  """One side, in a process of its own. A sentence is the unit.

  Args:
    data: folder of train.tsv and dev.tsv.
    size: of the model and of a batch.
    number: of batches.
    state, hf_config: weights to start from and the model's config, for `transformers`.
  """

  def __init__(self, data: str, size: Size, number: int, state=None, hf_config=None):
    from jtx.data.dataset import Dataset
    self.size, self.hf = size, hf_config
    self.config = make_config(data, size)
    self.dataset = Dataset(self.config.data, self.config.tokenizer)
    stream = self.dataset.train_stream(0, size.rows, range(size.rows))
    self.host = [stream.batch(i) for i in range(number)]
    self.start(state)
    self.batches = [self.placed(batch) for batch in self.host]
    self.units = [size.rows] * number


class Jtx(sides.JtxSide, System):
  """Our side."""

  def start(self, state) -> None:
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train.loop import without_ids
    from jtx.train.program import Program
    self.jax = jax
    mesh = sharding.make_mesh(self.config.mesh)
    self.model, objective = build.make_model(self.config, self.dataset.info)
    self.host = [without_ids(batch) for batch in self.host]
    self.program = Program(self.config, self.model, objective, example=self.host[0], mesh=mesh)
    self.state = self.program.init()
    self.placed = functools.partial(sharding.to_device, batch_size=self.size.rows,
                                    sharding=sharding.batch_sharding(mesh))

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model, labels=self.dataset.labels)

  def loss(self) -> float:
    sums = self.sums(self.state.params, self.host[0])
    return float(sums["loss"][0] / sums["loss"][1])

  def flops(self) -> float:
    """Matrix-product FLOPs of a sentence, with the padding of our batches."""
    return sum(map(self.program.flops, self.batches)) / sum(self.units)


class Transformers(sides.TorchSide, System):
  """BertForSequenceClassification, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    self.model = self.pretrained(transformers.BertForSequenceClassification,
                                 transformers.BertConfig(**self.hf), state)
    self.start_training(dynamic=True, lr=LEARNING_RATE, eps=1e-8)

  def placed(self, batch):
    inputs = finetune.inputs(batch, self.dataset.recipe.layout.fields)
    return {name: x.to(self.device) for name, x in inputs.items()}

  def step(self, batch) -> None:
    with self.autocast():
      loss = self.run(**batch).loss
    self.update(loss, CLIP)

  def loss(self) -> float:
    self.model.eval()
    with self.torch.no_grad(), self.autocast():
      loss = float(self.model(**self.placed(self.host[0])).loss)
    self.model.train()
    return loss


class TransformersCompiled(Transformers):
  compiled = True


SYSTEMS = {"transformers": Transformers, "transformers_compiled": TransformersCompiled}


def run(data: str, size: Size, peers: Sequence[str], rounds: int, steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    data: folder of train.tsv and dev.tsv; `write_data` makes one.
    size: of the model and of a batch.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn, which go round four times as many batches.
  """
  result = {"suite": "finetune_steps", "size": size.model, "rounds": rounds,
            "machine": harness.machine()}
  result["train"] = harness.train_beside(
      Jtx, {name: SYSTEMS[name] for name in peers}, "bert", "sentences_per_s", rounds, steps,
      result["machine"], data=data, size=size, number=4 * steps)
  return result
