"""Attention in one kernel, for TPU and GPU: the logits of all pairs never exist.

It is made from what `jtx.nn.attend` is told: any mask, segments, pairs, biases, soft cap,
dropout of the weights with the reference's bits, and grouped heads. FlashAttention (Dao et al.
2022) has the algorithm, and FlexAttention (Dong et al. 2024) the idea that masks and biases are
functions that the kernel calls. Each device works on its own rows, heads and queries.
"""

import functools
import math
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton
import jax.numpy as jnp
import numpy as np

from jtx.nn.bias import PairBias
from jtx.nn.dropout import words_of
from jtx.nn.kept import keep
from jtx.nn.kernels import blocks, programs
from jtx.nn.kernels.programs import Cut, Inputs, Plan
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import Rows
from jtx.parallel.sharding import platform, spec

LANES = 128  # of a TPU's registers
BLOCK = 512  # the side of a block of longer rows
SMALL_VMEM = 16 * 2**20  # bytes, all of which a kernel may have anyway
WHOLE = 768  # rows up to this length are one block
GPU_BLOCK = 64  # all that a GPU's programs hold is of sides that are powers of two


def attend(q, k, v, *, mask, rows, bias, scale, soft_cap, dropout_rate, dropout_key,
           interpret=False):
  """Attention as `jtx.nn.attend` has it.

  Args:
    q: [B, T, N, H].
    k: [B, S, K, H].
    v: [B, S, K, Hv].
    mask: any.
    rows: any.
    bias: None, an array [B or 1, N, T, S], or a `PairBias`, which is computed inside.
    scale: of the logits; None is H^-0.5.
    soft_cap: c makes logits c tanh(logits / c); None is none.
    dropout_rate: of the weights.
    dropout_key: a random key, or None.
    interpret: run the programs as JAX operations, on any platform.

  Returns:
    [B, T, N, Hv].
  """
  variant, operands = prepare(q, k, v, mask=mask, rows=rows, bias=bias, scale=scale,
                              soft_cap=soft_cap, dropout_rate=dropout_rate, dropout_key=dropout_key)
  return on_mesh(functools.partial(_local, variant, platform(), interpret), *operands)


def prepare(q, k, v, *, mask, rows, bias, scale, soft_cap, dropout_rate, dropout_key):
  """The static part of a call, and the operands of `on_mesh`."""
  T, N, H = q.shape[1:]
  pairwise = bias if isinstance(bias, PairBias) else None
  variant = Variant(
      mask, H**-0.5 if scale is None else scale, soft_cap,
      dropout_rate if dropout_key is not None else 0.0,
      bias=pairwise and pairwise.function, tables=pairwise.tables if pairwise else (),
      num_queries=T, num_heads=N, num_keys=k.shape[1])
  words = jnp.stack(words_of(dropout_key)) if variant.dropout_rate else jnp.zeros(2, jnp.uint32)
  return variant, (q, k, v, rows, None if pairwise else bias, pairwise, words)


def on_mesh(run, q, k, v, rows, bias, pairwise, words):
  """`run` of each device's part of [B, T, N, Hv], and of the row, head and query it begins at."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return run(q, k, v, rows, bias, pairwise, words, (0, 0, 0))
  sizes, (T, N) = dict(mesh.shape), q.shape[1:3]
  q_spec = spec(("batch", "length", "heads", None), q.shape, sizes)
  if q_spec[2] != spec(("kv_heads",), k.shape[2:3], sizes)[0]:
    k, v = (jnp.repeat(x, N // k.shape[2], 2) for x in (k, v))  # each gets those that it needs
  batch, length, heads, _ = q_spec
  of_queries, of_keys = jax.P(batch, length), jax.P(batch, None)
  each = lambda part, tree: jax.tree.map(lambda _: part, tree)
  keys_spec = jax.P(batch, None, heads, None)
  specs = (
      q_spec, keys_spec, keys_spec,
      Rows(q_segments=each(of_queries, rows.q_segments), k_segments=each(of_keys, rows.k_segments),
           q_flags=each(of_queries, rows.q_flags), k_flags=each(of_keys, rows.k_flags),
           pairs=each(jax.P(batch, length, None), rows.pairs)),
      each(jax.P(None if bias is not None and bias.shape[0] == 1 else batch, heads, length, None),
           bias),
      None if pairwise is None else pairwise.with_arrays(
          each(jax.P(heads), pairwise.params), of_queries, of_keys),
      jax.P())

  def local(*operands):
    part = operands[0].shape
    at = tuple(_index(axes, sizes) * size for axes, size in zip(q_spec, part[:3]))
    return run(*operands, (at[0], at[2], at[1]))

  return jax.shard_map(local, in_specs=specs, out_specs=q_spec, check_vma=False)(
      q, k, v, rows, bias, pairwise, words)


def _index(axes, sizes) -> Any:
  """This device's number among the parts of a dimension that mesh axes split."""
  number = 0
  for axis in (axes,) if isinstance(axes, str) else axes or ():
    number = number * sizes[axis] + jax.lax.axis_index(axis)
  return number


