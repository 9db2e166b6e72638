"""Attention masks as structure: small frozen predicates on the row indices of a pair.

`mask(q, k, rows)` says whether the query at row index q may attend to the key at row
index k. Predicates are static and hashable, so that a kernel can look at them, and are
joined with `&` and `|`; what varies from row to row is in `Rows`. Indices count places in
the row, whatever segments it holds; embeddings use positions, which restart in each segment.
"""

import dataclasses
from typing import Callable, ClassVar, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError


class Rows(NamedTuple):
  """The data of a batch's rows that masks may depend on. All are optional.

  Segment 0 is padding: nobody attends to it, and its queries attend to nothing. Flags are named
  bools of tokens, which the batch brings for the kinds of layers that need them.
  """
  q_segments: jax.Array | None = None  # [B, T] int, equal where attention is allowed
  k_segments: jax.Array | None = None  # [B, S] int
  q_flags: Mapping[str, jax.Array] = {}  # name -> [B, T] bool
  k_flags: Mapping[str, jax.Array] = {}  # name -> [B, S] bool
  pairs: jax.Array | None = None  # [B, T, S] bool, applied on top of the mask

  def flags(self, name: str) -> tuple[jax.Array, jax.Array]:
    """[B, 1, T, 1] of the queries and [B, 1, 1, S] of the keys.

    Raises:
      ConfigError: the batch did not bring them.
    """
    if name not in self.q_flags or name not in self.k_flags:
      raise ConfigError(f"a mask of pattern needs the flag {name!r} of every token, which neither"
                        " the model nor the batch has")
    return self.q_flags[name][:, None, :, None], self.k_flags[name][:, None, None, :]


@dataclasses.dataclass(frozen=True)
class Mask:
  """A predicate; `a & b` allows what both allow, `a | b` what either allows."""
  # Its pairs follow from flags alone, and more flags allow more: blocks without one are empty.
  of_flags: ClassVar[bool] = False
  few: ClassVar[bool] = False  # beside other masks, it adds few pairs, which FLOPs leave out

  def __call__(self, q: jax.Array, k: jax.Array, rows: Rows) -> jax.Array:
    """Indices [T, 1] and [1, S], or [B, 1, T, 1] and [B, 1, 1, S], to a bool.

    It broadcasts to [B, 1, T, S].
    """
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
    distance = k - q
    allowed = distance == distance
    if self.left is not None:
      allowed &= distance >= -self.left
    if self.right is not None:
      allowed &= distance <= self.right
    return allowed


@dataclasses.dataclass(frozen=True)
class Prefix(Mask):
  """Keys with the flag "prefix" (prefix LM; Raffel et al. 2020, figure 3)."""
  of_flags = True

  def __call__(self, q, k, rows):
    return rows.flags("prefix")[1]


@dataclasses.dataclass(frozen=True)
class Global(Mask):
  """Pairs with a global token on either side (Longformer; Beltagy et al. 2020, section 3.1)."""
  of_flags = few = True

  def __call__(self, q, k, rows):
    of_query, of_key = rows.flags("global")
    return of_query | of_key


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


class Kind(NamedTuple):
  """A kind of layer, by what it sees."""
  mask: Callable[[bool, int], Mask]  # of whether the stack is causal, and of its window
  windowed: bool = False  # needs a window, and is local to position encodings
  flags: tuple[str, ...] = ()  # of tokens, which its mask needs


# What a stack's `pattern` names. A new mask is a predicate above and a row here.
KINDS: dict[str, Kind] = {
    # everything; if causal, everything before
    "global": Kind(lambda causal, width: CAUSAL if causal else FULL),
    # `window` places to each side
    "local": Kind(lambda causal, width: window(width, 0 if causal else width), windowed=True),
    # causal behind a prefix that all see
    "prefix": Kind(lambda causal, width: CAUSAL | Prefix(), flags=("prefix",)),
    # local, but pairs with a global token see each other
    "global_tokens": Kind(
        lambda causal, width: (
            (window(width, 0) | Global()) & CAUSAL if causal else window(width, width) | Global()),
        windowed=True, flags=("global",)),
}


def materialize(mask: Mask, num_queries: int, num_keys: int, rows: Rows = Rows(),
                q_index: jax.Array | None = None, k_index: jax.Array | None = None
                ) -> jax.Array | None:
  """`mask`, and segments and pairs of `rows`, as a bool array that broadcasts to [B, 1, T, S].

  Args:
    mask: the predicate.
    num_queries: T.
    num_keys: S.
    rows: what differs from row to row; segments and pairs are applied on top of the mask.
    q_index: [T] or [B, T], row indices of the queries; None is 0 to T - 1.
    k_index: [S] or [B, S], row indices of the keys; None is 0 to S - 1.

  Returns:
    None where every pair is allowed.
  """
  allowed = None
  if mask != FULL:
    q = jnp.arange(num_queries) if q_index is None else q_index
    k = jnp.arange(num_keys) if k_index is None else k_index
    if q.ndim == 2 or k.ndim == 2:
      q, k = (x.reshape(-1, 1, x.shape[-1]) for x in (q, k))
    allowed = mask(q[..., :, None], k[..., None, :], rows)
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
