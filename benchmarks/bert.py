"""Pretraining BERT: jtx beside `transformers` on PyTorch and a plain Flax encoder.

All have the same network, optimiser, texts and masked tokens, so what differs is how they are
computed. In "full" rows hold 128 tokens of running text; in "sentences" an example is a sentence,
which the peers pad to the longest of a batch, in random order, and jtx packs. What counts is
useful tokens, those that are no padding, by the second. One peer at a time takes turns with jtx:
rows that are padded, with scores at all places, leave a small machine no memory for a second one.
"""

import contextlib
import functools
import time
from typing import Any, Mapping, Sequence

import numpy as np

from benchmarks import harness
from benchmarks.bert_data import (
    CLIP, LEARNING_RATE, LENGTH, SIZES, Batch, load_texts, make_config, masked, packed, padded)

# Of these rows, jtx has this share in a part. The peers spread a row of sentences over five.
PARTS = {"full": 1.0, "sentences": 0.5}
PEERS = ("transformers", "transformers_compiled", "flax")


# ------------------------------------------------------------------------------ systems


class System:
  """A network that is trained; one has `start` and `step`.

  Args:
    texts: of `load_texts`.
    data, size: of `run`.
    state: parameters by their Hugging Face name; None draws them.
  """

  def __init__(self, texts: Mapping[str, Any], data: str, size: str,
               state: Mapping[str, np.ndarray] | None = None):
    self.texts, self.data, self.size = texts, data, size
    self.rows, self.number = SIZES[size][1], 0
    self.start(state)

  def examples(self, part: str, limit: int) -> list[tuple[np.ndarray, np.ndarray]]:
    texts = self.texts[part][:limit]
    return [masked(ids, self.texts["ids"], i) for i, ids in enumerate(texts)]

  def load(self, part: str, batch_size: int, number: int) -> None:
    """Makes `number` batches of about `batch_size` examples, which the turns then go round."""
    examples = self.examples(part, batch_size * number)
    self.batches = [padded(examples[i:i + batch_size], self.texts["ids"]["pad"])
                    for i in range(0, len(examples) - batch_size + 1, batch_size)]
    self.useful = [int(batch["mask"].sum()) for batch in self.batches]

  def turn(self, steps: int) -> float:
    """Useful tokens a second."""
    numbers = [(self.number + i) % len(self.batches) for i in range(steps)]
    self.number += steps
    start = time.perf_counter()
    for i in numbers:
      self.step(self.batches[i])
    self.synchronize()
    return sum(self.useful[i] for i in numbers) / (time.perf_counter() - start)


class Jtx(harness.JtxSide, System):
  """Our side."""

  def start(self, state) -> None:
    import jax

    from jtx import build
    from jtx.data.dataset import Dataset
    from jtx.parallel import sharding
    from jtx.train.program import Program
    self.jax = jax
    config = make_config(self.data, self.size)
    dataset = Dataset(config.data, config.tokenizer, self.texts["tokenizers"])
    mesh = sharding.make_mesh(config.mesh)
    model, objective = build.make_model(config, dataset.info)
    example = packed(self.examples("full", 3 * self.rows), self.rows)[0]
    example.pop("ids")
    example["text_types"] = np.zeros_like(example["text"])
    self.program = Program(config, model, objective, example=example, mesh=mesh)
    self.place, self.model = sharding.batch_sharding(mesh), model
    self.to_device = functools.partial(sharding.to_device, sharding=self.place)
    self.state = self.program.init()

  def load(self, part: str, batch_size: int, number: int) -> None:
    rows = int(PARTS[part] * self.rows)
    batches = packed(self.examples(part, batch_size * number), rows)
    self.useful = [int((batch["text_segment_ids"] > 0).sum()) for batch in batches]
    self.per_batch = [int((batch["ids"] >= 0).sum()) for batch in batches]
    self.batches = []
    for batch in batches:
      batch = {k: v for k, v in batch.items() if k != "ids"}
      batch["text_types"] = np.zeros_like(batch["text"])
      self.batches.append(self.to_device(batch, batch_size=rows))

  def examples_per_batch(self) -> int:
    return round(sum(self.per_batch) / len(self.per_batch))

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model)

  def nll(self, examples: int) -> float:
    """Nats a masked token, dropout off."""
    total = weight = 0.0
    for batch in packed(self.examples("full", examples), self.rows):
      batch["text_types"] = np.zeros_like(batch["text"])
      sums = self.program.objective(self.model, self.state.params,
                                    {k: v for k, v in batch.items() if k != "ids"}, train=False)
      total, weight = total + float(sums["loss"][0]), weight + float(sums["loss"][1])
    return total / weight

  def flops_per_token(self) -> float:
    """Matrix-product FLOPs of a useful token, logits at masked tokens only."""
    return self.program.flops(self.batches[0]) / self.useful[0]


