"""Classification of images by texts that name the classes (Radford et al. 2021, section 3.1)."""

import dataclasses
import functools
from typing import Any, Iterator

import jax
import numpy as np

from jtx.data import pipeline
from jtx.errors import ConfigError
from jtx.evals.class_records import records
from jtx.evals.images import Images, run
from jtx.evals.task import Task
from jtx.inference.towers import class_vectors
from jtx.parallel import processes
from jtx.ranges import CountOrNone


@functools.partial(jax.jit, static_argnums=0)
def scores(model: Any, params: Any, images: jax.Array, texts: jax.Array) -> jax.Array:
  return model.apply({"params": params}, images, texts, method="scores")


@dataclasses.dataclass(frozen=True)
class ZeroShot:
  """Accuracy and the like of the nearest class, as the evaluator "images" has them.

  A class is the mean of the vectors of its name in each template, made of length 1. Names are
  those of the sources, with spaces for underscores.
  """
  source: tuple[str, ...]  # images with classes: sources, which need no texts
  templates: tuple[str, ...] = ("a photo of a {}.",)  # texts, in which {} is the name of a class
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"image_text"})  # of the model
  keys = ("image", "text")  # of a batch
  of_classes = True  # whose images have no texts, so it is of no other evaluator's source

  def __post_init__(self):
    if not self.templates or any(text.count("{}") != 1 for text in self.templates):
      raise ConfigError(f"evals: templates={self.templates} must be texts with one {{}} each, where"
                        " the name of a class stands")

  def check_data(self, data: Any) -> None:
    """Raises DataError where the sources can't be used."""
    data.classified(self.source)

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    recipe, images = task.data.classified(self.source)
    encode = task.data.recipe.maker.encode
    classes = class_vectors(task.model, params, encode, recipe.names, self.templates,
                            task.padded_size)
    outputs, labels = [], []
    for batch in pipeline.eval_batches(images, recipe, task.batch_size, task.rows,
                                       threads=task.data.data.threads):
      batch = task.to_device({k: batch[k] for k in ("image", "label", "real")})
      vectors = run("embed_images", task.model, params, {"image": batch["image"]})
      found, label, real = processes.to_host((scores(task.model, params, vectors, classes),
                                              batch["label"], batch["real"]))
      outputs.append(found[real[:, 0] > 0])
      labels.append(label[real[:, 0] > 0, 0])
    outputs, labels = np.concatenate(outputs), np.concatenate(labels)
    yield from Images(self.source).score(outputs, labels)
    examples = [{"id": i, "label": label} for i, label in enumerate(labels)]
    yield "predictions", records(examples, outputs, recipe.names)
