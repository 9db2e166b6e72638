"""The best answers to a question: spans of its context, by the logits of their start and end."""

from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np


class Answer(NamedTuple):
  text: str  # "" says that there is none
  score: float  # sum of the logits of start and end
  start: int  # character of the context
  end: int


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
