"""Position encodings of rows: the hooks by which layers use one, and the encodings themselves.

A `Position` acts in four places: `embed` adds to the token embeddings, `add` to the inputs of
queries and keys but not of values (DETR), `rotate` turns queries and keys, and `bias` adds to
logits. Its parameters are of the model, stack or layer. Positions restart in every text of a row.
"""

import dataclasses
import math
from typing import Callable, ClassVar, Literal, Mapping, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.bias import OfPositions, PairBias
from jtx.nn.encodings import sinusoidal
from jtx.nn.layers import param
from jtx.parallel.sharding import constrain
from jtx.ranges import CountOrNone, NotNegative, Positive, Size

Params = Mapping[str, jax.Array]


@flax.struct.dataclass
class Places:
  """Where tokens are, as a position encoding sees them."""
  positions: jax.Array  # [B, T] int, or [1, T] where those of all rows are the same
  types: jax.Array | None = None  # [B, T] int, token types
  local: jax.Array | bool = False  # scalar: of a layer that sees a window only
  causal: bool = flax.struct.field(pytree_node=False, default=False)  # later keys are hidden
  vectors: jax.Array | None = None  # [B, T, D], of `jtx.nn.attached`
  # The first queries, so many, are the last keys, whose tokens are as far apart as in their text.
  in_order: int = flax.struct.field(pytree_node=False, default=0)


class Sizes(NamedTuple):
  """The sizes from which the shapes of a position encoding's parameters follow."""
  width: int  # D
  num_heads: int  # N
  head_dim: int  # H


class Table(NamedTuple):
  """A parameter of a position encoding."""
  shape: tuple[int, ...]
  init: float | Callable[..., jax.Array]  # standard deviation, or an initializer
  axes: tuple[str, ...]  # logical names; the optimiser leaves those of `sharding.FIXED` alone


def make_params(module: nn.Module, tables: Mapping[str, Table], prefix: str = "") -> Params:
  """Parameters of `module` by the names of their tables; `prefix` goes before those in its tree."""
  inits = {name: table.init if callable(table.init) else nn.initializers.normal(table.init)
           for name, table in tables.items()}
  return {name: param(module, prefix + name, inits[name], table.shape, table.axes)
          for name, table in tables.items()}


class Project(NamedTuple):
  """A layer's projections of [..., D] to [..., N, H] and [..., K, H]."""
  query: Callable[[jax.Array], jax.Array]
  key: Callable[[jax.Array], jax.Array]