class Transformers(harness.TorchSide, System):
  """BertForMaskedLM of `transformers`, eager."""

  compiled = False

  def start(self, state) -> None:
    import torch
    import transformers
    self.torch = torch
    self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = transformers.BertConfig(**self.texts["hf_config"])
    self.model = transformers.BertForMaskedLM(config)
    if state is not None:
      tensors = {name: torch.from_numpy(np.array(x)) for name, x in state.items()}
      missing, unexpected = self.model.load_state_dict(tensors, strict=False)
      left = [m for m in missing if "decoder" not in m and "position_ids" not in m]
      if left or unexpected:
        raise ValueError(f"the weights do not fit: missing {left}, unexpected {unexpected}")
      self.model.tie_weights()
    self.model.to(self.device).train()
    self.optimizer = self.adamw(lr=LEARNING_RATE, eps=1e-6)
    self.run = torch.compile(self.model) if self.compiled else self.model

  def loss(self, batch: Batch):
    torch = self.torch
    tensors = {name: torch.from_numpy(x).to(self.device, torch.long) for name, x in batch.items()}
    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
      return self.run(input_ids=tensors["ids"], attention_mask=tensors["mask"],
                      labels=tensors["labels"]).loss

  def step(self, batch: Batch) -> None:
    self.update(self.loss(batch), CLIP)

  def nll(self, examples: int) -> float:
    self.model.eval()
    total = weight = 0.0
    found = self.examples("full", examples)
    for i in range(0, len(found) - self.rows + 1, self.rows):
      batch = padded(found[i:i + self.rows], self.texts["ids"]["pad"])
      number = int((batch["labels"] >= 0).sum())
      with self.torch.no_grad():
        total, weight = total + number * float(self.loss(batch)), weight + number
    self.model.train()
    return total / weight


class TransformersCompiled(Transformers):
  compiled = True


class PlainFlax(harness.JaxSide, System):
  """An encoder as Flax's own layers make it: padding, a mask as a matrix, scores everywhere."""

  def start(self, state) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    from benchmarks.plain_flax import Bert
    self.jax = jax
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    h = self.texts["hf_config"]
    model = Bert(vocab_size=h["vocab_size"], width=h["hidden_size"],
                 num_layers=h["num_hidden_layers"], num_heads=h["num_attention_heads"],
                 ffn_dim=h["intermediate_size"], max_length=h["max_position_embeddings"],
                 dtype=dtype)
    ids = jnp.zeros((1, LENGTH), jnp.int32)
    self.params = model.init(jax.random.key(0), ids, jnp.ones_like(ids), False)["params"]
    tx = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(
        LEARNING_RATE, eps=1e-6, weight_decay=0.01,
        mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params)))
    self.opt_state, self.key, self.steps = tx.init(self.params), jax.random.key(1), 0

    def loss_fn(params, batch, key):
      logits = model.apply({"params": params}, batch["ids"], batch["mask"], True,
                           rngs={"dropout": key})
      hidden = batch["labels"] >= 0
      nll = optax.softmax_cross_entropy_with_integer_labels(
          logits, jnp.where(hidden, batch["labels"], 0))
      return jnp.sum(nll * hidden) / hidden.sum()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def update(params, opt_state, batch, key):
      grads = jax.grad(loss_fn)(params, batch, key)
      updates, opt_state = tx.update(grads, opt_state, params)
      return optax.apply_updates(params, updates), opt_state

    self.update = update

  def load(self, part: str, batch_size: int, number: int) -> None:
    super().load(part, batch_size, number)
    # One length, since another one would be compiled anew.
    pad = lambda x, value: np.pad(x, ((0, 0), (0, LENGTH - x.shape[1])), constant_values=value)
    fill = {"ids": self.texts["ids"]["pad"], "mask": 0, "labels": -100}
    self.batches = [{name: pad(x, fill[name]) for name, x in batch.items()}
                    for batch in self.batches]

  def step(self, batch: Batch) -> None:
    self.steps += 1
    self.params, self.opt_state = self.update(self.params, self.opt_state, batch,
                                              self.jax.random.fold_in(self.key, self.steps))

  def synchronize(self) -> None:
    self.jax.block_until_ready(self.params)


