"""Optimisers, and the gradient transformation made of one and a learning rate schedule.

A stack keeps its parameters as [layers, ...]. That is a layout, not one big parameter:
`per_layer` gives an optimiser every layer on its own, so that trust ratios, factored
moments and orthogonalised matrices are those of separate layers.

The functions in `OPTIMIZERS` return a transformation without a learning rate; `make` puts one
together with a schedule of `jtx.train.schedules`.
"""

import re
from typing import Any, Callable, Collection, Iterable, Mapping

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import optax
from optax import contrib

from jtx.config import ConfigDict, build, section
from jtx.errors import ConfigError
from jtx.train.schedules import SCHEDULES, Schedule

Axes = Mapping[str, tuple[str | None, ...]]  # path -> logical axes of one layer's parameter


def defaults() -> ConfigDict:
  """The `optim` section of a config: AdamW with a warmed-up cosine."""
  return ConfigDict({
      "lr": 1e-3,  # the highest learning rate; noam's factor
      "optimizer": section(OPTIMIZERS, "adamw"),
      "schedule": section(SCHEDULES, "cosine"),
      "clip_norm": 0.0,  # of the gradient of all parameters together; 0 is off
      "lr_mults": (),  # (regex on a parameter's path, factor), first match wins, 0 freezes
      "ema": 0.0,  # decay of the average of the parameters; 0 is off
      "accumulate": 1,  # batches whose gradients make an update
  })


def make(optim: ConfigDict, total_steps: int, params: Any, logical_axes: Any
         ) -> tuple[optax.GradientTransformation, Schedule]:
  """The gradient transformation and the schedule of a run.

  Frozen parameters are left out of the gradient's norm, as if they had no gradient.

  Args:
    optim: a section like that of `defaults`; its `ema` and `accumulate` are for the caller.
    total_steps: updates in the run.
    params: nested dict of (abstract) parameters.
    logical_axes: as `params`, a tuple of names a parameter; "layers" comes first in a stack.

  Returns:
    The transformation, whose updates are to be added to the parameters, and the schedule,
    from the number of updates already made to the learning rate.

  Raises:
    ConfigError: a value out of range, or an `lr_mults` regex that matches no parameter.
  """
  if optim.clip_norm < 0:
    raise ConfigError(f"optim.clip_norm={optim.clip_norm}: must be 0 (off) or more")
  if optim.lr < 0:
    raise ConfigError(f"optim.lr={optim.lr}: must be 0 or more")
  axes = flatten_dict(logical_axes, sep="/")
  stacked = {path for path, names in axes.items() if names and names[0] == "layers"}
  layer_axes = {path: names[1:] if path in stacked else names for path, names in axes.items()}
  schedule = build(SCHEDULES, optim.schedule, optim.lr, total_steps, what="optim.schedule")
  core = build(OPTIMIZERS, optim.optimizer, layer_axes, what="optim.optimizer")
  parts = [per_layer(core, stacked), optax.scale_by_learning_rate(schedule)]
  if optim.clip_norm:
    parts = [optax.clip_by_global_norm(optim.clip_norm), *parts]
  fixed = {path for path, names in axes.items() if "fixed_positions" in names}
  if optim.lr_mults or fixed:
    mults = multipliers(optim.lr_mults, params, stacked, fixed)
    trained = jax.tree.map(lambda m: (m != 0).astype(np.float32), mults)
    parts = [scale_by(trained), *parts, scale_by(mults)]
  return optax.chain(*parts), schedule


# ---- Optimisers: (axes) -> transformation of one layer's gradients, without learning rate ----


def adam(_: Axes, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8
         ) -> optax.GradientTransformation:
  """Kingma & Ba 2015."""
  return optax.scale_by_adam(b1, b2, eps)


def adamw(_: Axes, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: float = 0.01) -> optax.GradientTransformation:
  """Adam with decoupled weight decay, times the learning rate (Loshchilov & Hutter 2019)."""
  return optax.chain(optax.scale_by_adam(b1, b2, eps), _decay(weight_decay))


def lamb(_: Axes, *, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-6,
         weight_decay: float = 0.01) -> optax.GradientTransformation:
  """AdamW whose update of a parameter has the parameter's norm (You et al. 2020)."""
  return optax.chain(optax.scale_by_adam(b1, b2, eps), _decay(weight_decay),
                     optax.scale_by_trust_ratio())


def lion(_: Axes, *, b1: float = 0.9, b2: float = 0.99, weight_decay: float = 0.1
         ) -> optax.GradientTransformation:
  """The sign of an interpolated momentum (Chen et al. 2023)."""
  return optax.chain(optax.scale_by_lion(b1, b2), _decay(weight_decay))


