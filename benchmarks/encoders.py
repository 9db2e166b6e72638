"""Pretraining steps of BERT's relatives: jtx beside `transformers`, and beside its own plain BERT.

A part is a family: DeBERTa (version 1) learns masked tokens, ELECTRA which tokens a generator
replaced, XLNet tokens in random orders. All have layers of one size. Both sides have the same
weights, optimiser, dropout and rows, but for ELECTRA's generator, whose samples differ anyway; its
encoder alone is checked for equal losses. `transformers` brings no pretraining of ELECTRA; the
peer joins its two models as a user would.
"""

from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP = 1e-4, 1.0
PEERS = ("transformers", "transformers_compiled")


class Family(NamedTuple):
  """How a family is trained."""
  preset: str  # of ENCODERS in configs/
  architecture: str  # of `transformers`
  family: str  # of FAMILIES in jtx/interop/


PLAIN = "bert"
FAMILIES = {
    PLAIN: Family("bert_small", "BertForMaskedLM", "bert"),
    "deberta": Family("deberta_base", "DebertaForMaskedLM", "deberta"),
    "electra": Family("electra_small", "ElectraForPreTraining", "electra"),
    "xlnet": Family("xlnet_base", "XLNetLMHeadModel", "xlnet"),
}
PARTS = tuple(FAMILIES)


class Size(NamedTuple):
  width: int = 512  # of BERT Small
  layers: int = 4
  heads: int = 8
  vocab: int = 30522
  rows: int = 16  # of a batch
  length: int = 128  # tokens of a row
  predicted: int = 19  # of them, 15 %
  dtype: str = "auto"  # of products, in all systems


SIZES = {"base": Size(), "tiny": Size(width=32, layers=2, heads=2, vocab=97, rows=8, length=16,
                                      predicted=3)}


def make_config(size: Size, part: str):
  from configs import common, electra
  from jtx.interop import huggingface, presets
  c = common.get_config()
  family = FAMILIES[part]
  published = presets.fresh(family.preset)
  c.model = common.model(huggingface.identify(published, family.preset).family.model,
                         **huggingface.model_fields(published, family.architecture, family.preset))
  common.apply(c, {"model.vocab_size": size.vocab, "model.dtype": size.dtype,
                   "model.embedding.width": None, "model.stack": dict(
                       width=size.width, num_layers=size.layers, unroll=-1, block=dict(
                           attention=dict(num_heads=size.heads), ffn=dict(dim=4 * size.width)))})
  c.data.ops = (common.op("mask"),)
  c.objective = common.objective("plm" if part == "xlnet" else "mlm")
  if part == "electra":
    electra.find_replaced(c, 0.15, part=4)
  c.optim.optimizer = common.optimizer("adamw", weight_decay=0.01, eps=1e-8)
  c.optim.schedule = common.schedule("constant")
  c.optim.lr, c.optim.clip_norm = LEARNING_RATE, CLIP
  c.steps, c.batch_size = 1000, size.rows
  return c.lock()


def noise(size: Size, number: int) -> list[dict[str, np.ndarray]]:
  """Rows of random tokens, since only their shape matters, and the places of those predicted."""
  random, batches = np.random.default_rng(0), []
  shape = size.rows, size.length
  for _ in range(number):
    text = random.integers(5, size.vocab, shape).astype(np.int32)
    at = np.stack([random.permutation(size.length)[:size.predicted] for _ in range(size.rows)])
    batches.append({
        "text": text, "text_segment_ids": np.ones(shape, np.int32),
        "text_types": np.zeros(shape, np.int32),
        "text_positions": np.broadcast_to(np.arange(size.length, dtype=np.int32), shape),
        "mlm_positions": at.astype(np.int32),
        "mlm_labels": np.take_along_axis(text, at, 1)})
  return batches


