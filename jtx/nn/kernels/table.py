"""A head's table of numbers as a kernel has it: chips have no gather from a register."""

import jax
import jax.numpy as jnp

LARGEST = 64  # entries of a table that is looked up inside a kernel


@jax.tree_util.register_pytree_node_class
class Table:
  """Numbers [1, 1] each, of which `table[index]` looks some up."""

  def __init__(self, entries: tuple[jax.Array, ...]):
    self.entries = tuple(entries)

  def tree_flatten(self):
    return self.entries, None

  @classmethod
  def tree_unflatten(cls, _, entries):
    return cls(entries)

  def __getitem__(self, index: jax.Array) -> jax.Array:
    """By a choice for each entry, for whole numbers of any shape."""
    result = jnp.zeros(index.shape, jnp.float32)
    for n, entry in enumerate(self.entries):
      result = jnp.where(index == n, entry, result)
    return result
