"""A config's model and objective, checked against its data and one another."""

import functools
from typing import Any, Callable, Mapping, Sequence

import jax
import jax.numpy as jnp

from jtx import contracts
from jtx.config import ConfigDict, build
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.models.global_tokens import reads_texts
from jtx.models.heads import TASKS
from jtx.nn.shapes import shapes_of
from jtx.objectives import OBJECTIVES

# Keys of a config's model that give it a head. Others are of head.task.
HEAD_EDITS = {
    "boxes": {"name": "detr"},
    "bilm": {"name": "elmo", "bilm": True},
    "generator": {"name": "electra"}, "image_text": {"name": "two_towers"},
    "lm": {"name": "decoder", "lm": True},
    "mae": {"name": "vit", "decoder.num_layers": 8},
    "mlm": {"name": "encoder", "mlm": True},
    "plm": {"name": "xlnet", "plm": True},
    "seq2seq": {"name": "encdec", "seq2seq": True},
}


def make_model(config: ConfigDict, info: Mapping[str, int],
               label_shares: Callable[[], Sequence[float]] | None = None) -> tuple[Any, Any]:
  """The model and the objective; fields that are unset and in `info` come from the data.

  An objective that is balanced calls `label_shares`, the share of training examples of each label.

  Raises:
    ConfigError: a field of the model that is set differs from the data (a vocabulary, as T5's, may
      be larger), the model lacks a head that the objective needs, or one a member of its contract.
  """
  built = []
  for section, registry in (("model", MODELS), ("objective", OBJECTIVES)):
    cfg = config[section].copy_and_resolve_references()
    for key, value in info.items():
      *path, last = key.split(".")
      node = functools.reduce(lambda node, part: node[part] if part in node else {}, path, cfg)
      if path == ["head"] and not labelled(node) or path == ["globals"] and not reads_texts(node):
        continue  # labels or texts that the model is not asked for
      if last in node and node[last] is None:
        node[last] = None if value is False else value  # a flag as other libraries' files leave it
      elif last in node and (node[last] != value if "vocab" not in last else node[last] < value):
        raise ConfigError(f"config.{section}.{key}={node[last]} does not fit the data, whose {last}"
                          f" is {value}; leave it unset to take the data's")
    built.append(build(registry, cfg, what=section))
  model, objective = built
  contracts.check(config, model, objective)
  if label_shares is not None and getattr(objective, "needs_shares", False):
    objective = objective.with_shares(label_shares())
  check_heads(config, model, objective.heads, f"config.objective.name={config.objective.name!r}")
  if getattr(objective, "needs_model", False):
    objective = objective.with_model(model)
  if weight := getattr(objective, "lm_weight", 0):
    check_heads(config, model, frozenset({"lm"}), f"config.objective.lm_weight={weight}")
  if getattr(objective, "loss", "") == "cross_entropy" and model.head.outputs == 1:
    raise ConfigError("the data has one class only, and config.objective tells classes apart; a"
                      " number is predicted with config.objective.loss='squared_error'")
  return model, objective


def check_heads(config: ConfigDict, model: Any, heads: frozenset[str], what: str) -> None:
  """Raises ConfigError where the model lacks one of the heads that `what` needs."""
  for head in sorted(heads - model.heads):
    edits = HEAD_EDITS.get(head, {"name": "encoder", "head.task": head})
    if "head.task" in edits and "head" in config.model and "seq2seq" not in model.heads:
      edits = {"head.task": head}
    keys = " and ".join(f"config.model.{key}={value!r}" for key, value in edits.items()
                        if config.model.get(key) != value)
    raise ConfigError(f"{what} needs a model with the head {head!r}, but"
                      f" config.model.name={config.model.name!r} has"
                      f" {', '.join(sorted(model.heads)) or 'none'}: set {keys}")


def check_keys(example: Mapping[str, Any], keys: Sequence[str], what: str) -> None:
  """Raises ConfigError where a batch, `example`, lacks one of the keys that `what` needs."""
  if missing := [key for key in keys if key not in example]:
    raise ConfigError(f"{what} needs batches with {', '.join(missing)}, but config.data.ops make"
                      f" {', '.join(example)}")


def labelled(head: Mapping[str, Any]) -> bool:
  """Whether the outputs of a head, a section of a config, are the data's labels."""
  return "task" not in head or head["task"] in TASKS and TASKS[head["task"]].labelled


def init_params(model, objective, example: Mapping[str, Any], key: jax.Array) -> Any:
  """Fresh parameters, with axis names. Of the batch only shapes matter."""
  zeros = {k: jnp.zeros(v.shape, v.dtype) for k, v in example.items()}
  return model.init(key, objective.model_inputs(zeros))["params"]


def abstract_params(model, objective, example: Mapping[str, Any]) -> Any:
  """Shapes, dtypes and axis names of the parameters, at no cost.

  Raises:
    ConfigError: a batch lacks what the objective needs.
  """
  name = next(name for kind in type(getattr(objective, "task", objective)).__mro__
              for name, known in OBJECTIVES.items() if known is kind)
  check_keys(example, objective.keys, f"config.objective.name={name!r}")
  return shapes_of(lambda key: init_params(model, objective, example, key), jax.random.key(0))
