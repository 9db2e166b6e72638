"""The decoder of a masked autoencoder (He et al. 2021): from patches that were seen to all pixels."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.attention import Context
from jtx.nn.block import BlockConfig
from jtx.nn.grid_positions import Grid, GridPosition, LearnedGrid
from jtx.nn.stack import Segment, Stack


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
  """MAE's decoder (He et al. 2021); without layers there is none."""
  num_layers: int = 0
  width: int = 512
  num_heads: int = 16
  ffn_dim: int = 2048
  masked: float = 0.75  # share of patches that the encoder does not see
  position: GridPosition = LearnedGrid(init="sincos", trained=False)

  def __post_init__(self):
    if not 0 < self.masked < 1:
      raise ConfigError(f"decoder.masked={self.masked} is not between 0 and 1")


class MaeDecoder(nn.Module):
  """Hidden states of the patches that were seen to the pixels of all."""
  config: DecoderConfig
  block: BlockConfig  # of the encoder, whose kind of layer it shares
  grid: Grid
  outputs: int  # numbers of a patch
  unroll: int = 1
  remat: str = "none"
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, restore: jax.Array, train: bool = False) -> jax.Array:
    """[B, P + K, D] to float32 [B, N, outputs]; the patches `restore` [B, N] puts in order."""
    c, prefix = self.config, self.grid.prefix
    x = layers.Dense((c.width,), ("embed", "mlp"), init_std=self.block.init_std, dtype=self.dtype,
                     name="embed")(hidden)
    mask = layers.param(self, "mask_token", nn.initializers.normal(self.block.init_std or 0.02),
                        (1, c.width), ("prefix", "embed")).astype(x.dtype)
    # The mask token is the last of x: to it point all patches that were not seen.
    x = jnp.concatenate([x, jnp.broadcast_to(mask, (x.shape[0], 1, c.width))], 1)
    places = jnp.minimum(prefix + restore, x.shape[1] - 1)
    x = jnp.concatenate([x[:, :prefix], jnp.take_along_axis(x, places[..., None], 1)], 1)
    position = c.position.bind(self.grid)
    table = position.embedding_table(c.width)
    positions = jnp.broadcast_to(jnp.arange(self.grid.tokens), x.shape[:2])
    x = position.embed(x, positions, table and table.make(self, "position_embedding"))
    block = dataclasses.replace(self.block, num_heads=c.num_heads, num_kv_heads=None, head_dim=None,
                                v_head_dim=None, ffn_dim=c.ffn_dim)
    x, _ = Stack((Segment(block, c.num_layers),), position, unroll=self.unroll, remat=self.remat,
                 dtype=self.dtype, name="decoder")(x, Context(positions, train=train))
    out = layers.Dense((self.outputs,), ("embed", "outputs"), init_std=self.block.init_std,
                       dtype=self.dtype, name="output")
    return out(x[:, prefix:]).astype(jnp.float32)
