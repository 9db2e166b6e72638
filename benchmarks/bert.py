"""Pretraining BERT: jtx beside `transformers` on PyTorch and a plain Flax encoder.

All have the same network, optimiser, texts and masked tokens, so what differs is how they are
computed. In "full" rows hold 128 tokens of running text; in "sentences" an example is a sentence,
which the peers pad to the longest of a batch, in random order, and jtx packs. What counts is
useful tokens, those that are no padding, by the second. One peer at a time takes turns with jtx:
rows that are padded, with scores at all places, leave a device no memory for a second one.
"""

import contextlib
import functools
from typing import Any, Mapping, Sequence

import numpy as np

from benchmarks import harness, sides
from benchmarks.bert_data import (
    CLIP, LEARNING_RATE, SIZES, Batch, Size, load_texts, make_config, masked, packed, padded)

# Of these rows, jtx has this share in a part. The peers spread a row of sentences over five.
PARTS = {"full": 1.0, "sentences": 0.5}
PEERS = ("transformers", "transformers_compiled", "flax")


# ------------------------------------------------------------------------------ systems


class System(sides.Turns):
  """A network that is trained; one has `start` and `step`. A useful token is the unit.

  Args:
    texts: of `load_texts`.
    data, size: of `run`.
    state: parameters by their Hugging Face name; None draws them.
  """

  def __init__(self, texts: Mapping[str, Any], data: str, size: Size,
               state: Mapping[str, np.ndarray] | None = None):
    self.texts, self.data, self.size = texts, data, size
    self.rows = size.rows
    self.start(state)

  def examples(self, part: str, limit: int) -> list[tuple[np.ndarray, np.ndarray]]:
    texts = self.texts[part][:limit]
    return [masked(ids, self.texts["ids"], i) for i, ids in enumerate(texts)]

  def load(self, part: str, batch_size: int, number: int) -> None:
    """Makes `number` batches of about `batch_size` examples, which the turns then go round."""
    examples = self.examples(part, batch_size * number)
    batches = [padded(examples[i:i + batch_size], self.texts["ids"]["pad"])
               for i in range(0, len(examples) - batch_size + 1, batch_size)]
    self.units = [int(batch["mask"].sum()) for batch in batches]
    self.batches = [self.placed(batch) for batch in batches]


class Jtx(sides.JtxSide, System):
  """Our side."""

  def start(self, state) -> None:
    import jax

    from jtx import build
    from jtx.parallel import sharding
    from jtx.train.program import Program
    self.jax = jax
    config, info = make_config(self.data, self.size), self.texts["info"]
    if self.size.vocab_size:
      info = info | dict.fromkeys(("vocab_size", "src_vocab_size"), self.size.vocab_size)
    mesh = sharding.make_mesh(config.mesh)
    model, objective = build.make_model(config, info)
    example = packed(self.examples("full", 3 * self.rows), self.size, self.rows)[0]
    example.pop("ids")
    self.program = Program(config, model, objective, example=example, mesh=mesh)
    self.place, self.model = sharding.batch_sharding(mesh), model
    self.to_device = functools.partial(sharding.to_device, sharding=self.place)
    self.state = self.program.init()

  def load(self, part: str, batch_size: int, number: int) -> None:
    rows = int(PARTS[part] * self.rows)
    batches = packed(self.examples(part, batch_size * number), self.size, rows)
    self.units = [int((batch["text_segment_ids"] > 0).sum()) for batch in batches]
    self.per_batch = [int((batch.pop("ids") >= 0).sum()) for batch in batches]
    self.batches = [self.to_device(batch, batch_size=rows) for batch in batches]

  def examples_per_batch(self) -> int:
    return round(sum(self.per_batch) / len(self.per_batch))

  def hf_config(self) -> dict[str, Any]:
    from jtx.interop import export
    return export.hf_config(self.model)

  def nll(self, examples: int) -> float:
    """Nats a masked token, dropout off."""
    total = weight = 0.0
    for batch in packed(self.examples("full", examples), self.size, self.rows):
      batch.pop("ids")
      sums = self.sums(self.state.params, batch)
      total, weight = total + float(sums["loss"][0]), weight + float(sums["loss"][1])
    return total / weight

  def flops_per_token(self) -> float:
    """Matrix-product FLOPs of a useful token, logits at masked tokens only."""
    return self.program.flops(self.batches[0]) / self.units[0]


