"""A trained model's task, as evaluators get it: config, model, objective, data and mesh."""

import dataclasses
from typing import Any, Mapping

import flax.linen as nn
from jax.sharding import Mesh

from jtx.config import ConfigDict
from jtx.data.dataset import Dataset

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
