"""A convolution over the places of a row beside the first layer (DeBERTa version 2)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.activations import activate
from jtx.nn.layers import param
from jtx.nn.numerics import add_bias
from jtx.ranges import Size, SizeOrNone


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvolutionConfig:
  """The fields of a convolution, the sum of whose output and the first layer's is normed.

  DeBERTa version 2 (He et al. 2021) has it to learn of words' parts that are next to each other.
  """
  size: SizeOrNone = 0  # places that an output sees, an odd number; 0 is no convolution
  groups: Size = 1  # of the width, each of which sees itself alone
  activation: str = "tanh"  # of its output; see jtx/nn/activations.py

  def __post_init__(self):
    if self.size and not self.size % 2:
      raise ConfigError(f"convolution.size={self.size} must be odd: as many places on each side")
    off = ConvolutionConfig
    if not self.size and (self.groups, self.activation) != (off.groups, off.activation):
      raise ConfigError("convolution.groups and convolution.activation go with convolution.size")

  def check(self, causal: bool, norm_position: str) -> None:
    """Raises ConfigError where the stack is not one that can have it."""
    if self.size and causal:
      raise ConfigError(f"convolution.size={self.size} sees later places, and causal=True hides"
                        " them")
    if self.size and norm_position != "post":
      raise ConfigError(f"convolution.size={self.size} goes with norm.position='post', not"
                        f" {norm_position!r}")


class Convolution(nn.Module):
  """Activations of sums over the places around each, of its own text; a kernel a place."""
  config: ConvolutionConfig
  init_std: float | None = None  # None is Lecun normal
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, segments: jax.Array | None = None) -> jax.Array:
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      segments: [B, T] int, 0 is padding; None is one text a row.

    Raises:
      ConfigError: the groups do not divide the width.
    """
    c, (B, T, D) = self.config, x.shape
    if D % c.groups:
      raise ConfigError(f"convolution.groups={c.groups} does not divide width={D}")
    inside, side = D // c.groups, c.size // 2
    init = nn.initializers.lecun_normal() if self.init_std is None else (
        nn.initializers.normal(self.init_std))
    kernel = param(self, "kernel", init, (c.size, inside, D), ("patch", "channels", "conv"))
    bias = param(self, "bias", nn.initializers.zeros, (D,), ("conv",))
    around = jnp.arange(T)[:, None] + jnp.arange(c.size)
    at = lambda y: jnp.pad(y, ((0, 0), (side, side)) + ((0, 0),) * (y.ndim - 2))[:, around]
    window = at(x.astype(self.dtype))  # [B, T, size, D]
    if segments is not None:
      window = jnp.where((at(segments) == segments[..., None])[..., None], window, 0)
    y = jnp.einsum("btkgi,kigo->btgo", window.reshape(B, T, c.size, c.groups, inside),
                   kernel.reshape(c.size, inside, c.groups, inside).astype(self.dtype))
    return activate(c.activation, add_bias(y.reshape(B, T, D), bias))
