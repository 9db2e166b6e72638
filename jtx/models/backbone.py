"""Residual networks as the backbone of a detector: ResNet-18 to 152, and small ones.

He et al. 2015, with the stride of a bottleneck in its 3 x 3 convolution ("v1.5") and batch norms
that are constants, as DETR has them (Carion et al. 2020, section 4). The stem of hybrid vision
transformers, with norms before its convolutions, is `jtx.models.resnet`.
"""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.resnet import GroupNorm, max_pool
from jtx.nn import layers, numerics
from jtx.parallel.sharding import constrain, platform
from jtx.ranges import Layers, Size, SizeOrNone

APART = 64  # images of a batch up to which a CPU convolves each alone; the program grows with them


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackboneConfig:
  """The fields of a ResNet; the default is ResNet-50, and 101 has stages=(3, 4, 23, 3)."""
  stages: tuple[Layers, ...] = (3, 4, 6, 3)  # blocks of each; all but the first halve the sides
  width: Size = 64  # channels of the stem and of the first stage's convolutions, doubled by others
  # Convolutions 1, 3, 1 of which the last has 4 times the channels; or two of 3 (ResNet-18 and 34)
  kind: Literal["bottleneck", "basic"] = "bottleneck"
  # A convolution of 7 with stride 2 and a pooling with stride 2; or one of 3 with stride 2
  stem: Literal["pooled", "strided"] = "pooled"
  # Of group norms, for training from scratch; 0: batch norms that are constants of a trained one
  groups: SizeOrNone = 0

  def __post_init__(self):
    if not self.stages:
      raise ConfigError("backbone.stages=() has no stage; ResNet-50 has (3, 4, 6, 3)")
    if self.groups and self.width % self.groups:
      raise ConfigError(f"backbone.width={self.width} must be a multiple of"
                        f" backbone.groups={self.groups}")

  @property
  def stride(self) -> int:
    """Pixels of the image to a place of the output."""
    return (4 if self.stem == "pooled" else 2) * 2 ** (len(self.stages) - 1)

  @property
  def features(self) -> int:
    """Channels of the output."""
    return self.width * 2 ** (len(self.stages) - 1) * (4 if self.kind == "bottleneck" else 1)


class Backbone(nn.Module):
  """[B, H, W, C] to [B, H / stride, W / stride, features]; sides are rounded up."""
  config: BackboneConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    c = self.config
    size = 7 if c.stem == "pooled" else 3
    x = ConvNorm(c.width, size, 2, groups=c.groups, dtype=self.dtype, name="stem")(x)
    if c.stem == "pooled":
      x = max_pool(x, ((1, 1), (1, 1)))
    for s, number in enumerate(c.stages):
      for i in range(number):
        stride = 2 if s and not i else 1
        x = Residual(c, c.width * 2**s, stride, self.dtype, name=f"stage_{s}_{i}")(x)
    return x


class Residual(nn.Module):
  """Convolutions around which the input goes, projected where its shape is another."""
  config: BackboneConfig
  width: int
  stride: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    bottleneck = self.config.kind == "bottleneck"
    features = self.width * (4 if bottleneck else 1)

    def conv(name: str, x: jax.Array, features: int, size: int, stride: int = 1,
             relu: bool = True) -> jax.Array:
      return ConvNorm(features, size, stride, groups=self.config.groups, relu=relu,
                      dtype=self.dtype, name=name)(x)

    if bottleneck:
      y = conv("conv_1", x, self.width, 1)
      y = conv("conv_2", y, self.width, 3, stride=self.stride)
      y = conv("conv_3", y, features, 1, relu=False)
    else:
      y = conv("conv_1", x, features, 3, stride=self.stride)
      y = conv("conv_2", y, features, 3, relu=False)
    if x.shape[-1] != features or self.stride > 1:
      x = conv("projection", x, features, 1, stride=self.stride, relu=False)
    return jax.nn.relu(x + y)


class ConvNorm(nn.Module):
  """A convolution without bias, its norm, and ReLU unless a sum comes first."""
  features: int
  size: int
  stride: int
  groups: int
  relu: bool = True
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    init = nn.initializers.variance_scaling(2.0, "fan_out", "normal")  # He et al. 2015b
    kernel = layers.param(self, "kernel", init, (self.size, self.size, x.shape[-1], self.features),
                          ("patch", "patch", "channels", "conv"))

    def convolved(kernel: jax.Array) -> jax.Array:
      # Of a map that devices of a context share by its places, XLA gets a kernel's gradient wrong.
      y = convolve(x.astype(self.dtype), kernel.astype(self.dtype), self.stride)
      return constrain(y, "batch", None, None, "conv")

    if self.groups:
      y = GroupNorm(self.groups, name="norm")(convolved(kernel))
    else:
      scale, bias = FrozenBatchNorm(self.features, name="norm")()
      if platform() == "cpu":  # whose way back then has no pass over the output for the scale
        y = numerics.add_bias(convolved(kernel * scale), bias)
      else:  # which scale what a convolution writes for nothing
        y = (convolved(kernel).astype(jnp.float32) * scale + bias).astype(self.dtype)
    return jax.nn.relu(y) if self.relu else y


def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
  """[B, H, W, C] by [size, size, C, D], with zeros around so that stride 1 keeps H and W."""
  size = kernel.shape[0]
  if size == 1:  # a product, which a CPU makes in half of a convolution's time
    return numerics.product(x[:, ::stride, ::stride], kernel[0, 0], None, num_in=1)

  def convolution(x: jax.Array) -> jax.Array:
    around = (size // 2, size // 2)  # also of even sides, where "SAME" has it uneven
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), (around, around),
                                        dimension_numbers=("NHWC", "HWIO", "NHWC"))

  # Of pixels, a CPU spends most of the kernel's gradient on laying out several images as one.
  images, *_, channels = x.shape
  few = channels <= 4 and isinstance(images, int) and images <= APART  # of exports some are open
  if few and platform() == "cpu" and jax.sharding.get_abstract_mesh().size <= 1:
    return jnp.concatenate([convolution(x[i:i + 1]) for i in range(images)])
  return convolution(x)


class FrozenBatchNorm(nn.Module):
  """A batch norm of constants, which no run trains: the scale of a convolution, and what is added.

  They are parameters, so that checkpoints and files have them, and no gradient goes to them.
  """
  features: int
  epsilon: float = 1e-5

  @nn.compact
  def __call__(self) -> tuple[jax.Array, jax.Array]:
    """[D] and [D], of the batch norm's mean, variance, scale and bias."""
    def constant(name: str, init: nn.initializers.Initializer) -> jax.Array:
      return jax.lax.stop_gradient(
          layers.param(self, name, init, (self.features,), ("fixed_norm",)))

    zeros, ones = nn.initializers.zeros, nn.initializers.ones
    mean, variance = constant("mean", zeros), constant("variance", ones)
    scale = constant("scale", ones) * jax.lax.rsqrt(variance + self.epsilon)
    return scale, constant("bias", zeros) - mean * scale
