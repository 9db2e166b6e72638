"""The keys of every run, with their defaults. A config file edits them; then it is locked.

`config.model`, `config.objective`, `config.optim.optimizer` and other sections with a `name`
have the fields of the constructor of that name as their keys; `model(...)` and its like
below make such sections.
"""

import functools
from typing import Any

from ml_collections import ConfigDict, config_dict

from jtx.config import edit, section
from jtx.data.ops.registry import OPS
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.evals import EVALS
from jtx.inference.decode import METHODS
from jtx.models import MODELS
from jtx.nn.grid_positions import GRID_POSITIONS
from jtx.nn.positions import POSITIONS
from jtx.objectives import OBJECTIVES
from jtx.train import optim, schedules

model = functools.partial(section, MODELS)
objective = functools.partial(section, OBJECTIVES)
optimizer = functools.partial(section, optim.OPTIMIZERS)
schedule = functools.partial(section, schedules.SCHEDULES)
tokenizer = functools.partial(section, TOKENIZERS)
op = functools.partial(section, OPS)
evaluator = functools.partial(section, EVALS)
method = functools.partial(section, METHODS)
position = functools.partial(section, POSITIONS)
grid_position = functools.partial(section, GRID_POSITIONS)


def get_config() -> ConfigDict:
  """The run's keys. `model` and `objective` are for the experiment to choose."""
  c = ConfigDict()
  c.imports = ()  # modules of yours that register names; see jtx/imports.py
  c.seed = 0
  c.prng = "threefry2x32"  # same bits on every mesh; "rbg" is faster on TPU and has others
  c.steps = 100_000  # optimiser updates
  c.epochs = config_dict.placeholder(float)  # passes over the data, instead of steps
  c.batch_size = 64  # rows of a global batch, over all processes
  c.phases = ()  # of the run: (its share, tokens a row, rows a batch), such as BERT's last tenth
  c.log_every = 100  # steps
  c.trackers = ("tensorboard",)  # beside metrics.jsonl; wandb and mlflow are to be installed

  c.profile = ()  # first and last step of a trace for Perfetto and xprof, such as (10, 15)

  c.optim = optim.defaults()

  # A Hugging Face folder or a workdir whose parameters training starts from; "" is fresh.
  c.init_from = ""

  c.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})

  c.checkpoint = ConfigDict()
  c.checkpoint.every = 1000  # steps
  c.checkpoint.keep = 3  # the newest
  c.checkpoint.keep_every = 0  # steps; these are kept for good; 0 is none
  c.checkpoint.best = ""  # such as "min:val/loss": kept for good, too
  c.checkpoint.patience = 0  # checkpoints without a better one, after which a run ends; 0 is never
  c.checkpoint.average = 1  # checkpoints averaged for the final evaluation

  c.tokenizer = ConfigDict()
  c.tokenizer.kind = tokenizer("bpe")
  c.tokenizer.shared = True  # one for source and target

  c.data = ConfigDict()
  c.data.path = ""  # folder of relative file names
  c.data.train = ()  # sources; see jtx/data/sources/registry.py
  c.data.weights = ()  # one a source; () is by size
  c.data.smoothing = config_dict.placeholder(float)  # by size^smoothing instead
  c.data.ops = ()
  c.data.window = 8192  # examples that are shuffled into rows together; 0 is an epoch
  c.data.threads = 2  # that read ahead
  c.data.workers = 0  # processes that read ahead, for heavy ops

  c.decode = ConfigDict()
  c.decode.method = method("beam")
  c.decode.batch_size = 64  # sources at a time
  c.decode.max_source_length = 256  # tokens; longer lines are cut, with a warning
  c.decode.max_target_length = 256  # tokens

  c.evals = ConfigDict()
  return c


# A stack of layers for configs that run in seconds.
TINY_STACK = dict(width=32, num_layers=2,
                  block=dict(attention=dict(num_heads=2), ffn=dict(dim=64)))


def apply(config: ConfigDict, edits: dict[str, Any]) -> ConfigDict:
  """Applies a sweep item, {"optim.lr": 1e-3}, to a config."""
  return edit(config, edits)
