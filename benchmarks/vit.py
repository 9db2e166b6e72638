"""Training ViT: jtx beside `transformers` on PyTorch, and its input pipeline beside a plain loop.

In "step" both have the same network, weights, optimiser, images and labels. In "images" JPEGs of
500 x 375 pixels are decoded, cropped at random to 224 and flipped: by jtx as it feeds a run, and
by `datasets` with Pillow, an image after the other, as a user without torchvision would. Beside
them jtx does what the recipes of RECIPES add to that.
"""

import functools
import importlib
import io
import os
import tempfile
import time
from typing import Any, NamedTuple, Sequence

import numpy as np

from benchmarks import harness, sides

LEARNING_RATE, CLIP, CLASSES = 1e-4, 1.0, 1000
PARTS = ("step", "images")
PEERS = ("transformers", "transformers_compiled")
RECIPES = ("vit_b16", "deit", "deit3")  # configs whose augmentations are timed
SIDES = (500, 375)  # width and height of a JPEG
AHEAD = 12  # batches before a turn's time starts: more than a pipeline has read ahead meanwhile


class Size(NamedTuple):
  model: str  # a size of configs/vit.py
  patch: int
  res: int  # pixels of a side
  rows: int = 8  # of a batch
  dtype: str = "auto"  # of products, in all systems
  unroll: int = -1  # layers in jtx
  images: int = 256  # JPEGs that a turn reads


SIZES = {"base": Size("b", 16, 224), "tiny": Size("ti", 4, 16, images=32)}


def make_config(size: Size):
  from configs import common, vit
  c = common.apply(vit.get_config(
      f"{size.model},patch={size.patch},res={size.res},batch={size.rows}"), {
      "steps": 1000, "optim.lr": LEARNING_RATE, "optim.schedule": common.schedule("constant"),
      "model.head": {"outputs": CLASSES, "zero": False}, "model.stack.unroll": size.unroll,
      "model.dtype": size.dtype, "optim.optimizer.weight_decay": 0.01, "optim.optimizer.eps": 1e-8})
  return c.lock()


def batches(size: Size, number: int) -> list[dict[str, np.ndarray]]:
  """Noise, since only its shape matters."""
  random = np.random.default_rng(0)
  shape = (size.rows, size.res, size.res, 3)
  return [{"image": random.standard_normal(shape, np.float32),
           "label": random.integers(0, CLASSES, (size.rows, 1)).astype(np.int32),
           "real": np.ones((size.rows, 1), np.int32)} for _ in range(number)]


class System(sides.Rows):
  """One side. An image is the unit."""
  noise, clip_norm = staticmethod(batches), CLIP


class Jtx(sides.ProgramSide, System):
  """Our side."""

  def start(self, state) -> None:
    self.make(make_config(self.size), CLASSES, batches(self.size, 1)[0])

  def hf_config(self) -> dict[str, Any]:
    return {key: value for key, value in super().hf_config().items()
            if key not in ("image_mean", "image_std")}


class Transformers(sides.TorchRows, System):
  """ViTForImageClassification, eager."""

  def start(self, state) -> None:
    import transformers
    self.open(self.size.dtype)
    self.model = self.pretrained(transformers.ViTForImageClassification,
                                 transformers.ViTConfig(**self.hf), state)
    self.start_training(lr=LEARNING_RATE)

  def placed(self, batch):
    return {"pixel_values": self.images(batch["image"]),
            "labels": self.tensor(batch["label"][:, 0]).long()}


class TransformersCompiled(Transformers):
  compiled = True


SYSTEMS = {"transformers": Transformers, "transformers_compiled": TransformersCompiled}


# ------------------------------------------------------------------------------- images


