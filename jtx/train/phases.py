"""The steps of a run, and its phases: stretches with their own length of rows and batch size."""

import math
from typing import Any, NamedTuple

from absl import logging
import jax

from jtx.config import ConfigDict
from jtx.data.dataset import Dataset
from jtx.data.phases import Begun, Phases
from jtx.data.recipes import Recipe
from jtx.errors import ConfigError
from jtx.parallel.sharding import check_batch, local_rows
from jtx.saved.folder import open_saved
from jtx.saved.trained import warn_of_length
from jtx.train.keys import RunKeys


def with_steps(config: ConfigDict, data: Dataset) -> ConfigDict:
  """The config with the `steps` that its `epochs`, where they are set, come to."""
  if config.epochs is None:
    return config
  if config.phases:
    raise ConfigError("config.epochs and config.phases exclude each other: a phase is a share of"
                      " config.steps")
  given, config = config.steps, config.copy_and_resolve_references()
  a_batch = config.batch_size * data.recipe.layout.fold
  config.steps = max(math.ceil(config.epochs * data.num_train_rows() / a_batch), 1)
  if given not in (RunKeys.steps, config.steps):
    logging.warning("config.steps=%d has no effect beside config.epochs=%g, which comes to %d"
                    " steps; set config.epochs=None for it", given, config.epochs, config.steps)
  return config.lock()


class Phase(NamedTuple):
  """A stretch of training."""
  start: int  # step
  length: int | None  # tokens of a row; None is what the layout says
  batch_size: int


def phases(config: ConfigDict) -> list[Phase]:
  """The stretches of a run.

  Raises:
    ConfigError: an entry of `phases` is not of its form, or the shares do not add up to 1.
  """
  if not config.phases:
    return [Phase(0, None, config.batch_size)]
  kinds = ([float, int, int], [int, int, int])
  shaped = all(isinstance(phase, tuple) and [*map(type, phase)] in kinds and min(phase) > 0
               for phase in config.phases)
  if not shaped or abs(sum(share for share, *_ in config.phases) - 1) > 1e-6:
    raise ConfigError(f"config.phases={config.phases}: each is (share of the run, tokens a row,"
                      " rows a batch), all above 0, and the shares add up to 1")
  result, done = [], 0.0
  for share, length, batch_size in config.phases:
    result.append(Phase(round(done * config.steps), length, batch_size))
    done += share
  return result


def first_shape(config: ConfigDict) -> tuple[int, int | None]:
  """Rows of a batch of the first phase, and tokens of a row; None is what the layout says."""
  first = phases(config)[0]
  return first.batch_size, first.length


def check_batches(config: ConfigDict, mesh: jax.sharding.Mesh) -> None:
  """Raises ConfigError where a part of a batch of some phase can't be split over the mesh."""
  parts = config.optim.accumulate
  for i, phase in enumerate(phases(config)):
    what = _batch_of(config, i)
    if phase.batch_size % parts:
      raise ConfigError(f"config.optim.accumulate={parts} does not divide {what}")
    check_batch(phase.batch_size // parts, mesh,
                what + f" / config.optim.accumulate={parts}" * (parts > 1))


def _batch_of(config: ConfigDict, phase: int) -> str:
  """Where a config has the rows of a batch of a phase, and how many they are."""
  if config.phases:
    return f"config.phases[{phase}][2]={config.phases[phase][2]}"
  told = f"config.batch_size={config.batch_size}"
  for i, op in enumerate(config.data.ops):
    if (most := op.get("max_segments", 1)) > 1:
      given = "" if op.name == "pack" else ", as arguments such as batch / pack of a config make it"
      told += f" (rows of up to config.data.ops[{i}].max_segments={most} examples{given})"
  return told


def check_lengths(config: ConfigDict, recipe: Recipe, model: Any) -> None:
  """Raises ConfigError where an example may have more tokens than the model has positions."""
  for phase in phases(config):
    for field, length in recipe.with_length(phase.length).row_lengths().items():
      stack = model.stacks.get({"src": "encoder", "tgt": "decoder"}.get(field))
      limit = model.longest if stack is None else stack.position.limit
      if limit is not None and length > limit:
        raise ConfigError(f"data.ops: texts of {field!r} may have {length} tokens, and the model"
                          f" has {limit} positions; make max_length of the texts, or lengths of the"
                          " layout, shorter")


def warn_of_lengths(config: ConfigDict, recipe: Recipe, model: Any) -> None:
  """Warns where texts may be longer than those that the folder of `init_from` was trained with."""
  if config.init_from:
    longest = max((length for phase in phases(config) for length in
                   recipe.with_length(phase.length).row_lengths().values()), default=0)
    warn_of_length(open_saved(config.init_from), model, longest, "texts of config.data.ops")


def train_stream(config: ConfigDict, data: Dataset, sharding, start: int,
                 cursor: tuple[int, int], epochs: float | None = None) -> Phases:
  """This process's training batches.

  Args:
    config: of the run.
    data: of the run.
    sharding: of a batch's rows.
    start: the step to go on from.
    cursor: where the stream stood at that step.
    epochs: that were made by then; None is what the data say.
  """
  parts = phases(config)
  active = max(i for i, phase in enumerate(parts) if phase.start <= start)
  streams = [
      data.train_stream(config.seed + (i << 32), phase.batch_size,
                        local_rows(phase.batch_size, sharding),
                        cursor if i == active else (0, 0), phase.length)
      for i, phase in enumerate(parts)]
  begun = None if epochs is None else Begun(start, epochs)
  return Phases(streams, [phase.start for phase in parts], begun)
