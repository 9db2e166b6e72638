"""Attention masks as structure: small frozen predicates on the row indices of a pair.

`mask(q, k, rows)` says whether the query at row index q may attend to the key at row
index k. Predicates are static and hashable, so that a kernel can look at them, and are
joined with `&` and `|`; what varies from row to row is in `Rows`. Indices count places in
the row, whatever segments it holds; embeddings use positions, which restart in each segment.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError


class Rows(NamedTuple):
  """What a mask may depend on that differs from row to row. All are optional.

  Segment 0 is padding: nobody attends to it, and its queries attend to nothing.
  """
  q_segments: jax.Array | None = None  # [B, T] int, equal where attention is allowed
  k_segments: jax.Array | None = None  # [B, S] int
  prefix_length: jax.Array | None = None  # [B] int, for Prefix
  q_global: jax.Array | None = None  # [B, T] bool, for Global
  k_global: jax.Array | None = None  # [B, S] bool
  pairs: jax.Array | None = None  # [B, T, S] bool, applied on top of the mask


@dataclasses.dataclass(frozen=True)
class Mask:
  """A predicate; `a & b` allows what both allow, `a | b` what either allows."""

  def __call__(self, q: jax.Array, k: jax.Array, rows: Rows) -> jax.Array:
    """[T, 1] and [1, S] indices to a bool that broadcasts to [B, 1, T, S]."""
    raise TypeError(f"{type(self).__name__} is not a predicate of its own")

  def __and__(self, other: "Mask") -> "Mask":
    return And(self, other)

  def __or__(self, other: "Mask") -> "Mask":
    return Or(self, other)


@dataclasses.dataclass(frozen=True)
class Window(Mask):
  """Keys from `left` places before the query to `right` after it; None is no limit."""
  left: int | None = None
  right: int | None = None

  def __post_init__(self):
    if any(side is not None and side < 0 for side in (self.left, self.right)):
      raise ValueError(
          f"a window reaches 0 or more places to a side, not {self.left}, {self.right}")

  def __call__(self, q, k, rows):
    allowed = jnp.ones(jnp.broadcast_shapes(q.shape, k.shape), bool)
    if self.left is not None:
      allowed &= k >= q - self.left
    if self.right is not None:
      allowed &= k <= q + self.right
    return allowed


@dataclasses.dataclass(frozen=True)
class Prefix(Mask):
  """Keys among the first `rows.prefix_length` places (prefix LM; Raffel et al. 2020, fig. 3)."""

  def __call__(self, q, k, rows):
    if rows.prefix_length is None:
      raise ConfigError("layers of kind 'prefix' need prefix_length [B], which this model has not")
    return k < rows.prefix_length[:, None, None, None]


@dataclasses.dataclass(frozen=True)
class Global(Mask):
  """Pairs with a global token on either side (Longformer; Beltagy et al. 2020, section 3.1)."""

  def __call__(self, q, k, rows):
    if rows.q_global is None or rows.k_global is None:
      raise ConfigError("layers of kind 'global_tokens' need q_global [B, T] and k_global [B, S],"
                        " which this model has not")
    return rows.q_global[:, None, :, None] | rows.k_global[:, None, None, :]


@dataclasses.dataclass(frozen=True)
class And(Mask):
  a: Mask
  b: Mask

  def __call__(self, q, k, rows):
    return self.a(q, k, rows) & self.b(q, k, rows)


@dataclasses.dataclass(frozen=True)
class Or(Mask):
  a: Mask
  b: Mask

  def __call__(self, q, k, rows):
    return self.a(q, k, rows) | self.b(q, k, rows)


FULL = Window()
CAUSAL = Window(right=0)


def window(left: int, right: int) -> Window:
  """A sliding window of `left` + 1 + `right` places around the query."""
  return Window(left, right)


def only_windows(mask: Mask) -> bool:
  """Whether the mask is made of windows alone, so that nothing of it varies from row to row."""
  if isinstance(mask, And | Or):
    return only_windows(mask.a) and only_windows(mask.b)
  return isinstance(mask, Window)


def materialize(mask: Mask, num_queries: int, num_keys: int, rows: Rows = Rows(),
                q_index: jax.Array | None = None, k_index: jax.Array | None = None
                ) -> jax.Array | None:
  """`mask`, and segments and pairs of `rows`, as a bool array that broadcasts to [B, 1, T, S].

  Args:
    mask: the predicate.
    num_queries: T.
    num_keys: S.
    rows: what differs from row to row; segments and pairs are applied on top of the mask.
    q_index: [T], row indices of the queries; None is 0 to T - 1.
    k_index: [S], row indices of the keys; None is 0 to S - 1.

  Returns:
    None where every pair is allowed.
  """
  allowed = None
  if mask != FULL:
    q = jnp.arange(num_queries) if q_index is None else q_index
    k = jnp.arange(num_keys) if k_index is None else k_index
    allowed = mask(q[:, None], k[None, :], rows)
  if rows.k_segments is not None:
    keys = rows.k_segments[:, None, None, :]
    same = keys != 0
    if rows.q_segments is not None:
      same = same & (rows.q_segments[:, None, :, None] == keys)
    allowed = same if allowed is None else allowed & same
  if rows.pairs is not None:
    pairs = rows.pairs[:, None]
    allowed = pairs if allowed is None else allowed & pairs
  return allowed
