"""A head's parameters as a kernel has them: chips have no gather from a register."""

import jax
import jax.numpy as jnp

LARGEST = 64  # entries of a table that is looked up inside a kernel


@jax.tree_util.register_pytree_node_class
class Table:
  """A row [1, n] of which `table[index]` looks entries up."""

  def __init__(self, row: jax.Array):
    self.row = row

  def tree_flatten(self):
    return (self.row,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)

  def __getitem__(self, index: jax.Array) -> jax.Array:
    return look_up(self.row, index)


def choice(row: jax.Array, index: jax.Array) -> jax.Array:
  """row[0, index] by a choice for each entry: [1, n] and whole numbers of any shape."""
  result = jnp.zeros(index.shape, row.dtype)
  for n in range(row.shape[1]):
    result = jnp.where(index == n, row[:, n:n + 1], result)
  return result


look_up = jax.custom_vjp(choice)


def _forward(row, index):
  return choice(row, index), (row.shape[1], index)


def _backward(kept, gradient):
  size, index = kept
  at = jax.lax.broadcasted_iota(jnp.int32, (1, size), 1)
  result = jnp.zeros((1, size), gradient.dtype)
  for n in range(size):
    found = jnp.where(index == n, gradient, 0.0).sum(0, keepdims=True).sum(1, keepdims=True)
    result += jnp.where(at == n, found, 0.0)
  return result, None


look_up.defvjp(_forward, _backward)
