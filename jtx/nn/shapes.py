"""Shapes of a model's parameters, without the time that drawing them takes.

Inside `shapes_of` a parameter begins as zeros, and a layer is traced once where drawing traces it
twice: shapes, types and axis names are the same.
"""

import contextvars
from typing import Any, Callable

import jax

_ALONE = contextvars.ContextVar("shapes alone are wanted", default=False)


def shapes_of(init: Callable[..., Any], *args: Any) -> Any:
  """What `init`, which makes parameters of models, returns for args, with shapes for arrays."""

  def made(*args):  # of this call alone, so that JAX keeps no program of zeros for `init`
    token = _ALONE.set(True)
    try:
      return init(*args)
    finally:
      _ALONE.reset(token)

  return jax.eval_shape(made, *args)


def alone() -> bool:
  """Whether nothing but shapes is wanted of what is computed now."""
  return _ALONE.get()
