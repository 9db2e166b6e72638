"""Position encodings of the patches of an image, which lie in a grid.

Tokens are numbered: first P that have no place in the grid, such as [CLS] (its prefix), then the
patches row by row. A model binds an encoding to its grid before it uses it; positions are the
numbers of tokens, so that a model may leave tokens out.
"""

import dataclasses
from typing import Callable, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.encodings import resize_grid, sinusoidal_2d
from jtx.nn.positions import Places, Position, Table
from jtx.ranges import NotNegative, Positive, SizeOrNone


class Grid(NamedTuple):
  """The grid of patches that an encoding is bound to."""
  height: int = 0
  width: int = 0
  prefix: int = 0  # P, tokens before those of the grid
  registers: int = 0  # of the prefix, its last ones

  @property
  def tokens(self) -> int:
    return self.prefix + self.height * self.width

  def coordinates(self, positions: jax.Array) -> jax.Array:
    """[..., T] numbers of tokens to [..., T, 2] (row, column), negative for the prefix."""
    place = positions - self.prefix
    return jnp.stack([place // self.width, place % self.width - self.width * (place < 0)], -1)

  def of_patches(self, hidden: jax.Array) -> jax.Array:
    """States [B, T, D] of all tokens to those of the patches, float32 [B, height, width, D]."""
    x = hidden[:, self.prefix:].astype(jnp.float32)
    return x.reshape(x.shape[0], self.height, self.width, -1)


@dataclasses.dataclass(frozen=True)
class GridPosition(Position):
  """No position information; the base of the encodings of a grid."""
  grid: Grid = dataclasses.field(default=Grid(), metadata={"config": False}, kw_only=True)

  @staticmethod
  def registry() -> dict[str, Callable[..., "GridPosition"]]:
    return GRID_POSITIONS

  def bind(self, grid: Grid) -> "GridPosition":
    return dataclasses.replace(self, grid=grid)

  def real(self, positions: jax.Array, x: jax.Array) -> jax.Array:
    """x [..., T, D] where a token has a place in the grid, else 0."""
    return jnp.where((positions >= self.grid.prefix)[..., None], x, 0)


@dataclasses.dataclass(frozen=True)
class LearnedGrid(GridPosition):
  """A vector a token, as if the patches were a sequence (ViT; Dosovitskiy et al. 2020, 3.1).

  A table that is not trained keeps its first values, as in MAE (He et al. 2021, appendix A.1). One
  of another grid is interpolated in every call, so that its own numbers stay as they are.
  """
  init: Literal["normal", "sincos"] = "normal"  # first values: drawn, or those of sincos_2d
  init_std: NotNegative = 0.02  # standard deviation of those that are drawn
  of_prefix: bool = True  # the prefix has vectors too; those of "sincos" are zeros
  of_registers: bool = True  # as the others of the prefix (False: DINOv2)
  trained: bool = True  # False: the first values stay (MAE)
  side: SizeOrNone = 0  # rows and columns of the table's own grid; 0 is those of the patches
  antialias: bool = False  # in interpolation (DINOv2 with registers)

  def __post_init__(self):
    if self.init != "normal" and self.init_std != LearnedGrid.init_std:
      raise ConfigError(f"position.init_std={self.init_std} goes with position.init='normal'")
    if not (self.of_prefix or self.of_registers):
      raise ConfigError("position.of_registers=False goes with position.of_prefix=True; without"
                        " it no token of the prefix has a vector")

  @property
  def own(self) -> Grid:
    """The grid of the table."""
    return self.grid._replace(height=self.side, width=self.side) if self.side else self.grid

  def first(self, grid: Grid) -> int:
    """Tokens of the prefix that have vectors: the first ones."""
    return 0 if not self.of_prefix else grid.prefix - (0 if self.of_registers else grid.registers)

  def model_tables(self, width):
    own, first = self.own, self.first(self.grid)

    def sincos(key, shape, dtype):
      positions = jnp.concatenate([jnp.arange(first), jnp.arange(own.prefix, own.tokens)])
      return Sincos2d(order="column_row", grid=own).embed(
          jnp.zeros(shape, dtype), Places(positions), {})

    return {"position_embedding": Table(
        (first + own.height * own.width, width),
        sincos if self.init == "sincos" else self.init_std,
        ("positions" if self.trained else "fixed_positions", "embed"))}

  def embed(self, x, places, params):
    table, positions = params["position_embedding"], places.positions
    if self.own != self.grid:
      table = self.resized(table, self.own)
    first = self.first(self.grid)
    bare = self.grid.prefix - first  # tokens without vectors
    if not bare:
      return x + table[positions].astype(x.dtype)
    rows = table[jnp.where(positions < first, positions, jnp.maximum(positions - bare, 0))]
    has_one = (positions < first) | (positions >= self.grid.prefix)
    return x + jnp.where(has_one[..., None], rows.astype(x.dtype), 0)

  def resized(self, table: jax.Array, old: Grid) -> jax.Array:
    """A table [T, D] of another grid for this one; the prefix keeps its vectors."""
    first = self.first(old)
    return jnp.concatenate(
        [table[:first], resize_grid(table[first:], old[:2], self.grid[:2],
                                    antialias=self.antialias)])


@dataclasses.dataclass(frozen=True)
class Sincos2d(GridPosition):
  """Sines and cosines of row and column, D / 2 each (MoCo v3; Chen et al. 2021)."""
  base: Positive = 10_000.0  # frequencies are base^(-4 i / D), i < D / 4
  order: Literal["row_column", "column_row"] = "row_column"  # the latter is of MAE's files

  def embed(self, x, places, params):
    coordinates = self.grid.coordinates(places.positions)
    if self.order == "column_row":
      coordinates = coordinates[..., ::-1]
    encoded = sinusoidal_2d(coordinates, x.shape[-1], base=self.base)
    return x + self.real(places.positions, encoded.astype(x.dtype))


# What a config's `position` names. `grid_kinds` adds its own.
GRID_POSITIONS: dict[str, Callable[..., GridPosition]] = {
    "none": GridPosition,
    "learned": LearnedGrid,
    "sincos_2d": Sincos2d,
}
