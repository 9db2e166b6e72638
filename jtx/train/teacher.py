"""The teacher of a distillation: a trained model, opened for the objective that names it."""

from typing import Any

import jax

from jtx.errors import ConfigError
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
  if not objective.teacher:
    raise ConfigError("objective.teacher is unset; it names the folder or workdir of the model that"
                      " teaches")
  model, params = open_saved(objective.teacher).load()
  objective = objective.taught_by(model)
  boxed = jax.eval_shape(model.init, jax.random.key(0), model.example())["params"]
  places = param_shardings(boxed, mesh)
  if abstract:
    put = lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place)
    return objective, {"teacher": jax.tree.map(put, params, places)}
  return objective, {"teacher": jax.device_put(params, places)}
