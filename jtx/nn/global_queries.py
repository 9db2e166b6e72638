"""Queries of global tokens, which see all by projections of their own (Longformer).

Beltagy et al. 2020, section 3.1. Global tokens are few, and any. They are sorted before the others,
which then see nothing, so that kernels that leave out empty blocks take time in proportion to the
number of global tokens times the length.
"""

import functools
from typing import Any, Callable, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx.nn.masks import Rows
from jtx.nn.positions import Places


class First(NamedTuple):
  """An order of queries in which global ones are first."""
  of_query: jax.Array  # [B, T] bool, at their places
  order: jax.Array  # [B, T] int, the place of each in the row

  def sort(self, x: jax.Array) -> jax.Array:
    """[B, T, ...], in the order."""
    return _taken(x, self.order)

  def places(self, places: Places) -> Places:
    types = places.types
    return places.replace(positions=self.sort(places.positions),
                          types=None if types is None else self.sort(types))

  def rows(self, rows: Rows) -> Rows:
    """Those in which queries that are not global see nothing."""
    segments = jnp.ones_like(self.order) if rows.q_segments is None else rows.q_segments
    keys = jnp.ones_like(segments) if rows.k_segments is None else rows.k_segments
    return Rows(q_segments=self.sort(jnp.where(self.of_query, segments, 0)), k_segments=keys,
                pairs=None if rows.pairs is None else self.sort(rows.pairs))

  def merged(self, found, of_others):
    """What was found for queries in the order, in the place of what others see.

    Both are [B, T, N, H], or with them the weights [B, N, T, S].
    """
    if isinstance(found, tuple):
      turned = lambda weights: jnp.moveaxis(weights, 1, 2)
      weights = self.merged(turned(found[1]), turned(of_others[1]))
      return self.merged(found[0], of_others[0]), turned(weights)
    return jnp.where(self.of_query[:, :, None, None],
                     _taken(found, jnp.argsort(self.order, axis=-1)), of_others)


def _taken(x: jax.Array, index: jax.Array) -> jax.Array:
  return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), 1)


def attended(attention: Any, x: jax.Array, places: Places, rows: Rows,
             hooks: Mapping[str, Any]) -> tuple[Callable, Rows]:
  """What global queries see of all tokens.

  Args:
    attention: a bound `jtx.nn.attention.Attention`.
    x: its input [B, T, D].
    places: of x.
    rows: with the flag "global".
    hooks: keywords of `Attention.attended`: the position and others.

  Returns:
    A function that puts it in the place of what they see by the projections of all, and rows in
    which they see no more than other queries.
  """
  places = places.replace(local=False, in_order=0)
  of_position = {name: hooks[name] for name in ("position", "params")}
  q, projected, project = attention.project(x, x, places, places, projected=None, prefix="global_",
                                            **of_position)
  of_query = rows.q_flags["global"]
  first = First(of_query, jnp.argsort(~of_query, axis=-1, stable=True))
  # FLOPs are counted as of one global token.
  found = attention.attended(
      first.sort(q), projected, first.places(places), places, project=project, prefix="global_",
      rows=first.rows(rows), shares=(1 / q.shape[1],), **hooks)
  return functools.partial(first.merged, found), without(rows)


def without(rows: Rows) -> Rows:
  """Rows in which global queries see what all others see."""
  none = jnp.zeros_like(rows.q_flags["global"])
  return rows._replace(q_flags={**rows.q_flags, "global": none})
