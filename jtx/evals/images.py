"""Image classification: scores of the head's classes, probes of frozen features, throughput."""

import dataclasses
import functools
import time
from typing import Any, Iterator

import flax.linen as nn
import jax
import numpy as np

from jtx.errors import ConfigError
from jtx.evals import scores
from jtx.evals.class_records import records
from jtx.evals.task import Task
from jtx.parallel import processes
from jtx.ranges import Count, CountOrNone, NotNegative, Positive, Seed, Size, SizeOrNone


@functools.partial(jax.jit, static_argnums=(0, 1))
def run(method: str, model: nn.Module, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
  return model.apply({"params": params}, batch, method=method)


def values(task: Task, params: Any, source: tuple[str, ...],
           method: str) -> tuple[np.ndarray, np.ndarray]:
  """The outputs of a method of the model for each image [N, D], and the classes [N]."""
  found, labels, ids = [], [], []
  for batch in task.batches(source):
    inputs = [k for k in task.model.example() if k in batch]  # towers can do without texts
    batch = {k: batch[k] for k in (*inputs, "label", "real")} | {"ids": np.int32(batch["ids"])}
    batch = task.to_device(batch)
    outputs = run(method, task.model, params, {k: batch[k] for k in inputs})
    outputs, *told = processes.to_host((outputs, batch["label"], batch["ids"], batch["real"]))
    label, number, real = told
    found.append(outputs.reshape(*real.shape, -1)[real > 0])
    labels.append(label[real > 0])
    ids.append(number[real > 0])
  order = np.argsort(np.concatenate(ids))  # rows of several images are in another
  return np.concatenate(found)[order], np.concatenate(labels)[order]


@dataclasses.dataclass(frozen=True)
class Images:
  """Top-1 and top-5 accuracy, the loss in nats and the calibration error of the head's classes."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only
  bins: Size = 15  # of the calibration error
  sigmoid: bool = False  # scores are of classes that do not exclude one another

  heads = frozenset({"classes"})  # of the model
  keys = ("real", "label")  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    outputs, labels = values(task, params, self.source, "predict")
    yield from self.score(outputs, labels)
    examples = [{"id": i, "label": label} for i, label in enumerate(labels)]
    yield "predictions", records(examples, outputs, task.data.labels)

  def score(self, outputs: np.ndarray, labels: np.ndarray) -> Iterator[tuple[str, float]]:
    """Of scores [N, C] and classes [N]."""
    outputs = outputs.astype(np.float64)
    best = outputs.max(-1, keepdims=True)
    log_p = outputs - best - np.log(np.exp(outputs - best).sum(-1, keepdims=True))
    if self.sigmoid:
      log_p = -np.logaddexp(0, -outputs)
    yield "accuracy", float((outputs.argmax(-1) == labels).mean())
    if outputs.shape[1] > 5:
      yield "top5_accuracy", scores.top_accuracy(outputs, labels, 5)
    yield "nll", float(-log_p[np.arange(len(labels)), labels].mean())
    yield "calibration_error", scores.calibration_error(np.exp(log_p), labels, self.bins)
    yield "examples", len(labels)


@dataclasses.dataclass(frozen=True)
class Probes:
  """Classification from frozen features: by their nearest neighbours, and by few-shot regression.

  The latter is the linear map to targets -1 and 1 with the least squares, from `shots` images of
  each class (Dosovitskiy et al. 2020, section 4.1). Features are what the head pools, normalised
  to length 1 for neighbours, and to mean 0 and variance 1 in each place for the map.
  """
  train: tuple[str, ...]  # sources of the images that probes are fitted to
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only
  shots: tuple[Size, ...] = (5, 10)  # images of a class that the linear map is fitted to
  neighbours: SizeOrNone = 20  # vote by exp(cosine / temperature) (Wu et al. 2018); 0: no vote
  temperature: Positive = 0.07  # of the neighbours' votes
  l2: NotNegative = 1024.0  # weight of the map's squared norm beside the squared errors
  seed: Seed = 0  # of which images are taken

  heads = frozenset()  # of the model
  keys = ("real", "label")  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    train, train_labels = values(task, params, self.train, "features")
    test, labels = values(task, params, self.source, "features")
    classes = int(max(train_labels.max(), labels.max())) + 1
    if self.neighbours:
      yield f"nearest_{self.neighbours}", scores.neighbour_accuracy(
          train, train_labels, test, labels, min(self.neighbours, len(train)), self.temperature)
    generator = np.random.default_rng(self.seed)
    order = generator.permutation(len(train))
    for shots in self.shots:
      chosen = [order[train_labels[order] == c][:shots] for c in range(classes)]
      if min(map(len, chosen)) < shots:
        raise ConfigError(f"evals: shots={self.shots}, but a class of {', '.join(self.train)} has"
                          f" only {min(map(len, chosen))} images")
      places = np.concatenate(chosen)
      yield f"linear_{shots}_shot", scores.linear_accuracy(
          train[places], train_labels[places], test, labels, self.l2)


@dataclasses.dataclass(frozen=True)
class Throughput:
  """Images a second that the model answers for, of a batch that is there already."""
  rounds: Count = 5  # batches that are timed; the median counts
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset()  # of the model
  keys = ("image",)  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    example = task.data.example_batch(task.padded_size)["image"]
    batch = task.to_device({"image": example[task.rows]})
    seconds = []
    for _ in range(self.rounds + 1):  # the first compiles
      start = time.perf_counter()
      run("predict", task.model, params, batch).block_until_ready()
      seconds.append(time.perf_counter() - start)
    yield "images_per_second", task.padded_size / float(np.median(seconds[1:]))
