"""config.json of Hugging Face to the fields of a model, and back."""

from typing import Any, Mapping

from absl import logging

from jtx.config import ConfigDict, build, section, section_of
from jtx.errors import ConfigError, Inexpressible
from jtx.interop import trunks
from jtx.interop.attributes import (
    MULTI_LABEL, defaults, label_attributes, nested, num_labels, read)
from jtx.interop.family import Family, Heads, pretraining, stored, task_of, type_of
from jtx.models import MODELS
from jtx.models.heads import TASKS


def model_fields(family: Family, config: Mapping[str, Any], heads: Heads,
                 where: str) -> dict[str, Any]:
  """Fields for `jtx.config.section(MODELS, family.model, ...)`.

  Args:
    family: of config["model_type"].
    config: the content of config.json.
    heads: of the model.
    where: the file, for errors.

  Raises:
    ConfigError: as `attributes.read`, or values that do not fit together.
  """
  problem = config["problem_type"] if "problem_type" in config else None
  if problem == MULTI_LABEL and "classes" in heads:
    heads = heads - {"classes"} | {"multi_label"}
  values, task = read(family.attributes, config, where), task_of(heads)
  outputs = num_labels(config, where) if TASKS[task].labelled else None
  if task == "classes":
    single = problem in (None, "single_label_classification")
    if not single and (problem, outputs) != ("regression", 1):
      raise ConfigError(f"{where}: problem_type={problem!r} with {outputs} labels is not known to"
                        " jtx: it has single_label_classification, multi_label_classification, and"
                        " regression of one number")
  try:
    result = fields_of(family, values, heads, outputs)
  except ConfigError as e:
    raise ConfigError(f"{where}: {e}") from None
  for stack in result.values():
    if isinstance(stack, Mapping) and "block" in stack:
      width, number = stack["width"], stack["block"]["attention"]["num_heads"]
      if width % number and "head_dim" not in stack["block"]["attention"]:
        raise ConfigError(f"{where}: {number} attention heads do not divide the width {width}")
  return result


def fields_of(family: Family, values: Mapping[str, Any], heads: Heads,
              outputs: int | None) -> dict[str, Any]:
  """The fields of a model from attributes, all of which are there."""
  in_files = stored(heads)
  result = family.trunk(values, in_files)
  if family.head is None:
    return result
  task = task_of(heads)
  head = {"task": task, "outputs": outputs}
  if task != "none":
    head |= family.head(values, in_files)
  if in_files != heads:
    head["task"] = task
  return {**result, "head": head}


def make_model(family: Family, model_fields: Mapping[str, Any], **more: Any) -> Any:
  """The model of `model_fields`."""
  edits = {k: v for k, v in {**model_fields, **more}.items() if v is not None}
  if "head" in edits:
    edits["head"] = {k: v for k, v in edits["head"].items() if v is not None}
  return build(MODELS, section(MODELS, family.model, **edits), what="model")


def model_section(model: Any) -> ConfigDict:
  """The config section that builds `model` again."""
  return section_of(MODELS, model)


# ---------------------------------------------------------------------- jtx to config.json


def hf_values(family: Family, model: Any) -> tuple[str, dict[str, Any], list[str]]:
  """The model as an architecture of the family.

  Returns:
    The architecture's name; its attributes; and the fields of training that they leave out.

  Raises:
    ConfigError: the family has no such model; the sentence names what it lacks.
  """
  heads = model.heads
  name = family.architecture(heads)
  if name is None and not heads:  # a base model that comes without its pooler
    name = family.architecture({"embedding"})
  if name is None:
    with_it = f"with{'' if pretraining(heads) else 'out'} the head of pretraining"
    task = "distilled" if "distilled" in heads else task_of(heads)
    raise ConfigError(f"has no architecture {with_it} and head.task={task!r}")
  values = family.values(model)
  outputs = None if family.head is None else model.head.outputs
  fields = fields_of(family, defaults(family.attributes) | values, heads, outputs)
  again = make_model(family, fields)
  wrong = trunks.differences(model, again)
  lost = [key for key in wrong if trunks.of_training(model, key)]
  for key, (ours, theirs) in wrong.items():
    if key not in lost:
      raise ConfigError(f"has {key}={theirs!r} in {name}, not {ours!r}")
  return name, values, lost


