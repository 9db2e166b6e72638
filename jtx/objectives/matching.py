"""The matching of boxes and queries that costs least, exactly and in a jitted step.

Boxes are given to queries one after the other, each by the cheapest path of changes to what was
given before (Jonker and Volgenant 1987). Rows of padding take no turn: in a matrix that has them
with equal costs, they would take most of the time.
"""

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.parallel.sharding import spec


def match(cost: jax.Array, there: jax.Array) -> jax.Array:
  """The queries to which boxes go so that the sum of their costs is least, each to another one.

  Every device matches those of its own rows.

  Args:
    cost: [L, B, Q, N] of giving box n to query q, finite.
    there: [B, N] bool, whether there is a box; where there is none, costs may be anything.

  Returns:
    [L, B, N] int32, queries; 0 where there is no box.

  Raises:
    ConfigError: there may be more boxes than queries.
  """
  Q, N = cost.shape[2:]
  if N > Q:
    raise ConfigError(f"batches have {N} boxes an image and the model has {Q} queries, each for"
                      f" one: set config.model.num_queries to {N} or more, or max_boxes of the op"
                      f" 'images' to {Q} or less")
  each = jax.vmap(jax.vmap(_assign), in_axes=(0, None))
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return each(cost, there)
  # Loops of all rows together would ask all devices, after each turn, whether one goes on.
  rows = spec((None, "batch", None, None), cost.shape, dict(mesh.shape))
  return jax.shard_map(each, in_specs=(rows, jax.P(rows[1])), out_specs=jax.P(*rows[:2]),
                       check_vma=False)(cost, there)


def _assign(cost: jax.Array, there: jax.Array) -> jax.Array:
  """The queries [N] of boxes, of which some are there; `cost` is [Q, N]."""
  order = jnp.argsort(~there)  # those that are there come first
  cost = cost.T[order]

  def give(state):
    box, prices, owner = state
    path = _cheapest(cost, box, prices, owner)
    query, total, least, before, seen = path
    prices -= jnp.where(seen, total - least, 0)
    owner = _changed(owner, box, query, before)
    return box + 1, prices, owner

  start = jnp.int32(0), jnp.zeros(cost.shape[1]), jnp.full(cost.shape[1], -1)
  _, _, owner = jax.lax.while_loop(lambda state: state[0] < there.sum(), give, start)
  queries = jnp.zeros(len(order), jnp.int32)
  places = jnp.where(owner < 0, len(order), order[owner])  # beyond the end: no box
  return queries.at[places].set(jnp.arange(len(owner), dtype=jnp.int32), mode="drop")


def _cheapest(cost: jax.Array, box: jax.Array, prices: jax.Array, owner: jax.Array):
  """The cheapest path from a box to a query that no box has, by Dijkstra's algorithm.

  Args:
    cost: [N, Q].
    box: the box.
    prices: [Q] of queries, with which no box would rather have another query.
    owner: [Q], the box of each query, or -1.

  Returns:
    The query; the path's cost; of all queries the cost of the cheapest path to them, [Q], the query
    before them on it, or -1, and whether they were reached.
  """
  def turn(state):
    box, query, total, least, before, seen = state
    own = jnp.where(query < 0, 0, cost[box, query] - prices[query])
    costs = total + cost[box] - prices - own
    better = ~seen & (costs < least)
    least, before = jnp.where(better, costs, least), jnp.where(better, query, before)
    query = jnp.where(seen, jnp.inf, least).argmin().astype(jnp.int32)
    return (owner[query], query, least[query], least, before,
            seen | (jnp.arange(len(owner)) == query))

  Q = len(owner)
  start = (box, jnp.int32(-1), jnp.float32(0), jnp.full(Q, jnp.inf), jnp.full(Q, -1, jnp.int32),
           jnp.zeros(Q, bool))
  return jax.lax.while_loop(lambda state: state[0] >= 0, turn, start)[1:]


def _changed(owner: jax.Array, box: jax.Array, query: jax.Array, before: jax.Array) -> jax.Array:
  """The boxes [Q] of queries after each on the path has got that of the one before it."""
  def back(state):
    query, owner = state
    last = before[query]
    return last, owner.at[query].set(jnp.where(last < 0, box, owner[last]))

  return jax.lax.while_loop(lambda state: state[0] >= 0, back, (query, owner))[1]