def adafactor(_: Axes, *, decay_rate: float = 0.8, eps: float = 1e-30, clip_rms: float = 1.0,
              scale_by_rms: bool = True, min_dim_to_factor: int = 128, momentum: float = 0.0,
              weight_decay: float = 0.0) -> optax.GradientTransformation:
  """Adam with factored second moments (Shazeer & Stern 2018).

  Weight decay is times the learning rate, as in the other optimisers here.

  Args:
    decay_rate: the second moments' decay at update n is 1 - n^-decay_rate.
    eps: added to squared gradients.
    clip_rms: limit to the root mean square of a parameter's update; 0 is off.
    scale_by_rms: whether updates are relative to the parameter's root mean square.
    min_dim_to_factor: a parameter's two largest axes are factored if both are this long.
    momentum: of the updates; 0 keeps none.
    weight_decay: of kernels and embeddings.
  """
  parts = [
      optax.scale_by_factored_rms(decay_rate=decay_rate, epsilon=eps,
                                  min_dim_size_to_factor=min_dim_to_factor),
      optax.clip_by_block_rms(clip_rms) if clip_rms else None,
      optax.scale_by_param_block_rms() if scale_by_rms else None,
      optax.ema(momentum, debias=False) if momentum else None,
      _decay(weight_decay),
  ]
  return optax.chain(*(p for p in parts if p is not None))


def muon(axes: Axes, *, momentum: float = 0.95, nesterov: bool = True, iterations: int = 5,
         rms: float = 0.2, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8,
         weight_decay: float = 0.1) -> optax.GradientTransformation:
  """Orthogonalised momentum for hidden matrices, AdamW for the rest.

  Jordan et al. 2024 (github.com/KellerJordan/Muon); embeddings, the output layer, biases
  and norms are AdamW's.

  Args:
    axes: logical axes of each parameter.
    momentum: of the matrices.
    nesterov: whether the momentum looks one gradient ahead.
    iterations: of Newton-Schulz.
    rms: the root mean square of a matrix's update, so that AdamW's learning rate fits both
      (0.2: Liu et al. 2025, section 2.2); 0 is the first authors' sqrt(max(1, out / in)).
    b1: AdamW's.
    b2: AdamW's.
    eps: AdamW's.
    weight_decay: of kernels and embeddings, whoever updates them.
  """
  dims = {path: _matrix_axes(path, names) for path, names in axes.items()}

  def label(params):
    return _map_paths(lambda path: "adam" if dims[path] is None else "muon", params)

  def dimension_numbers(params):
    return _map_paths(dims.__getitem__, params)

  def scale_updates(updates, params):
    del params
    return jax.tree.map(lambda u, d: u * _matrix_scale(u.shape, d, rms),
                        updates, dimension_numbers(updates))

  matrices = optax.chain(
      contrib.scale_by_muon(ns_steps=iterations, beta=momentum, nesterov=nesterov,
                            weight_dimension_numbers=dimension_numbers),
      optax.stateless(scale_updates))
  return optax.chain(
      optax.partition({"muon": matrices, "adam": optax.scale_by_adam(b1, b2, eps)}, label),
      _decay(weight_decay))


def sgd(_: Axes, *, momentum: float = 0.9, nesterov: bool = False, weight_decay: float = 0.0
        ) -> optax.GradientTransformation:
  """Gradient descent with momentum; weight decay is part of the gradient, as in L2."""
  if nesterov and not momentum:
    raise ConfigError("optim.optimizer.nesterov=True: needs optim.optimizer.momentum above 0")
  if not momentum:
    return _decay(weight_decay)
  return optax.chain(_decay(weight_decay), optax.trace(momentum, nesterov))


OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adafactor": adafactor,
    "adam": adam,
    "adamw": adamw,
    "lamb": lamb,
    "lion": lion,
    "muon": muon,
    "sgd": sgd,
}


def decays(path: str) -> bool:
  """Whether weight decay is meant for a parameter: kernels and embeddings."""
  name = path.split("/")[-1]
  return name == "kernel" or name.endswith("embedding")


def _decay(weight_decay: float) -> optax.GradientTransformation:
  return optax.add_decayed_weights(weight_decay, lambda params: _map_paths(decays, params))


def _matrix_axes(path: str, names: tuple[str | None, ...]) -> contrib.MuonDimensionNumbers | None:
  """The input and output axes of a hidden matrix; None for any other parameter.

  Kernels have input axes first. Of more than two axes, "embed" is one side of the matrix:
  the input if it is first (query, [D, N, H]), else the output (attention's out, [N, H, D]).
  """
  if path.split("/")[-1] != "kernel" or "vocab" in names or len(names) < 2:
    return None
  if len(names) == 2:
    return contrib.MuonDimensionNumbers((0,), (1,))
  if names.count("embed") != 1:
    return None
  embed = names.index("embed")
  rest = tuple(i for i in range(len(names)) if i != embed)
  return contrib.MuonDimensionNumbers(*(((0,), rest) if embed == 0 else (rest, (embed,))))