@dataclasses.dataclass(frozen=True)
class Position:
  """No position information; the base of all encodings, whose hooks do nothing."""
  products: ClassVar[int] = 1  # of vectors, whose sum is a logit

  @staticmethod
  def registry() -> dict[str, Callable[..., "Position"]]:
    return POSITIONS

  def model_tables(self, width: int) -> dict[str, Table]:
    """The parameters that `embed` needs; the model owns them."""
    return {}

  def stack_tables(self, sizes: Sizes) -> dict[str, Table]:
    """The parameters that the other hooks need and all layers of a stack share."""
    return {}

  def layer_tables(self, sizes: Sizes) -> dict[str, Table]:
    """The parameters that the other hooks need and every layer has of its own."""
    return {}

  @property
  def limit(self) -> int | None:
    """How many positions it can encode; None is any number."""
    return None

  @property
  def embeds(self) -> bool:
    """Whether `embed` does anything."""
    return type(self).embed is not Position.embed

  @property
  def crosses(self) -> bool:
    """Whether the hooks act in cross-attention, too, on the memory's own positions."""
    return False

  def check_kinds(self, windowed: bool) -> None:
    """Raises ConfigError where a field has no meaning without windowed layers, or with them."""

  def check_length(self, length: int) -> None:
    """Raises ConfigError where positions 0 to length - 1 are more than it can encode."""
    if self.limit is not None and length > self.limit:
      raise ConfigError(f"position: {length} tokens are more than the {self.limit} it encodes")

  def embed(self, x: jax.Array, places: Places, params: Params) -> jax.Array:
    """Token embeddings [B, T, D], with positions added."""
    return x

  def add(self, x: jax.Array, places: Places, params: Params) -> jax.Array:
    """The input [B, T, D] of queries and keys, with positions added."""
    return x

  def rotate(self, x: jax.Array, places: Places, params: Params) -> jax.Array:
    """Queries or keys [B, T, N, H], turned by positions."""
    return x

  def bias(self, q: jax.Array, k: jax.Array, q_places: Places, k_places: Places, *,
           params: Params, project: Project | None,
           scale: float) -> jax.Array | PairBias | None:
    """The bias of the logits: [B or 1, N, T, S], or None.

    One of places alone has `pair_bias` in place of this, which kernels call where they need it.

    Args:
      q: queries [B, T, N, H].
      k: keys [B, S, K, H].
      q_places: of the queries.
      k_places: of the keys.
      params: of the stack and of the layer.
      project: of the layer; None where it has not computed the keys itself.
      scale: of the logits.
    """
    if type(self).pair_bias is Position.pair_bias:
      return None
    return PairBias(OfPositions(self, q_places.causal), self.head_params(params, q.shape[2]),
                    q_places.positions, k_places.positions)

  def head_params(self, params: Params, num_heads: int) -> Params:
    """What `pair_bias` needs of a head: [N] numbers and [N, n] tables, by name."""
    return {}

  def pair_bias(self, q: jax.Array, k: jax.Array, params: Params, causal: bool) -> jax.Array:
    """The bias of pairs in one head, of the shape to which q and k broadcast.

    It may run inside a kernel, where a table can be indexed and no more.

    Args:
      q: positions of queries, int.
      k: positions of keys, which broadcast with them.
      params: a head's `head_params`: numbers, and tables [n].
      causal: whether later keys are hidden.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Position):
  """Sines and cosines of the position (Vaswani et al. 2017, section 3.5)."""
  layout: Literal["interleaved", "concatenated"] = "interleaved"  # sin, cos, ... or all sines first
  inclusive: bool = False  # the last wavelength is exactly 2 pi base (tensor2tensor)
  base: Positive = 10_000.0  # frequencies are base^(-2 i / D), i < D / 2
  first_position: CountOrNone = 0  # of a text's first token, as a published model counts

  def embed(self, x, places, params):
    waves = sinusoidal(places.positions + self.first_position, x.shape[-1], layout=self.layout,
                       inclusive=self.inclusive, base=self.base)
    return x + waves.astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Learned(Position):
  """A trained vector for each position; texts that have more get NaN there.

  With `init` "sincos" it starts from sinusoids, by which places that are close are alike at first.
  """
  max_length: Size = 512  # positions that have a vector
  init: Literal["normal", "sincos"] = "normal"  # first values: drawn, or sinusoids
  init_std: NotNegative = 0.02  # standard deviation of the first values
  first_position: CountOrNone = 0  # of a text's first token, as a published model counts

  def model_tables(self, width):
    def sincos(key, shape, dtype):
      waves = sinusoidal(jnp.arange(shape[0]), shape[1], layout="concatenated")
      return (math.sqrt(2.0) * self.init_std * waves).astype(dtype)

    init = sincos if self.init == "sincos" else self.init_std
    return {"position_embedding": Table((self.max_length, width), init, ("positions", "embed"))}

  def embed(self, x, places, params):
    # A row of several texts may be longer than the table, so that only values can tell.
    table = constrain(jnp.asarray(params["position_embedding"]), None, None)
    vectors = table.at[places.positions + self.first_position].get(mode="fill", fill_value=jnp.nan)
    return x + vectors.astype(x.dtype)

  @property
  def limit(self):
    return self.max_length - self.first_position

  def check_length(self, length):
    if length > self.limit:
      raise ConfigError(f"position.max_length={self.max_length} is too short for texts of {length}"
                        f" tokens from position {self.first_position} on")


# What a config's `position` names. `rope`, `relative`, `disentangled` and others add theirs.
POSITIONS: dict[str, Callable[..., Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
}
