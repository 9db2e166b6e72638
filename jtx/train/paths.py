"""Paths of parameters as text, such as "encoder/layers/mlp/kernel"."""

import re
from typing import Any, Callable

import jax


def map_paths(fn: Callable[[str], Any], tree: Any) -> Any:
  """`tree` with fn("path/of/leaf") for its leaves."""
  return jax.tree_util.tree_map_with_path(lambda path, _: fn(join(path)), tree)


def join(path: tuple[Any, ...]) -> str:
  """JAX's path of a leaf as "path/of/leaf"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


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
