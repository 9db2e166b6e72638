"""Optimisers: gradient transformations by name, without a learning rate.

Each is a function of the logical axes of one layer's parameters and of its own settings.
`jtx.train.optim.make` adds the rate, and gives it every layer of a stack on its own.
"""

from typing import Callable, Mapping

import jax
import numpy as np
import optax
from optax import contrib

from jtx.errors import ConfigError
from jtx.ranges import Layers, NotNegative, Positive, Rate, Size
from jtx.train.paths import map_paths

Axes = Mapping[str, tuple[str | None, ...]]  # path -> logical axes of one layer's parameter


def adam(_: Axes, *, b1: Rate = 0.9, b2: Rate = 0.999, eps: NotNegative = 1e-8
         ) -> optax.GradientTransformation:
  """Kingma & Ba 2015.

  Args:
    b1: decay of the average of gradients.
    b2: decay of the average of squared gradients.
    eps: added to the root of the latter.
  """
  return optax.scale_by_adam(b1, b2, eps)


def adamw(_: Axes, *, b1: Rate = 0.9, b2: Rate = 0.999, eps: NotNegative = 1e-8,
          weight_decay: NotNegative = 0.01,
          scale_by_rms: bool = False) -> optax.GradientTransformation:
  """Adam with decoupled weight decay, times the learning rate (Loshchilov & Hutter 2019).

  Args:
    b1: decay of the average of gradients.
    b2: decay of the average of squared gradients.
    eps: added to the root of the latter.
    weight_decay: of kernels and embeddings.
    scale_by_rms: whether updates are relative to the parameter's root mean square, of at least
      0.001, as Adafactor's are: the rate then fits matrices of any scale, such as T5's.
  """
  relative = [optax.scale_by_param_block_rms()] if scale_by_rms else []
  return optax.chain(optax.scale_by_adam(b1, b2, eps), *relative, _decay(weight_decay))


def lamb(_: Axes, *, b1: Rate = 0.9, b2: Rate = 0.999, eps: NotNegative = 1e-6,
         weight_decay: NotNegative = 0.01) -> optax.GradientTransformation:
  """AdamW whose update of a parameter has the parameter's norm (You et al. 2020).

  Args:
    b1: decay of the average of gradients.
    b2: decay of the average of squared gradients.
    eps: added to the root of the latter.
    weight_decay: of kernels and embeddings.
  """
  return optax.chain(optax.scale_by_adam(b1, b2, eps), _decay(weight_decay),
                     optax.scale_by_trust_ratio())


def lion(_: Axes, *, b1: Rate = 0.9, b2: Rate = 0.99, weight_decay: NotNegative = 0.1
         ) -> optax.GradientTransformation:
  """The sign of an interpolated momentum (Chen et al. 2023).

  Args:
    b1: share of the momentum in the update, of which the gradient is the rest.
    b2: decay of the momentum.
    weight_decay: of kernels and embeddings.
  """
  return optax.chain(optax.scale_by_lion(b1, b2), _decay(weight_decay))


def adafactor(_: Axes, *, decay_rate: Positive = 0.8, eps: NotNegative = 1e-30,
              clip_rms: NotNegative = 1.0,
              scale_by_rms: bool = True, min_dim_to_factor: Size = 128, momentum: Rate = 0.0,
              weight_decay: NotNegative = 0.0) -> optax.GradientTransformation:
  """Adam with factored second moments (Shazeer & Stern 2018).

  Weight decay is times the learning rate, as in the other optimisers here.

  Args:
    decay_rate: the second moments' decay at update n is 1 - n^-decay_rate.
    eps: added to squared gradients.
    clip_rms: limit to the root mean square of a parameter's update; 0 is off.
    scale_by_rms: whether updates are relative to the parameter's root mean square.
    min_dim_to_factor: a parameter's two largest axes are factored if both are this long.
    momentum: decay of the average of updates; 0 keeps none.
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


def muon(axes: Axes, *, momentum: Rate = 0.95, nesterov: bool = True, iterations: Layers = 5,
         rms: NotNegative = 0.2, b1: Rate = 0.9, b2: Rate = 0.999, eps: NotNegative = 1e-8,
         weight_decay: NotNegative = 0.1) -> optax.GradientTransformation:
  """Orthogonalised momentum for hidden matrices, AdamW for the rest.

  Jordan et al. 2024 (github.com/KellerJordan/Muon); embeddings, the output layer, biases
  and norms are AdamW's.

  Args:
    axes: logical axes of each parameter.
    momentum: decay of the average of a matrix's gradients.
    nesterov: whether the momentum looks one gradient ahead.
    iterations: of Newton-Schulz.
    rms: the root mean square of a matrix's update, so that AdamW's learning rate fits both
      (0.2: Liu et al. 2025, section 2.2). At 0 it is the first authors'
      sqrt(max(1, out / in)).
    b1: AdamW's decay of the average of gradients.
    b2: AdamW's decay of the average of squared gradients.
    eps: AdamW's, added to the root of the latter.
    weight_decay: of kernels and embeddings, whoever updates them.
  """
  dims = {path: _matrix_axes(path, names) for path, names in axes.items()}

  def label(params):
    return map_paths(lambda path: "adam" if dims[path] is None else "muon", params)

  def dimension_numbers(params):
    return map_paths(dims.__getitem__, params)

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


def sgd(_: Axes, *, momentum: Rate = 0.9, nesterov: bool = False, weight_decay: NotNegative = 0.0
        ) -> optax.GradientTransformation:
  """Gradient descent with momentum; weight decay is part of the gradient, as in L2.

  Args:
    momentum: decay of the sum of gradients; 0 keeps none.
    nesterov: whether the momentum looks one gradient ahead.
    weight_decay: of kernels and embeddings.
  """
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
  return name in ("kernel", "lora_a", "lora_b") or name.endswith("embedding")


def _decay(weight_decay: float) -> optax.GradientTransformation:
  return optax.add_decayed_weights(weight_decay, lambda params: map_paths(decays, params))


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
