"""The loss over a split: exact sums and weights of the objective, whatever the split's size."""

import dataclasses
import functools
import math
from typing import Any, Callable, Iterator, Sequence

import jax
import numpy as np

from jtx.data.pipeline import Batch
from jtx.evals.task import Task
from jtx.objectives.sums import summarize
from jtx.parallel import processes, sharding
from jtx.ranges import CountOrNone


@functools.partial(jax.jit, static_argnums=(0, 1))
def sums(objective, model, params, batch, extra):
  return objective(model, params, batch, train=False, **extra)


def total_sums(task: Task, params: Any, objective: Any,
               batches: Callable[[int, Sequence[int]], Iterator[Batch]]) -> dict[str, np.ndarray]:
  """An objective's sums over a split, by name [sum, weight] in float64, exact at any batch size.

  Args:
    task: the model and where it is.
    params: of the model.
    objective: of `jtx.objectives`.
    batches: from the rows of a global batch, and those that this process reads, to the batches.
  """
  # A run may be evaluated on another machine, whose devices do not divide its batch.
  size = sharding.padded_batch(task.config.batch_size, task.mesh)
  rows = sharding.batch_sharding(task.mesh)
  totals: dict[str, np.ndarray] = {}
  for batch in batches(size, sharding.local_rows(size, rows)):
    batch.pop("ids")
    for name, pair in processes.to_host(
        sums(objective, task.model, params, sharding.to_device(batch, size, rows),
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
    batches = functools.partial(task.data.eval_batches, self.source)
    averages = summarize(total_sums(task, params, task.objective, batches))
    yield from averages.items()
    if "nll" in averages:
      yield "perplexity", perplexity(averages["nll"])
