"""Answers to the questions of a split: exact match and F1 of SQuAD."""

import dataclasses
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from jtx.evals import scores
from jtx.evals.task import Task
from jtx.inference.texts import Predictor


class Answer(NamedTuple):
  text: str  # "" says that there is none
  score: float  # sum of the logits of start and end
  start: int  # character of the context
  end: int


@dataclasses.dataclass(frozen=True)
class Answers:
  """The best span over the windows of a context (Devlin et al. 2019, sections 4.2 and 4.3).

  With `no_answer` the score of the first token's span is that of having no answer (the
  smallest over the windows), and the difference to the best span is held against
  `threshold`; the best threshold for the split is told beside.
  """
  source: tuple[str, ...]
  n_best: int = 20  # starts and ends that are combined, a window
  max_answer: int = 30  # tokens
  no_answer: bool = False  # SQuAD 2.0: some questions have none
  threshold: float = 0.0
  every: int = 0  # steps; 0 is at the end only

  def __call__(self, task: Task, params) -> Iterator[tuple[str, float]]:
    windows = task.data.encoded(self.source)
    outputs = Predictor(task.model, params, mesh=task.mesh)(windows)
    yield from self.score(windows, outputs)

  def score(self, windows: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str] = ()) -> Iterator[tuple[str, float]]:
    """Scores of the outputs [T, 2] of each window; there are no names."""
    del names
    best, differences = {}, {}
    for question, places in by_id(windows).items():
      found = best_answers([windows[i] for i in places], [outputs[i] for i in places], self.n_best,
                           self.max_answer)
      best[question] = found[0].text if found else ""
      none = min(float(outputs[i][0].sum()) for i in places)
      differences[question] = none - (found[0].score if found else -np.inf)
    references = {w["id"]: [a["text"] for a in w["answers"]] for w in windows}
    predictions = best
    if self.no_answer:
      predictions = {q: "" if differences[q] > self.threshold else a for q, a in best.items()}
    yield from scores.squad_em_f1(predictions, references).items()
    if self.no_answer:
      yield from scores.best_no_answer_threshold(best, references, differences).items()
    yield "questions", len(references)


def by_id(windows: Sequence[Mapping[str, Any]]) -> dict[Any, list[int]]:
  groups: dict[Any, list[int]] = {}
  for i, window in enumerate(windows):
    groups.setdefault(window["id"], []).append(i)
  return groups


def best_answers(windows: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray], n_best: int,
                 max_answer: int) -> list[Answer]:
  """The best spans of one question, best first, each text once.

  Args:
    windows: of the question, with `text_offsets` [T, 2], -1 outside of the context.
    outputs: [T, 2] of each: logits of a span's start and end.
    n_best: starts and ends that are combined, and answers returned.
    max_answer: tokens of an answer.
  """
  found: dict[tuple[int, int], float] = {}
  for window, logits in zip(windows, outputs):
    offsets = np.asarray(window["text_offsets"])
    inside = np.flatnonzero(offsets[:, 0] >= 0)
    starts, ends = (inside[np.argsort(-logits[inside, side], kind="stable")[:n_best]]
                    for side in (0, 1))
    for start in starts:
      for end in ends[(ends >= start) & (ends < start + max_answer)]:
        span = int(offsets[start, 0]), int(offsets[end, 1])
        score = float(logits[start, 0] + logits[end, 1])
        found[span] = max(score, found.get(span, -np.inf))
  answers: dict[str, Answer] = {}
  for (start, end), score in sorted(found.items(), key=lambda item: -item[1]):
    text = windows[0]["context"][start:end].strip()
    if text and text not in answers:
      answers[text] = Answer(text, score, start, end)
    if len(answers) == n_best:
      break
  return list(answers.values())
