"""Attention in one kernel, for TPU and GPU: the logits of all pairs never exist.

It is made from what `jtx.nn.attend` is told: any mask, segments, pairs, biases, soft cap,
dropout of the weights with the reference's bits, and grouped heads. FlashAttention (Dao et al.
2022) has the algorithm, and FlexAttention (Dong et al. 2024) the idea that masks and biases are
functions that the kernel calls. Each device works on its own rows, heads and queries. Pallas, whose
import takes a third of a second, is imported where a kernel is run, which a CPU has none of.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from jtx.nn.bias import PairBias
from jtx.nn.dropout import words_of
from jtx.nn.kept import keep
from jtx.nn.kernels import blocks, plans, programs
from jtx.nn.kernels.programs import Cut, Inputs, Plan
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import Rows
from jtx.parallel.sharding import platform, spec

SMALL_VMEM = 16 * 2**20  # bytes, all of which a kernel may have anyway


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
  # Keys are gathered inside, where the sum of their gradient is shared on the way back.
  apart = length if length == spec(("batch", "length"), k.shape[:2], sizes)[1] else None
  keys_spec = jax.P(batch, apart, heads, None)
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

  def local(q, k, v, *others):
    at = tuple(_index(axes, sizes) * size for axes, size in zip(q_spec, q.shape[:3]))
    if apart is not None:
      k, v = (jax.lax.all_gather(x, apart, axis=1, tiled=True) for x in (k, v))
    return run(q, k, v, *others, (at[0], at[2], at[1]))

  return jax.shard_map(local, in_specs=specs, out_specs=q_spec, check_vma=False)(
      q, k, v, rows, bias, pairwise, words)


def _index(axes, sizes) -> Any:
  """This device's number among the parts of a dimension that mesh axes split."""
  number = 0
  for axis in (axes,) if isinstance(axes, str) else axes or ():
    number = number * sizes[axis] + jax.lax.axis_index(axis)
  return number


def _with_heads(number: int, x: jax.Array, axis: int) -> jax.Array:
  """An array with heads of zeros behind its own, as many as asked for in all."""
  return jnp.pad(x, [(0, number - n if a == axis else 0) for a, n in enumerate(x.shape)])


