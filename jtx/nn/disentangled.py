"""Disentangled attention (DeBERTa): what a token is and how far it is away answer each other.

A logit is the sum of three products: of the query and the key; of the query and the key of their
distance; of the query of their distance and the key (He et al. 2020, section 3.1). All layers share
a table of vectors for distances. Each makes queries and keys of them, by projections of its own
(version 1) or by those that it has for tokens (versions 2 and 3, He et al. 2021).
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn.encodings import distance_rows
from jtx.nn.numerics import normalized
from jtx.nn.positions import POSITIONS, Params, Position, Project, Table
from jtx.ranges import NotNegative, Positive, Size, SizeOrNone

# Content to position, and position to content.
TERMS = ("c2p", "p2c")
BLOCK = 128  # tokens whose products with distances are taken at a time


@dataclasses.dataclass(frozen=True)
class Disentangled(Position):
  """Version 3 as published; version 1 is Disentangled(512, 0, shared=False, norm=False)."""
  span: Size = 256  # rows of the table to each side; distances beyond have its ends
  # From span / 2 to this, rows are for logarithmic buckets; 0: every row is for one distance.
  max_distance: SizeOrNone = 512
  terms: tuple[str, ...] = TERMS  # "c2p": query and distance; "p2c": distance and key
  shared: bool = True  # distances are projected as tokens are
  norm: bool = True  # of the table, a layer norm
  norm_eps: Positive = 1e-7  # of this norm, added to the variance
  init_std: NotNegative = 0.02  # standard deviation of the table's first values

  def __post_init__(self):
    for term in self.terms:
      if term not in TERMS:
        raise ConfigError(f"position.terms={self.terms}: {nearest(term, TERMS)}")
    if not self.terms or len(set(self.terms)) != len(self.terms):
      raise ConfigError(f"position.terms={self.terms} must have 'c2p', 'p2c' or both, once each")
    if self.max_distance and (self.span % 2 or self.max_distance < self.span // 2 + 2):
      raise ConfigError(f"position.span={self.span} must be even, and"
                        f" max_distance={self.max_distance} at least half of it and 2, or 0")
    if not self.norm and self.norm_eps != Disentangled.norm_eps:
      raise ConfigError(f"position.norm_eps={self.norm_eps} goes with position.norm=True")

  @property
  def products(self):
    return 1 + len(self.terms)

  def stack_tables(self, sizes):
    tables = {"distances": Table((2 * self.span, sizes.width), self.init_std,
                                 ("positions", "embed"))}
    if self.norm:
      tables["distances_norm_scale"] = Table((sizes.width,), nn.initializers.ones, ("norm",))
      tables["distances_norm_bias"] = Table((sizes.width,), nn.initializers.zeros, ("norm",))
    return tables

  def layer_tables(self, sizes):
    if self.shared:
      return {}
    heads, axes = (sizes.num_heads, sizes.head_dim), ("heads", "kv")
    kernel = Table((sizes.width, *heads), self.init_std, ("embed", *axes))
    tables = {"key": kernel} if "c2p" in self.terms else {}
    if "p2c" in self.terms:
      tables |= {"query": kernel, "query_bias": Table(heads, nn.initializers.zeros, axes)}
    return tables

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    heads, (T, S) = q.shape[2], (q.shape[1], k.shape[1])
    # Rows of distances that are there may be a few more than the table has, but no more.
    if q_places.in_order == T == S and 2 * T - 1 <= 4 * self.span:
      return scale * self.of_row(q, k, params, project)
    queries, keys = self.project(params, project, q.dtype)
    rows = distance_rows(q_places.positions[:, :, None] - k_places.positions[:, None],
                         span=self.span, max_distance=self.max_distance)[:, None]
    total = jnp.zeros((), jnp.float32)
    if keys is not None:
      total += chosen(products(q, per_head(keys, heads)), rows)
    if queries is not None:
      by_key = products(per_head(k, heads), queries)
      total += chosen(by_key, rows.swapaxes(-1, -2)).swapaxes(-1, -2)
    return scale * total

  def of_row(self, q: jax.Array, k: jax.Array, params: Params,
             project: Project | None) -> jax.Array:
    """The terms of all pairs of a row in order, [B, N, T, T], without a lookup for each of them."""
    heads, T = q.shape[2], q.shape[1]
    distances = jnp.arange(1 - T, T)
    rows = distance_rows(distances, span=self.span, max_distance=self.max_distance)
    fewer = len(rows) <= 2 * self.span
    queries, keys = self.project(params, project, q.dtype, rows if fewer else None)
    if not fewer:
      queries, keys = (None if x is None else x[rows] for x in (queries, keys))
    total = jnp.zeros((), jnp.float32)
    if keys is not None:  # of the key that is farthest behind last
      total += of_distances(q, per_head(keys[::-1], heads))
    if queries is not None:
      total += of_distances(per_head(k, heads), queries).swapaxes(-1, -2)
    return total

  def project(self, params: Params, project: Project | None, dtype: jnp.dtype,
              rows: jax.Array | None = None) -> tuple[jax.Array | None, jax.Array | None]:
    """Queries [2 span, N, H] and keys [2 span, K, H] of distances; None for a term that is not.

    With `rows` [R] they are of these rows of the table.
    """
    table = params["distances"] if rows is None else params["distances"][rows]
    if self.norm:
      table = normalized(table, params["distances_norm_scale"], self.norm_eps, True)
      table += params["distances_norm_bias"]
    table = table.astype(dtype)
    queries = keys = None
    if "p2c" in self.terms:
      queries = project.query(table) if self.shared else (
          jnp.einsum("rd,dnh->rnh", table, params["query"].astype(dtype))
          + params["query_bias"].astype(dtype))
    if "c2p" in self.terms:
      keys = project.key(table) if self.shared else jnp.einsum(
          "rd,dnh->rnh", table, params["key"].astype(dtype))
    return queries, keys


def per_head(x: jax.Array, num_heads: int) -> jax.Array:
  """[..., K, H] to [..., N, H], K dividing N."""
  return jnp.repeat(x, num_heads // x.shape[-2], axis=-2)


def products(x: jax.Array, table: jax.Array) -> jax.Array:
  """Of tokens [B, T, N, H] and rows [R, N, H]: float32 [B, N, T, R]."""
  return jnp.einsum("btnh,rnh->bntr", x, table, preferred_element_type=jnp.float32)


def of_distances(x: jax.Array, table: jax.Array) -> jax.Array:
  """Products of tokens [B, T, N, H] with S rows of a table [T + S - 1, N, H] each: [B, N, T, S].

  The first token has the last S rows, the next those from one before on. Blocks of tokens leave out
  rows that none of them has.
  """
  T, S = x.shape[1], len(table) - x.shape[1] + 1
  parts = []
  for first in range(0, T, BLOCK):
    block = x[:, first:first + BLOCK]
    size = block.shape[1]
    start = T - size - first
    parts.append(skewed(products(block, table[start:start + S + size - 1])))
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 2)


def skewed(x: jax.Array) -> jax.Array:
  """Of [..., n, T + n - 1], in row i the T from place n - 1 - i on: [..., n, T].

  Each begins one place before that of the row above, so that rows cut one shorter have them all.
  """
  *rest, number, length = x.shape
  flat = x.reshape(*rest, number * length)
  if number > 1:
    flat = flat[..., number - 1:-1]
  return flat.reshape(*rest, number, -1)[..., :length - number + 1]


def chosen(x: jax.Array, rows: jax.Array) -> jax.Array:
  """Of [B, N, T, R], those of the rows [B, 1, T, S]: [B, N, T, S]."""
  return jnp.take_along_axis(x, rows, axis=-1)


POSITIONS["disentangled"] = Disentangled