def _local(variant, kind, interpret, q, k, v, rows, bias, pairwise, words, first):
  """One device's share, from row, head and query `first` on: [B, T, N, H] to [B, T, N, Hv]."""
  (B, T, N, _), S, Hv = q.shape, k.shape[1], v.shape[3]
  plan = make_plan(kind, interpret, q.shape, k.shape, v.shape)
  long_q, long_k = plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks
  variant = variant._replace(padded=long_k > S)
  pad = lambda x, axis, size: x if x.shape[axis] == size else jnp.pad(
      x, [(0, size - n if a == axis else 0) for a, n in enumerate(x.shape)])
  queries = lambda x: None if x is None else pad(x.astype(jnp.int32), 1, long_q)[:, None]
  keys = lambda x: None if x is None else pad(x.astype(jnp.int32), 1, long_k)[:, None]
  grouped = plan.groups, plan.heads
  inputs = Inputs(
      scalars=jnp.concatenate([jax.lax.bitcast_convert_type(words, jnp.int32),
                               jnp.asarray(jnp.stack([jnp.int32(x) for x in first]))]),
      states=block_states(variant, plan, rows, first[2]),
      q_segments=queries(rows.q_segments), k_segments=keys(rows.k_segments),
      q_flags=jax.tree.map(queries, dict(rows.q_flags)),
      k_flags=jax.tree.map(keys, dict(rows.k_flags)),
      q_positions=queries(pairwise and pairwise.q_positions),
      k_positions=keys(pairwise and pairwise.k_positions),
      pairs=None if rows.pairs is None else pad(
          pad(rows.pairs.swapaxes(1, 2).astype(jnp.int8), 1, long_k), 2, long_q),
      bias=None if bias is None else pad(pad(
          bias.swapaxes(2, 3), 2, long_k), 3, long_q).reshape(-1, *grouped, long_k, long_q),
      params={} if pairwise is None else {
          name: x.astype(jnp.float32).reshape(*grouped, -1) for name, x in pairwise.params.items()})
  flat = lambda x, size, width: keep(
      pad(pad(x, 1, size), 3, width).reshape(B, size, -1), "projected")
  out = _run(variant, plan, flat(q, long_q, plan.width), flat(k, long_k, plan.width),
             flat(v, long_k, plan.v_width), inputs)
  return out[:, :T].reshape(B, T, N, -1)[..., :Hv]


def make_plan(kind: str, interpret: bool, q, k, v) -> Plan:
  """How heads share programs, and the blocks of a side, for shapes [B, T, N, H]."""
  (T, N, H), (S, K, Hv) = q[1:], (*k[1:3], v[3])
  kv_heads, heads, shared_by = 1, 1, N // K
  if kind == "tpu" and (H % LANES or Hv % LANES):
    fits = lambda n: K % n == 0 and n * H % LANES == 0 and n * Hv % LANES == 0
    kv_heads = next((n for n in range(1, K) if fits(n)), K)
    heads, shared_by = kv_heads * N // K, 1
  if kind == "gpu":
    H, Hv = (1 << max(n - 1, 15).bit_length() for n in (H, Hv))
  (q_block, q_blocks), (k_block, k_blocks) = _blocks(kind, T), _blocks(kind, S)
  return Plan(platform=kind, interpret=interpret, groups=N // heads, heads=heads,
              kv_heads=kv_heads, shared_by=shared_by, width=H, v_width=Hv, q_block=q_block,
              k_block=k_block, q_blocks=q_blocks, k_blocks=k_blocks)


