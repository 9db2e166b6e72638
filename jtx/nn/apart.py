"""Layers that decode one by one, each with arrays of its own.

A scan has the parameters, the cache and the memory of all layers in arrays [layers, ...]. A CPU's
products read whole arrays, so that of each layer's part a copy would be made at every token. And
where rows are few, it multiplies faster with a matrix [outputs, inputs] on the left, which it reads
as it lies (`jtx.nn.numerics.left_product`). So kernels are turned into such ones, which layers find
beside them under the name `MATRIX`; an embedding is one.
"""

import functools
import math
from typing import Any, Callable, Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.nn import cache
from jtx.nn.numerics import MATRIX

is_tuple = lambda x: isinstance(x, tuple)
# Of attention, and how many of their kernel's three axes are inputs.
PROJECTIONS = {"query": 1, "key": 1, "value": 1, "out": 2}


@flax.struct.dataclass
class Turned:
  """A kernel [*inputs, *features], kept as [outputs, inputs]."""
  matrix: jax.Array
  shape: tuple[int, ...] = flax.struct.field(pytree_node=False)

  def back(self) -> jax.Array:
    """The kernel, for its shape; the compiler makes none where the matrix is what is read."""
    return self.matrix.T.reshape(self.shape)


def turned(path: tuple, layers: tuple) -> tuple:
  """The arrays of layers under a path, kernels of products turned."""
  *_, parent, name = (getattr(key, "key", None) for key in (None, *path))
  if name != "kernel" or isinstance(layers[0], Turned):
    return layers
  shape = layers[0].shape
  inputs = 1 if len(shape) == 2 else PROJECTIONS.get(parent)
  if inputs is None:
    return layers
  return tuple(Turned(x.reshape(math.prod(shape[:inputs]), -1).T, shape) for x in layers)


def apart(params: Any, share: bool) -> Any:
  """A stack's parameters, those of each layer in arrays of their own where layers are apart.

  What is stacked [layers, ...] becomes a tuple, of kernels one of `Turned`, and a tuple stays one.

  Args:
    params: of the stack.
    share: one set of parameters is for all layers.
  """
  if share or not cache.layers_apart():
    return params
  of_layers = functools.partial(jax.tree.map, tuple, is_leaf=is_tuple)
  turn = functools.partial(jax.tree_util.tree_map_with_path, turned, is_leaf=is_tuple)
  return {name: turn(of_layers(part)) if name.split("_")[0] == "layers" else part
          for name, part in params.items()}


def of_layer(params: Any, at: int) -> Any:
  """The parameters of a layer out of those of all, a turned kernel's matrix beside it."""
  if not isinstance(params, Mapping):
    return params[at]
  own = {}
  for name, value in params.items():
    own[name] = of_layer(value, at)
    if isinstance(own[name], Turned):
      own |= {name: own[name].back(), MATRIX: own[name].matrix}
  return own


def with_tables(params: Any) -> Any:
  """A model's parameters, whose embeddings are under `MATRIX` as well, where layers are apart."""
  if not cache.layers_apart():
    return params
  return {name: {**part, MATRIX: part["embedding"]}
          if isinstance(part, Mapping) and "embedding" in part else part
          for name, part in params.items()}


def one_by_one(layer: type[nn.Module], fields: tuple, name: str, number: int,
               share: bool) -> Callable:
  """As a scan of `layer`, with a cache of each layer's own; to be called in a stack.

  Args:
    layer: as `jtx.nn.stack.ScanLayer`.
    fields: of it.
    name: of its parameters, which are stacked, or as `apart` gives them.
    number: of layers.
    share: one set of parameters is for all layers.
  """
  at = 0
  pick = lambda params: params if share else of_layer(params, at)
  run_layer = nn.map_variables(layer, "params", pick)(*fields, name=name)

  def run(carry, layers, ctx):
    nonlocal at
    (x, own), (_, kinds, skipped, memory) = carry, layers
    caches, outputs = [], []
    for at in range(number):
      part = lambda values: None if values is None else values[at]
      (x, new), out = run_layer(
          (x, own[at]), (None, kinds[at], part(skipped), part(memory)), ctx)
      caches.append(new)
      outputs.append(out)
    memories, weights, hidden = zip(*outputs)
    stacked = lambda parts: jax.tree.map(lambda *xs: jnp.stack(xs), *parts)
    return (x, tuple(caches)), (memories, stacked(weights), stacked(hidden))

  return run
