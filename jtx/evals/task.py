"""A trained model's task, as evaluators get it: config, model, objective, data and mesh."""

import dataclasses
from typing import Any, Iterator, Mapping, Sequence

import flax.linen as nn
import jax
from jax.sharding import Mesh

from jtx.config import ConfigDict
from jtx.data.dataset import Dataset
from jtx.data.pipeline import Batch
from jtx.parallel import sharding

# An example's `id`, its number in the split, `gold`, `prediction`, and where they are defined
# `correct`, a bool, and `scores`, numbers by name.
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Task:
  config: ConfigDict
  model: nn.Module
  objective: Any
  data: Dataset
  mesh: Mesh
  extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the objective's calls

  @property
  def batch_size(self) -> int:
    """Rows of a batch over all processes: as many as the run begins with."""
    phases = self.config.phases
    return phases[0][2] if phases else self.config.batch_size

  @property
  def padded_size(self) -> int:
    """Rows of a batch with those of padding.

    A run may be evaluated on another machine, whose devices do not divide its batch. Examples
    stay in the batches that they are in anywhere, since some losses are of a whole batch.
    """
    return sharding.padded_batch(self.batch_size, self.mesh)

  @property
  def rows(self) -> list[int]:
    """The rows of a padded batch that this process has."""
    return sharding.local_rows(self.padded_size, sharding.batch_sharding(self.mesh))

  def batches(self, source: Sequence[str], rows: Sequence[int] | None = None) -> Iterator[Batch]:
    """The batches of a split, whose rows are as long as those that the run begins with.

    Args:
      source: the split, as data.train has it.
      rows: of a batch; None is those that this process has.
    """
    phases = self.config.phases
    return self.data.eval_batches(source, self.batch_size, self.rows if rows is None else rows,
                                  phases[0][1] if phases else None)

  def to_device(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Global arrays from this process's rows of a batch."""
    return sharding.to_device(batch, self.padded_size, sharding.batch_sharding(self.mesh))
