"""Kernels for products of groups of rows, each with a matrix of its own (Gale et al. 2022).

On a TPU they are JAX's (megablox), on a GPU those of this file. XLA's own gradient of
`jax.lax.ragged_dot` multiplies all rows with all matrices on both.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jtx.parallel.sharding import platform

TPU_ROWS, TPU_ROW_BYTES = (128, 256, 512), 2048  # of a tile, and of one row in it
GPU_ROWS, GPU_WIDTH, GPU_ROW_BYTES = (16, 32, 64, 128), 128, 128
LEAST = 16  # rows and columns of a product on a GPU


class Blocks(NamedTuple):
  """Blocks of rows that cover groups of rows, none of them rows of two."""
  rows: int  # of each
  group: jax.Array  # of each
  first: jax.Array  # row of each
  number: jax.Array  # of rows that are its group's
  used: jax.Array  # blocks; behind these are some of no rows


def blocks_of(x: jax.Array, sizes: jax.Array, choices: Sequence[int]) -> Blocks:
  """Blocks of x [M, D], whose groups have `sizes` [E], of one of these `choices` of rows.

  They have at most a quarter of a group's rows, if all groups have as many: what blocks are filled
  up with is little.
  """
  most, number = len(x), len(sizes)
  rows = max((n for n in choices if 4 * n * number <= most), default=choices[0])
  of_group = -(-sizes // rows)
  index = jnp.arange(-(-most // rows) + number)
  ends = jnp.cumsum(of_group)
  group = jnp.minimum(jnp.searchsorted(ends, index, side="right"), number - 1)
  inside = (index - (ends - of_group)[group]) * rows
  first = (jnp.cumsum(sizes) - sizes)[group] + inside
  return Blocks(rows, group, first, used=ends[-1],
                number=jnp.clip(sizes[group] - inside, 0, rows))


def supports(kind: str, kernels: jax.Array) -> bool:
  """Whether the kernels of this platform take matrices [E, D, F]."""
  return kind == "tpu" or kind == "gpu" and all(n % LEAST == 0 for n in kernels.shape[1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def product(x: jax.Array, kernels: jax.Array, sizes: jax.Array, kind: str) -> jax.Array:
  """Rows of x times the kernel of their group.

  Args:
    x: [M, D], the rows of group 0 first, then those of group 1, and so on.
    kernels: [E, D, F].
    sizes: [E] int32, rows of each group; what is behind the last group's is zeros in the result.
    kind: of the platform, "tpu" or "gpu"; on another the programs run as JAX operations.

  Returns:
    [M, F].
  """
  return _rows(x, kernels, sizes, kind)


def _rows(x, kernels, sizes, kind, *, transposed=False):
  """The product, or that with [E, F, D] transposed."""
  if kind == "gpu":
    y = _on_gpu(x, kernels, sizes, transposed)
  else:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm  # takes a third of a second
    y = gmm(_filled(x, kernels), kernels, sizes, x.dtype, tiling=_tiles(x, kernels),
            transpose_rhs=transposed, interpret=platform() != kind)
  # Kernels leave anything behind the last group.
  return jnp.where((jnp.arange(len(x)) < sizes.sum())[:, None], y[:len(x)], 0)


def _gradients(kind, kept, dy):
  x, kernels, sizes = kept
  if kind == "gpu":
    dkernels = _gradient_on_gpu(x, dy, sizes, kernels)
  else:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm
    dkernels = tgmm(_filled(x, kernels).swapaxes(0, 1), _filled(dy, kernels), sizes,
                    preferred_element_type=kernels.dtype, tiling=_tiles(x, kernels),
                    interpret=platform() != kind)
  return _rows(dy, kernels, sizes, kind, transposed=True), dkernels, None


product.defvjp(lambda x, kernels, sizes, kind: (
    _rows(x, kernels, sizes, kind), (x, kernels, sizes)), _gradients)


def _tiles(x: jax.Array, kernels: jax.Array) -> tuple[int, int, int]:
  """Rows, inputs and outputs of a tile on a TPU: of rows at most a quarter of a group's.

  Where a group ends inside a tile, the tile is taken again for the next.
  """
  fitting = [n for n in TPU_ROWS if 4 * n * len(kernels) <= len(x)]
  return (max(fitting, default=TPU_ROWS[0]), TPU_ROW_BYTES // x.dtype.itemsize,
          TPU_ROW_BYTES // 2)


def _filled(x: jax.Array, kernels: jax.Array) -> jax.Array:
  """x [M, D] with rows of zeros behind its own, as many as tiles need."""
  return jnp.pad(x, ((0, -len(x) % _tiles(x, kernels)[0]), (0, 0)))


def _on_gpu(x, kernels, sizes, transposed):
  (M, D), F = x.shape, kernels.shape[1 if transposed else 2]
  blocks = blocks_of(x, sizes, GPU_ROWS)
  rows, width = blocks.rows, math.gcd(F, GPU_WIDTH)
  program = functools.partial(
      _grouped_program, transposed=transposed, rows=rows, width=width,
      depth=math.gcd(D, GPU_ROW_BYTES // x.dtype.itemsize))
  return _call(program, (len(blocks.group), F // width),
               (blocks.group, blocks.first, blocks.number), (_behind(x, rows), kernels),
               out=jax.ShapeDtypeStruct((M + rows, F), x.dtype), flops=2 * M * D * F)


def _gradient_on_gpu(x, dy, sizes, kernels):
  E, D, F = kernels.shape
  height, width = math.gcd(D, GPU_WIDTH), math.gcd(F, GPU_WIDTH)
  rows = GPU_ROW_BYTES // x.dtype.itemsize
  program = functools.partial(_grouped_gradient_program, rows=rows, height=height, width=width)
  return _call(program, (E, D // height, F // width), (jnp.cumsum(sizes) - sizes, sizes),
               (_behind(x, rows), _behind(dy, rows)),
               out=jax.ShapeDtypeStruct(kernels.shape, kernels.dtype), flops=2 * len(x) * D * F)


def _behind(x: jax.Array, rows: int) -> jax.Array:
  return jnp.pad(x, ((0, rows), (0, 0)))  # a block may begin at the last row


def _call(program, grid, numbers, operands, *, out, flops):
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton
  interpret = platform() != "gpu"
  moved = sum(x.size * x.dtype.itemsize for x in (*operands, out))
  return pl.pallas_call(
      program, grid=grid, out_shape=out, interpret=interpret, name=program.func.__name__[1:],
      cost_estimate=pl.CostEstimate(flops=flops, transcendentals=0, bytes_accessed=moved),
      compiler_params=None if interpret else triton.CompilerParams(num_warps=8, num_stages=3))(
          *(x.astype(jnp.int32) for x in numbers), *operands)


def _grouped_program(group, first, number, x, kernels, out, *, transposed, rows, width, depth):
  """A block's rows and `width` columns of the product."""
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton
  i, columns = pl.program_id(0), pl.ds(pl.program_id(1) * width, width)
  e, own_rows = group[i], pl.ds(first[i], rows)
  own = jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0) < number[i]

  def add(k, total):
    inner = pl.ds(k * depth, depth)
    kernel = kernels[e, columns, inner] if transposed else kernels[e, inner, columns]
    return total + triton.dot(x[own_rows, inner], kernel, trans_b=transposed)

  @pl.when(number[i] > 0)
  def _():
    total = jax.lax.fori_loop(0, x.shape[1] // depth, add, jnp.zeros((rows, width), jnp.float32))
    triton.store(out.at[own_rows, columns], total.astype(out.dtype),
                 mask=jnp.broadcast_to(own, total.shape))


def _grouped_gradient_program(first, number, x, dy, out, *, rows, height, width):
  """A kernel's gradient: of `height` of its inputs and `width` of its outputs."""
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import triton
  e = pl.program_id(0)
  inputs = pl.ds(pl.program_id(1) * height, height)
  outputs = pl.ds(pl.program_id(2) * width, width)

  def add(k, total):
    at = pl.ds(first[e] + k * rows, rows)
    own = jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0) < number[e] - k * rows
    return total + triton.dot(jnp.where(own, x[at, inputs], 0), dy[at, outputs], trans_a=True)

  total = jax.lax.fori_loop(0, pl.cdiv(number[e], rows), add,
                            jnp.zeros((height, width), jnp.float32))
  out[e, inputs, outputs] = total.astype(out.dtype)
