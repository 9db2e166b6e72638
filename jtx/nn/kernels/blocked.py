"""Attention in blocks of plain JAX operations, on every platform: memory linear in the length.

The arithmetic of a tile is that of `jtx.nn.kernels.tile`, as in the fused kernel; here XLA runs it
for a block of queries and one of keys, of all of a device's rows and heads at a time. Blocks of
keys without a pair that is allowed in any row are left out.
"""

import functools
from typing import Any, Callable, Mapping, NamedTuple

import jax
import jax.numpy as jnp

from jtx.nn.bias import PairBias
from jtx.nn.kept import keep
from jtx.nn.kernels import blocks, fused, plans, tile as tiles
from jtx.nn.kernels.tile import Side, Sums, Tile, Variant
from jtx.nn.masks import Rows
from jtx.parallel.sharding import platform

# The longest side of a block. A CPU is fastest where a tile of all rows and heads stays in its
# cache: two rows of 512 with 12 heads take it 50 ms with 128, and 90 with 512.
CPU_BLOCK = 128
BLOCK = 512  # of other platforms


class Plan(NamedTuple):
  """How the pairs are cut, static."""
  q_block: int
  q_blocks: int
  k_block: int
  k_blocks: int


class Inputs(NamedTuple):
  """What is read beside queries, keys and values."""
  rows: Rows
  bias: jax.Array | None  # [B or 1, N, T, S]
  pairwise: PairBias | None
  words: jax.Array  # [2] uint32, the key of dropout
  first: jax.Array  # [3] int32, where this device's rows, heads and queries begin


class Queries(NamedTuple):
  """Blocks of queries, or one of them without its first axis; K * G heads."""
  q: jax.Array  # [blocks, B, K, G, Q, H]
  side: Side  # [blocks, B or 1, 1, 1, 1, Q]
  rows: jax.Array | None  # [blocks, B, K, G, 1, Q] uint32, numbers of the rows of weights


class Keys(NamedTuple):
  """Blocks of keys, or one of them without its first axis."""
  k: jax.Array  # [blocks, B, K, 1, S, H]
  v: jax.Array  # [blocks, B, K, 1, S, Hv]
  side: Side  # [blocks, B or 1, 1, 1, S, 1]


class Pairs(NamedTuple):
  """What belongs to pairs of queries and keys, or to none of them."""
  pairs: jax.Array | None  # [B, 1, 1, T, S]
  bias: jax.Array | None  # [B or 1, K, G, T, S]
  params: Mapping[str, jax.Array]  # [1, K, G, 1, 1] numbers and [1, K, G, n] tables


def attend(q, k, v, *, mask, rows, bias, scale, soft_cap, dropout_rate, dropout_key, block=None):
  """Attention as `jtx.nn.attend` has it.

  Arguments are those of `jtx.nn.kernels.fused.attend`, and `block`, the longest side of a block;
  None is the platform's.
  """
  variant, operands = fused.prepare(
      q, k, v, mask=mask, rows=rows, bias=bias, scale=scale, soft_cap=soft_cap,
      dropout_rate=dropout_rate, dropout_key=dropout_key)
  block = block or (CPU_BLOCK if platform() == "cpu" else BLOCK)
  return fused.on_mesh(functools.partial(_local, variant, block), *operands)


