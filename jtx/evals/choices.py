"""Multiple choice on a split: accuracy of the choice with the highest score."""

import dataclasses
from typing import Any, Iterator

import numpy as np

from jtx.evals.class_records import records
from jtx.evals.task import Task
from jtx.inference.texts import Predictor
from jtx.ranges import CountOrNone


@dataclasses.dataclass(frozen=True)
class Choices:
  """The best of the texts that op encode_choices makes of a prompt and its choices."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"choice"})  # of the model
  keys = ("choice_0", "label")  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, Any]]:
    examples = task.data.encoded(self.source)
    number = sum(f"choice_{i}" in examples[0] for i in range(len(examples[0])))
    texts = [{"text": e[f"choice_{i}"], "text_types": e[f"choice_{i}_types"]}
             for e in examples for i in range(number)]
    outputs = np.stack(Predictor(task.model, params, mesh=task.mesh)(texts))
    scores = outputs.reshape(len(examples), number)
    gold = np.array([e["label"] for e in examples])
    yield "accuracy", float((scores.argmax(-1) == gold).mean())
    yield "examples", len(examples)
    yield "predictions", records(examples, list(scores))
