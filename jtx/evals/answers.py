"""Question answering on a split: exact match and F1 of SQuAD."""

import dataclasses
from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from jtx.evals import scores
from jtx.evals.task import Record, Task
from jtx.inference.answers import best_answers
from jtx.inference.texts import Predictor
from jtx.ranges import CountOrNone, Size


@dataclasses.dataclass(frozen=True)
class Answers:
  """The best span over the windows of a context (Devlin et al. 2019, sections 4.2 and 4.3).

  With `no_answer` the score of the first token's span is that of having no answer (the
  smallest over the windows), and the difference to the best span is held against
  `threshold`; the best threshold for the split is told beside.
  """
  source: tuple[str, ...]  # the split: sources, as data.train has them
  n_best: Size = 20  # starts and ends that are combined, a window
  max_answer: Size = 30  # tokens
  no_answer: bool = False  # SQuAD 2.0: some questions have none
  threshold: float = 0.0  # with no_answer, it must score higher than the best span by so much
  every: CountOrNone = 0  # steps; 0 is at the end only

  heads = frozenset({"span"})  # of the model
  keys = ()  # of a batch

  def __call__(self, task: Task, params) -> Iterator[tuple[str, float]]:
    windows = task.data.encoded(self.source)
    outputs = Predictor(task.model, params, mesh=task.mesh)(windows)
    yield from self.score(windows, outputs)
    yield "predictions", self.records(windows, outputs)

  def score(self, windows: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """Scores of the outputs [T, 2] of each window; there are no names."""
    del names
    best, differences = self.best(windows, outputs)
    references = references_of(windows)
    predictions = self.decided(best, differences)
    yield from scores.squad_em_f1(predictions, references).items()
    if self.no_answer:
      yield from scores.best_no_answer_threshold(best, references, differences).items()
    yield "questions", len(references)

  def best(self, windows: Sequence[Mapping[str, Any]],
           outputs: Sequence[np.ndarray]) -> tuple[dict[Any, str], dict[Any, float]]:
    """By id the best answer that is not "", and how much likelier it is that there is none."""
    best, differences = {}, {}
    for question, places in by_id(windows).items():
      found = best_answers([windows[i] for i in places], [outputs[i] for i in places], self.n_best,
                           self.max_answer)
      best[question] = found[0].text if found else ""
      none = min(float(outputs[i][0].sum()) for i in places)
      differences[question] = none - (found[0].score if found else -np.inf)
    return best, differences

  def decided(self, best: Mapping[Any, str], differences: Mapping[Any, float]) -> dict[Any, str]:
    """The answers, "" where there is none by the threshold."""
    if not self.no_answer:
      return dict(best)
    return {q: "" if differences[q] > self.threshold else a for q, a in best.items()}

  def records(self, windows: Sequence[Mapping[str, Any]],
              outputs: Sequence[np.ndarray]) -> Iterator[Record]:
    best, differences = self.best(windows, outputs)
    answers, references = self.decided(best, differences), references_of(windows)
    for question, places in by_id(windows).items():
      found = scores.squad_em_f1({question: answers[question]}, {question: references[question]})
      yield {"id": question, "question": windows[places[0]]["question"],
             "gold": references[question], "prediction": answers[question],
             "correct": found["exact_match"] == 1,
             "scores": {"f1": found["f1"], "no_answer": differences[question]}}


def references_of(windows: Sequence[Mapping[str, Any]]) -> dict[Any, list[str]]:
  """The right answers to each question, by its id."""
  return {w["id"]: [a["text"] for a in w["answers"]] for w in windows}


def by_id(windows: Sequence[Mapping[str, Any]]) -> dict[Any, list[int]]:
  groups: dict[Any, list[int]] = {}
  for i, window in enumerate(windows):
    groups.setdefault(window["id"], []).append(i)
  return groups
