"""A config's model, objective and number of steps, checked against its data."""

import functools
import math
from typing import Any, Mapping

import jax
import jax.numpy as jnp

from jtx.config import ConfigDict, build
from jtx.data import recipes
from jtx.data.dataset import Dataset
from jtx.data.tokenizers.kinds import wordpiece
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
      if path == ["head"] and not _labelled(node):
        continue  # labels that the model is not asked for
      if last in node and node[last] is None:
        node[last] = value
      elif last in node and node[last] != value:
        raise ConfigError(f"config.{section}.{key}={node[last]} does not fit the data, whose {last}"
                          f" is {value}; leave it unset to take the data's")
    built.append(build(registry, cfg, what=section))
  return tuple(built)


def init_params(model, objective, example: Mapping[str, Any], key: jax.Array) -> Any:
  """Fresh parameters, with axis names. Of the batch only shapes matter."""
  zeros = {k: jnp.zeros(v.shape, v.dtype) for k, v in example.items()}
  return model.init(key, objective.model_inputs(zeros))["params"]


def abstract_params(model, objective, example: Mapping[str, Any]) -> Any:
  """Shapes, dtypes and axis names of the parameters, at no cost."""
  init = functools.partial(init_params, model, objective, example)
  return jax.eval_shape(init, jax.random.key(0))


def with_steps(config: ConfigDict, data: Dataset) -> ConfigDict:
  """The config with the `steps` that its `epochs`, where they are set, come to."""
  if config.epochs is None:
    return config
  if config.phases:
    raise ConfigError("config.epochs and config.phases exclude each other: a phase is a share of"
                      " config.steps")
  if config.epochs <= 0:
    raise ConfigError(f"config.epochs={config.epochs}: must be above 0, or unset to go by steps")
  config = config.copy_and_resolve_references()
  config.steps = max(math.ceil(config.epochs * data.num_train_rows() / config.batch_size), 1)
  return config.lock()


def declared_data(config: ConfigDict, vocab_size: int | None = None,
                  outputs: int | None = None) -> tuple[recipes.Recipe, dict[str, int]]:
  """The recipe and the `info` of a config's data as far as the config tells; no source is read.

  Args:
    config: of a run.
    vocab_size: of tokenizers, where it follows from the data or a file.
    outputs: classes or tags, where they follow from the data.

  Raises:
    ConfigError: one of them is needed and None.
  """
  # Of a tokenizer the ops need no more than that it has the special tokens.
  stand_in = wordpiece(iter(["a few words"]), vocab_size=40, min_frequency=1, mask=True)
  recipe = recipes.build_ops(config.data.ops).bind({"text": stand_in})
  info = {}
  if not recipe.augment:
    kind = config.tokenizer.kind
    size = kind.vocab_size if "vocab_size" in kind else vocab_size
    if size is None:
      raise ConfigError(f"vocab_size is needed: that of config.tokenizer.kind={kind.name} follows"
                        " from the data or a file")
    info = {"vocab_size": size, "src_vocab_size": size, "bos_id": 1}
  names = recipe.names
  if names is not None and _labelled(config.model.get("head", {})):
    if not names and outputs is None:
      raise ConfigError("outputs is needed: the names of classes or tags follow from the data")
    info["head.outputs"] = len(names) or outputs
  return recipe, info


def _labelled(head: Mapping[str, Any]) -> bool:
  return "task" not in head or head["task"] in LABELLED
