"""The gradient transformation of a run: an optimiser, its learning rate, clipping and freezing.

A stack keeps its parameters as [layers, ...]. That is a layout, not one big parameter:
`per_layer` gives an optimiser every layer on its own, so that trust ratios, factored
moments and orthogonalised matrices are those of separate layers.
"""

from typing import Any, Collection, Mapping

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np
import optax

from jtx.config import ConfigDict, build
from jtx.errors import ConfigError
from jtx.parallel.sharding import FIXED
from jtx.train.multipliers import frozen_between, multipliers, scale_by, stretches
from jtx.train.optimizers import OPTIMIZERS
from jtx.train.paths import join
from jtx.train.schedules import SCHEDULES, Schedule


def make(optim: ConfigDict, total_steps: int, params: Any, logical_axes: Any, *,
         width: int | None = None) -> tuple[optax.GradientTransformation, Schedule]:
  """The gradient transformation and the schedule of a run.

  Frozen parameters are left out of the gradient's norm, as if they had no gradient.

  Args:
    optim: a section as `keys.OptimKeys` declares it; its `ema` and `accumulate` are for the caller.
    total_steps: updates in the run.
    params: nested dict of (abstract) parameters.
    logical_axes: as `params`, a tuple of names a parameter; "layers" comes first in a stack.
    width: of the model, for schedules that depend on it.

  Returns:
    The transformation, whose updates are to be added to the parameters, and the schedule,
    from the number of updates already made to the learning rate.

  Raises:
    ConfigError: a value out of range, or an `lr_mults` regex that matches no parameter.
  """
  axes = flatten_dict(logical_axes, sep="/")
  stacked = _stacked(axes)
  layer_axes = {path: names[1:] if path in stacked else names for path, names in axes.items()}
  schedule = build(SCHEDULES, optim.schedule, optim.lr, total_steps, width,
                   what="optim.schedule")
  core = build(OPTIMIZERS, optim.optimizer, layer_axes, what="optim.optimizer")
  parts = [per_layer(core, stacked), optax.scale_by_learning_rate(schedule)]
  if optim.clip_norm:
    parts = [optax.clip_by_global_norm(optim.clip_norm), *parts]
  fixed = {path for path, names in axes.items() if not FIXED.isdisjoint(names)}
  if optim.lr_mults or fixed:
    mults = multipliers(optim.lr_mults, params, stacked, fixed)
    trained = jax.tree.map(lambda m: (m != 0).astype(np.float32), mults)
    parts = [scale_by(trained), *parts, scale_by(mults)]
  if optim.frozen:  # ahead of the optimiser, which sees no gradient, and behind it: nothing decays
    gate = frozen_between(*stretches(optim.frozen, params, stacked), total_steps)
    parts = [gate, *parts, gate]
  return optax.chain(*parts), schedule


def untrained(optim: ConfigDict, params: Any, logical_axes: Any) -> Any:
  """For every parameter, whether no update of the run changes any part of it, as the config says.

  Arguments are those of `make`. Of stacked layers of which some are trained it says False.
  """
  stacked = _stacked(flatten_dict(logical_axes, sep="/"))
  mults = multipliers(optim.lr_mults, params, stacked)
  starts, ends = stretches(optim.frozen, params, stacked)
  return jax.tree.map(lambda mult, start, end: bool(
      ((mult == 0) | (start <= 0) & (end >= 1)).all()), mults, starts, ends)


def _stacked(axes: Mapping[str, tuple[str | None, ...]]) -> set[str]:
  """Paths of the parameters that have a leading axis of layers."""
  return {path for path, names in axes.items() if names and names[0] == "layers"}


def per_layer(tx: optax.GradientTransformation, stacked: Collection[str]
              ) -> optax.GradientTransformation:
  """`tx` on each layer of stacked parameters as if they were separate parameters.

  Parameters are grouped by their number of layers, and `tx` is mapped over the layers of a
  group. Its state is a dict from group to state, where stacked leaves are [layers, ...].

  Args:
    tx: a transformation that treats parameters independently.
    stacked: paths of parameters that have a leading axis of layers.
  """
  def split(tree):
    groups = {}
    for path, leaf in flatten_dict(tree, sep="/").items():
      name = f"layers_{leaf.shape[0]}" if path in stacked else "single"
      groups.setdefault(name, {})[path] = leaf
    return {name: unflatten_dict(group, sep="/") for name, group in groups.items()}

  def over_layers(fn, name):
    return fn if name == "single" else jax.vmap(fn)

  def init(params):
    return {name: over_layers(tx.init, name)(group) for name, group in split(params).items()}

  def update(updates, state, params=None):
    if params is None:
      raise ValueError(optax.NO_PARAMS_MSG)
    params = split(params)
    flat, new_state = {}, {}
    for name, group in split(updates).items():
      group, new_state[name] = over_layers(tx.update, name)(group, state[name], params[name])
      flat |= flatten_dict(group, sep="/")
    return unflatten_dict(flat, sep="/"), new_state

  return optax.GradientTransformation(init, update)


@jax.named_scope("ema")
def ema_update(ema: Any, params: Any, decay: float) -> Any:
  """decay * ema + (1 - decay) * params."""
  return jax.tree.map(lambda e, p: decay * e + (1 - decay) * p, ema, params)


def opt_state_shardings(opt_state: Any, params: Any, shardings: Any, replicated: Any) -> Any:
  """Places an optimiser's state: what mirrors a parameter goes where the parameter is.

  Args:
    opt_state: (abstract) state of `make`'s transformation.
    params: nested dict of (abstract) parameters.
    shardings: as `params`, a sharding each.
    replicated: the sharding of all else: counts, factored moments.

  Returns:
    A tree like `opt_state` of shardings.
  """
  shapes = {path: x.shape for path, x in flatten_dict(params, sep="/").items()}
  places = flatten_dict(shardings, sep="/")

  def place(path, x):
    parts = join(path).split("/")
    for i in range(len(parts)):  # the longest end that is a parameter's path
      end = "/".join(parts[i:])
      if end in shapes:
        return places[end] if shapes[end] == x.shape else replicated
    return replicated

  return jax.tree_util.tree_map_with_path(place, opt_state)
