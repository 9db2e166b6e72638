"""The stem of hybrid vision transformers: a ResNet of pre-activation bottlenecks, BiT's.

Kolesnikov et al. 2019 (Big Transfer): ResNet-v2 with standardised weights and group norms. ViT
(Dosovitskiy et al. 2020, section 3.1) takes the output of its third stage, stride 16.
"""

import dataclasses
from typing import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.parallel.sharding import constrain, platform
from jtx.ranges import Layers, Size


@dataclasses.dataclass(frozen=True)
class ResnetConfig:
  """A ResNet-50 up to its third stage is stages=(3, 4, 9)."""
  stages: tuple[Layers, ...] = ()  # bottlenecks of each; () is no stem
  width: Size = 64  # channels of the first convolution; a stage has 4, 8, 16, ... times as many
  groups: Size = 32  # of the norms

  def __post_init__(self):
    off = self if self.stages else ResnetConfig
    if (self.width, self.groups) != (off.width, off.groups):
      raise ConfigError("stem.width and stem.groups go with stem.stages")
    if self.stages and self.width % self.groups:
      raise ConfigError(f"stem.width={self.width} must be a multiple of stem.groups={self.groups}")

  @property
  def stride(self) -> int:
    """Pixels of the image to a place of the output: 4 after the first stage, then doubled."""
    return 2 ** (len(self.stages) + 1) if self.stages else 1


class Resnet(nn.Module):
  """[B, H, W, C] to [B, H / stride, W / stride, features]."""
  config: ResnetConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = self.config
    conv = lambda features, size, stride, name: Conv(features, size, stride, self.dtype, name=name)
    x = conv(c.width, 7, 2, "root")(x)
    x = max_pool(x, jax.lax.padtype_to_pads(x.shape[1:3], (3, 3), (2, 2), "SAME"))
    for s, number in enumerate(c.stages):
      for i in range(number):
        x = Bottleneck(c.width * 2**s, 2 if s and not i else 1, c.groups, self.dtype,
                       name=f"stage_{s}_{i}")(x)
    return jax.nn.relu(GroupNorm(c.groups, name="norm")(x))


def max_pool(x: jax.Array, around: Sequence[tuple[int, int]]) -> jax.Array:
  """The largest of every second 3 x 3 places, of which the first of equal ones has the gradient.

  On a CPU shifted places are compared: the gradient of XLA's own pooling takes five times as long.

  Args:
    x: [B, H, W, C].
    around: of the height and of the width, how many places that count for nothing are before x and
      behind it.
  """
  if platform() != "cpu":
    return nn.max_pool(x, (3, 3), (2, 2), around)
  x = jnp.pad(x, ((0, 0), *around, (0, 0)), constant_values=-jnp.inf)
  H, W = ((size - 3) // 2 * 2 + 1 for size in x.shape[1:3])
  best, *others = (x[:, i:i + H:2, j:j + W:2] for i in range(3) for j in range(3))
  for other in others:
    best = jnp.where((other > best) | jnp.isnan(other), other, best)
  return best


class Bottleneck(nn.Module):
  """Three convolutions 1, 3, 1 behind norms, around which the input goes (He et al. 2016)."""
  width: int
  stride: int
  groups: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    conv = lambda features, size, stride, name: Conv(features, size, stride, self.dtype, name=name)
    norm = lambda name, y: jax.nn.relu(GroupNorm(self.groups, name=name)(y))
    y = norm("norm_1", x)
    if x.shape[-1] != 4 * self.width or self.stride > 1:
      x = conv(4 * self.width, 1, self.stride, "projection")(y)
    y = conv(self.width, 1, 1, "conv_1")(y)
    y = conv(self.width, 3, self.stride, "conv_2")(norm("norm_2", y))
    return x + conv(4 * self.width, 1, 1, "conv_3")(norm("norm_3", y))


class Conv(nn.Module):
  """A convolution without bias whose kernel is standardised over its inputs (Qiao et al. 2019)."""
  features: int
  size: int
  stride: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    kernel = layers.param(self, "kernel", nn.initializers.lecun_normal(),
                          (self.size, self.size, x.shape[-1], self.features),
                          ("patch", "patch", "channels", "conv"))
    kernel -= kernel.mean((0, 1, 2))
    kernel /= jnp.sqrt(kernel.var((0, 1, 2)) + 1e-10)
    y = jax.lax.conv_general_dilated(
        x.astype(self.dtype), kernel.astype(self.dtype), (self.stride, self.stride), "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return constrain(y, "batch", None, None, "conv")  # for the gradient: see jtx.models.backbone


class GroupNorm(nn.Module):
  """Over places and the channels of a group (Wu and He 2018), in float32."""
  groups: int
  epsilon: float = 1e-6

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C]
    y = x.astype(jnp.float32).reshape(*x.shape[:-1], self.groups, -1)
    y -= y.mean((1, 2, 4), keepdims=True)
    y *= jax.lax.rsqrt(jnp.square(y).mean((1, 2, 4), keepdims=True) + self.epsilon)
    y = y.reshape(x.shape)
    for name, init in (("scale", nn.initializers.ones), ("bias", nn.initializers.zeros)):
      p = layers.param(self, name, init, x.shape[-1:], ("norm",))
      y = y * p if name == "scale" else y + p
    return y.astype(x.dtype)