def write_images(folder: str, number: int) -> None:
  """JPEGs in the folders of two classes: smooth noise, which is about as large as photographs."""
  from PIL import Image
  random = np.random.default_rng(0)
  for i in range(number):
    place = os.path.join(folder, f"class_{i % 2}")
    os.makedirs(place, exist_ok=True)
    small = random.integers(0, 256, (SIDES[1] // 4, SIDES[0] // 4, 3)).astype(np.uint8)
    Image.fromarray(small).resize(SIDES, Image.Resampling.BICUBIC).save(
        os.path.join(place, f"{i}.jpg"), quality=87)


class Pipeline:
  """Images a second of jtx, read ahead as in a run; `config` is the name of one."""

  def __init__(self, config: str, folder: str, batch_size: int, workers: int):
    from jtx.config import ConfigDict
    from jtx.data import pipeline
    from jtx.data.dataset import Dataset
    c = importlib.import_module(f"configs.{config}").get_config(f"b,train=images:{folder}")
    stream = Dataset(ConfigDict(c.data), c.tokenizer).train_stream(0, batch_size, range(batch_size))
    self.batches = pipeline.iterate(stream, 0, 1_000_000, threads=c.data.threads, workers=workers)

  def turn(self, number: int) -> float:
    for _ in range(AHEAD):
      next(self.batches)
    start, seen = time.perf_counter(), 0
    while seen < number:
      seen += len(next(self.batches)["image"])
    return seen / (time.perf_counter() - start)


class Loop:
  """Images a second of `datasets` and Pillow."""

  def __init__(self, folder: str, batch_size: int):
    import datasets
    paths = sorted(os.path.join(place, name) for place, _, names in os.walk(folder)
                   for name in names)
    table = datasets.Dataset.from_dict({
        "image": paths, "label": [int(p.split("class_")[1][0]) for p in paths]})
    self.dataset = table.with_transform(functools.partial(self.transform, np.random.default_rng(0)))
    self.batch_size = batch_size

  @staticmethod
  def transform(random, rows):
    from PIL import Image, ImageOps
    images = []
    for path in rows["image"]:
      with open(path, "rb") as f:
        image = Image.open(io.BytesIO(f.read())).convert("RGB")
      width, height = image.size
      for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = round((area * ratio) ** 0.5), round((area / ratio) ** 0.5)
        if w <= width and h <= height:
          break
      else:
        w, h = min(width, height), min(width, height)
      x, y = random.integers(0, width - w + 1), random.integers(0, height - h + 1)
      image = image.resize((224, 224), Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
      images.append(np.asarray(ImageOps.mirror(image) if random.random() < 0.5 else image))
    return {"image": images, "label": rows["label"]}

  def turn(self, number: int) -> float:
    self.read(AHEAD * self.batch_size)
    start = time.perf_counter()
    self.read(number)
    return number / (time.perf_counter() - start)

  def read(self, number: int) -> None:
    for at in range(0, number, self.batch_size):
      rows = [i % len(self.dataset) for i in range(at, at + self.batch_size)]
      np.stack(self.dataset[rows]["image"])


# ------------------------------------------------------------------------------- running


def run(size: Size, parts: Sequence[str], peers: Sequence[str], rounds: int, steps: int,
        workers: int) -> dict[str, Any]:
  """Measures, and returns values for JSON.

  Args:
    size: of the model and of a batch.
    parts: of PARTS.
    peers: of PEERS.
    rounds: turns of each system.
    steps: updates of a turn.
    workers: processes of jtx's pipeline.
  """
  result = {"suite": "vit_b16", "size": size.model, "rounds": rounds, "machine": harness.machine()}
  if "step" in parts:
    result["step"] = harness.train_beside(
        Jtx, {name: SYSTEMS[name] for name in peers}, "vit", "images_per_s", rounds, steps,
        result["machine"], size=size)
  if "images" in parts:
    result["images"] = measure_images(size, rounds, workers)
  return result


def measure_images(size: Size, rounds: int, workers: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    write_images(folder, size.images)
    # Ours is not in a worker, which could have no workers of its own.
    peer = harness.Worker(Loop, folder=folder, batch_size=size.rows)
    pipelines = {"jtx": "vit"} | {f"jtx_{name}": name for name in RECIPES}
    pipeline = lambda config: Pipeline(config, folder, size.rows, workers)
    turns = {system: functools.partial(pipeline(config).turn, size.images)
             for system, config in pipelines.items()}
    turns["datasets"] = functools.partial(peer.call, "turn", size.images)
    for turn in turns.values():
      turn()
    values = harness.alternate(rounds, turns)
    peer.close()
  return {"images_per_s": {name: harness.median(rates) for name, rates in values.items()},
          "all": values, "ratio": harness.ratio(values, "jtx", "datasets")}
