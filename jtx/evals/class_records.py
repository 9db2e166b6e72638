"""Records of predicted classes, labels and numbers, an example each."""

from typing import Any, Iterator, Mapping, Sequence

import numpy as np

from jtx.evals.task import Record
from jtx.inference.predictions import prediction


def records(examples: Sequence[Mapping[str, Any]], outputs: Sequence[np.ndarray],
            names: Sequence[str] = (), threshold: float = 0.5) -> Iterator[Record]:
  """A record of each example, of which `label` is right.

  Args:
    examples: with `id`, and `label`: a class, a number, or [C] of 0 and 1.
    outputs: of the head for each, [C], or [1] of numbers.
    names: of the classes.
    threshold: the probability from which on a label that excludes no other is predicted.
  """
  for e, x in zip(examples, outputs):
    x, gold = np.asarray(x, np.float64), np.asarray(e["label"])
    classes = names or [str(i) for i in range(len(x))]
    if gold.ndim:  # labels that do not exclude one another
      p = np.exp(-np.logaddexp(0, -x))
      told = lambda has: [name for name, h in zip(classes, has) if h]
      yield {"id": e["id"], "gold": told(gold > 0), "prediction": told(p >= threshold),
             "correct": bool(((p >= threshold) == (gold > 0)).all()),
             "scores": dict(zip(classes, map(float, p)))}
    elif len(x) == 1:
      yield {"id": e["id"], "gold": float(gold), "prediction": float(x[0])}
    else:
      found = prediction(x, classes)
      yield {"id": e["id"], "gold": classes[int(gold)], "prediction": found.label,
             "correct": found.label == classes[int(gold)], "scores": found.scores}