def _matrix_scale(shape: tuple[int, ...], dims: contrib.MuonDimensionNumbers, rms: float) -> float:
  num_in = np.prod([shape[i] for i in dims.reduction_axis])
  num_out = np.prod([shape[i] for i in dims.output_axis])
  # An orthogonal matrix has root mean square max(in, out)^-0.5.
  return float(rms * max(num_in, num_out)**0.5 if rms else max(1, num_out / num_in)**0.5)


# ---- Paths and layers ----


def _map_paths(fn: Callable[[str], Any], tree: Any) -> Any:
  """`tree` with fn("path/of/leaf") for its leaves."""
  return jax.tree_util.tree_map_with_path(lambda path, _: fn(_join(path)), tree)


def _join(path: tuple[Any, ...]) -> str:
  return jax.tree_util.keystr(path, simple=True, separator="/")


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


def layer_path(path: str, layer: int) -> str:
  """"encoder/layers/mlp/kernel" of layer 3 is "encoder/layers/3/mlp/kernel".

  Raises:
    ValueError: no component of `path` is "layers" or "layers_K".
  """
  parts = path.split("/")
  for i, part in enumerate(parts):
    if re.fullmatch(r"layers(_\d+)?", part):
      return "/".join([*parts[:i + 1], str(layer), *parts[i + 1:]])
  raise ValueError(f"stacked parameter {path} is not under a component layers or layers_K")


def multipliers(lr_mults: Iterable[tuple[str, float]], params: Any, stacked: Collection[str],
                fixed: Collection[str] = ()) -> Any:
  """The learning rate's factor for every parameter.

  Args:
    lr_mults: (regex, factor) pairs; the first regex found in a layer's path (`layer_path`)
      decides; 1 where none is.
    params: nested dict of (abstract) parameters.
    stacked: paths of parameters that have a leading axis of layers.
    fixed: paths of parameters that no run trains.

  Returns:
    Nested dict of float32 arrays that broadcast to the parameters: [layers, 1, ...] where
    stacked, else [].

  Raises:
    ConfigError: an entry is not a pair of a regex and a number from 0, or matches nothing.
  """
  rules = [_rule(entry) for entry in lr_mults]
  unmatched = {regex.pattern for regex, _ in rules}

  def factor(path):
    found = [(regex.pattern, mult) for regex, mult in rules if regex.search(path)]
    unmatched.difference_update(pattern for pattern, _ in found)
    return found[0][1] if found else 1.0

  result = {}
  for path, x in flatten_dict(params, sep="/").items():
    if path in stacked:
      mults = [factor(layer_path(path, i)) for i in range(x.shape[0])]
      result[path] = np.array(mults, np.float32).reshape(-1, *(1,) * (len(x.shape) - 1))
    else:
      result[path] = np.array(factor(path), np.float32)
  result |= {path: np.zeros_like(result[path]) for path in fixed}
  if unmatched:
    path = next((p for p in result if p in stacked), next(iter(result)))
    example = layer_path(path, 0) if path in stacked else path
    raise ConfigError(f"optim.lr_mults: {min(unmatched)!r} matches no parameter;"
                      f" their paths are like {example}")
  return unflatten_dict(result, sep="/")


def _rule(entry: tuple[str, float]) -> tuple[re.Pattern, float]:
  try:
    pattern, mult = entry
    regex, mult = re.compile(pattern), float(mult)
  except (TypeError, ValueError, re.error) as e:
    raise ConfigError(f"optim.lr_mults: {entry!r} is not a pair (regex, factor)") from e
  if not mult >= 0:
    raise ConfigError(f"optim.lr_mults: the factor of {pattern!r} is {mult}; it must be 0 or more")
  return regex, mult


def scale_by(factors: Any) -> optax.GradientTransformation:
  """Multiplies updates by a tree of constants; where one is 0 so is the update, even if NaN."""
  def scale(updates, params):
    del params
    return jax.tree.map(lambda u, f: jnp.where(f == 0, 0, u * f).astype(u.dtype), updates, factors)

  return optax.stateless(scale)


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
    parts = _join(path).split("/")
    for i in range(len(parts)):  # the longest end that is a parameter's path
      end = "/".join(parts[i:])
      if end in shapes:
        return places[end] if shapes[end] == x.shape else replicated
    return replicated

  return jax.tree_util.tree_map_with_path(place, opt_state)
