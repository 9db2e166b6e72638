"""Pictures of what small models of digits have learned, whose numbers are in trained.json.

  python -m docs.pictures.trained rollout reconstruction  trains these models anew, in minutes
  python -m docs.pictures.trained queries --mnist=F       a quarter of an hour; F is mnist_train.npz
"""

import argparse
import json
import pathlib
import tempfile

import jax
import numpy as np

from configs import common, detr, vit_digits
from jtx.evals import detection, pictures
from jtx.figures.boxes import Drawn, boxed
from jtx.figures.images import reconstructions
from jtx.saved.workdir import load_run
from jtx.train import loop

TRAINED = pathlib.Path(__file__).parent / "trained.json"
NUMBER = 6  # images of a picture
STRIDE = 8  # pixels of a place that a query of the detector attends to
MAE = {  # edits of vit_digits.py
    "model.head": {"task": "none", "zero": False, "pool": "first"},
    "model.decoder": {"num_layers": 2, "width": 32, "num_heads": 4, "ffn_dim": 64, "masked": 0.5,
                      "normalize": False},
    "objective": common.objective("mae"),
    "evals.val": common.evaluator("loss", source=("embedded:digits:test",), every=0)}


def trained(config, edits):
  """The task and parameters of a run, and its first test images, in batches of one."""
  common.apply(config, edits)
  with tempfile.TemporaryDirectory() as workdir:
    loop.run(config.lock(), workdir)
    task, params, _ = load_run(workdir)
  batches = task.data.eval_batches(tuple(config.evals.val.source), 1, range(1))
  return task, params, [next(batches) for _ in range(NUMBER)]


def of_digits(edits):
  task, params, batches = trained(vit_digits.get_config(), edits)
  return task.model, params, np.concatenate([batch["image"] for batch in batches])


def rollout() -> dict:
  model, params, images = of_digits({"epochs": 60.0})
  return {"images": images, "maps": pictures.rolled_out(model, params, images)}


def reconstruction() -> dict:
  model, params, images = of_digits({"epochs": 60.0, **MAE})
  hidden, predicted = pictures.reconstructed(model, params, images)
  return {"images": images, "hidden": hidden.astype(int), "predicted": predicted}


def queries(mnist: str) -> dict:
  """Of the image with most digits."""
  digits = f"scattered:{mnist}:rows"
  task, params, batches = trained(detr.get_config(
      f"digits,epochs=3,train={digits}[:90%],val={digits}[90%:]"), {"evals.val.every": 0})
  batch = max(batches, key=lambda batch: (batch["box_classes"] >= 0).sum())
  found = detection.attended(task.model, params, batch, task.data.labels)
  return {"image": batch["image"][0, ..., 0], "names": list(task.data.labels),
          "found": [[x.query, x.drawn._asdict(), x.places[::STRIDE, ::STRIDE]] for x in found]}


def plain(value):
  """For JSON, in thousandths."""
  if isinstance(value, dict):
    return {key: plain(x) for key, x in value.items()}
  if isinstance(value, list | tuple):
    return [plain(x) for x in value]
  if isinstance(value, np.ndarray | jax.Array):
    return plain(np.asarray(value).tolist())
  return round(value, 3) if isinstance(value, float) else value


def read(name: str) -> dict:
  return json.loads(TRAINED.read_text("utf-8"))[name]


def draw_rollout():
  told = read("rollout")
  images, none = [np.array(image, np.uint8) for image in told["images"]], [()] * NUMBER
  maps = [None] * NUMBER + told["maps"]
  return boxed(images * 2, none * 2, most=NUMBER, maps=maps)


def draw_reconstruction():
  told = read("reconstruction")
  return reconstructions(np.array(told["images"][:4]) / 255, told["hidden"][:4],
                         told["predicted"][:4])


def draw_queries():
  told = read("queries")
  found = [detection.Attended(query, Drawn(**drawn), np.array(places))
           for query, drawn, places in told["found"]]
  return detection.drawn_queries(np.array(told["image"], np.uint8), found, told["names"])


FIGURES = {"rollout": draw_rollout, "reconstruction": draw_reconstruction, "queries": draw_queries}


def main() -> None:
  parser = argparse.ArgumentParser()
  parser.add_argument("names", nargs="+", choices=list(FIGURES))
  parser.add_argument("--mnist", help="of queries: the file of MNIST's training images")
  args = parser.parse_args()
  made = json.loads(TRAINED.read_text("utf-8")) if TRAINED.exists() else {}
  makers = {"rollout": rollout, "reconstruction": reconstruction,
            "queries": lambda: queries(args.mnist)}
  for name in args.names:
    made[name] = plain(makers[name]())
  TRAINED.write_text(json.dumps(made), "utf-8")


if __name__ == "__main__":
  main()