def _local(variant, kind, interpret, q, k, v, rows, bias, pairwise, words, first):
  """One device's share, from row, head and query `first` on: [B, T, N, H] to [B, T, N, Hv]."""
  (B, T, N, _), S, Hv = q.shape, k.shape[1], v.shape[3]
  shapes = dict(q=q.shape, k=k.shape, v=v.shape)
  if (even := plans.even_heads(kind, **shapes)) != k.shape[2]:
    more = functools.partial(_with_heads, N // k.shape[2] * even)
    q, bias = more(q, 2), None if bias is None else more(bias, 1)
    k, v = _with_heads(even, k, 2), _with_heads(even, v, 2)
    if pairwise is not None:
      pairwise = pairwise.replace(params={n: more(x, 0) for n, x in pairwise.params.items()})
    return _local(variant, kind, interpret, q, k, v, rows, bias, pairwise, words, first)[:, :, :N]
  plan = plans.make_plan(kind, interpret, variant, **shapes, itemsize=q.dtype.itemsize)
  long_q, long_k = plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks
  variant = variant._replace(padded=long_k > S, gaps=plans.has_gaps(variant, plan))
  pad = lambda x, axis, size: x if x.shape[axis] == size else jnp.pad(
      x, [(0, size - n if a == axis else 0) for a, n in enumerate(x.shape)])
  queries = lambda x: None if x is None else pad(x.astype(jnp.int32), 1, long_q)[:, None]
  keys = lambda x: None if x is None else pad(x.astype(jnp.int32), 1, long_k)[:, None]
  grouped = plan.groups, plan.heads
  inputs = Inputs(
      scalars=jnp.concatenate([jax.lax.bitcast_convert_type(words, jnp.int32),
                               jnp.asarray(jnp.stack([jnp.int32(x) for x in first]))]),
      work=plans.work(variant, plan, rows, first[2]),
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
  flat = lambda x, size, width: pad(pad(x, 1, size), 3, width).reshape(B, size, -1)
  out = _run(variant, plan, flat(q, long_q, plan.width), flat(k, long_k, plan.width),
             flat(v, long_k, plan.v_width), inputs)
  return out[:, :T].reshape(B, T, N, -1)[..., :Hv]


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
  found, log_total = (keep(x, "attention", in_rule=True) for x in (found, log_total))
  return found, (q, k, v, inputs, found, log_total)


def _backward(variant, plan, kept, d_out):
  q, k, v, inputs, out, log_total = kept
  if early := plan.platform == "gpu":
    out = _deltas(plan, out, d_out)
  operands = q, k, v, out, d_out, log_total
  shared_bias = inputs.bias is not None and inputs.bias.shape[0] == 1
  at_once = plan.k_blocks == 1 or (
      plan.platform == "tpu" and not shared_bias and _holds_all_queries(plan, q, out))
  cut = Cut(("group", "key", "row") if shared_bias else ("row", "group", "key"), False, True)
  make, in_specs = programs.specs(plan, cut, inputs)
  of_q, of_k, of_v, of_out, of_sums = programs.sides(make, plan, cut)
  of_delta = of_sums if early else of_out
  own_keys = lambda width: make((1, plan.k_block, plan.kv_heads * width), "row", "key", "group")
  B, S = k.shape[:2]
  like = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype)
  keys_of = lambda width, dtype: jax.ShapeDtypeStruct(
      (B, S, plan.groups * plan.kv_heads * width), dtype)
  wide = jnp.float32 if plan.shared_by > 1 else k.dtype
  outs = (like(q) if at_once else None, keys_of(plan.width, wide), keys_of(plan.v_width, wide),
          None if inputs.bias is None else jax.ShapeDtypeStruct(inputs.bias.shape, jnp.float32),
          {name: jax.ShapeDtypeStruct((B, plan.k_blocks, *x.shape), jnp.float32)
           for name, x in inputs.params.items()})
  out_specs = (of_q if at_once else None, own_keys(plan.width), own_keys(plan.v_width),
               in_specs.bias, {name: make((1, 1, 1, *x.shape[1:]), "row", "key", "group", 0, 0)
                               for name, x in inputs.params.items()})
  d_q, d_k, d_v, d_bias, d_params = _call(
      programs.keys_program, variant, plan, cut, operands, inputs,
      (of_q, of_k, of_v, of_delta, of_out, of_sums), in_specs, outs, out_specs,
      products=5 if at_once else 4, sums=(
          (q.shape[1], plan.heads * plan.width) if at_once and plan.k_blocks > 1 else None))
  if not at_once:
    cut = Cut(("row", "group", "query"), True, False)
    make, in_specs = programs.specs(plan, cut, inputs)
    of_q, of_k, of_v, of_out, of_sums = programs.sides(make, plan, cut)
    of_delta = of_sums if early else of_out
    (d_q,) = _call(programs.queries_program, variant, plan, cut, operands, inputs,
                   (of_q, of_k, of_v, of_delta, of_out, of_sums), in_specs, (like(q),), (of_q,),
                   products=3)
  if plan.shared_by > 1:
    d_k, d_v = (x.reshape(B, S, -1, plan.shared_by, width).sum(3).reshape(B, S, -1)
                for x, width in ((d_k, plan.width), (d_v, plan.v_width)))
  d_inputs = jax.tree.map(lambda _: None, inputs)._replace(
      bias=d_bias if d_bias is None else d_bias.astype(inputs.bias.dtype),
      params={name: x.sum((0, 1)) for name, x in d_params.items()})
  return d_q.astype(q.dtype), d_k.astype(k.dtype), d_v.astype(v.dtype), d_inputs


_run.defvjp(_forward, _backward)


def _deltas(plan: Plan, out: jax.Array, d_out: jax.Array) -> jax.Array:
  """The sum of each output times its gradient: [B, T, N * Hv] to float32 [B, groups, heads, T]."""
  found = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).reshape(
      *out.shape[:2], plan.groups, plan.heads, -1).sum(-1)
  return jnp.moveaxis(found, 1, 3)


