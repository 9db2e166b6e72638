"""The objective over a split: exact sums and weights, whatever the size of the split."""

import dataclasses
import math
from typing import Any, Iterator

import jax
import numpy as np

from jtx import sharding
from jtx.evals.task import Task
from jtx.metrics import summarize


@dataclasses.dataclass(frozen=True)
class Loss:
  source: tuple[str, ...]
  every: int = 1000  # steps; 0 is at the end only

  def __call__(self, task: Task, params: Any) -> Iterator[tuple[str, float]]:
    size = task.config.batch_size
    rows = sharding.batch_sharding(task.mesh)
    step = jax.jit(lambda p, b: task.objective(task.model, p, b, train=False))
    totals: dict[str, np.ndarray] = {}
    for batch in task.data.eval_batches(self.source, size, sharding.local_rows(size, rows)):
      batch.pop("ids")
      for name, pair in jax.device_get(step(params, sharding.to_device(batch, size, rows))).items():
        totals[name] = totals.get(name, 0) + np.array(pair, np.float64)
    averages = summarize(totals)
    yield from averages.items()
    if "nll" in averages:
      yield "perplexity", math.exp(min(averages["nll"], 700.0))
