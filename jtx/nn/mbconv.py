"""Convolutions over the places of an image, and inverted bottlenecks of them (MBConv).

Images are [B, H, W, C]. Nothing here has statistics that a run gathers, as batch norm has them: a
result depends on its own image alone, and so neither on the batch nor on how a mesh splits it.
"""

import dataclasses
from typing import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.activations import activate
from jtx.nn.layers import Dense, NormConfig, param
from jtx.nn.numerics import scaled
from jtx.nn.residual import skip_examples
from jtx.parallel.sharding import constrain, platform
from jtx.ranges import Share, Size

LAYOUT = ("NHWC", "HWIO", "NHWC")


@dataclasses.dataclass(frozen=True, kw_only=True)
class MbConvConfig:
  """The fields of an inverted bottleneck (Sandler et al. 2018; Hu et al. 2018 for the squeeze)."""
  size: Size = 3  # places on a side that the depthwise convolution sees, an odd number
  expansion: Size = 4  # hidden channels to those of the output
  squeeze: Share = 0.25  # channels of squeeze and excitation to those of the output; 0.0 is none
  activation: str = "gelu"  # see jtx/nn/activations.py

  def __post_init__(self):
    if not self.size % 2:
      raise ConfigError(f"convolution.size={self.size} must be odd: as many places on each side")


class Conv(nn.Module):
  """A convolution without a bias, of as many places of zeros on each side as it needs."""
  features: int
  size: int = 3
  stride: int = 1
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, H, W, C] to [B, H / stride, W / stride, features]."""
    kernel = param(self, "kernel", nn.initializers.he_normal(),
                   (self.size, self.size, x.shape[-1], self.features),
                   ("patch", "patch", "channels", "conv"))
    side = self.size // 2
    return jax.lax.conv_general_dilated(
        x.astype(self.dtype), kernel.astype(self.dtype), (self.stride, self.stride),
        ((side, side),) * 2, dimension_numbers=LAYOUT)


class MbConv(nn.Module):
  """An inverted bottleneck with its norm before it (CoAtNet; Dai et al. 2021, appendix A.1).

  x + W2 s(g(norm(depthwise(g(norm(W1 norm(x))))))), where g is the activation, s squeeze and
  excitation, and W1 and W2 are products of a place's channels. With a stride, W1 takes every
  stride-th place of the norm's output, and in place of x stands a product of its pooled places, as
  it does where the number of channels changes.
  """
  config: MbConvConfig
  width: int  # channels of the output
  stride: int = 1
  norm: NormConfig = NormConfig()
  init_std: float | None = None
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False,
               skipped: jax.Array | None = None) -> jax.Array:
    """[B, H, W, C] to [B, H / stride, W / stride, width].

    Args:
      x: the input; stride divides its height and width.
      train: stochastic depth on.
      skipped: the share of examples that skip the bottleneck in training; None is none.
    """
    c = self.config
    dense = lambda name, features, axes, use_bias=False: Dense(
        (features,), axes, use_bias=use_bias, init_std=self.init_std, dtype=self.dtype, name=name)
    y = self.norm.make("norm")(x)[:, ::self.stride, ::self.stride]
    y = dense("in", c.expansion * self.width, ("embed", "mlp"))(y)
    y = activate(c.activation, self.norm.make("in_norm")(y))
    y = Depthwise(c.size, name="depthwise")(y)
    y = activate(c.activation, self.norm.make("depthwise_norm")(y))
    if c.squeeze:
      of_all = y.mean((1, 2), keepdims=True)
      number = max(int(c.squeeze * self.width), 1)
      squeezed = dense("squeeze", number, ("mlp", "rank"), True)(of_all)
      excited = dense("excite", y.shape[-1], ("rank", "mlp"), True)(
          activate(c.activation, squeezed))
      y = scaled(y, nn.sigmoid(excited))
    y = dense("out", self.width, ("mlp", "embed"), True)(y)
    if train and skipped is not None:
      y = skip_examples(y, skipped, self.make_rng("dropout"))
    if self.stride > 1 or x.shape[-1] != self.width:
      x = dense("shortcut", self.width, ("embed", "mlp"), True)(max_pool(x, self.stride))
    return constrain(x + y, "batch", None, None, None)


class Depthwise(nn.Module):
  """`depthwise`, with its kernel."""
  size: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [B, H, W, C]
    init = nn.initializers.variance_scaling(2.0, "fan_in", "normal", in_axis=(0, 1), out_axis=2)
    kernel = param(self, "kernel", init, (self.size, self.size, x.shape[-1]),
                   ("patch", "patch", "mlp"))
    return depthwise(x, kernel.astype(x.dtype))


def max_pool(x: jax.Array, stride: int) -> jax.Array:
  """The largest of each stride x stride places: [B, H, W, C] to [B, H / stride, W / stride, C]."""
  if stride == 1:
    return x
  B, H, W, C = x.shape
  return x.reshape(B, H // stride, stride, W // stride, stride, C).max((2, 4))


@jax.custom_vjp
def depthwise(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """A convolution of every channel by itself, zeros around: [B, H, W, C], [K, K, C] to x's shape.

  On a CPU it is a sum of shifted products, an image at a time: XLA's own convolution takes fifty
  times as long there, and of all images at once the sum is computed many times over.
  """
  if platform() != "cpu":
    return _depthwise(x, kernel)
  return jax.lax.map(lambda image: _of_image(image, kernel), x)


def _depthwise(x, kernel):
  side, channels = kernel.shape[0] // 2, x.shape[-1]
  return jax.lax.conv_general_dilated(x, kernel[:, :, None], (1, 1), ((side, side),) * 2,
                                      dimension_numbers=LAYOUT, feature_group_count=channels)


def _of_image(image, kernel):
  return sum(part * kernel[place] for place, part in shifted(image, kernel.shape[0]))


def shifted(image: jax.Array, size: int) -> Iterator[tuple[tuple[int, int], jax.Array]]:
  """What each of a kernel's size x size places sees of an image [H, W, C], with its indices."""
  side, (H, W, _) = size // 2, image.shape
  padded = jnp.pad(image, ((side, side), (side, side), (0, 0)))
  for i in range(size):
    for j in range(size):
      yield (i, j), padded[i:i + H, j:j + W]


def _gradients(kept, gradient):
  if platform() != "cpu":
    return jax.vjp(_depthwise, *kept)[1](gradient)
  x, kernel = kept
  turned = kernel[::-1, ::-1]

  # Totals of whole images: of a sum over places, a CPU's compiler makes one number at a time.
  def add(totals, example):
    image, of_image = example
    parts = shifted(image, kernel.shape[0])
    totals = [total + (part * of_image).astype(jnp.float32)
              for total, (_, part) in zip(totals, parts)]
    return totals, _of_image(of_image, turned)

  zeros = [jnp.zeros(x.shape[1:], jnp.float32)] * kernel[..., 0].size
  totals, of_x = jax.lax.scan(add, zeros, (x, gradient))
  of_kernel = jnp.stack([total.sum((0, 1)) for total in totals]).reshape(kernel.shape)
  return of_x, of_kernel.astype(kernel.dtype)


depthwise.defvjp(lambda x, kernel: (depthwise(x, kernel), (x, kernel)), _gradients)