def _blocks(kind: str, length: int) -> tuple[int, int]:
  """The side of a block, and how many there are."""
  if kind == "gpu":
    return GPU_BLOCK, -(-length // GPU_BLOCK)
  return (length, 1) if length <= WHOLE else (BLOCK, -(-length // BLOCK))


def block_states(variant: Variant, plan: Any, rows: Rows, first: Any) -> jax.Array | None:
  """Which blocks are empty, full or neither, [B or 1, q_blocks, k_blocks]; None of one block."""
  if plan.q_blocks == plan.k_blocks == 1:
    return None
  shape = plan.q_blocks, plan.k_blocks
  # A device's part of the queries may begin inside of a block of the mask's: then it has two.
  known = jnp.asarray(blocks.blocks(
      variant.mask, (-(-variant.num_queries // plan.q_block) + 2) * plan.q_block,
      plan.k_block * plan.k_blocks, plan.q_block, plan.k_block))
  begins, after = (jax.lax.dynamic_slice(known, (first // plan.q_block + n, 0), shape)
                   for n in range(2))
  inside = (first % plan.q_block != 0) & (begins != after)
  states = jnp.where(inside, blocks.PARTIAL, begins)[None]
  if variant.padded:
    states = jnp.where(jnp.arange(shape[1]) == shape[1] - 1, jnp.minimum(states, 1), states)
  if rows.pairs is not None:
    states = jnp.minimum(states, blocks.PARTIAL)
  if rows.k_segments is not None:
    states = jnp.minimum(states, _segment_states(rows, plan))
  return states.astype(jnp.int32)


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


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _run(variant: Variant, plan: Plan, q, k, v, inputs: Inputs):
  """[B, T, N * H] and keys [B, S, K * H] to [B, T, N * Hv], of lengths that blocks divide."""
  return _forward(variant, plan, q, k, v, inputs)[0]


def _forward(variant, plan, q, k, v, inputs):
  cut = Cut(("row", "group", "query"), True, False)
  if inputs.bias is not None and inputs.bias.shape[0] == 1:
    cut = cut._replace(grid=("group", "query", "row"))  # the rows' bias stays where it is
  make, in_specs = programs.specs(plan, cut, inputs)
  of_q, of_k, of_v, of_out, of_sums = programs.sides(make, plan, cut)
  T = q.shape[1]
  out = jax.ShapeDtypeStruct((q.shape[0], T, plan.groups * plan.heads * plan.v_width), v.dtype)
  sums = jax.ShapeDtypeStruct((q.shape[0], plan.groups, plan.heads, T), jnp.float32)
  found, log_total = _call(programs.forward_program, variant, plan, cut, (q, k, v), inputs,
                           (of_q, of_k, of_v), in_specs, (out, sums), (of_out, of_sums), products=2)
  found, log_total = keep(found, "attention"), keep(log_total, "attention")
  return found, (q, k, v, inputs, found, log_total)


def _backward(variant, plan, kept, d_out):
  q, k, v, inputs, out, log_total = kept
  operands = q, k, v, out, d_out, log_total
  shared_bias = inputs.bias is not None and inputs.bias.shape[0] == 1
  at_once = plan.k_blocks == 1 or (plan.platform == "tpu" and not shared_bias)
  cut = Cut(("group", "key", "row") if shared_bias else ("row", "group", "key"), False, True)
  make, in_specs = programs.specs(plan, cut, inputs)
  of_q, of_k, of_v, of_out, of_sums = programs.sides(make, plan, cut)
  own_keys = lambda width: make((1, plan.k_block, plan.kv_heads * width), "row", "key", "group")
  B, S = k.shape[:2]
  like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
  keys_of = lambda width, dtype: jax.ShapeDtypeStruct(
      (B, S, plan.groups * plan.kv_heads * width), dtype)
  wide = jnp.float32 if plan.shared_by > 1 else k.dtype
  outs = (jax.ShapeDtypeStruct(q.shape, q.dtype if plan.k_blocks == 1 else jnp.float32)
          if at_once else None, keys_of(plan.width, wide), keys_of(plan.v_width, wide),
          None if inputs.bias is None else jax.ShapeDtypeStruct(inputs.bias.shape, jnp.float32),
          {name: jax.ShapeDtypeStruct((B, plan.k_blocks, *x.shape), jnp.float32)
           for name, x in inputs.params.items()})
  out_specs = (of_q if at_once else None, own_keys(plan.width), own_keys(plan.v_width),
               in_specs.bias, {name: make((1, 1, 1, *x.shape[1:]), "row", "key", "group", 0, 0)
                               for name, x in inputs.params.items()})
  d_q, d_k, d_v, d_bias, d_params = _call(
      programs.keys_program, variant, plan, cut, operands, inputs,
      (of_q, of_k, of_v, of_out, of_out, of_sums), in_specs, outs, out_specs,
      products=5 if at_once else 4)
  if not at_once:
    cut = Cut(("row", "group", "query"), True, False)
    make, in_specs = programs.specs(plan, cut, inputs)
    of_q, of_k, of_v, of_out, of_sums = programs.sides(make, plan, cut)
    (d_q,) = _call(programs.queries_program, variant, plan, cut, operands, inputs,
                   (of_q, of_k, of_v, of_out, of_out, of_sums), in_specs, (like(q),), (of_q,),
                   products=3)
  if plan.shared_by > 1:
    d_k, d_v = (x.reshape(B, S, -1, plan.shared_by, width).sum(3).reshape(B, S, -1)
                for x, width in ((d_k, plan.width), (d_v, plan.v_width)))
  d_inputs = jax.tree.map(lambda _: None, inputs)._replace(
      bias=d_bias if d_bias is None else d_bias.astype(inputs.bias.dtype),
      params={name: x.sum((0, 1)) for name, x in d_params.items()})
  return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), d_inputs


_run.defvjp(_forward, _backward)


def _call(program, variant, plan, cut, operands, inputs, specs, in_specs, outs, out_specs, *,
          products):
  """Runs a Pallas program over its grid.

  Args:
    program: of `programs`.
    variant: static.
    plan: static.
    cut: static.
    operands: arrays beside the inputs.
    inputs: of the program.
    specs: of the operands.
    in_specs: of the inputs.
    outs: shapes and dtypes, of any structure.
    out_specs: of that structure.
    products: how many products of a block's queries, keys and width it makes.
  """
  flat, tree = jax.tree.flatten((inputs, operands))
  flat_specs = jax.tree.leaves((in_specs, specs))
  flat_outs, out_tree = jax.tree.flatten(outs)

  def run(*refs):
    inputs, operands = jax.tree.unflatten(tree, refs[:len(flat)])
    program(variant, plan, cut, inputs, operands, jax.tree.unflatten(out_tree, refs[len(flat):]))

  sizes = {"row": operands[0].shape[0], "group": plan.groups, "query": plan.q_blocks,
           "key": plan.k_blocks}
  T, S = plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks
  share = (blocks.blocks(variant.mask, T, S, plan.q_block, plan.k_block) != blocks.EMPTY).mean()
  pairs = int(share * math.prod((sizes["row"], plan.groups, plan.heads, T, S)))
  moved = sum(x.size * x.dtype.itemsize for x in (*flat, *flat_outs))
  results = pl.pallas_call(
      run, grid=tuple(sizes[name] for name in cut.grid), in_specs=flat_specs,
      out_shape=flat_outs, out_specs=jax.tree.leaves(out_specs), interpret=plan.interpret,
      name=program.__name__,
      cost_estimate=pl.CostEstimate(
          flops=2 * pairs * plan.width * products, transcendentals=pairs, bytes_accessed=moved),
      **_compiler_params(plan, cut))(*flat)
  return jax.tree.unflatten(out_tree, results)


def _compiler_params(plan: Plan, cut: Cut) -> dict[str, Any]:
  if plan.interpret:
    return {}
  if plan.platform == "gpu":
    return {"compiler_params": triton.CompilerParams(num_warps=4, num_stages=2)}
  memory = pltpu.get_tpu_info().vmem_capacity_bytes
  # A row's blocks of keys add to one gradient of queries, and rows to that of a bias they share: in
  # order. The others may go to the cores of a chip.
  in_order = {"key", cut.grid[-1]} if cut.grid[-1] == "row" else {"key"}
  return {"compiler_params": pltpu.CompilerParams(
      dimension_semantics=["arbitrary" if axis in in_order else "parallel" for axis in cut.grid],
      vmem_limit_bytes=memory // 2 if memory > SMALL_VMEM else None)}
