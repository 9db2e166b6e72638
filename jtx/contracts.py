"""Models and objectives against their contracts, which those of a user's module may not meet."""

from typing import Any

from jtx.config import ConfigDict
from jtx.errors import ConfigError
from jtx.models.contract import Model
from jtx.objectives.contract import Objective


def check(config: ConfigDict, model: Any, objective: Any) -> None:
  """Raises ConfigError where the model or the objective of a config lacks members."""
  for section, made, contract in (("model", model, Model), ("objective", objective, Objective)):
    if missing := [name for name in members(contract) if not has(made, name)]:
      raise ConfigError(f"config.{section}.name={config[section].name!r}: {type(made).__name__}"
                        f" lacks {', '.join(missing)}; the class {contract.__name__} in"
                        f" {contract.__module__.replace('.', '/')}.py says what it must have")


def members(contract: type) -> list[str]:
  """The names that a protocol declares."""
  return [name for name in (*getattr(contract, "__annotations__", ()), *vars(contract))
          if name == "__call__" or not name.startswith("_")]


def has(made: Any, name: str) -> bool:
  """Whether it has a member; none is read, since some of a Linen module can be in `apply` only."""
  return hasattr(type(made), name) or name in getattr(made, "__dict__", {})
