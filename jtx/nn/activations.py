"""Activations by their names."""

from typing import Callable

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn.numerics import gelu

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu,
    "relu2": lambda x: jnp.square(jax.nn.relu(x)),  # So et al. 2021, Primer
    "gelu": gelu,
    "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu_sigmoid": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "silu": jax.nn.silu,
    "tanh": jnp.tanh,
}


def activate(name: str, x: jax.Array) -> jax.Array:
  """The activation of x.

  Raises:
    ConfigError: there is none of this name.
  """
  if name not in ACTIVATIONS:
    raise ConfigError(f"activation={name!r}: {nearest(name, ACTIVATIONS)}")
  return ACTIVATIONS[name](x)
