"""The keys of every run, with their defaults. A config file edits them; then it is locked.

`config.model`, `config.objective`, `config.optim.optimizer` and other sections with a `name`
have the fields of the constructor of that name as their keys; `model(...)` and its like
below make such sections.
"""

import functools
from typing import Any

from ml_collections import ConfigDict, config_dict

from jtx import optim
from jtx.config import ConfigError, edit, nearest, section
from jtx.data.ops_text import OPS
from jtx.data.tokenizer_kinds import TOKENIZERS
from jtx.decode import METHODS
from jtx.evals import EVALS
from jtx.models import MODELS
from jtx.nn.positions import POSITIONS
from jtx.objectives import OBJECTIVES

model = functools.partial(section, MODELS)
objective = functools.partial(section, OBJECTIVES)
optimizer = functools.partial(section, optim.OPTIMIZERS)
schedule = functools.partial(section, optim.SCHEDULES)
tokenizer = functools.partial(section, TOKENIZERS)
op = functools.partial(section, OPS)
evaluator = functools.partial(section, EVALS)
method = functools.partial(section, METHODS)
position = functools.partial(section, POSITIONS)


def get_config() -> ConfigDict:
  """The run's keys. `model` and `objective` are for the experiment to choose."""
  c = ConfigDict()
  c.seed = 0
  c.prng = "threefry2x32"  # same bits on every mesh; "rbg" is faster on TPU and has others
  c.steps = 100_000  # optimiser updates
  c.epochs = config_dict.placeholder(float)  # passes over the data, instead of steps
  c.batch_size = 64  # rows of a global batch, over all processes
  c.log_every = 100  # steps

  c.optim = optim.defaults()

  c.init_from = ""  # a Hugging Face folder whose parameters training starts from; "" is fresh

  c.mesh = ConfigDict({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})

  c.checkpoint = ConfigDict()
  c.checkpoint.every = 1000  # steps
  c.checkpoint.keep = 3  # the newest
  c.checkpoint.keep_every = 0  # steps; these are kept for good; 0 is none
  c.checkpoint.average = 1  # checkpoints averaged for the final evaluation

  c.tokenizer = ConfigDict()
  c.tokenizer.kind = tokenizer("bpe")
  c.tokenizer.shared = True  # one for source and target

  c.data = ConfigDict()
  c.data.path = ""  # folder of relative file names
  c.data.train = ()  # sources; see jtx/data/sources.py
  c.data.weights = ()  # one a source; () is by size
  c.data.smoothing = config_dict.placeholder(float)  # by size^smoothing instead
  c.data.ops = ()
  c.data.window = 8192  # examples that are shuffled into rows together
  c.data.threads = 2  # that read ahead
  c.data.workers = 0  # processes that read ahead, for heavy ops

  c.decode = ConfigDict()
  c.decode.method = method("beam")
  c.decode.batch_size = 64  # sources at a time
  c.decode.max_source_length = 256  # tokens; longer lines are cut, with a warning
  c.decode.max_target_length = 256  # tokens

  c.evals = ConfigDict()
  return c


def parse_args(arg: str, **defaults: Any) -> ConfigDict:
  """The arguments of `--config=file.py:arg`: "large,seq=512,tiny", typed by `defaults`.

  A bare word sets the bool of that name, or else the first argument.

  Raises:
    ConfigError: an unknown argument, or a value of another type.
  """
  args = ConfigDict(defaults)
  first = next(iter(defaults))
  for word in filter(None, (arg or "").split(",")):
    key, equals, value = word.partition("=")
    if not equals:
      key, value = (key, "true") if isinstance(defaults.get(key), bool) else (first, key)
    if key not in defaults:
      raise ConfigError(f"config argument {word!r}: {nearest(key, defaults)}")
    kind = type(defaults[key])
    try:
      args[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
    except (KeyError, ValueError):
      raise ConfigError(f"config argument {word!r}: {value!r} is not a {kind.__name__}") from None
  return args


def choose(table: dict[str, Any], name: str, what: str) -> Any:
  """`table[name]`, or a ConfigError that names the nearest."""
  if name not in table:
    raise ConfigError(f"config argument {what}={name!r}: {nearest(name, table)}")
  return table[name]


def apply(config: ConfigDict, edits: dict[str, Any]) -> ConfigDict:
  """Applies a sweep item, {"optim.lr": 1e-3}, to a config."""
  return edit(config, edits)
