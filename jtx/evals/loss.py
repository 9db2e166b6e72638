"""The loss over a split: exact sums and weights of the objective, whatever the split's size."""

import dataclasses
import functools
import math
from typing import Any, Iterator

import jax
import numpy as np

from jtx.evals.task import Task
from jtx.objectives.sums import summarize
from jtx.parallel import processes, sharding
from jtx.ranges import CountOrNone


@functools.partial(jax.jit, static_argnums=(0, 1))
def sums(objective, model, params, batch):
  return objective(model, params, batch, train=False)


@dataclasses.dataclass(frozen=True)
class Loss:
  """Averages of the objective's sums, and the perplexity where it has an `nll`."""
  source: tuple[str, ...]
  every: CountOrNone = 1000  # steps; 0 is at the end only

  heads = frozenset()  # of the model
  keys = ()  # of a batch

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    # A run may be evaluated on another machine, whose devices do not divide its batch.
    size = sharding.padded_batch(task.config.batch_size, task.mesh)
    rows = sharding.batch_sharding(task.mesh)
    totals: dict[str, np.ndarray] = {}
    for batch in task.data.eval_batches(self.source, size, sharding.local_rows(size, rows)):
      batch.pop("ids")
      for name, pair in processes.to_host(
          sums(task.objective, task.model, params, sharding.to_device(batch, size, rows))).items():
        totals[name] = totals.get(name, 0) + np.array(pair, np.float64)
    averages = summarize(totals)
    yield from averages.items()
    if "nll" in averages:
      yield "perplexity", math.exp(min(averages["nll"], 700.0))
