"""How the fused kernel cuts a call: heads by program, sides into blocks, and blocks passed by."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.kernels import blocks
from jtx.nn.kernels.programs import Plan, Work
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import FULL, And, Mask, Or, Rows

LANES = 128  # of a TPU's registers
BLOCKS = (512, 256, 128)  # sides of blocks of longer rows, on a TPU
WHOLE = 768  # rows up to this length are one block
# Of a GPU's programs all sides are powers of two. A block has at most so many rows, which are at
# most so many bytes: three of each operand are in a processor's fast memory at a time.
GPU_BLOCK, GPU_BYTES, GPU_STAGES = 64, 2**14, 3
# A block of side n takes as long as one of n + FILL whose units were never idle: what is taken for
# the filling and draining of a product's pipeline, half of the smallest block.
FILL = 64
MOST_HEADS = 16  # of a TPU's program; with more they would not fit into its fast memory
STATES = 2**16  # blocks of all rows that a program may know the states of: 256 KiB of scalars


def even_heads(kind: str, *, q, k, v) -> int:
  """Heads of keys, filled up where a program's lanes divide no fewer than a large odd number's.

  Of 25 heads of 64 no part fills whole registers, so one program would have all of them.

  Args:
    kind: the platform.
    q: shape, [B, T, N, H].
    k: [B, S, K, H].
    v: [B, S, K, Hv].
  """
  (N, H), K, Hv = q[2:], k[2], v[3]
  fill = LANES // math.gcd(LANES, H, Hv)
  if kind != "tpu" or N <= MOST_HEADS or any(fits(n, K, H, Hv) for n in range(1, K)):
    return K
  return -(-K // fill) * fill


def fits(number: int, heads: int, *widths: int) -> bool:
  """Whether so many of the heads fill whole registers, and all are in equal parts."""
  return heads % number == 0 and all(number * width % LANES == 0 for width in widths)


def make_plan(kind: str, interpret: bool, variant: Variant, *, q, k, v, itemsize: int) -> Plan:
  """How heads share programs, and the blocks of a side, for shapes [B, T, N, H] of numbers."""
  (B, T, N, H), (S, K, Hv) = q, (*k[1:3], v[3])
  kv_heads, heads, shared_by = 1, 1, N // K
  if kind == "tpu" and (H % LANES or Hv % LANES):
    kv_heads = next((n for n in range(1, K) if fits(n, K, H, Hv)), K)
    heads, shared_by = kv_heads * N // K, 1
  if kind == "gpu":
    H, Hv = (1 << max(n - 1, 15).bit_length() for n in (H, Hv))
    block = min(GPU_BLOCK, max(GPU_BYTES // (max(H, Hv) * itemsize), 16))
    cut = (block, -(-T // block)), (block, -(-S // block))
  else:
    cut = _cut(variant, B, T, S)
  (q_block, q_blocks), (k_block, k_blocks) = cut
  return Plan(platform=kind, interpret=interpret, groups=N // heads, heads=heads,
              kv_heads=kv_heads, shared_by=shared_by, width=H, v_width=Hv, q_block=q_block,
              k_block=k_block, q_blocks=q_blocks, k_blocks=k_blocks)


def has_gaps(variant: Variant, plan: Plan) -> bool:
  """`Variant.gaps`: whether a block that a mask leaves out may lie between two others of a side."""
  if plan.platform != "gpu" or _has_flags(variant.mask):
    return True
  queries = max(-(-variant.num_queries // plan.q_block), plan.q_blocks) * plan.q_block
  busy = blocks.blocks(variant.mask, queries, plan.k_block * plan.k_blocks, plan.q_block,
                       plan.k_block) != blocks.EMPTY
  begins = lambda x: (x[1:] & ~x[:-1]).sum(0) + x[0]  # how often a row of True begins
  return bool(max(begins(busy).max(), begins(busy.T).max()) > 1)


def _cut(variant: Variant, B: int, T: int, S: int) -> tuple[tuple[int, int], tuple[int, int]]:
  """The side of a block and how many there are, of queries and of keys.

  A mask that leaves out enough of the pairs, such as a narrow window, gets smaller blocks.
  """
  side = lambda length, block: (length, 1) if length <= WHOLE else (block, -(-length // block))
  cuts = [(side(T, block), side(S, block)) for block in BLOCKS]
  known = [c for c in cuts if B * c[0][1] * c[1][1] <= STATES]
  if variant.mask == FULL or not known:
    return cuts[0]

  def time(cut):
    (q_block, _), (k_block, k_blocks) = cut
    of_all = -(-max(variant.num_queries, T) // q_block) * q_block, k_block * k_blocks
    states = blocks.blocks(variant.mask, *of_all, q_block, k_block)
    return (states != blocks.EMPTY).mean() * (1 + FILL / q_block) * (1 + FILL / k_block)

  return min(known, key=time)  # the first of those that are alike


def block_states(variant: Variant, plan: Any, rows: Rows, first: Any) -> jax.Array | None:
  """Which blocks are empty, full or neither, [B or 1, q_blocks, k_blocks]; None of one block."""
  if plan.q_blocks == plan.k_blocks == 1:
    return None
  states = _mask_states(variant.mask, variant, plan, rows, first)
  if variant.padded:
    last = jnp.arange(plan.k_blocks) == plan.k_blocks - 1
    states = jnp.where(last, jnp.minimum(states, blocks.PARTIAL), states)
  if rows.pairs is not None:
    states = jnp.minimum(states, blocks.PARTIAL)
  if rows.k_segments is not None:
    states = jnp.minimum(states, _segment_states(rows, plan))
  return states.astype(jnp.int32)


def _mask_states(mask: Mask, *call: Any) -> jax.Array:
  """`block_states` of a mask, or of a part of it, alone; `call` is as there, without the mask."""
  variant, plan, rows, first = call
  if mask.of_flags:
    return _flag_states(mask, plan, rows)
  if _has_flags(mask):
    joined = jnp.minimum if isinstance(mask, And) else jnp.maximum
    return joined(_mask_states(mask.a, *call), _mask_states(mask.b, *call))
  shape = plan.q_blocks, plan.k_blocks
  # A device's part of the queries may begin inside of a block of the mask's: then it has two.
  known = jnp.asarray(blocks.blocks(
      mask, (-(-variant.num_queries // plan.q_block) + 2) * plan.q_block,
      plan.k_block * plan.k_blocks, plan.q_block, plan.k_block))
  begins, after = (jax.lax.dynamic_slice(known, (first // plan.q_block + n, 0), shape)
                   for n in range(2))
  inside = (first % plan.q_block != 0) & (begins != after)
  return jnp.where(inside, blocks.PARTIAL, begins)[None]


def _has_flags(mask: Mask) -> bool:
  return mask.of_flags or isinstance(mask, And | Or) and (_has_flags(mask.a) or _has_flags(mask.b))


def _flag_states(mask: Mask, plan: Any, rows: Rows) -> jax.Array:
  """PARTIAL where some tokens of two blocks have the flags that the mask asks for, else EMPTY."""
  def some(flags, size, count):
    return {name: jnp.pad(x, ((0, 0), (0, size * count - x.shape[1]))).reshape(
        -1, count, size).any(-1) for name, x in flags.items()}

  found = mask(None, None, Rows(q_flags=some(rows.q_flags, plan.q_block, plan.q_blocks),
                                k_flags=some(rows.k_flags, plan.k_block, plan.k_blocks)))
  shape = len(found), plan.q_blocks, plan.k_blocks
  return jnp.broadcast_to(jnp.where(found[:, 0], blocks.PARTIAL, blocks.EMPTY), shape)


def work(variant: Variant, plan: Plan, rows: Rows, first: Any) -> Work | None:
  """What the programs have to do, on a device whose queries begin with `first`."""
  states = block_states(variant, plan, rows, first)
  return None if states is None else Work(states, spans(states, 2), spans(states, 1))


def spans(states: jax.Array, axis: int) -> jax.Array:
  """Of every block of one side the first of the other's that is not empty, and the one behind.

  Args:
    states: [B or 1, q_blocks, k_blocks].
    axis: of the other side, 1 or 2.

  Returns:
    int32 [B or 1, 2, blocks]; a program goes over no others.
  """
  busy, count = states != blocks.EMPTY, states.shape[axis]
  place = jnp.arange(count).reshape((1, -1, 1) if axis == 1 else (1, 1, -1))
  ends = jnp.where(busy, place, count).min(axis), jnp.where(busy, place + 1, 0).max(axis)
  return jnp.stack(ends, 1).astype(jnp.int32)


def _segment_states(rows: Rows, plan: Plan) -> jax.Array:
  """EMPTY where a block of queries and one of keys have no segment in common, else PARTIAL."""
  def ends(segments, size, count):
    padded = lambda fill: jnp.pad(
        segments, ((0, 0), (0, size * count - segments.shape[1])), constant_values=fill
    ).reshape(-1, count, size)
    largest = np.iinfo(np.int32).max
    low = jnp.where(padded(0) == 0, largest, padded(largest)).min(-1)
    return low, padded(0).max(-1)

  k_low, k_high = ends(rows.k_segments, plan.k_block, plan.k_blocks)
  meets = jnp.broadcast_to((k_high > 0)[:, None], (len(k_low), plan.q_blocks, plan.k_blocks))
  if rows.q_segments is not None:
    q_low, q_high = ends(rows.q_segments, plan.q_block, plan.q_blocks)
    meets &= (q_low[:, :, None] <= k_high[:, None]) & (k_low[:, None] <= q_high[:, :, None])
  return jnp.where(meets, blocks.PARTIAL, blocks.EMPTY)
