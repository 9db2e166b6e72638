"""The keys of every run, with their defaults. A config file edits them; then it is locked.

`config.model`, `config.objective`, `config.optim.optimizer` and other sections with a `name`
have the fields of the constructor of that name as their keys; `model(...)` and its like
below make such sections.
"""

import functools
from typing import Any

from ml_collections import ConfigDict

from jtx.config import edit, fields_section, section
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.evals import EVALS
from jtx.inference.decode import METHODS
from jtx.models import MODELS
from jtx.nn.grid_positions import GRID_POSITIONS
from jtx.nn.positions import POSITIONS
from jtx.objectives import OBJECTIVES
from jtx.train.keys import RunKeys
from jtx.train.optimizers import OPTIMIZERS
from jtx.train.schedules import SCHEDULES

model = functools.partial(section, MODELS)
objective = functools.partial(section, OBJECTIVES)
optimizer = functools.partial(section, OPTIMIZERS)
schedule = functools.partial(section, SCHEDULES)
tokenizer = functools.partial(section, TOKENIZERS)
op = functools.partial(section, OPS)
evaluator = functools.partial(section, EVALS)
method = functools.partial(section, METHODS)
position = functools.partial(section, POSITIONS)
grid_position = functools.partial(section, GRID_POSITIONS)


def get_config() -> ConfigDict:
  """The keys of jtx/train/keys.py; `model` and `objective` are for the experiment to choose."""
  return fields_section(RunKeys)


# A stack of layers for configs that run in seconds.
TINY_STACK = dict(width=32, num_layers=2,
                  block=dict(attention=dict(num_heads=2), ffn=dict(dim=64)))


def apply(config: ConfigDict, edits: dict[str, Any]) -> ConfigDict:
  """Applies a sweep item, {"optim.lr": 1e-3}, to a config."""
  return edit(config, edits)