def _local(variant, block, q, k, v, rows, bias, pairwise, words, first):
  """One device's share, from row, head and query `first` on: [B, T, N, H] to [B, T, N, Hv]."""
  T, S = q.shape[1], k.shape[1]
  count = lambda length: -(-length // block)
  # Blocks of equal sizes, so that little is padded.
  plan = Plan(-(-T // count(T)), count(T), -(-S // count(S)), count(S))
  variant = variant._replace(padded=plan.k_block * plan.k_blocks > S)
  inputs = Inputs(rows=rows, bias=bias, pairwise=pairwise, words=words,
                  first=jnp.stack([jnp.int32(x) for x in first]))
  return _run(variant, plan, q, k, v, inputs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _run(variant: Variant, plan: Plan, q, k, v, inputs: Inputs):
  return _forward(variant, plan, q, k, v, inputs)[0]


def _forward(variant, plan, q, k, v, inputs):
  queries, keys, pairs = cut(variant, plan, q, k, v, inputs)
  order, counts = busy(variant, plan, inputs)
  start = jax.tree.map(lambda x: jnp.broadcast_to(x, (*queries.q.shape[1:4], *x.shape)),
                       Sums.start(plan.q_block, v.shape[-1]))

  def of_queries(i, block: Queries):
    def step(j, sums):
      return spread(
          lambda sums, block, keys, pairs: tiles.forward(
              variant, sums, block.q, keys.k, keys.v, tile_of(inputs, block, keys, pairs)),
          sums, block, jax.tree.map(lambda x: x[j], keys), tile_pairs(plan, pairs, i, j))
    return spread(Sums.finish, each(plan.k_blocks, order[i], counts[i], step, start))

  outs, logs = jax.lax.map(lambda x: of_queries(*x), (jnp.arange(plan.q_blocks), queries))
  out = joined(jnp.swapaxes(outs, -1, -2), q.shape[1]).astype(v.dtype)
  out, log_total = (keep(x, "attention", in_rule=True) for x in (out, logs))
  return out, (q, k, v, inputs, out, log_total)


def _backward(variant, plan, kept, d_out):
  q, k, v, inputs, out, log_total = kept
  queries, keys, pairs = cut(variant, plan, q, k, v, inputs)
  order, counts = busy(variant, plan, inputs)
  grouped = functools.partial(_by_head, plan.q_block, plan.q_blocks, k.shape[2])
  delta = (out.astype(jnp.float32) * d_out.astype(jnp.float32)).sum(-1, keepdims=True)
  delta, d_out = jnp.swapaxes(grouped(delta), -1, -2), grouped(d_out)
  zeros = lambda x: jnp.zeros(x.shape, jnp.float32)
  heads = queries.q.shape[1:4]
  start = (zeros(keys.k), zeros(keys.v), jax.tree.map(zeros, pairs.bias),
           {name: jnp.zeros((*heads, *x.shape[3:])) for name, x in pairs.params.items()})

  def of_queries(carry, x):
    i, block, d_out, log_total, delta = x

    def step(j, carry):
      d_q, d_k, d_v, d_bias, d_params = carry
      g = spread(
          lambda block, keys, pairs, d_out, log_total, delta: tiles.backward(
              variant, block.q, keys.k, keys.v, d_out, log_total, delta,
              tile_of(inputs, block, keys, pairs)),
          block, jax.tree.map(lambda x: x[j], keys), tile_pairs(plan, pairs, i, j), d_out,
          log_total, delta)
      if d_bias is not None:
        added = jnp.swapaxes(g.logits, -1, -2)
        added = added.sum(0, keepdims=True) if d_bias.shape[0] == 1 else added
        d_bias = jax.lax.dynamic_update_slice(d_bias, added, _corner(plan, i, j))
      return (d_q + g.query, d_k.at[j].add(g.key.sum(2, keepdims=True)),
              d_v.at[j].add(g.value.sum(2, keepdims=True)), d_bias,
              jax.tree.map(jnp.add, d_params, dict(g.params)))

    d_q = jnp.zeros((*heads, q.shape[-1], plan.q_block))
    d_q, *carry = each(plan.k_blocks, order[i], counts[i], step, (d_q, *carry))
    return tuple(carry), d_q

  (d_k, d_v, d_bias, d_params), d_q = jax.lax.scan(
      of_queries, start, (jnp.arange(plan.q_blocks), queries, d_out, log_total, delta))
  return (joined(jnp.swapaxes(d_q, -1, -2), q.shape[1]).astype(q.dtype),
          joined(d_k, k.shape[1]).astype(k.dtype), joined(d_v, k.shape[1]).astype(v.dtype),
          _of_inputs(inputs, d_bias, d_params))


_run.defvjp(_forward, _backward)


def _of_inputs(inputs: Inputs, d_bias, d_params) -> Inputs:
  """The gradients of `inputs`: of its biases alone."""
  result = jax.tree.map(lambda _: None, inputs)
  if (x := inputs.bias) is not None:
    d_bias = d_bias.reshape(*x.shape[:2], *d_bias.shape[3:])[:, :, :x.shape[2], :x.shape[3]]
    result = result._replace(bias=d_bias.astype(x.dtype))
  if inputs.pairwise is not None:
    result = result._replace(pairwise=inputs.pairwise.with_arrays(
        {name: d_params[name].sum(0).reshape(x.shape).astype(x.dtype)
         for name, x in inputs.pairwise.params.items()}, None, None))
  return result


def cut(variant: Variant, plan: Plan, q, k, v, inputs: Inputs) -> tuple[Queries, Keys, Pairs]:
  """Everything in blocks, padded to their size."""
  (B, T, N, _), K = q.shape, k.shape[2]
  rows, pairwise = inputs.rows, inputs.pairwise
  of_queries = lambda x: None if x is None else _blocks(
      x.astype(jnp.int32), 1, plan.q_block, plan.q_blocks)[:, :, None, None, None]
  of_keys = lambda x: None if x is None else _blocks(
      x.astype(jnp.int32), 1, plan.k_block, plan.k_blocks)[:, :, None, None, :, None]
  side = lambda of, index, segments, flags, positions: Side(
      of(index[None]), of(segments), {name: of(x) for name, x in flags.items()},
      of(positions))
  numbers = None
  if variant.dropout_rate:
    row, head, query = (n + jnp.arange(size) for n, size in zip(inputs.first, (B, N, T)))
    numbers = (row[:, None, None, None] * variant.num_heads + head[:, None]
              ) * variant.num_queries + query[:, None, None]
    numbers = jnp.swapaxes(
        _by_head(plan.q_block, plan.q_blocks, K, numbers.astype(jnp.uint32)), -1, -2)
  keys = functools.partial(_by_head, plan.k_block, plan.k_blocks, K)
  of_pairs = lambda x, *heads: None if x is None else _padded(
      _padded(x, 2, plan.q_block * plan.q_blocks), 3, plan.k_block * plan.k_blocks
  ).reshape(-1, *heads, plan.q_block * plan.q_blocks, plan.k_block * plan.k_blocks)
  return (
      Queries(_by_head(plan.q_block, plan.q_blocks, K, q),
              side(of_queries, inputs.first[2] + jnp.arange(plan.q_block * plan.q_blocks),
                   rows.q_segments, rows.q_flags, pairwise and pairwise.q_positions), numbers),
      Keys(keys(k), keys(v),
           side(of_keys, jnp.arange(plan.k_block * plan.k_blocks), rows.k_segments, rows.k_flags,
                pairwise and pairwise.k_positions)),
      Pairs(of_pairs(None if rows.pairs is None else rows.pairs[:, None].astype(jnp.int8), 1, 1),
            of_pairs(inputs.bias, K, N // K),
            {} if pairwise is None else {
                name: x.astype(jnp.float32).reshape(1, K, N // K, *(x.shape[1:] or (1, 1)))
                for name, x in pairwise.params.items()}))


def busy(variant: Variant, plan: Plan, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
  """Blocks of keys that some row has pairs in, first, [q_blocks, k_blocks]; and how many."""
  states = plans.block_states(variant, plan, inputs.rows, inputs.first[2])
  some = jnp.ones((1, 1), bool) if states is None else (states != blocks.EMPTY).any(0)
  return jnp.argsort(~some, -1, stable=True), some.sum(-1)


def each(most: int, order: jax.Array, count: jax.Array, step: Callable, carry: Any) -> Any:
  """`step(block, carry)` of the first `count` blocks of an order."""
  if most == 1:
    return step(0, carry)
  return jax.lax.fori_loop(0, count, lambda n, carry: step(order[n], carry), carry)


def spread(function: Callable, *trees: Any, axes: int = 3) -> Any:
  """`function` of each row, kv-head and head of it: of trees without their first axes.

  An axis of length 1 goes to all of the others' entries.
  """
  leaves, tree = jax.tree.flatten(trees)
  run = lambda leaves: function(*jax.tree.unflatten(tree, leaves))
  return _spread(run, leaves, axes)


def _spread(run: Callable, leaves: list[jax.Array], axes: int) -> Any:
  if not axes:
    return run(leaves)
  over = [None if x.shape[0] == 1 else 0 for x in leaves]
  leaves = [x[0] if axis is None else x for x, axis in zip(leaves, over)]
  if all(axis is None for axis in over):
    return jax.tree.map(lambda x: x[None], _spread(run, leaves, axes - 1))
  return jax.vmap(lambda leaves: _spread(run, leaves, axes - 1), in_axes=(over,))(leaves)


def tile_of(inputs: Inputs, queries: Queries, keys: Keys, pairs: Pairs) -> Tile:
  words = inputs.words[0], inputs.words[1]
  return Tile(queries.side, keys.side, pairs=pairs.pairs, bias=pairs.bias, params=pairs.params,
              words=words, rows=queries.rows)


def tile_pairs(plan: Plan, pairs: Pairs, i: Any, j: Any) -> Pairs:
  """Those of a tile, [..., S, T]."""
  part = lambda x: None if x is None else jnp.swapaxes(jax.lax.dynamic_slice(
      x, _corner(plan, i, j), (*x.shape[:3], plan.q_block, plan.k_block)), -1, -2)
  return pairs._replace(pairs=part(pairs.pairs), bias=part(pairs.bias))


def _corner(plan: Plan, i: Any, j: Any) -> tuple[Any, ...]:
  """Where a tile begins in arrays of all pairs."""
  return 0, 0, 0, i * plan.q_block, j * plan.k_block


def _by_head(block: int, count: int, kv_heads: int, x: jax.Array) -> jax.Array:
  """[B, T, N, H] to [blocks, B, K, G, block, H]."""
  found = _blocks(x, 1, block, count)  # [blocks, B, block, N, H]
  found = found.reshape(*found.shape[:3], kv_heads, -1, x.shape[-1])
  return jnp.moveaxis(found, 2, 4)


def joined(x: jax.Array, length: int) -> jax.Array:
  """[blocks, B, K, G, block, H] to [B, T, N, H]."""
  count, B, K, G, block, H = x.shape
  return x.transpose(1, 0, 4, 2, 3, 5).reshape(B, count * block, K * G, H)[:, :length]


def _blocks(x: jax.Array, axis: int, block: int, count: int) -> jax.Array:
  """`x` with an axis padded and cut, and the blocks' axis before all others."""
  x = _padded(x, axis, block * count)
  return jnp.moveaxis(x.reshape(*x.shape[:axis], count, block, *x.shape[axis + 1:]), axis, 0)


def _padded(x: jax.Array, axis: int, size: int) -> jax.Array:
  """`x` with zeros behind, along an axis."""
  if x.shape[axis] == size:
    return x
  return jnp.pad(x, [(0, size - n if a == axis else 0) for a, n in enumerate(x.shape)])
