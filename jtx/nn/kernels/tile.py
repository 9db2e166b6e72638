"""The arithmetic of one tile of attention: some queries and some keys of one head, both ways.

Logits are [keys, queries] here: what belongs to a query is then a row along a TPU's lanes, its
maximum and its sum are taken over whole registers, and no tile is transposed. With `by_query` they
are [queries, keys], so that what is multiplied with keys or values next is a GPU's first operand,
which its products read from registers. Shapes are of the former; of the latter [K, Q] is [Q, K],
and what has a number, or a row, a query is transposed. Everything is of two dimensions, so that a
kernel and `jax.vmap` can both run it.
"""

from typing import Callable, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx.nn import masks
from jtx.nn.dropout import kept_at
from jtx.nn.masks import Mask

HIDDEN = -1e30  # the logit of a pair that is not allowed
LOWEST = -1e29  # the maximum before any tile: above HIDDEN, so that exp(HIDDEN - LOWEST) is 0


class Variant(NamedTuple):
  """The static part of a call to `jtx.nn.attend`."""
  mask: Mask
  scale: float
  soft_cap: float | None = None
  dropout_rate: float = 0.0
  bias: Callable | None = None  # of positions of queries and keys, and a head's parameters
  tables: tuple[str, ...] = ()  # those of its parameters that are tables, not numbers
  num_queries: int = 0  # T of the whole row, which numbers the rows of weights
  num_heads: int = 0  # N of all devices
  padded: bool = False  # there are keys behind the last
  num_keys: int = 0
  by_query: bool = False  # the rows of a tile are its queries, and its columns the keys
  # Whether a loop over blocks asks of each what there is to do in it. A GPU reads blocks ahead only
  # in a loop that does not, and what is not allowed adds zeros in any case.
  gaps: bool = True

  @property
  def over_keys(self) -> int:
    """The axis of a tile's keys."""
    return 1 if self.by_query else 0


class Side(NamedTuple):
  """The queries of a tile, each [1, Q], or its keys, each [K, 1]."""
  index: jax.Array  # int32, of the row
  segments: jax.Array | None = None  # int32
  flags: Mapping[str, jax.Array] = {}  # int32, 0 or 1
  positions: jax.Array | None = None  # int32


class Tile(NamedTuple):
  """The pairs of a tile, of one head of one row."""
  queries: Side
  keys: Side
  pairs: jax.Array | None = None  # [K, Q], 0 where a pair is not allowed
  bias: jax.Array | None = None  # [K, Q]
  params: Mapping[str, jax.Array] = {}  # of `Variant.bias`, the head's
  words: tuple[jax.Array, jax.Array] | None = None  # two uint32, the key of dropout
  rows: jax.Array | None = None  # uint32 [1, Q], numbers of the rows of weights

  def flags(self, name: str) -> tuple[jax.Array, jax.Array]:
    """As `masks.Rows.flags`, of this tile: [K, Q] both."""
    of_query, of_key = (jnp.broadcast_to(side.flags[name], self.shape) != 0
                        for side in (self.queries, self.keys))
    return of_query, of_key

  @property
  def shape(self) -> tuple[int, ...]:
    return jnp.broadcast_shapes(self.queries.index.shape, self.keys.index.shape)


class Sums(NamedTuple):
  """What a query has gathered from the tiles so far (Milakov and Gimelshein 2018)."""
  highest: jax.Array  # [1, Q] float32, of its logits
  total: jax.Array  # [1, Q] float32, of exp(logit - highest)
  out: jax.Array  # [Hv, Q] float32, the values so weighted

  @classmethod
  def start(cls, num_queries: int, width: int, by_query: bool = False) -> "Sums":
    full = lambda rows, value: jnp.full(
        (num_queries, rows) if by_query else (rows, num_queries), value, jnp.float32)
    return cls(full(1, LOWEST), full(1, 0), full(width, 0))

  def finish(self) -> tuple[jax.Array, jax.Array]:
    """The output [Hv, Q], zeros where nothing was allowed, and log of the sum of exp [1, Q]."""
    some = self.total > 0
    total = jnp.where(some, self.total, 1.0)
    # exp(HIDDEN + HIDDEN) is 0: a query without keys has no weights on the way back, either.
    return self.out / total, jnp.where(some, self.highest + jnp.log(total), -HIDDEN)


class Gradients(NamedTuple):
  query: jax.Array  # [H, Q]
  key: jax.Array  # [K, H]
  value: jax.Array  # [K, Hv]
  logits: jax.Array  # [K, Q], which is the bias's, too
  params: Mapping[str, jax.Array]


def product(a: jax.Array, b: jax.Array, over_a: int, over_b: int) -> jax.Array:
  """The product of two matrices over an axis of each, float32."""
  return jax.lax.dot_general(a, b, (((over_a,), (over_b,)), ((), ())),
                             preferred_element_type=jnp.float32)


def of_pairs(variant: Variant, of_queries: jax.Array, of_keys: jax.Array) -> jax.Array:
  """The products of each query's row with each key's, [K, Q]."""
  return product(*((of_queries, of_keys) if variant.by_query else (of_keys, of_queries)), 1, 1)


