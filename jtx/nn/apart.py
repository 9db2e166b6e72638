"""Layers that decode one by one, each with arrays of its own.

A scan has the parameters, the cache and the memory of all layers in arrays [layers, ...]. A CPU's
products read whole arrays, so that of each layer's part a copy would be made at every token.
"""

import functools
from typing import Any, Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn import cache

is_tuple = lambda x: isinstance(x, tuple)


def apart(params: Any, share: bool) -> Any:
  """A stack's parameters, those of each layer in arrays of their own where layers are apart.

  What is stacked [layers, ...] becomes a tuple, and a tuple stays one.

  Args:
    params: of the stack.
    share: one set of parameters is for all layers.
  """
  if share or not cache.layers_apart():
    return params
  of_layers = functools.partial(jax.tree.map, tuple, is_leaf=is_tuple)
  return {name: of_layers(part) if name.split("_")[0] == "layers" else part
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
  pick = lambda params: params if share else jax.tree.map(
      lambda x: x[at], params, is_leaf=is_tuple)
  run_layer = nn.map_variables(layer, "params", pick)(*fields, name=name)

  def run(carry, layers, ctx):
    nonlocal at
    (x, own), (_, kinds, skipped, memory) = carry, layers
    caches, outputs = [], []
    for at in range(number):
      of_layer = lambda values: None if values is None else values[at]
      (x, new), out = run_layer(
          (x, own[at]), (None, kinds[at], of_layer(skipped), of_layer(memory)), ctx)
      caches.append(new)
      outputs.append(out)
    memories, weights, hidden = zip(*outputs)
    stacked = lambda parts: jax.tree.map(lambda *xs: jnp.stack(xs), *parts)
    return (x, tuple(caches)), (memories, stacked(weights), stacked(hidden))

  return run