def expressed(families: Mapping[str, Family], model: Any, *,
              advise: bool = True) -> tuple[str, tuple[str, dict[str, Any], list[str]]]:
  """The name of the first family that can express a model, and what `hf_values` says of it.

  Raises:
    Inexpressible: no family can, and why; with `advise`, and which head one could have, too.
  """
  own = {name: f for name, f in families.items() if MODELS[f.model] is type(model)}
  if not own:
    able = " or ".join(dict.fromkeys(MODELS[f.model].__name__ for f in families.values()))
    raise Inexpressible(f"a {type(model).__name__} can't be saved as a Hugging Face model: only"
                        f" {able} can")
  by_reason: dict[str, list[str]] = {}
  for name, family in own.items():
    try:
      return name, hf_values(family, model)
    except ConfigError as e:
      by_reason.setdefault(str(e), []).append(name)
  reasons = [clause for reason, names in by_reason.items() for clause in clauses(names, reason)]
  advice = head_advice(families, model) if advise else ""
  raise Inexpressible("the model can't be expressed as a Hugging Face model: "
                      + "; ".join(reasons + [advice] * bool(advice)))


def clauses(names: list[str], reason: str) -> list[str]:
  """Families and what they all have, which follows a name, as one clause."""
  if len(names) == 1 or not reason.startswith("has "):
    return [f"{name} {reason}" for name in names]
  return [f"{', '.join(names[:-1])} and {names[-1]} have {reason.removeprefix('has ')}"]


def head_advice(families: Mapping[str, Family], model: Any) -> str:
  """How the head of a model that no family can express must be for one to have it.

  Returns:
    A sentence, without a capital and an end; "" where no family has the layers and the task.
  """
  task = task_of(model.heads)
  if task == "none" or pretraining(model.heads) or type(model) not in trunks.KINDS:
    return ""
  own = model_section(model)
  left = trunks.trunk_fields(own.name, {k: v for k, v in own.items() if k != "name"})
  try:
    bare = build(MODELS, section(MODELS, own.name, **left), what="model")
    name, (_, values, _) = expressed(families, bare, advise=False)
  except Inexpressible:
    return ""
  for family in (f for n, f in families.items() if type_of(n) == type_of(name)):
    if architecture := family.architecture(frozenset({task})):
      made = make_model(family, fields_of(
          family, defaults(family.attributes) | values, frozenset({task}), model.head.outputs))
      wrong = trunks.differences(model, made)
      edits = [f"--config.model.{key}={theirs}" for key, (_, theirs) in wrong.items()
               if not trunks.of_training(model, key)]
      return f"fine-tuned with {' '.join(edits)} it would be a {architecture}"
  return ""


def hf_config(families: Mapping[str, Family], model: Any, labels: tuple[str, ...] | None,
              token_ids: Mapping[str, int | None]) -> tuple[str, dict[str, Any]]:
  """The name of a family, and the content of config.json.

  Args:
    families: by name; the first that can express the model is taken.
    model: to express.
    labels: names of classes or tags.
    token_ids: `pad_token_id` and the like.

  Raises:
    Inexpressible: no family can, and why.
    ConfigError: the labels do not fit the model.
  """
  of_family, (name, values, lost) = expressed(families, model)
  family = families[of_family]
  for key in lost:
    logging.info("config.json of %s has no place for %s: it is not kept", name, key)
  family.check_ids(token_ids)
  written = family.attributes.written
  for key, value in token_ids.items():
    if key in values and values[key] != value and value is not None:
      raise ConfigError(f"{key}={value} of the tokenizer does not fit the model, whose positions"
                        f" were counted for {key}={values[key]} (position.first_position)")
  of_text, of_tokens = family.attributes.of_text, {}
  if of_text == "":
    # What an attribute of the class is stays its default without a tokenizer.
    of_tokens = {"tie_word_embeddings": True, **{
        k: value for k, value in token_ids.items()
        if value is not None or k not in family.attributes.read}}
  elif of_text is not None:
    of_tokens = {f"{of_text}{k}": value for k, value in token_ids.items() if value is not None}
  config = {"architectures": [name], "model_type": type_of(of_family), "dtype": "float32",
            **of_tokens,
            **{written[k] if k in written else k: value for k, value in values.items()}}
  return of_family, nested(family.attributes, config) | label_attributes(model, labels)
