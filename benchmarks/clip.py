"""Training CLIP: jtx beside `transformers` on PyTorch.

Both have the same network, weights, optimiser, images and texts, each text in a row of 77 tokens of
which a dozen are its own. In the part "packed" jtx has several of the texts in each such row, and
`transformers` cuts the rows of a batch to its longest text.
"""

from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP = 1e-4, 1.0
PARTS = ("step", "packed")
PEERS = ("transformers",)
MOST = 77  # tokens of a row of several texts


class Size(NamedTuple):
  model: str = "clip_b32"  # of configs/clip.py
  vocab: int = 49_408
  res: int = 224  # pixels of a side
  length: int = MOST  # tokens of a row of one text
  pack: int = 4  # texts of a row of several
  rows: int = 16  # of a batch
  edits: tuple[tuple[str, Any], ...] = ()  # of the model
  dtype: str = "auto"  # of products, in both systems
  unroll: int = -1  # layers in jtx


TINY = dict(width=32, num_layers=2, block=dict(attention=dict(num_heads=4), ffn=dict(dim=64)))
SIZES = {"base": Size(), "tiny": Size(
    vocab=97, res=32, length=12, rows=4, pack=2, edits=(
        ("image_stack", TINY), ("text_stack", TINY | dict(position=dict(max_length=MOST))),
        ("projection", dict(width=32)), ("image", dict(size=32)), ("patch_size", 8)))}


def make_config(size: Size):
  from configs import clip, common
  return common.apply(clip.get_config(f"{size.model},batch={size.rows},train=captions:a.tsv"), {
      "steps": 1000, "epochs": None, "optim.lr": LEARNING_RATE, "optim.clip_norm": CLIP,
      "optim.schedule": common.schedule("constant"), "optim.optimizer": common.optimizer(
          "adamw", weight_decay=0.01, eps=1e-8),
      "model": dict(size.edits), "model.vocab_size": size.vocab, "model.dtype": size.dtype,
      "model.image_stack.unroll": size.unroll, "model.text_stack.unroll": size.unroll}).lock()


def batches(size: Size, number: int) -> list[dict[str, np.ndarray]]:
  """Noise of texts' usual lengths; the last token of a text is that of the largest id."""
  random = np.random.default_rng(0)
  places = np.arange(size.length)
  made = []
  for _ in range(number):
    ends = np.clip(random.poisson(11, (size.rows, 1)), 2, size.length - 1)
    text = np.where(places < ends, random.integers(3, size.vocab - 1, (size.rows, size.length)), 0)
    made.append({
        "image": random.standard_normal((size.rows, size.res, size.res, 3), np.float32),
        "text": np.where(places == ends, size.vocab - 1, text).astype(np.int32),
        "text_segment_ids": (places <= ends).astype(np.int32),
        "text_positions": np.where(places <= ends, places, 0).astype(np.int32),
        "real": np.ones((size.rows, 1), np.int32)})
  return made


def packed(batch: dict[str, np.ndarray], number: int) -> dict[str, np.ndarray]:
  """A batch whose rows have `number` of its pairs each."""
  keys = ("text", "text_positions")
  made = {key: np.zeros((len(batch["text"]) // number, MOST), np.int32)
          for key in (*keys, "text_segment_ids")}
  for row in range(len(made["text"])):
    at = 0
    for segment in range(number):
      own = batch["text_segment_ids"][row * number + segment] > 0
      place = slice(at, at + own.sum())
      for key in keys:
        made[key][row, place] = batch[key][row * number + segment, own]
      made["text_segment_ids"][row, place], at = segment + 1, place.stop
  return made | {key: batch[key].reshape(-1, number, *batch[key].shape[1:]) if key == "image" else
                 batch[key].reshape(-1, number) for key in ("image", "real")}


class System(sides.Rows):
  """One side. A pair of an image and a text is the unit.

  Args:
    size, state, hf_config: as for `sides.Rows`.
    packed: texts take no more tokens than they must.
  """
  noise, clip_norm = staticmethod(batches), CLIP

  def __init__(self, size: Size, packed: bool, state=None, hf_config=None):
    self.packed = packed
    super().__init__(size, state, hf_config)


class Jtx(sides.ProgramSide, System):
  """Our side."""

  def start(self, state) -> None:
    self.make(make_config(self.size), None, self.laid_out(*batches(self.size, 1)))

  def laid_out(self, batch):
    return packed(batch, self.size.pack) if self.packed else batch

  def placed(self, batch):
    return super().placed(self.laid_out(batch))


class Transformers(sides.TorchRows, System):
  """CLIPModel, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    config = transformers.CLIPConfig(**self.hf)
    config.text_config.eos_token_id = self.size.vocab - 1
    self.model = self.pretrained(transformers.CLIPModel, config, state)
    self.start_training(lr=LEARNING_RATE)

  def placed(self, batch):
    longest = batch["text_segment_ids"].sum(1).max()
    texts = {key: batch[key][:, :longest if self.packed else None]
             for key in ("text", "text_segment_ids")}
    return {"pixel_values": self.images(batch["image"]), "return_loss": True,
            "input_ids": self.tensor(texts["text"]).long(),
            "attention_mask": self.tensor(texts["text_segment_ids"]).long()}


SYSTEMS = {"transformers": Transformers}


def run(size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int,
        steps: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    size: of the model and of batches.
    parts: of PARTS.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn.
  """
  result = {"suite": "clip", "size": size._asdict(), "rounds": rounds,
            "machine": harness.machine()}
  for part in parts:
    result[part] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, "clip", "pairs_per_s", rounds, steps,
        result["machine"], size=size, packed=part == "packed")
  return result
