"""Low-rank adapters (LoRA; Hu et al. 2021) of linear layers, by the paths of these.

A layer of kernel W then computes x W + alpha / rank x A B, where A goes to `rank` numbers and B,
which is 0 at first, from them. Models of class `Adapted` have them by config: Flax hands every call
of a `Dense` to the function that is given to it, so no layer knows of them. The paths of other
parameters stay, so that files of the model without adapters open.
"""

import dataclasses
import re
from typing import Any, Callable, Iterator

from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.dropout import dropout
from jtx.nn.layers import Dense, param
from jtx.nn.numerics import product
from jtx.ranges import Positive, Rate, SizeOrNone

A, B = "lora_a", "lora_b"  # beside a layer's kernel
HEADS = ("task_head", "extractor")  # parts of models that are for a task, and trained whole


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
  """The fields of adapters. Where there are any, nothing else but a task's head is trained."""
  rank: SizeOrNone = 0  # 0: there are none
  alpha: Positive = 16.0  # the product with A and B is times alpha / rank
  dropout: Rate = 0.0  # of the input of A
  # Regular expressions on the paths of linear layers, such as encoder/layers/attention/query
  names: tuple[str, ...] = ("attention/(query|value)$",)
  trained: tuple[str, ...] = ()  # the same on paths of further parameters, which are trained whole

  def __post_init__(self):
    for key in ("names", "trained"):
      for pattern in getattr(self, key):
        try:
          re.compile(pattern)
        except re.error as e:
          raise ConfigError(f"lora.{key}: {pattern!r} is no regular expression: {e}") from e
    if self.rank and not self.names:
      raise ConfigError(f"lora.rank={self.rank} needs lora.names, and they are ()")
    for f in () if self.rank else dataclasses.fields(self):
      if getattr(self, f.name) != f.default:
        raise ConfigError(f"lora.{f.name}={getattr(self, f.name)!r} goes with lora.rank above 0")

  def trains(self, path: str) -> bool:
    """Whether a parameter is trained."""
    parts = path.split("/")
    return (not self.rank or parts[-1] in (A, B) or parts[0] in HEADS
            or any(re.search(pattern, path) for pattern in self.trained))


class Adapted(nn.Module):
  """The base of models with adapters."""
  lora: LoraConfig = dataclasses.field(default=LoraConfig(), kw_only=True)  # adapters (LoRA)

  def apply(self, variables, *args, **kwargs):
    if not self.lora.rank:
      return super().apply(variables, *args, **kwargs)
    with nn.intercept_methods(_adapters(self.lora, [])):
      return super().apply(variables, *args, **kwargs)

  def init_with_output(self, rngs, *args, **kwargs):
    """As Linen's.

    Raises:
      ConfigError: one of `lora.names` matches no layer.
    """
    if not self.lora.rank:
      return super().init_with_output(rngs, *args, **kwargs)
    paths = []
    with nn.intercept_methods(_adapters(self.lora, paths)):
      result = super().init_with_output(rngs, *args, **kwargs)
    for pattern in self.lora.names:
      if not any(re.search(pattern, path) for path in paths):
        raise ConfigError(f"model.lora.names: {pattern!r} matches no linear layer; their paths are"
                          f" {', '.join(dict.fromkeys(paths))}")
    return result

  def bind(self, variables, *args, **kwargs):
    if self.lora.rank:
      raise ValueError("a model with adapters has them in `apply` only; bind that of `merged`")
    return super().bind(variables, *args, **kwargs)


def _adapters(config: LoraConfig, paths: list[str]) -> Callable[..., Any]:
  """What Flax calls in place of methods; puts the paths of layers that may be named in `paths`."""

  def call(method, args, kwargs, context):
    y, layer = method(*args, **kwargs), context.module
    if not isinstance(layer, Dense) or layer.path[0] in HEADS:
      return y
    paths.append("/".join(layer.path))
    if not any(re.search(pattern, paths[-1]) for pattern in config.names):
      return y
    return y + _added(layer, args[0].astype(layer.dtype), config)

  return call


def _added(layer: Dense, x: jax.Array, config: LoraConfig) -> jax.Array:
  """alpha / rank x A B (section 4.1); A's first values are those of the authors' code."""
  n = layer.num_in
  init = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform", in_axis=tuple(range(n)),
                                          out_axis=n)
  a = param(layer, A, init, (*x.shape[-n:], config.rank), (*layer.axes[:n], "rank"))
  b = param(layer, B, nn.initializers.zeros, (config.rank, *layer.features),
            ("rank", *layer.axes[n:]))
  # Keys for dropout are given in training only.
  key = layer.make_rng("dropout") if config.dropout and layer.has_rng("dropout") else None
  low = product(dropout(x, config.dropout, key), a.astype(layer.dtype), None, n)
  return product(low, b.astype(layer.dtype), None, 1) * (config.alpha / config.rank)


def adapted(model: Any) -> bool:
  """Whether a model, of whatever class, has adapters."""
  return isinstance(model, Adapted) and model.lora.rank > 0


def plain(model: Any) -> Any:
  """The model without adapters."""
  return model.clone(lora=LoraConfig()) if isinstance(model, Adapted) else model


def adapters(params: Any) -> Iterator[str]:
  """The paths of adapted layers among parameters."""
  return (path.removesuffix("/" + A) for path in flatten_dict(params, sep="/")
          if path.endswith("/" + A))


def merged(model: Any, params: Any) -> tuple[Any, Any]:
  """The model without adapters, whose kernels are W + alpha / rank A B, in float32.

  Args:
    model: that may have adapters.
    params: its parameters.
  """
  flat = flatten_dict(params, sep="/")
  for path in list(adapters(params)):
    kernel, a, b = (flat[f"{path}/{name}"] for name in ("kernel", A, B))
    flat[f"{path}/kernel"] = kernel + model.lora.alpha / model.lora.rank * matrix(kernel, a, b)
  left = {path: x for path, x in flat.items() if path.split("/")[-1] not in (A, B)}
  return plain(model), unflatten_dict(left, sep="/")


def matrix(kernel: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
  """A B in the kernel's shape; all three may have a leading axis of layers."""
  stacked = kernel.shape[:a.ndim + b.ndim - 2 - kernel.ndim]
  a = a.reshape(*stacked, -1, a.shape[-1])
  b = b.reshape(*stacked, a.shape[-1], -1)
  return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST).reshape(kernel.shape)


def split(model: Any, params: Any) -> tuple[Any, Any]:
  """The parameters that are trained, and those that are frozen: none without adapters.

  Raises:
    ConfigError: one of `lora.trained` matches no parameter.
  """
  if not adapted(model):
    return params, {}
  flat = flatten_dict(params, sep="/")
  for pattern in model.lora.trained:
    if not any(re.search(pattern, path) for path in flat):
      raise ConfigError(f"model.lora.trained: {pattern!r} matches no parameter; their paths are"
                        f" {', '.join(flat)}")
  parts = ({}, {})
  for path, x in flat.items():
    parts[not model.lora.trains(path)][path] = x
  return tuple(unflatten_dict(part, sep="/") for part in parts)


def joined(trained: Any, frozen: Any) -> Any:
  """The inverse of `split`."""
  return unflatten_dict(flatten_dict(trained, sep="/") | flatten_dict(frozen, sep="/"), sep="/")
