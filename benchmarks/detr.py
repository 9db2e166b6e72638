"""Training DETR: jtx beside `transformers` on PyTorch, and beside itself without its matching.

In "step" both have the same network, weights, optimiser, images and boxes; a ResNet whose norms are
frozen is the backbone. In "matching" jtx makes updates in turns with one in which objects go to
queries by their numbers, so that no costs are made and nothing is matched.
"""

import contextlib
import functools
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP, CLASSES = 1e-5, 0.1, 80
PARTS = ("step", "matching")
PEERS = ("transformers",)


class Size(NamedTuple):
  edits: tuple[tuple[str, Any], ...] = ()  # of the model of configs/detr.py
  res: int = 480  # pixels of a side
  rows: int = 2  # of a batch
  most: int = 20  # objects of an image
  dtype: str = "auto"  # of products, in both systems


TINY = dict(width=32, num_layers=2, block=dict(attention=dict(num_heads=4), ffn=dict(dim=64)))
SIZES = {"base": Size(), "tiny": Size(
    (("backbone", dict(stages=(1, 1), width=8)), ("encoder", TINY), ("decoder", TINY),
     ("num_queries", 12)), res=64, most=6)}


def make_config(size: Size):
  from configs import common, detr
  c = common.apply(detr.get_config(f"batch={size.rows}"), {
      "steps": 1000, "epochs": None, "optim.lr": LEARNING_RATE, "optim.clip_norm": CLIP,
      "optim.schedule": common.schedule("constant"), "optim.optimizer.weight_decay": 0.01,
      "model.head.outputs": CLASSES, "model.dtype": size.dtype,
      "model": {name: dict(edit) if isinstance(edit, dict) else edit for name, edit in size.edits}})
  return common.apply(c, {"optim.lr_mults": (("^backbone/", 1.0),), **{
      f"model.{stack}.block.{key}": 0.0 for stack in ("encoder", "decoder")
      for key in ("dropout", "attention.dropout", "ffn.dropout")}}).lock()


def batches(size: Size, number: int) -> list[dict[str, np.ndarray]]:
  """Noise with boxes, since only its shape matters."""
  random = np.random.default_rng(0)
  made = []
  for _ in range(number):
    there = np.arange(size.most) < random.integers(1, size.most + 1, (size.rows, 1))
    sides_of = random.uniform(0.05, 0.4, (size.rows, size.most, 2))
    centres = random.uniform(sides_of / 2, 1 - sides_of / 2)
    classes = np.where(there, random.integers(0, CLASSES, there.shape), -1)
    made.append({
        "image": random.standard_normal((size.rows, size.res, size.res, 3), np.float32),
        "size": np.full((size.rows, 2), size.res, np.int32),
        "boxes": np.where(there[..., None], np.concatenate([centres, sides_of], -1), 0).astype(
            np.float32),
        "box_classes": classes.astype(np.int32), "real": np.ones((size.rows, 1), np.int32)})
  return made


class System(sides.Rows):
  """One side. An image is the unit.

  Args:
    size, state, hf_config: as for `sides.Rows`.
    matched: whether objects are matched with queries; else they go to the first ones.
  """
  noise, clip_norm = staticmethod(batches), CLIP

  def __init__(self, size: Size, state=None, hf_config=None, matched: bool = True):
    self.matched = matched
    super().__init__(size, state, hf_config)


class Jtx(sides.ProgramSide, System):
  """Our side."""

  def start(self, state) -> None:
    self.make(make_config(self.size), CLASSES, batches(self.size, 1)[0],
              *([] if self.matched else [in_order]))


def in_order(objective):
  """The objective with object n of an image at query n."""
  import jax.numpy as jnp

  class InOrder(type(objective)):
    def matched(self, found, batch, is_box):
      numbers = jnp.arange(is_box.shape[1], dtype=jnp.int32)
      return jnp.broadcast_to(numbers, (len(found["boxes"]), *is_box.shape))

  return InOrder(**{name: getattr(objective, name) for name in objective.__dataclass_fields__})


class Transformers(sides.TorchRows, System):
  """DetrForObjectDetection, eager; its matching is SciPy's."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    config = transformers.DetrConfig(**self.hf | {"auxiliary_loss": True})
    self.model = self.pretrained(transformers.DetrForObjectDetection, config, state)
    self.start_training(lr=LEARNING_RATE)

  def placed(self, batch):
    labels = [{"boxes": self.tensor(boxes[classes >= 0]),
               "class_labels": self.tensor(classes[classes >= 0]).long()}
              for boxes, classes in zip(batch["boxes"], batch["box_classes"])]
    image = self.images(batch["image"])
    return {"pixel_values": image, "labels": labels,
            "pixel_mask": self.torch.ones_like(image[:, 0]).long()}


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
  result = {"suite": "detr", "size": size._asdict(), "rounds": rounds,
            "machine": harness.machine()}
  if "step" in parts:
    result["step"] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, "detr", "images_per_s", rounds, steps,
        result["machine"], size=size)
  if "matching" in parts:
    result["matching"] = matching(size, rounds, steps)
  return result


def matching(size: Size, rounds: int, steps: int) -> dict[str, Any]:
  """Images a second with the matching and without it, and its share of an update's time."""
  with contextlib.ExitStack() as stack:
    workers = {name: stack.enter_context(contextlib.closing(
        harness.Worker(Jtx, size=size, matched=matched)))
               for name, matched in (("matched", True), ("in_order", False))}
    harness.warm_up(workers.values())
    values = harness.alternate(rounds, {name: functools.partial(worker.call, "turn", steps)
                                        for name, worker in workers.items()})
  medians = {name: harness.median(rates) for name, rates in values.items()}
  return {"images_per_s": medians, "all": values,
          "share": 1 - medians["matched"] / medians["in_order"]}
