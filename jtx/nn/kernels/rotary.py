"""RoPE in one pass over queries or keys, for TPUs.

XLA cuts every head into halves, which are narrower than a register's lanes, and copies them several
times each way. Here a program has rows of all heads as the projections left them, and the halves
change places within registers. The way back is the same program with the angles negated.
"""

import functools
import math

import jax
import jax.numpy as jnp

from jtx.parallel.sharding import spec

LANES = 128
ROWS, WIDEST = 512, 1024  # of a block
FEWEST = 64  # rows, below which a call costs more than it saves
AXES = ("batch", "length", "heads", None)


def supports(shape: tuple[int, ...]) -> bool:
  """Whether each device's heads of an array [B, T, N, H] fill whole registers."""
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {} if mesh.empty else dict(mesh.shape)
  heads = spec(AXES, shape, sizes)[2] if sizes else None
  ways = math.prod(sizes[axis] for axis in ((heads,) if isinstance(heads, str) else heads or ()))
  _, T, N, H = shape
  return T >= FEWEST and H % 2 == 0 and LANES % H == 0 and N // ways * H % LANES == 0


def turn(x: jax.Array, angle: jax.Array, magnitude: float | jax.Array = 1.0,
         interpret: bool = False) -> jax.Array:
  """As `jtx.nn.rope.turn` with pairing "half"; `supports` tells for which shapes.

  Args:
    x: [B, T, N, H].
    angle: [B or 1, T, H / 2].
    magnitude: of the result.
    interpret: run the program as JAX operations, on any platform.
  """
  H = x.shape[-1]
  parts = (f(angle) * magnitude for f in (jnp.cos, jnp.sin))
  table = jnp.concatenate([jnp.tile(part, LANES // H) for part in parts], -1)
  run = functools.partial(_local, interpret)
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return run(x, table)
  of_x = spec(AXES, x.shape, dict(mesh.shape))
  of_table = jax.P(of_x[0] if table.shape[0] > 1 else None, of_x[1], None)
  return jax.shard_map(run, in_specs=(of_x, of_table), out_specs=of_x, check_vma=False)(x, table)


def _local(interpret: bool, x: jax.Array, table: jax.Array) -> jax.Array:
  H = x.shape[-1]
  return _turned(H, interpret, x.reshape(*x.shape[:2], -1), table).reshape(x.shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _turned(width: int, interpret: bool, x: jax.Array, table: jax.Array) -> jax.Array:
  """[B, T, N * H] and [B or 1, T, LANES]: cosines of all pairs, again for each head, then sines."""
  return _call(width, interpret, False, x, table)


_turned.defvjp(
    lambda width, interpret, x, table: (_call(width, interpret, False, x, table), table),
    lambda width, interpret, table, g: (_call(width, interpret, True, g, table), None))


def _call(width, interpret, back, x, table):
  from jax.experimental import pallas as pl  # takes a third of a second
  B, T, D = x.shape
  rows = min(T, ROWS)
  columns = next(n for n in range(min(D, WIDEST), 0, -LANES) if D % n == 0)
  of_x = pl.BlockSpec((1, rows, columns), lambda b, i, j: (b, i, j))
  of_table = pl.BlockSpec((1, rows, LANES), lambda b, i, j: (b if table.shape[0] > 1 else 0, i, 0))
  moved = 2 * x.size * x.dtype.itemsize + table.size * table.dtype.itemsize
  return pl.pallas_call(
      functools.partial(_program, width, back), grid=(B, -(-T // rows), D // columns),
      in_specs=[of_x, of_table], out_specs=of_x, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
      name="rotary_program", interpret=interpret,
      cost_estimate=pl.CostEstimate(flops=3 * x.size, transcendentals=0, bytes_accessed=moved))(
          x, table)


def _program(width, back, x, table, out):
  """Turns a block [1, rows, columns], some heads at a time."""
  from jax.experimental.pallas import tpu as pltpu
  own = table[0]
  other, lane = pltpu.roll(own, LANES // 2, 1), jax.lax.broadcasted_iota(jnp.int32, own.shape, 1)
  left = lane < LANES // 2
  cos, sin = jnp.where(left, own, other), jnp.where(left, other, own)
  first = lane % width < width // 2
  sin = jnp.where(first != back, -sin, sin)
  for start in range(0, x.shape[2], LANES):
    y = x[0, :, start:start + LANES].astype(jnp.float32)
    ahead, behind = pltpu.roll(y, LANES - width // 2, 1), pltpu.roll(y, width // 2, 1)
    turned = y * cos + jnp.where(first, ahead, behind) * sin
    out[0, :, start:start + LANES] = turned.astype(out.dtype)
