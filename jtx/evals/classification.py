"""Classification, multi-label too, and regression on a split of texts or images: scores by name."""

import dataclasses
import math
from typing import Any, Iterator, Mapping, Sequence

from absl import logging
import numpy as np

from jtx.data.dataset import spread
from jtx.errors import ConfigError, nearest
from jtx.evals import class_scores
from jtx.evals.class_records import records
from jtx.evals.class_scores import SCORES
from jtx.evals.images import values
from jtx.evals.task import Task
from jtx.figures.confusion import confusion_matrix
from jtx.inference.texts import Predictor
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class Classification:
  """Of classes the likeliest is scored, of a single output the number itself."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  scores: tuple[str, ...] = ("accuracy",)  # of jtx/evals/class_scores.py
  every: CountOrNone = 0  # steps; 0 is at the end only
  samples: CountOrNone = 0  # predictions to show
  report: bool = False  # precision, recall and F1 of each class, and the confusion matrix

  heads = frozenset({"classes"})  # of the model
  keys = ()  # of a batch

  def __post_init__(self):
    for name in self.scores:
      if name not in SCORES:
        raise ConfigError(f"evals: scores={self.scores} has {name!r}; {nearest(name, SCORES)}")
      class_scores.arguments(name)

  @property
  def numbers(self) -> tuple[str, ...]:
    """The names of its scores; one that is not defined is left out."""
    return self.scores

  def check_model(self, model: Any) -> None:
    """Raises ConfigError where a score, or the report, is not of what the model predicts."""
    multi_label = "multi_label" in self.heads
    for name in self.scores:
      class_scores.check(name, model.head.outputs, multi_label)
    if self.report and model.head.outputs == 1 and not multi_label:
      raise ConfigError("evals: report=True is of classes, and the model predicts a number")

  def __call__(self, task: Task, params) -> Iterator[tuple[str, Any]]:
    examples, outputs = predicted(task, params, self.source)
    yield from self.score(examples, outputs, task.data.labels, task.model.head.threshold)
    yield "predictions", records(examples, outputs, task.data.labels,
                                 task.model.head.threshold)

  def score(self, examples: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str] = (), threshold: float = 0.5) -> Iterator[tuple[str, Any]]:
    """Scores of the outputs [classes], or [1], of each example, and what else is asked for."""
    found = class_scores.outcome(np.stack(outputs), np.stack([e["label"] for e in examples]),
                                 names, threshold)
    for name in self.scores:
      value = class_scores.compute(name, found)
      if math.isfinite(value):
        yield name, value
      else:
        logging.warning("%s: %s is not defined, so it is left out: an area under the curve needs"
                        " examples that have a class and others that do not",
                        ", ".join(self.source), name)
    yield "examples", len(examples)
    if self.report:
      yield "report", class_scores.report(found)
      table = class_scores.confusion(found)
      yield "confusion", table
      if found.gold.ndim == 1:
        yield "confusion", confusion_matrix(np.array(list(table.rows.values())), names)
    yield from self.shown(examples, found)

  def shown(self, examples: Sequence[Mapping[str, Any]],
            found: class_scores.Outcome) -> Iterator[tuple[str, str]]:
    """Some predictions, with what would be right."""
    gold, predictions, _, names = found
    show = lambda value: told(value, names)
    for i, place in enumerate(spread(range(len(examples)), self.samples)):
      wrong = (f" (not: {show(gold[place])})"
               if names and np.any(predictions[place] != gold[place]) else "")
      yield f"sample_{i}", f"{examples[place]['id']}: {show(predictions[place])}{wrong}"


@dataclasses.dataclass(frozen=True)
class MultiLabel(Classification):
  """Of labels that do not exclude one another those are predicted that reach head.threshold."""
  scores: tuple[str, ...] = ("accuracy", "micro_f1", "macro_f1")

  heads = frozenset({"multi_label"})  # of the model


def told(value: Any, names: Sequence[str]) -> str:
  """A class by name, labels [C] by theirs, or a number."""
  if np.ndim(value):
    return " + ".join(name for name, has in zip(names, value) if has) or "none"
  return names[value] if names else f"{value:.4g}"


def predicted(task: Task, params: Any, source: Sequence[str],
              ) -> tuple[Sequence[Mapping[str, Any]], Sequence[np.ndarray]]:
  """The examples of a split, each with `id` and `label`, and the head's outputs [C] of each.

  An image that can't be decoded is left out.
  """
  if not task.data.recipe.augment:
    examples = task.data.encoded(source)
    return examples, Predictor(task.model, params, mesh=task.mesh)(examples)
  outputs, labels = values(task, params, tuple(source), "predict")
  return [{"id": i, "label": label} for i, label in enumerate(labels)], outputs
