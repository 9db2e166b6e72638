"""The loss over a split: exact sums and weights of the objective, whatever the split's size."""

import dataclasses
import functools
import math
from typing import Any, Iterable, Iterator

import jax
import numpy as np

from jtx.data.pipeline import Batch
from jtx.evals.task import Task
from jtx.objectives.sums import summarize
from jtx.parallel import processes
from jtx.ranges import CountOrNone


@functools.partial(jax.jit, static_argnums=(0, 1))
def sums(objective, model, params, batch, extra):
  return objective(model, params, batch, train=False, **extra)


def total_sums(task: Task, params: Any, objective: Any,
               batches: Iterable[Batch]) -> dict[str, np.ndarray]:
  """An objective's sums over a split, by name [sum, weight] in float64, exact at any batch size.

  Args:
    task: the model and where it is.
    params: of the model.
    objective: of `jtx.objectives`.
    batches: this process's rows of each, which are `task.rows`.
  """
  totals: dict[str, np.ndarray] = {}
  for batch in batches:
    batch.pop("ids")
    for name, pair in processes.to_host(
        sums(objective, task.model, params, task.to_device(batch),
             dict(task.extra) if objective is task.objective else {})).items():
      totals[name] = totals.get(name, 0) + np.array(pair, np.float64)
  return totals


def perplexity(nll: float) -> float:
  """Of a mean negative log-likelihood in nats."""
  return math.exp(min(nll, 700.0))


@dataclasses.dataclass(frozen=True)
class Loss:
  """Averages of the objective's sums, and the perplexity where it has an `nll`."""
  source: tuple[str, ...]  # the split: sources, as data.train has them
  every: CountOrNone = 1000  # steps; 0 is at the end only

  heads = frozenset()  # of the model
  keys = ()  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    averages = summarize(total_sums(task, params, task.objective, task.batches(self.source)))
    yield from averages.items()
    if "nll" in averages:
      yield "perplexity", perplexity(averages["nll"])
