"""A config's model and objective, checked against its data and one another."""

import functools
from typing import Any, Mapping

import jax
import jax.numpy as jnp

from jtx.config import ConfigDict, build
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.objectives import OBJECTIVES

LABELLED = ("classes", "tags")  # tasks of heads whose outputs are the data's labels


def make_model(config: ConfigDict, info: Mapping[str, int]) -> tuple[Any, Any]:
  """The model and the objective; fields that are unset and in `info` come from the data.

  Raises:
    ConfigError: a field of the model that is set differs from the data.
  """
  built = []
  for section, registry in (("model", MODELS), ("objective", OBJECTIVES)):
    cfg = config[section].copy_and_resolve_references()
    for key, value in info.items():
      *path, last = key.split(".")
      node = functools.reduce(lambda node, part: node[part] if part in node else {}, path, cfg)
      if path == ["head"] and not labelled(node):
        continue  # labels that the model is not asked for
      if last in node and node[last] is None:
        node[last] = value
      elif last in node and node[last] != value:
        raise ConfigError(f"config.{section}.{key}={node[last]} does not fit the data, whose {last}"
                          f" is {value}; leave it unset to take the data's")
    built.append(build(registry, cfg, what=section))
  return tuple(built)


def labelled(head: Mapping[str, Any]) -> bool:
  """Whether the outputs of a head, a section of a config, are the data's labels."""
  return "task" not in head or head["task"] in LABELLED


def init_params(model, objective, example: Mapping[str, Any], key: jax.Array) -> Any:
  """Fresh parameters, with axis names. Of the batch only shapes matter."""
  zeros = {k: jnp.zeros(v.shape, v.dtype) for k, v in example.items()}
  return model.init(key, objective.model_inputs(zeros))["params"]


def abstract_params(model, objective, example: Mapping[str, Any]) -> Any:
  """Shapes, dtypes and axis names of the parameters, at no cost."""
  init = functools.partial(init_params, model, objective, example)
  return jax.eval_shape(init, jax.random.key(0))
