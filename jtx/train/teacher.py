"""The teacher of a distillation, or the reference of preferences: a trained model, opened."""

import dataclasses
from typing import Any

import jax

from jtx.config import ConfigDict, build
from jtx.data.op import TOKENIZER
from jtx.data.tokenizers.tokenizer import Tokenizer
from jtx.errors import ConfigError
from jtx.evals.task import Task
from jtx.nn.shapes import shapes_of
from jtx.objectives import OBJECTIVES
from jtx.objectives.distilled import Distilled
from jtx.objectives.terms import TERMS
from jtx.parallel.sharding import param_shardings
from jtx.saved.folder import open_saved


def check_folders(config: ConfigDict) -> None:
  """Opens the folders of models that a config begins with or learns from, before data is prepared.

  Raises:
    ConfigError: one is not named that is needed, or holds no model.
  """
  kind, c = OBJECTIVES[config.objective.name], config.distill
  if hasattr(kind, "taught_by"):
    open_saved(_named(kind, config.objective[_key(kind)]))
  if c.terms:
    open_saved(_named_for_terms(c.teacher))
  if config.init_from:
    open_saved(config.init_from)


def _key(objective: Any) -> str:
  return getattr(objective, "teacher_key", "teacher")


def _named(objective: Any, folder: str) -> str:
  """The folder of a teacher, which an objective or its class takes."""
  if not folder:
    key = _key(objective)
    raise ConfigError(f"{getattr(objective, 'section', 'objective')}.{key} is unset; it names the"
                      f" folder or workdir of a model that is the {key}")
  return folder


def _named_for_terms(folder: str) -> str:
  if not folder:
    raise ConfigError("config.distill.teacher is unset, and config.distill.terms need one; it names"
                      " the folder or workdir of a model")
  return folder


def with_teacher(objective, mesh, abstract: bool = False,
                 tokenizer: Tokenizer | None = None) -> tuple[Any, dict[str, Any]]:
  """The objective with the teacher that it names, if any, and the teacher's parameters.

  Args:
    objective: of a config.
    mesh: the devices that the parameters are put on.
    abstract: only say where they would be.
    tokenizer: of the model that is taught; None where it has none or is not known.

  Raises:
    ConfigError: no teacher is named, or its ids are other tokens than the model's.
  """
  if not hasattr(objective, "taught_by"):
    return objective, {}
  folder = _named(objective, getattr(objective, _key(objective)))
  where = f"{getattr(objective, 'section', 'objective')}.{_key(objective)}"
  saved = open_saved(folder)
  model, params = saved.load()
  objective = objective.taught_by(model)
  for theirs in () if tokenizer is None else saved.tokenizers().values():
    _check_tokens(f"{where}={folder}", theirs, tokenizer)
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  places = param_shardings(boxed, mesh)
  if abstract:
    put = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    return objective, {"teacher": jax.tree.map(put, params, places)}
  return objective, {"teacher": jax.device_put(params, places)}


def taught(config: ConfigDict, objective: Any) -> Any:
  """The objective of a config with the terms of `distill`, where this names a teacher.

  Raises:
    ConfigError: there are terms and no teacher, or fields do not fit together.
  """
  c = config.distill
  terms = tuple(build(TERMS, term, what=f"config.distill.terms[{i}]")
                for i, term in enumerate(c.terms))
  if c.teacher:
    return Distilled(objective, terms, c.teacher, task_weight=c.task_weight,
                     task_during=c.task_during)
  if terms:
    _named_for_terms(c.teacher)
  return objective


def tokenizer_of(data: Any) -> Tokenizer | None:
  """The tokenizer of a run's texts, if they have one."""
  return data.tokenizers.get(TOKENIZER)


def _check_tokens(what: str, theirs: Tokenizer, ours: Tokenizer) -> None:
  """Raises ConfigError where an id is another token; models say where the sizes differ."""
  if theirs == ours or theirs.vocab_size != ours.vocab_size:
    return
  ids = [[i] for i in set(theirs.plain_ids().tolist()) & set(ours.plain_ids().tolist())]
  for (i,), a, b in zip(ids, theirs.decode_batch(ids), ours.decode_batch(ids)):
    if a != b:
      raise ConfigError(f"{what} has another tokenizer: token {i} is {a!r}, and {b!r} in the"
                        " model's")


def evaluated(task: Task, objective: Any = None, extra: dict[str, Any] | None = None) -> Task:
  """The task as evaluators get it: with its teacher where the objective means nothing without.

  Args:
    task: with the objective of the config.
    objective: with its teacher, if it is open already.
    extra: likewise the teacher's parameters.
  """
  if not getattr(task.objective, "evaluated_with_teacher", False):
    return task
  if extra is None:
    objective, extra = with_teacher(task.objective, task.mesh, tokenizer=tokenizer_of(task.data))
  return dataclasses.replace(task, objective=objective, extra=extra)
