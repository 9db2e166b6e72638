"""Products of groups of rows, each with a matrix of its own."""

import functools

import jax
import jax.numpy as jnp

from jtx.nn.kernels import grouped
from jtx.parallel.sharding import platform

ROWS = (8, 16, 32, 64, 128, 256)  # of a block


def grouped_product(x: jax.Array, kernels: jax.Array, sizes: jax.Array) -> jax.Array:
  """Rows of x times the kernel of their group.

  Accelerators have kernels for it. The operation that JAX has, `ragged_dot`, multiplies all rows
  with all kernels on a CPU, so the rows go through block by block instead; on a GPU it does the
  same, and on a TPU in its gradient.

  Args:
    x: [M, D], the rows of group 0 first, then those of group 1, and so on.
    kernels: [E, D, F].
    sizes: [E] int32, rows of each group; what is behind the last group's is zeros in the result.

  Returns:
    [M, F].
  """
  if platform() == "cpu":
    return product_in_blocks(x, kernels, sizes)
  if grouped.supports(platform(), kernels):
    return grouped.product(x, kernels, sizes, platform())
  y = jax.lax.ragged_dot(x, kernels, sizes)
  return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], y, 0)


@functools.partial(jax.jit, inline=False)
def product_in_blocks(x: jax.Array, kernels: jax.Array, sizes: jax.Array) -> jax.Array:
  """`grouped_product` of a CPU; a program of its own, by whose name its operations are counted."""
  return _in_blocks(x, kernels, sizes)


@jax.custom_vjp
def _in_blocks(x, kernels, sizes):
  return _product(x, kernels, sizes, False)


def _product(x, kernels, sizes, transposed):
  """[M, D] times [E, D, F], or with the kernels transposed [M, F] times [E, D, F]."""
  block, group, first, number, used = grouped.blocks_of(x, sizes, ROWS)
  padded = jnp.pad(x, ((0, block), (0, 0)))  # a block may begin at the last row
  width = kernels.shape[1 if transposed else 2]

  def body(i, y):
    rows = jax.lax.dynamic_slice_in_dim(padded, first[i], block)
    kernel = jax.lax.dynamic_index_in_dim(kernels, group[i], keepdims=False)
    new = rows @ (kernel.T if transposed else kernel)
    # Rows behind the group's are those of the next block, which comes later, or of none.
    new = jnp.where((jnp.arange(block) < number[i])[:, None], new, 0)
    return jax.lax.dynamic_update_slice_in_dim(y, new, first[i], 0)

  y = jnp.zeros((len(x) + block, width), x.dtype)
  return jax.lax.fori_loop(0, used, body, y)[:len(x)]


def _forward(x, kernels, sizes):
  return _product(x, kernels, sizes, False), (x, kernels, sizes)


def _backward(kept, dy):
  x, kernels, sizes = kept
  block, group, first, number, used = grouped.blocks_of(x, sizes, ROWS)
  pad = lambda a: jnp.pad(a, ((0, block), (0, 0)))
  inputs, cotangents = pad(x), pad(dy)

  def body(i, total):
    cut = lambda a: jax.lax.dynamic_slice_in_dim(a, first[i], block)
    rows = jnp.where((jnp.arange(block) < number[i])[:, None], cut(inputs), 0)
    return total.at[group[i]].add(jnp.matmul(
        rows.T, cut(cotangents), preferred_element_type=jnp.float32))

  dkernels = jax.lax.fori_loop(0, used, body, jnp.zeros(kernels.shape, jnp.float32))
  return _product(dy, kernels, sizes, True), dkernels.astype(kernels.dtype), None


_in_blocks.defvjp(_forward, _backward)