def _holds_all_queries(plan: Plan, q: jax.Array, out: jax.Array) -> bool:
  """Whether a chip's fast memory has room for a row's queries and their gradients in float32."""
  if plan.interpret:
    return True
  lanes = lambda x: -(-x.shape[2] // plan.groups // plans.LANES) * plans.LANES
  wide = lambda x: x.shape[1] * lanes(x)  # a narrow head takes as much room as one of all lanes
  own = 2 * wide(q) * q.dtype.itemsize + 2 * wide(out) * out.dtype.itemsize
  # While some are worked on, the next are fetched; the sums stay.
  return 2 * own + 4 * wide(q) < (_vmem() or SMALL_VMEM)


def _vmem() -> int | None:
  """Bytes of fast memory that a kernel may ask for; None is what all may have."""
  from jax.experimental.pallas import tpu as pltpu
  memory = pltpu.get_tpu_info().vmem_capacity_bytes
  return memory // 2 if memory > SMALL_VMEM else None


def _call(program, variant, plan, cut, operands, inputs, specs, in_specs, outs, out_specs, *,
          products, sums=None):
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
    sums: shape of a float32 array in fast memory, which its runs share; on a TPU.
  """
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu
  flat, tree = jax.tree.flatten((inputs, operands))
  flat_specs = jax.tree.leaves((in_specs, specs))
  flat_outs, out_tree = jax.tree.flatten(outs)

  def run(*refs):
    inputs, operands = jax.tree.unflatten(tree, refs[:len(flat)])
    end = len(flat) + len(flat_outs)
    out = jax.tree.unflatten(out_tree, refs[len(flat):end])
    program(variant, plan, cut, inputs, operands, out, *refs[end:])

  sizes = {"row": operands[0].shape[0], "group": plan.groups, "query": plan.q_blocks,
           "key": plan.k_blocks}
  T, S = plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks
  share = (blocks.blocks(variant.mask, T, S, plan.q_block, plan.k_block) != blocks.EMPTY).mean()
  pairs = int(share * math.prod((sizes["row"], plan.groups, plan.heads, T, S)))
  moved = sum(x.size * x.dtype.itemsize for x in (*flat, *flat_outs))
  results = pl.pallas_call(
      run, grid=tuple(sizes[name] for name in cut.grid), in_specs=flat_specs,
      out_shape=flat_outs, out_specs=jax.tree.leaves(out_specs), interpret=plan.interpret,
      scratch_shapes=[pltpu.VMEM(sums, jnp.float32)] if sums else (), name=program.__name__,
      cost_estimate=pl.CostEstimate(
          flops=2 * pairs * plan.width * products, transcendentals=pairs, bytes_accessed=moved),
      **_compiler_params(plan, cut))(*flat)
  return jax.tree.unflatten(out_tree, results)


def _compiler_params(plan: Plan, cut: Cut) -> dict[str, Any]:
  if plan.interpret:
    return {}
  if plan.platform == "gpu":
    from jax.experimental.pallas import triton
    return {"compiler_params": triton.CompilerParams(
        num_warps=4, num_stages=plans.GPU_STAGES)}
  from jax.experimental.pallas import tpu as pltpu
  # A row's blocks of keys add to one gradient of queries, and rows to that of a bias they share: in
  # order. The others may go to the cores of a chip.
  in_order = {"key", cut.grid[-1]} if cut.grid[-1] == "row" else {"key"}
  return {"compiler_params": pltpu.CompilerParams(
      dimension_semantics=["arbitrary" if axis in in_order else "parallel" for axis in cut.grid],
      vmem_limit_bytes=_vmem())}
