"""Training of adapters: the frozen parameters are beside the state, not in it."""

from typing import Any

import jax

from jtx.errors import ConfigError
from jtx.nn import lora
from jtx.saved import base
from jtx.saved.folder import open_saved
from jtx.train.program import Program


def take_base(program: Program, meta: dict[str, Any] | None = None) -> Any:
  """Reads the folder that a run starts from, and gives the program its frozen parameters.

  Args:
    program: of a model with adapters.
    meta: of the checkpoint that the run goes on from, if any.

  Returns:
    The parameters that are trained, as far as the folder has them.

  Raises:
    ConfigError: the config names no folder, or it does not fit the model.
    CheckpointError: it is another than when training began.
  """
  config, model = program.config, program.model
  if not config.init_from:
    raise ConfigError(f"config.model.lora.rank={model.lora.rank} adapts a trained model, and"
                      " config.init_from, which names its folder, is unset")
  params = open_saved(config.init_from).params_for(
      lora.plain(model), len(config.tokenizer.delimiters))[0]
  program.extra["base"] = base.frozen(params, program.extra["base"], config.init_from,
                                      None if meta is None else meta["base"])
  program.base_checksums = base.checksums(program.extra["base"])
  return lora.split(model, params)[0]