class Transformers(sides.TorchSide, System):
  """BertForMaskedLM of `transformers`, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    torch = self.torch
    config = transformers.BertConfig(**self.texts["hf_config"])
    self.model = transformers.BertForMaskedLM(config)
    if state is not None:
      tensors = {name: torch.from_numpy(np.array(x)) for name, x in state.items()}
      missing, unexpected = self.model.load_state_dict(tensors, strict=False)
      left = [m for m in missing if "decoder" not in m and "position_ids" not in m]
      if left or unexpected:
        raise ValueError(f"the weights do not fit: missing {left}, unexpected {unexpected}")
      self.model.tie_weights()
    self.start_training(lr=LEARNING_RATE, eps=1e-6)

  def placed(self, batch: Batch) -> dict[str, Any]:
    """A model's arguments. Where there is no padding there is no mask: attention is faster so."""
    names = {"ids": "input_ids", "mask": "attention_mask", "labels": "labels"}
    if batch["mask"].all():
      del names["mask"]
    return {theirs: self.torch.from_numpy(batch[ours]).to(self.device, self.torch.long)
            for ours, theirs in names.items()}

  def step(self, batch: dict[str, Any]) -> None:
    with self.autocast():
      loss = self.run(**batch).loss
    self.update(loss, CLIP)

  def nll(self, examples: int) -> float:
    self.model.eval()
    total = weight = 0.0
    found = self.examples("full", examples)
    for i in range(0, len(found) - self.rows + 1, self.rows):
      batch = padded(found[i:i + self.rows], self.texts["ids"]["pad"])
      number = int((batch["labels"] >= 0).sum())
      with self.torch.no_grad(), self.autocast():
        loss = self.model(**self.placed(batch)).loss
      total, weight = total + number * float(loss), weight + number
    self.model.train()
    return total / weight


class TransformersCompiled(Transformers):
  compiled = True


class PlainFlax(sides.JaxSide, System):
  """An encoder as Flax's own layers make it: padding, a mask as a matrix, scores everywhere."""

  def start(self, state) -> None:
    import jax
    import jax.numpy as jnp
    import optax

    from benchmarks.plain_flax import Bert
    self.jax = jax
    low = self.size.dtype == "bfloat16" or jax.default_backend() != "cpu"
    dtype = jnp.bfloat16 if low else jnp.float32
    h = self.texts["hf_config"]
    model = Bert(vocab_size=h["vocab_size"], width=h["hidden_size"],
                 num_layers=h["num_hidden_layers"], num_heads=h["num_attention_heads"],
                 ffn_dim=h["intermediate_size"], max_length=h["max_position_embeddings"],
                 dtype=dtype)
    ids = jnp.zeros((1, self.size.length), jnp.int32)
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

  def placed(self, batch: Batch) -> dict[str, Any]:
    # One length, since another one would be compiled anew.
    fill = {"ids": self.texts["ids"]["pad"], "mask": 0, "labels": -100}
    more = ((0, 0), (0, self.size.length - batch["ids"].shape[1]))
    return {name: self.jax.device_put(np.pad(x, more, constant_values=fill[name]))
            for name, x in batch.items()}

  def step(self, batch: Batch) -> None:
    self.steps += 1
    self.params, self.opt_state = self.update(self.params, self.opt_state, batch,
                                              self.jax.random.fold_in(self.key, self.steps))

  def synchronize(self) -> None:
    self.jax.block_until_ready(self.params)


SYSTEMS = {"jtx": Jtx, "transformers": Transformers,
           "transformers_compiled": TransformersCompiled, "flax": PlainFlax}


# ------------------------------------------------------------------------------- running


def run(data: str, size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int, result: dict[str, Any] | None = None) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    data: source of documents, as in a config; "" is the documentation of Python's library.
    size: of the model and of a batch.
    parts: of PARTS.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn.
    result: is filled, peer by peer; None is a new one.
  """
  texts, result = dict(load_texts(data, size.length)), {} if result is None else result
  result |= {"suite": "bert", "size": size.model, "data": "own" if data else "pydocs",
             "rounds": rounds, "machine": harness.machine(), "nll": {}}
  with contextlib.closing(harness.Worker(Jtx, texts=texts, data=data, size=size)) as ours:
    result["machine"] |= ours.call("about")
    texts["hf_config"] = ours.call("hf_config")
    start = dict(texts=texts, data=data, size=size, state=ours.call("weights", "bert"))
    for part in parts:
      ours.call("load", part, (1 if part == "full" else 4) * size.rows, steps * (rounds + 2))
      # The peer gets as many examples a batch as jtx has in its rows.
      batch_size, flops = ours.call("examples_per_batch"), ours.call("flops_per_token")
      result[part] = {}
      for name in peers:
        print(f"{part}, beside {name}", flush=True)
        checked = name != "flax" and name not in result["nll"]
        untrained = checked and not result["nll"]
        if untrained:
          ours.begin("nll", 2 * size.rows)  # while the peer starts
        ours.begin("warm_up")
        with contextlib.closing(harness.Worker(SYSTEMS[name], **start)) as peer:
          if untrained:
            result["nll"]["jtx"] = ours.answer()
          if checked:
            result["machine"] |= peer.call("about")
            result["nll"][name] = peer.call("nll", 2 * size.rows)
            harness.check_equal(result["nll"], size.dtype)
          peer.call("load", part, batch_size, steps * (rounds + 2))
          workers = {"jtx": ours, name: peer}
          warm = dict(zip(workers, harness.warm_up(workers.values())))
          turns = {name: functools.partial(worker.call, "turn", steps)
                   for name, worker in workers.items()}
          result[part][name] = {
              **harness.measure(workers, turns, rounds, "tokens_per_s", flops),
              "examples_per_batch": batch_size, "warm_up_s": warm}
  return result
