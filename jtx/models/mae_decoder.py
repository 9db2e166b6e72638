"""The decoder of a masked autoencoder (He et al. 2021): from seen patches to the pixels of all."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn import layers
from jtx.nn.block import Context
from jtx.nn.grid_positions import Grid, GridPosition, LearnedGrid
from jtx.nn.numerics import spread
from jtx.nn.positions import Places
from jtx.nn.stack import Stack, StackConfig
from jtx.ranges import LayersOrNone, Rate, Size


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
  """MAE's decoder (He et al. 2021); without layers there is none."""
  num_layers: LayersOrNone = 0  # depth; 0: there is no decoder
  width: Size = 512  # of its hidden states
  num_heads: Size = 16  # of its attention
  ffn_dim: Size = 2048  # hidden width of its feed-forward sub-layers
  masked: Rate = 0.75  # share of patches that the encoder does not see
  normalize: bool = True  # it predicts the pixels of a patch at mean 0 and variance 1 (section 3)
  position: GridPosition = LearnedGrid(init="sincos", trained=False)  # of all patches; by name

  def stack(self, encoder: StackConfig, grid: Grid) -> StackConfig:
    """Layers of the encoder's kind, of the decoder's sizes."""
    block = encoder.block
    attention = dataclasses.replace(block.attention, num_heads=self.num_heads, num_kv_heads=None,
                                    head_dim=None, v_head_dim=None)
    ffn = dataclasses.replace(block.ffn, dim=self.ffn_dim)
    return StackConfig(
        width=self.width, num_layers=self.num_layers, position=self.position.bind(grid),
        block=dataclasses.replace(block, attention=attention, ffn=ffn),
        unroll=encoder.unroll, remat=encoder.remat)


class MaeDecoder(nn.Module):
  """Hidden states of the patches that were seen to the pixels of all."""
  config: DecoderConfig
  encoder: StackConfig  # whose kind of layer it shares
  grid: Grid
  outputs: int  # numbers of a patch
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, restore: jax.Array, train: bool = False) -> jax.Array:
    """[B, P + K, D] to float32 [B, N, outputs]; the patches `restore` [B, N] puts in order."""
    c, prefix, std = self.config, self.grid.prefix, self.encoder.block.init_std
    x = layers.Dense((c.width,), ("embed", "mlp"), init_std=std, dtype=self.dtype,
                     name="embed")(hidden)
    mask = layers.param(self, "mask_token", nn.initializers.normal(std or 0.02),
                        (1, c.width), ("prefix", "embed"))
    places = prefix + restore[..., None]
    seen = places < x.shape[1]  # of the others the mask token stands for each
    taken = jnp.take_along_axis(x, jnp.where(seen, places, 0), 1)
    taken = jnp.where(seen, taken, spread(mask, taken.shape, x.dtype))
    x = jnp.concatenate([x[:, :prefix], taken], 1)
    stack = c.stack(self.encoder, self.grid)
    places = Places(jnp.broadcast_to(jnp.arange(self.grid.tokens), x.shape[:2]))
    x = stack.embed(x, places, stack.embed_params(self))
    x, _ = Stack(stack, dtype=self.dtype, name="decoder")(x, Context(places, train=train))
    out = layers.Dense((self.outputs,), ("embed", "outputs"), init_std=std, dtype=self.dtype,
                       name="output")
    return out(x[:, prefix:]).astype(jnp.float32)
