"""The benchmarks' models of images as one writes them with Flax's own layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from benchmarks.plain_flax import Layer, sines


def patches_of(image: jax.Array, size: int) -> jax.Array:
  """Bytes [B, H, W, C] to patches [B, N, size * size * C] of float32 numbers from -1 to 1."""
  B, H, W, C = image.shape
  x = image.astype(jnp.float32) / 127.5 - 1
  x = x.reshape(B, H // size, size, W // size, size, C).swapaxes(2, 3)
  return x.reshape(B, -1, size * size * C)


def grid_sines(number: int, width: int) -> jax.Array:
  """[N, D] of a square grid: half of the width tells the row, and half the column."""
  side = round(number**0.5)
  one = sines(side, width // 2)
  rows, columns = jnp.repeat(one, side, 0), jnp.tile(one, (side, 1))
  return jnp.concatenate([rows, columns], -1)


def transformer(x: jax.Array, num_layers: int, num_heads: int, ffn_dim: int, dtype,
                train: bool) -> jax.Array:
  """Pre-norm layers without dropout, and a norm."""
  for _ in range(num_layers):
    x = Layer(num_heads, ffn_dim, dtype, dropout=0.0, attention_dropout=0.0, norm_first=True)(
        x, None, train)
  return nn.LayerNorm(1e-6, dtype=dtype)(x)


class Vit(nn.Module):
  """Bytes [B, H, W, C] to float32 scores [B, classes], from the mean of all patches."""
  patch: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  classes: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, image: jax.Array, train: bool) -> jax.Array:
    x = nn.Dense(self.width, dtype=self.dtype)(patches_of(image, self.patch))
    x += grid_sines(x.shape[1], self.width).astype(self.dtype)
    x = transformer(x, self.num_layers, self.num_heads, self.ffn_dim, self.dtype, train)
    return nn.Dense(self.classes, dtype=self.dtype)(x.mean(1)).astype(jnp.float32)


class Mae(nn.Module):
  """Bytes [B, H, W, C] and noise [B, N] to the mean squared error of the patches not seen."""
  patch: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  decoder_width: int
  decoder_layers: int
  decoder_heads: int
  decoder_ffn_dim: int
  masked: float
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, image: jax.Array, noise: jax.Array, train: bool) -> jax.Array:
    pixels = patches_of(image, self.patch)
    (B, N, values), dense = pixels.shape, lambda width: nn.Dense(width, dtype=self.dtype)
    order = jnp.argsort(noise, 1)
    restore, kept = jnp.argsort(order, 1), int(N * (1 - self.masked))
    gather = lambda x, at: jnp.take_along_axis(x, at[..., None], 1)
    cls = self.param("cls", nn.initializers.normal(0.02), (1, 1, self.width))
    first = lambda x, cls: jnp.concatenate(
        [jnp.broadcast_to(cls, (B, 1, x.shape[-1])).astype(x.dtype), x], 1)

    x = dense(self.width)(pixels) + grid_sines(N, self.width).astype(self.dtype)
    x = first(gather(x, order[:, :kept]), cls)
    x = transformer(x, self.num_layers, self.num_heads, self.ffn_dim, self.dtype, train)
    x = dense(self.decoder_width)(x)
    mask = self.param("mask", nn.initializers.normal(0.02), (1, 1, self.decoder_width))
    hidden = jnp.broadcast_to(mask, (B, N - kept, self.decoder_width)).astype(x.dtype)
    y = gather(jnp.concatenate([x[:, 1:], hidden], 1), restore)
    y = first(y + grid_sines(N, self.decoder_width).astype(self.dtype), x[:, :1])
    y = transformer(y, self.decoder_layers, self.decoder_heads, self.decoder_ffn_dim, self.dtype,
                    train)
    y = dense(values)(y[:, 1:]).astype(jnp.float32)
    target = (pixels - pixels.mean(-1, keepdims=True)) / jnp.sqrt(
        pixels.var(-1, keepdims=True, ddof=1) + 1e-6)
    error, unseen = jnp.square(y - target).mean(-1), restore >= kept
    return (error * unseen).sum() / unseen.sum()
