"""Classification and regression on a split, with the metrics of GLUE (Wang et al. 2019)."""

import dataclasses
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from jtx.data.dataset import spread
from jtx.errors import ConfigError, nearest
from jtx.evals import scores
from jtx.evals.task import Task
from jtx.inference.texts import Predictor

SCORES = {"accuracy": scores.accuracy, "f1": scores.f1, "matthews": scores.matthews,
          "pearson": scores.pearson, "spearman": scores.spearman}


@dataclasses.dataclass(frozen=True)
class Classification:
  """Of classes the likeliest is scored, of a single output the number itself."""
  source: tuple[str, ...]
  scores: tuple[str, ...] = ("accuracy",)  # keys of SCORES; f1 is of class 1
  every: int = 0  # steps; 0 is at the end only
  samples: int = 0  # predictions to show

  heads = frozenset({"classes"})  # of the model
  keys = ()  # of a batch

  def __post_init__(self):
    for name in self.scores:
      if name not in SCORES:
        raise ConfigError(f"evals: scores={self.scores} has {name!r}; {nearest(name, SCORES)}")

  def __call__(self, task: Task, params) -> Iterator[tuple[str, float | str]]:
    examples = task.data.encoded(self.source)
    outputs = Predictor(task.model, params, mesh=task.mesh)(examples)
    yield from self.score(examples, outputs, task.data.labels)

  def score(self, examples: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str] = ()) -> Iterator[tuple[str, float | str]]:
    """Scores of the outputs [classes], or [1], of each example."""
    outputs = np.stack(outputs)
    references = np.array([e["label"] for e in examples])
    predictions = outputs[:, 0] if outputs.shape[1] == 1 else outputs.argmax(1)
    for name in self.scores:
      yield name, SCORES[name](predictions, references)
    yield "examples", len(examples)
    show = lambda value: names[value] if names else f"{value:.4g}"
    for i, place in enumerate(spread(range(len(examples)), self.samples)):
      wrong = (f" (not: {show(references[place])})"
               if names and predictions[place] != references[place] else "")
      yield f"sample_{i}", f"{examples[place]['id']}: {show(predictions[place])}{wrong}"
