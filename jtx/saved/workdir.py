"""A trained model from its workdir, ready for evaluation and inference."""

import os
from typing import Any

import jax

from jtx import config as config_lib
from jtx import experiment
from jtx.errors import CheckpointError, ConfigError
from jtx.evals.task import Task
from jtx.parallel import sharding
from jtx.saved.checkpoint import Checkpointer


def load_run(workdir: str, step: int | None = None, average: int | None = None,
             data_path: str | None = None) -> tuple[Task, Any, int]:
  """The model, parameters and data of a run, on all devices of this machine.

  Args:
    workdir: of the run.
    step: of the checkpoint; None is the newest.
    average: how many checkpoints, the newest up to `step`, are averaged; None is what the
      config says.
    data_path: replaces the config's data.path.

  Returns:
    The task, its parameters (their EMA, where the run keeps one), and the step.
  """
  config = config_lib.load(os.path.join(workdir, experiment.CONFIG_FILE))
  if "data" not in config:
    raise ConfigError(f"--workdir={workdir} holds a converted model and no run; open it with"
                      " jtx.load_pretrained")
  if data_path is not None:
    config.data.path = data_path
  checkpoints = Checkpointer(os.path.join(workdir, "checkpoints"), config.checkpoint.keep,
                             config.checkpoint.keep_every, config.checkpoint.every)
  if checkpoints.latest_step() is None:
    raise CheckpointError(f"--workdir={workdir} has no checkpoint yet")
  data = experiment.open_data(config, workdir, checkpoints, step)
  model, objective = experiment.make_model(config, data.info)
  mesh = sharding.make_mesh({"data": -1, "fsdp": 1, "tensor": 1, "context": 1})
  boxed = experiment.abstract_params(model, objective, data.example_batch(config.batch_size))
  place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  abstract = jax.tree.map(place, sharding.unbox(boxed), sharding.param_shardings(boxed, mesh))
  key = "ema" if config.optim.ema else "params"
  if average is None:  # a short run has fewer than its config averages
    average = min(config.checkpoint.average, len(checkpoints.all_steps()))
  params, _, step = checkpoints.restore_params(abstract, step=step, average=average, key=key)
  checkpoints.close()
  return Task(config, model, objective, data, mesh), params, step
