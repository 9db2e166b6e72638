"""The teacher of a distillation, or the reference of preferences: a trained model, opened."""

import dataclasses
from typing import Any

import jax

from jtx.errors import ConfigError
from jtx.evals.task import Task
from jtx.parallel.sharding import param_shardings
from jtx.saved.folder import open_saved


def with_teacher(objective, mesh, abstract: bool = False) -> tuple[Any, dict[str, Any]]:
  """The objective with the teacher that it names, if any, and the teacher's parameters.

  Args:
    objective: of a config.
    mesh: the devices that the parameters are put on.
    abstract: only say where they would be.
  """
  if not hasattr(objective, "taught_by"):
    return objective, {}
  key = getattr(objective, "teacher_key", "teacher")
  if not (folder := getattr(objective, key)):
    raise ConfigError(f"objective.{key} is unset; it names the folder or workdir of a model that"
                      f" is the {key}")
  model, params = open_saved(folder).load()
  objective = objective.taught_by(model)
  boxed = jax.eval_shape(model.init, jax.random.key(0), model.example())["params"]
  places = param_shardings(boxed, mesh)
  if abstract:
    put = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    return objective, {"teacher": jax.tree.map(put, params, places)}
  return objective, {"teacher": jax.device_put(params, places)}


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
    objective, extra = with_teacher(task.objective, task.mesh)
  return dataclasses.replace(task, objective=objective, extra=extra)
