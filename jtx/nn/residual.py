"""Residual branches: layer scale and stochastic depth of the outputs of sub-layers."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn.layers import param
from jtx.nn.numerics import scaled
from jtx.ranges import Positive, Rate


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResidualConfig:
  """Layer scale and stochastic depth of sub-layers' outputs (DeiT III; Touvron et al. 2022)."""
  # Of the kernels that make these outputs; None is block.init_std. GPT-2 has 0.02 / sqrt(2 layers),
  # so that their sum does not grow with the depth (Radford et al. 2019, section 2.3).
  init_std: Positive | None = None
  layer_scale: float | None = None  # first value of a factor a channel (CaiT; Touvron et al. 2021)
  drop_path: Rate = 0.0  # share of examples that skip a sub-layer (Huang et al. 2016)
  uniform: bool = False  # of every layer; else the share grows from 0 to drop_path over the depth

  def skipped(self, first: int, number: int, total: int) -> jax.Array | None:
    """The shares [number] of layers `first` and on, of `total`; None where none is skipped."""
    if not self.drop_path:
      return None
    depth = jnp.arange(first, first + number)
    return jnp.full(number, self.drop_path) if self.uniform else (
        self.drop_path * depth / max(total - 1, 1))

  def layer_scaled(self, module: nn.Module, name: str, y: jax.Array) -> jax.Array:
    """y [B, T, D] times a parameter [D] of `module`, where there is layer scale."""
    if self.layer_scale is None:
      return y
    init = nn.initializers.constant(self.layer_scale)
    return scaled(y, param(module, name, init, y.shape[-1:], ("norm",)))


def skip_examples(y: jax.Array, share: jax.Array, key: jax.Array) -> jax.Array:
  """y [B, ..., D] with a share of its examples at 0 and the others divided by 1 - share."""
  drawn = jax.random.uniform(key, (y.shape[0], *[1] * (y.ndim - 1)))
  return jnp.where(drawn >= share, y / (1 - share), 0).astype(y.dtype)