SYSTEMS = {"jtx": Jtx, "transformers": Transformers,
           "transformers_compiled": TransformersCompiled, "flax": PlainFlax}


# ------------------------------------------------------------------------------- running


def run(data: str, size: str, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    data: source of documents, as in a config; "" is the documentation of Python's library.
    size: a key of SIZES.
    parts: of PARTS.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn.
  """
  texts = load_texts(data, size)
  result = {"suite": "bert", "size": size, "data": "own" if data else "pydocs", "rounds": rounds,
            "machine": harness.machine(), "nll": {}}
  rows = SIZES[size][1]
  with contextlib.closing(harness.Worker(Jtx, texts=texts, data=data, size=size)) as ours:
    result["machine"] |= ours.call("about")
    result["nll"]["jtx"] = ours.call("nll", 2 * rows)
    peak = result["matmul_peak_flops"] = ours.call("matmul_peak")
    print(f"matrix product peak {peak / 1e9:.4g} GFLOP/s", flush=True)
    texts["hf_config"] = ours.call("hf_config")
    start = dict(texts=texts, data=data, size=size, state=ours.call("weights", "bert"))
    for part in parts:
      ours.call("load", part, (1 if part == "full" else 4) * rows, steps * (rounds + 2))
      result[part] = {}
      for name in peers:
        print(f"{part}, beside {name}", flush=True)
        with contextlib.closing(harness.Worker(SYSTEMS[name], **start)) as peer:
          if name == "transformers":
            result["machine"] |= peer.call("about")
            result["nll"][name] = peer.call("nll", 2 * rows)
            check_equal(result["nll"])
          result[part][name] = measure(ours, peer, name, part, rounds, steps, peak)
  return result


def check_equal(nll: Mapping[str, float]) -> None:
  print(f"nll: {nll}", flush=True)
  if max(nll.values()) - min(nll.values()) > 1e-3 * nll["jtx"]:
    raise harness.WorkerError(f"the systems do not compute the same function: {nll}")


def measure(ours: harness.Worker, peer: harness.Worker, name: str, part: str, rounds: int,
            steps: int, peak: float) -> dict[str, Any]:
  """Useful tokens a second of both in turns, after one turn of each to warm up."""
  # The peer gets as many examples a batch as jtx has in its rows.
  batch_size = ours.call("examples_per_batch")
  peer.call("load", part, batch_size, steps * (rounds + 2))
  workers = {"jtx": ours, name: peer}
  turns = {name: functools.partial(worker.call, "turn", steps)
           for name, worker in workers.items()}
  for turn in turns.values():
    turn()
  for worker in workers.values():
    worker.call("reset_peak_memory")
  values = harness.alternate(rounds, turns)
  medians = {name: harness.median(rates) for name, rates in values.items()}
  flops = ours.call("flops_per_token")
  return {"tokens_per_s": medians, "ratio": harness.ratio(values, "jtx", name), "all": values,
          "examples_per_batch": batch_size,
          "share_of_matmul_peak": {name: rate * flops / peak for name, rate in medians.items()},
          "peak_memory_bytes": {name: worker.call("peak_memory")
                                for name, worker in workers.items()}}
