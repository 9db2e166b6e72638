"""Images to patches: what a vision transformer takes of an image's bytes."""

import dataclasses

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.parallel.sharding import platform
from jtx.ranges import Pixels, Positive, Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelConfig:
  """The pixels that the model takes. They are scaled to 0 .. 1, then become (x - mean) / std."""
  channels: Size = 3  # 3 is RGB, 1 is grey
  mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # one a channel, or one for all
  std: tuple[Positive, ...] = (0.5, 0.5, 0.5)  # one a channel, or one for all

  def __post_init__(self):
    for name, values in (("mean", self.mean), ("std", self.std)):
      if len(values) not in (1, self.channels):
        raise ConfigError(f"image.{name}={values} must have a number for each of the"
                          f" {self.channels} channels, or one for all")

  def check(self, image: jax.Array) -> None:
    """Raises ConfigError where images [B, H, W, C] are not of the size or channels."""
    if image.shape[1:] != (self.size, self.size, self.channels):
      raise ConfigError(f"images of {' x '.join(map(str, image.shape[1:]))} do not fit the model's"
                        f" image.size={self.size} and image.channels={self.channels}")

  def normalize(self, image: jax.Array) -> jax.Array:
    """Bytes [..., C], or [..., n * C] of n pixels, to float32; floats are normalised already."""
    if jnp.issubdtype(image.dtype, jnp.floating):
      return image
    mean, std = self.mean, self.std
    if image.shape[-1] != self.channels:
      by_channel = lambda x: x * (image.shape[-1] // len(x))
      mean, std = by_channel(mean), by_channel(std)
    return (image.astype(jnp.float32) / 255 - jnp.array(mean)) / jnp.array(std)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageConfig(PixelConfig):
  """The images that the model takes, which are of one size."""
  size: Pixels = 224  # height and width

  def patches(self, image: jax.Array, size: int) -> jax.Array:
    """Images [B, H, W, C] to their patches [B, N, size, size, C], normalised."""
    if platform() == "cpu":
      return split(self.normalize(image), size)
    # Bytes are moved, and numbers made of whole rows of a patch: of three channels they would fill
    # few of a register's lanes.
    x = split(image, size)
    return self.normalize(x.reshape(*x.shape[:2], -1)).reshape(x.shape)


def split(image: jax.Array, size: int) -> jax.Array:
  """[B, H, W, C] into patches [B, N, size, size, C], row by row."""
  B, H, W, C = image.shape
  x = image.reshape(B, H // size, size, W // size, size, C)
  return x.swapaxes(2, 3).reshape(B, -1, size, size, C)
