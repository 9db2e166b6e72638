"""Position encodings by offsets between the patches of a grid: a bias of logits, and 2-D RoPE."""

import dataclasses
import math
from typing import Literal

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.encodings import resize_grid
from jtx.nn.grid_positions import GRID_POSITIONS, Grid, GridPosition
from jtx.nn.positions import Table
from jtx.nn.rope import rope_frequencies, turn
from jtx.ranges import NotNegative, Positive


@dataclasses.dataclass(frozen=True)
class RelativeBias(GridPosition):
  """A number a head for every offset of rows and columns (Swin, BEiT, CoAtNet).

  Pairs with a token of the prefix have three numbers: from it, to it, and among them.
  """
  init_std: NotNegative = 0.02  # standard deviation of the first values
  per_layer: bool = False  # every layer has a table of its own (BEiT, CoAtNet)

  @property
  def offsets(self) -> int:
    return (2 * self.grid.height - 1) * (2 * self.grid.width - 1)

  def _table(self, sizes):
    # Tables that layers share had the numbers of a prefix without one, too.
    of_prefix = 3 if self.grid.prefix or not self.per_layer else 0
    return Table((self.offsets + of_prefix, sizes.num_heads), self.init_std, ("buckets", "heads"))

  def stack_tables(self, sizes):
    return {} if self.per_layer else {"position_bias": self._table(sizes)}

  def layer_tables(self, sizes):
    return {"bias": self._table(sizes)} if self.per_layer else {}

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    height, width, prefix = self.grid[:3]
    table, q_positions, k_positions = (
        params["bias" if self.per_layer else "position_bias"], q_places.positions,
        k_places.positions)
    offset = (self.grid.coordinates(k_positions)[..., None, :, :]
              - self.grid.coordinates(q_positions)[..., :, None, :])  # [B, T, S, 2]
    index = (offset[..., 0] + height - 1) * (2 * width - 1) + offset[..., 1] + width - 1
    from_prefix = (q_positions < prefix)[..., :, None]
    to_prefix = (k_positions < prefix)[..., None, :]
    last = self.offsets
    index = jnp.where(from_prefix, last, jnp.where(to_prefix, last + 1, index))
    index = jnp.where(from_prefix & to_prefix, last + 2, index)
    return jnp.moveaxis(jnp.asarray(table)[index], -1, 1)

  def resized(self, table: jax.Array, old: Grid) -> jax.Array:
    """A table [offsets, N] of another grid for this one; numbers of the prefix stay."""
    sides = lambda grid: (2 * grid.height - 1, 2 * grid.width - 1)
    number = math.prod(sides(old))
    return jnp.concatenate(
        [resize_grid(table[:number], sides(old), sides(self.grid)), table[number:]])


@dataclasses.dataclass(frozen=True)
class Rope2d(GridPosition):
  """Half of a head's pairs turn by the row, half by the column (RoPE-ViT; Heo et al. 2024).

  Tokens of the prefix are not turned.
  """
  base: Positive = 100.0  # frequencies are base^(-4 i / H), i < H / 4, H a head's width
  pairing: Literal["half", "interleaved"] = "half"  # of dimensions i, i + H / 2; or of 2 i, 2 i + 1

  def rotate(self, x, places, params):
    positions = places.positions
    if x.shape[-1] % 4:
      raise ConfigError(f"2-D RoPE needs a head width divisible by 4, not {x.shape[-1]}")
    frequencies = rope_frequencies(x.shape[-1] // 2, self.base)  # [H/4]
    angle = self.grid.coordinates(positions)[..., None].astype(jnp.float32) * frequencies
    angle = angle.reshape(*positions.shape, -1)  # [B, T, H/2], those of rows first
    return turn(x, self.real(positions, angle), self.pairing)


GRID_POSITIONS |= {"relative": RelativeBias, "rope_2d": Rope2d}
