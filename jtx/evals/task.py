"""A trained model's task, as evaluators get it: config, model, objective, data and mesh."""

import dataclasses
from typing import Any

import flax.linen as nn
from jax.sharding import Mesh

from jtx.config import ConfigDict
from jtx.data.dataset import Dataset


@dataclasses.dataclass(frozen=True)
class Task:
  config: ConfigDict
  model: nn.Module
  objective: Any
  data: Dataset
  mesh: Mesh
