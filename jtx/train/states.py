"""Train states from and to checkpoints, and from the parameters of a trained model."""

import collections
import dataclasses
import itertools
import json
from typing import Any, Collection, Iterable, Mapping, NamedTuple, Sequence

from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp

from jtx.config import ConfigDict
from jtx.data.dataset import Dataset
from jtx.data.phases import Phases
from jtx.errors import ConfigError, TrainError
from jtx.interop import export
from jtx.saved import workdir as workdirs
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.folder import open_saved
from jtx.train.adapters import take_base
from jtx.train.own import apart, together
from jtx.train.program import Program
from jtx.train.step import TrainState


SHOWN = 6  # names of parameters and modules in a line of the log


class Start(NamedTuple):
  """Where a run begins or goes on."""
  state: TrainState
  step: int = 0
  cursor: tuple[int, int] = (0, 0)  # where the stream of batches stands
  pending: Sequence[str] = ()  # evaluations that are due
  totals: Mapping[str, float] | None = None  # of `Progress`
  data: Sequence[Mapping[str, Any]] | None = None  # `Dataset.known_by`
  epochs: float | None = None  # passes over the data
  evals: Mapping[str, Mapping[str, Any]] = {}  # `Dataset.known_splits`


def begin(program: Program, checkpoints: Checkpointer) -> Start:
  """The newest good checkpoint, or what a new run starts from."""
  config = program.config
  if checkpoints.latest_step() is None:
    checkpoints.check_none_lost()
    state = program.init()
    if "base" in program.extra:
      state = with_params(program, state, take_base(program))
    elif config.init_from:
      params = open_saved(config.init_from).params_for(
          program.model, len(config.tokenizer.delimiters))[0]
      state = with_params(program, state, params)
    if config.init_from and (advice := export.head_advice(program.model)):
      logging.info("init     no class of transformers has this head: %s", advice)
    return Start(state)
  state, meta, step = restore(program, checkpoints)
  if "base" in program.extra:
    take_base(program, meta)
  if meta["config"]["checkpoint"].get("best") != config.checkpoint.best:
    checkpoints.scores.clear()  # they are of another number
  # Older checkpoints have neither evaluations that are due, nor totals, nor what data they know,
  # nor epochs.
  return Start(state, step, tuple(meta["cursor"]), pending=meta.get("pending", ()),
               totals=meta.get("progress"), data=meta.get("data"), epochs=meta.get("epochs"),
               evals=meta.get("evals", {}))


def check_same(config: ConfigDict, data: Dataset, begun: Start) -> None:
  """Compares the data with those that the checkpoint which a run goes on from was written with.

  Raises:
    ConfigError: as `check_data` does.
  """
  where = f"the checkpoint of step {begun.step}"
  check_data(config, data, begun.data, where)
  check_splits(config, data, begun.evals, where)


def check_data(config: ConfigDict, data: Dataset, known: Sequence[Mapping[str, Any]] | None,
               where: str) -> None:
  """Raises ConfigError where the training data has changed since a checkpoint was written.

  The place of a run in its data, which its step is, would then be among other examples. Where
  `checkpoint.same_data` is off, the log tells of it.

  Args:
    config: of the run.
    data: of the run.
    known: `Dataset.known_by` of the checkpoint; None is of one that has none.
    where: names the checkpoint.
  """
  now = data.known_by  # also for the checkpoints to come: images may be added while it trains
  if known is None or known == now:
    return
  changed = [_change(*change) for change in zip(_sources(data, len(known)), known, now)
             if change[1] != change[2]]
  told = f"the training data has changed since {where} was written: {', '.join(changed)}"
  if config.checkpoint.same_data:
    raise ConfigError(f"{told}; bring it back, choose another workdir to begin anew, or go on with"
                      " the data as it is now by --config.checkpoint.same_data=False")
  logging.warning("%s; the run goes on with the data as it is now", told)


def check_splits(config: ConfigDict, data: Dataset, known: Mapping[str, Mapping[str, Any]],
                 where: str) -> None:
  """Warns where data to evaluate on has changed since a checkpoint was written.

  Args:
    config: of the run.
    data: of the run.
    known: `Dataset.known_splits` of the checkpoint; {} is of one that has none.
    where: names the checkpoint.
  """
  now = data.known_splits(splits(config))  # also for the checkpoints to come
  changed = [_change(spec, known[spec], new) for spec, new in now.items()
             if spec in known and known[spec] != new]
  if changed:
    logging.warning("the data to evaluate on has changed since %s was written: %s; scores from here"
                    " on do not compare with those before", where, ", ".join(changed))


def splits(config: ConfigDict) -> tuple[tuple[str, ...], ...]:
  """The sources of each evaluation."""
  return tuple(tuple(e.source) for e in config.evals.values() if "source" in e)