def masked(batch: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
  """A batch whose predicted tokens are masked, where the family has masks."""
  if part == "xlnet":
    return batch
  text = batch["text"].copy()
  np.put_along_axis(text, batch["mlm_positions"], MASK, 1)
  return batch | {"text": text}


MASK = 4  # the id of the token


class System(sides.Turns):
  """One side, in a process of its own. A token is the unit.

  Args:
    size: of the model and of a batch.
    part: of PARTS.
    state: tensors to start from; None draws them.
    hf_config: of the model, for `transformers`.
  """

  def __init__(self, size: Size, part: str, state=None, hf_config=None):
    self.size, self.part, self.hf = size, part, hf_config
    self.start(state)
    self.batches = [self.placed(masked(batch, part)) for batch in noise(size, 4)]
    self.units = [size.rows * size.length] * len(self.batches)


class Jtx(sides.ProgramSide, System):
  """Our side."""

  def start(self, state) -> None:
    self.make(make_config(self.size, self.part), None,
              masked(noise(self.size, 1)[0], self.part))

  def own(self) -> tuple[Any, Any]:
    """The model and its parameters, without ELECTRA's generator."""
    if self.part != "electra":
      return self.model, self.state.params
    from jtx.models.electra import discriminator
    return discriminator(self.model, self.state.params)

  def hf_config(self):
    from jtx.interop import export
    return export.hf_config(self.own()[0])

  def weights(self, family: str):
    from jtx.interop import export
    from jtx.interop.families import FAMILIES as TABLES
    model, params = self.own()
    return export.tensors_of(TABLES[family], model, self.jax.device_get(params))

  def flops(self) -> float:
    """Matrix-product FLOPs of a token in training."""
    return self.program.flops(self.example) / (self.size.rows * self.size.length)

  def loss(self) -> float:
    """Dropout off; of ELECTRA the encoder's, on texts of which all tokens count as real."""
    if self.part != "electra":
      return super().loss()
    model, params = self.own()
    score = lambda params, batch: model.apply({"params": params}, batch, method="predict")[..., 0]
    return float(self.jax.nn.softplus(self.jax.jit(score)(params, self.example)).mean())


class Plain(Jtx):
  """jtx's BERT of the size, whatever the part."""

  def __init__(self, size: Size, part: str):
    del part
    super().__init__(size, PLAIN)


class Transformers(sides.TorchSide, System):
  """The model of `transformers`, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    make = getattr(transformers, FAMILIES[self.part].architecture)
    self.encoder = self.model = self.pretrained(make, make.config_class(**self.hf), state)
    if self.part == "electra":
      self.model = joined(self.encoder, self.size)
    self.start_training(lr=LEARNING_RATE)

  def placed(self, batch):
    """The model's arguments."""
    tensor = lambda x: self.torch.from_numpy(np.ascontiguousarray(x)).to(self.device)
    ids, at = batch["text"].astype(int), batch["mlm_positions"].astype(int)
    if self.part == "xlnet":
      rank = np.zeros_like(ids)
      np.put_along_axis(rank, at, np.arange(1, at.shape[1] + 1)[None], 1)
      hidden = (rank[:, None] > 0) & (rank[:, None] >= rank[:, :, None])
      return {"input_ids": tensor(ids), "perm_mask": tensor(hidden.astype(np.float32)),
              "target_mapping": tensor(np.eye(ids.shape[1], dtype=np.float32)[at]),
              "labels": tensor(batch["mlm_labels"].astype(int)), "use_mems": False}
    labels = np.full_like(ids, -100)
    np.put_along_axis(labels, at, batch["mlm_labels"].astype(int), 1)
    return {"input_ids": tensor(ids), "labels": tensor(labels)}

  def step(self, batch) -> None:
    with self.autocast():
      loss = self.run(**batch).loss
    self.update(loss, CLIP)

  def loss(self) -> float:
    """Dropout off; see `Jtx.loss`."""
    batch = self.placed(masked(noise(self.size, 1)[0], self.part))
    if self.part == "electra":
      batch["labels"] = self.torch.zeros_like(batch["labels"])
    self.model.eval()
    with self.torch.no_grad(), self.autocast():
      found = float(self.encoder(**batch).loss)
    self.model.train()
    return found


class TransformersCompiled(Transformers):
  compiled = True


SYSTEMS = {"transformers": Transformers, "transformers_compiled": TransformersCompiled}


def joined(encoder: Any, size: Size) -> Any:
  """ELECTRA's encoder and a generator of a quarter of its width, which share embeddings."""
  import torch
  import transformers

  class Electra(torch.nn.Module):

    def __init__(self):
      super().__init__()
      self.encoder, self.config = encoder, encoder.config
      config = transformers.ElectraConfig(**encoder.config.to_dict() | dict(
          hidden_size=size.width // 4, num_attention_heads=max(size.heads // 4, 1),
          intermediate_size=size.width))
      self.generator = transformers.ElectraForMaskedLM(config)
      self.generator.electra.embeddings = encoder.electra.embeddings
      self.generator.generator_lm_head.weight = encoder.electra.embeddings.word_embeddings.weight

    def forward(self, input_ids, labels):
      hidden = labels >= 0
      scores = self.generator(input_ids).logits[hidden]
      loss = torch.nn.functional.cross_entropy(scores.float(), labels[hidden])
      with torch.no_grad():
        noise = torch.empty_like(scores, dtype=torch.float32).exponential_().log()
        samples = (scores.float() - noise).argmax(-1)
      text = input_ids.masked_scatter(hidden, samples)
      replaced = text != torch.where(hidden, labels, input_ids)
      found = self.encoder(text, labels=replaced.long())
      found.loss = loss + 50.0 * found.loss
      return found

  return Electra()


def run(size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    size: of the model and of a batch.
    parts: of PARTS.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn.
  """
  result = {"suite": "encoders", "size": size._asdict(), "rounds": rounds,
            "machine": harness.machine()}
  for part in parts:
    print(part, flush=True)
    result[part] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, FAMILIES[part].family, "tokens_per_s", rounds,
        steps, result["machine"], apart={} if part == PLAIN else {"plain": Plain}, size=size,
        part=part)
  return result
