"""The matching of boxes and predictions that costs least, in a jitted step (Kuhn 1955)."""

import jax
import jax.numpy as jnp
import optax

from jtx.errors import ConfigError
from jtx.parallel.sharding import spec


def match(cost: jax.Array, there: jax.Array) -> jax.Array:
  """The queries to which boxes go so that the sum of their costs is least, each to another one.

  Every device matches those of its own rows.

  Args:
    cost: [L, B, Q, N] of giving box n to query q, finite.
    there: [B, N] bool, whether there is a box; where there is none, costs may be anything.

  Returns:
    [L, B, N] int32, queries; of boxes that are not there some that no box has.

  Raises:
    ConfigError: there may be more boxes than queries.
  """
  Q, N = cost.shape[2:]
  if N > Q:
    raise ConfigError(f"batches have {N} boxes an image and the model has {Q} queries, each for one:"
                      f" set config.model.num_queries to {N} or more, or the data's most boxes to"
                      f" {Q} or less")
  # A column of equal costs, whichever query gets it, leaves the others' best matching as it is.
  cost = jnp.where(there[:, None], cost, 0.0).swapaxes(2, 3)
  each = jax.vmap(jax.vmap(_assign))
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return each(cost)
  # Loops of all rows together would ask all devices, after each turn, whether one goes on.
  rows = spec((None, "batch", None, None), cost.shape, dict(mesh.shape))
  out = jax.P(*rows[:3])
  return jax.shard_map(each, in_specs=(rows,), out_specs=out, check_vma=False)(cost)


def _assign(cost: jax.Array) -> jax.Array:
  """The columns [N] of the rows of a matrix [N, Q] of costs."""
  rows, columns = optax.assignment.hungarian_algorithm(cost)
  return jnp.zeros(cost.shape[0], jnp.int32).at[rows].set(columns.astype(jnp.int32))