def _change(spec: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
  """What has changed in a source."""
  if old["examples"] != new["examples"]:
    return f"{spec} had {old['examples']} examples and has {new['examples']}"
  return f"{spec} has other examples"


def _sources(data: Dataset, number: int) -> Sequence[str]:
  """Names of the sources, of which prepared folders may have several."""
  specs = data.data.train
  return specs if len(specs) == number else [", ".join(specs)] * number


def with_params(program: Program, state: TrainState, params: Any) -> TrainState:
  """A fresh state with other parameters; those that `params` does not have stay, rows too.

  Args:
    program: of the run.
    state: as `program.init` makes it.
    params: nested dict of arrays.
  """
  fresh = flatten_dict(state.params, sep="/")
  places = flatten_dict(program.shardings.params, sep="/")
  given = {path: _filled(fresh[path], x, places[path])
           for path, x in flatten_dict(params, sep="/").items()}
  # Those that adapters leave as they are, which are beside the state, are all the folder's.
  frozen = flatten_dict(program.extra["base"], sep="/") if "base" in program.extra else {}
  left = modules(fresh.keys() - given.keys(), fresh | frozen)
  left += [f"rows of {path}" for path, x in flatten_dict(params, sep="/").items()
           if x.shape != fresh[path].shape]
  logging.info("init     %d of %d parameters from %s%s", len(given | frozen), len(fresh | frozen),
               program.config.init_from, "; fresh: " + ", ".join(left) if left else "")
  params = unflatten_dict(fresh | given, sep="/")
  # The average starts from them too, in arrays of its own: the step gives its state away.
  ema = jax.tree.map(jnp.copy, params) if program.config.optim.ema else {}
  return state.replace(params=params, ema=ema)


def modules(paths: Collection[str], every: Iterable[str]) -> list[str]:
  """Paths of parameters in short, with how many they are of.

  All of a module are its name; where these are many, what is in one place at the top is one.
  """
  every, top = set(every), lambda path: path.partition("/")[0]
  above = lambda path: itertools.accumulate(path.split("/"), "{}/{}".format)
  partly = {module for path in every.difference(paths) for module in above(path)}
  names = collections.Counter(
      next(module for module in above(path) if module not in partly) for path in paths)
  if len(names) > SHOWN:
    number = collections.Counter(map(top, every))
    return [f"{name} ({n} of {number[name]})"
            for name, n in sorted(collections.Counter(map(top, paths)).items())]
  return [name if n == 1 else f"{name} ({n})" for name, n in sorted(names.items())]


def _filled(fresh: jax.Array, x: Any, place: Any) -> jax.Array:
  """An array in place of a fresh one, of which what it has no values for stays: new tokens."""
  if x.shape == fresh.shape:
    return jax.device_put(x, place)
  part = tuple(slice(n) for n in x.shape)
  return jax.jit(lambda fresh, x: fresh.at[part].set(x), out_shardings=place)(fresh, x)


def restore(program: Program,
            checkpoints: Checkpointer) -> tuple[TrainState, Mapping[str, Any], int]:
  """The newest good checkpoint: its state on the program's mesh, what is beside it, its step."""
  restored, meta, step = checkpoints.restore(abstract(program))
  return TrainState(**together(restored)), meta, step


def final_params(program: Program, checkpoints: Checkpointer) -> tuple[Any, int]:
  """The parameters that a run ends with (their EMA, where there is one), and their step.

  They are of the best checkpoint, where the run keeps it, and else of the newest; or the mean of
  `checkpoint.average` up to it.
  """
  config = program.config
  key = "ema" if config.optim.ema else "params"
  step = workdirs.chosen_step(config, checkpoints, None)
  number = checkpoints.at_most(config.checkpoint.average, step)  # a short run has fewer
  params, _, step = checkpoints.restore_params(abstract(program)[key], step, number, key)
  return params, step


def check_finite(state: TrainState, checkpoints: Checkpointer) -> None:
  """Raises TrainError where a loss or gradient was not finite since the last checkpoint."""
  bad = int(state.bad_step)
  if bad < 0:
    return
  checkpoints.wait()
  good = checkpoints.latest_step()
  kept = "there is no checkpoint yet"
  if good is not None:
    kept = f"the checkpoint of step {good} is the last good one"
  raise TrainError(f"the loss or its gradient became NaN or infinite at step {bad}, and nothing was"
                   f" saved since; {kept}; try a lower optim.lr, optim.clip_norm or more warm-up")


def save(checkpoints: Checkpointer, state: TrainState, program: Program, data: Dataset,
         stream: Phases, step: int, pending: Iterable[str] = (),
         totals: Mapping[str, float] | None = None) -> None:
  """Starts to write a checkpoint.

  Args:
    checkpoints: of the run.
    state: after `step` updates.
    program: of the run.
    data: whose tokenizers and labels it keeps.
    stream: of training.
    step: of the state.
    pending: the names of evaluators that are due.
    totals: of the run's progress.
  """
  check_finite(state, checkpoints)
  checkpoints.save(step, to_dict(state), {
      "config": json.loads(program.config.to_json()), "tokenizers": data.tokenizer_texts(),
      "labels": list(data.labels), "shares": data.shares, "base": program.base_checksums,
      "cursor": [int(i) for i in stream.cursor(step)], "data": data.known_by,
      "evals": data.known_splits(splits(program.config)), "epochs": stream.epochs(step),
      "pending": list(pending), "progress": totals})


def to_dict(state: TrainState) -> dict[str, Any]:
  """The parts of a state by name, as a checkpoint has them."""
  return apart({f.name: getattr(state, f.name) for f in dataclasses.fields(state)})


def abstract(program: Program) -> dict[str, Any]:
  """The state's shapes and dtypes, and where on the mesh they are."""
  place = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
  return to_dict(jax.tree.map(place, program.abstract_state, program.shardings))