def over_keys(variant: Variant, weights: jax.Array, of_keys: jax.Array) -> jax.Array:
  """The sums over keys of a tile times the keys' rows [K, n]: [n, Q]."""
  return (product(weights, of_keys, 1, 0) if variant.by_query
          else product(of_keys, weights, 0, 0))


def over_queries(variant: Variant, weights: jax.Array, of_queries: jax.Array) -> jax.Array:
  """The sums over queries of a tile times the queries' rows [Q, n]: [K, n], of either order."""
  return product(weights, of_queries, 1 - variant.over_keys, 0)


def allowed(variant: Variant, tile: Tile) -> jax.Array | None:
  """bool, broadcasting to [K, Q]; None where all pairs are."""
  found = []
  if variant.mask != masks.FULL:
    found.append(variant.mask(tile.queries.index, tile.keys.index, tile))
  if variant.padded:
    found.append(tile.keys.index < variant.num_keys)
  if (keys := tile.keys.segments) is not None:
    found.append(keys != 0)
    if (queries := tile.queries.segments) is not None:
      found.append(keys == queries)
  if tile.pairs is not None:
    found.append(tile.pairs != 0)
  if not found:
    return None
  result, *others = (jnp.broadcast_to(each, tile.shape) for each in found)
  for other in others:
    result &= other
  return result


def bias_of(variant: Variant, tile: Tile) -> tuple[jax.Array, Callable]:
  """The bias that is a function of places, and the way back from it to its parameters."""
  run = lambda params: variant.bias(
      tile.queries.positions, tile.keys.positions, params).astype(jnp.float32)
  return jax.vjp(run, tile.params)


def logits(variant: Variant, q: jax.Array, k: jax.Array, tile: Tile, masked: bool):
  """The logits [K, Q] and, with a soft cap, the slope of each in what is capped."""
  found, slope = of_pairs(variant, q, k) * variant.scale, None
  if variant.soft_cap is not None:
    share = jnp.tanh(found / variant.soft_cap)
    found, slope = variant.soft_cap * share, 1 - share * share
  if tile.bias is not None:
    found += tile.bias.astype(jnp.float32)
  if variant.bias is not None:
    found += bias_of(variant, tile)[0]
  if masked and (pairs := allowed(variant, tile)) is not None:
    found = jnp.where(pairs, found, HIDDEN)
  return found, slope


def dropped(variant: Variant, tile: Tile, weights: jax.Array) -> jax.Array:
  """Weights [K, Q] after dropout, with the bits of `jtx.nn.dropout` of the reference's weights."""
  if not variant.dropout_rate:
    return weights
  keep = kept_at(tile.words, tile.rows, tile.keys.index, variant.dropout_rate)
  return jnp.where(keep, weights * (1 / (1 - variant.dropout_rate)), 0.0)


def forward(variant: Variant, sums: Sums, q: jax.Array, k: jax.Array, v: jax.Array, tile: Tile,
            masked: bool = True) -> Sums:
  """The sums with a tile's keys.

  Args:
    variant: static.
    sums: of the tiles before.
    q: [Q, H].
    k: [K, H].
    v: [K, Hv].
    tile: its pairs.
    masked: False where all of them are known to be allowed.
  """
  found, _ = logits(variant, q, k, tile, masked)
  axis = variant.over_keys
  highest = jnp.maximum(sums.highest, found.max(axis, keepdims=True))
  shrink, weights = jnp.exp(sums.highest - highest), jnp.exp(found - highest)
  total = sums.total * shrink + weights.sum(axis, keepdims=True)
  weights = dropped(variant, tile, weights).astype(v.dtype)
  return Sums(highest, total, sums.out * shrink + over_keys(variant, weights, v))


def backward(variant: Variant, q: jax.Array, k: jax.Array, v: jax.Array, d_out: jax.Array,
             log_total: jax.Array, delta: jax.Array, tile: Tile,
             masked: bool = True) -> Gradients:
  """What a tile adds to the gradients (Dao et al. 2022, algorithm 4).

  Args:
    variant: static.
    q: [Q, H].
    k: [K, H].
    v: [K, Hv].
    d_out: [Q, Hv], the gradient of the output.
    log_total: [1, Q], as `Sums.finish` gave it.
    delta: [1, Q], the sum of output times its gradient.
    tile: its pairs.
    masked: False where all of them are known to be allowed.
  """
  found, slope = logits(variant, q, k, tile, masked)
  weights = jnp.exp(found - log_total)
  d_value = over_queries(variant, dropped(variant, tile, weights).astype(v.dtype), d_out)
  d_weights = dropped(variant, tile, of_pairs(variant, d_out, v))
  d_logits = weights * (d_weights - delta)
  d_params = {}
  if variant.bias is not None and tile.params:
    (d_params,) = bias_of(variant, tile)[1](d_logits)
  d_products = d_logits * variant.scale if slope is None else d_logits * slope * variant.scale
  d_products = d_products.astype(k.dtype)
  return Gradients(query=over_keys(variant, d_products, k),
                   key=over_queries(variant, d_products, q),
                   value=d_value, logits=d_logits, params=d_params)
