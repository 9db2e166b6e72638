"""The Pallas programs of fused attention, for TPU (Mosaic) and GPU (Triton).

A program has some heads of one row and one block of its queries or keys; it goes over the blocks
of the other side in a loop, and past those in which no pair is allowed. On a TPU heads that are
narrower than the 128 lanes share a program, so that [B, T, N * H] is read as the projections left
it.
"""

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import jax
import jax.numpy as jnp

from jtx.nn.kernels import tile as tiles
from jtx.nn.kernels.table import Table
from jtx.nn.kernels.tile import Gradients, Side, Sums, Tile, Variant


class Plan(NamedTuple):
  """How the work is cut, static."""
  platform: str
  interpret: bool
  groups: int  # programs that share a row and a block
  heads: int  # of queries in a program
  kv_heads: int  # of keys in a program
  shared_by: int  # groups that read the same keys
  width: int  # H
  v_width: int  # Hv
  q_block: int
  k_block: int
  q_blocks: int
  k_blocks: int


class Work(NamedTuple):
  """Which blocks have something to do, int32."""
  states: jax.Array  # [B or 1, q_blocks, k_blocks], as `blocks.blocks` has them
  of_queries: jax.Array  # [B or 1, 2, q_blocks], the first block of keys, and that behind the last
  of_keys: jax.Array  # [B or 1, 2, k_blocks], the same of queries


class Inputs(NamedTuple):
  """What a program reads beside queries, keys and values."""
  scalars: jax.Array  # [5] int32: the key's two words; first row, head and query of this device
  work: Work | None  # None of one block
  q_segments: jax.Array | None  # [B, 1, T]
  k_segments: jax.Array | None  # [B, 1, S]
  q_flags: Mapping[str, jax.Array]  # [B, 1, T]
  k_flags: Mapping[str, jax.Array]  # [B, 1, S]
  q_positions: jax.Array | None  # [B, 1, T]
  k_positions: jax.Array | None  # [B, 1, S]
  pairs: jax.Array | None  # [B, S, T] int8
  bias: jax.Array | None  # [B or 1, groups, heads, S, T]
  params: Mapping[str, jax.Array]  # [groups, heads, n], of `Variant.bias`


class Cut(NamedTuple):
  """Which blocks a program has: all of a side, or one."""
  grid: tuple[str, ...]  # names of its axes: row, group, and block of queries or keys
  queries: bool  # a block of the queries; else all of them
  keys: bool


def specs(plan: Plan, cut: Cut, inputs: Inputs) -> tuple[Callable, Inputs]:
  """A function that makes block specs, of a shape and names of its index, and those of `inputs`."""
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import tpu as pltpu

  def make(shape: Sequence[int], *index: str | int) -> pl.BlockSpec:
    def at(*ids):
      of = {"query": 0, "key": 0} | dict(zip(cut.grid, ids))
      shared = plan.shared_by > 1
      of["kv_group"] = jax.lax.div(of["group"], plan.shared_by) if shared else of["group"]
      return tuple(of[i] if isinstance(i, str) else i for i in index)
    return pl.BlockSpec(tuple(shape), at)

  T = plan.q_block * (1 if cut.queries else plan.q_blocks)
  S = plan.k_block * (1 if cut.keys else plan.k_blocks)
  of_row = lambda x: 0 if x.shape[0] == 1 else "row"
  whole = lambda x: pl.BlockSpec(memory_space=pltpu.SMEM) if plan.platform == "tpu" else (
      pl.BlockSpec(x.shape, lambda *ids: (0,) * x.ndim))
  queries = lambda x: make((1, 1, T), "row", 0, "query")
  keys = lambda x: make((1, 1, S), "row", 0, "key")
  each = jax.tree.map
  return make, Inputs(
      scalars=whole(inputs.scalars), work=each(whole, inputs.work),
      q_segments=each(queries, inputs.q_segments), k_segments=each(keys, inputs.k_segments),
      q_flags=each(queries, inputs.q_flags), k_flags=each(keys, inputs.k_flags),
      q_positions=each(queries, inputs.q_positions), k_positions=each(keys, inputs.k_positions),
      pairs=each(lambda x: make((1, S, T), "row", "key", "query"), inputs.pairs),
      bias=each(lambda x: make((1, 1, plan.heads, S, T), of_row(x), "group", 0, "key", "query"),
                inputs.bias),
      params=each(lambda x: make((1, *x.shape[1:]), "group", 0, 0), inputs.params))


def sides(make: Callable, plan: Plan, cut: Cut) -> tuple[Any, ...]:
  """Block specs of what has the shapes of queries, keys, values, outputs and sums."""
  T = plan.q_block * (1 if cut.queries else plan.q_blocks)
  S = plan.k_block * (1 if cut.keys else plan.k_blocks)
  of_queries = lambda lanes: make((1, T, lanes), "row", "query", "group")
  of_keys = lambda lanes: make((1, S, lanes), "row", "key", "kv_group")
  return (of_queries(plan.heads * plan.width), of_keys(plan.kv_heads * plan.width),
          of_keys(plan.kv_heads * plan.v_width), of_queries(plan.heads * plan.v_width),
          make((1, 1, plan.heads, T), "row", "group", 0, "query"))


def block(index: Any, size: int) -> Any:
  """The slice of a block; index 0 may be one that is static."""
  from jax.experimental import pallas as pl
  return pl.ds(index if isinstance(index, int) else pl.multiple_of(index * size, size), size)


class Reader:
  """Reads the tiles of a program from its refs."""

  def __init__(self, variant: Variant, plan: Plan, cut: Cut, inputs: Inputs):
    from jax.experimental import pallas as pl
    self.variant, self.plan, self.cut, self.inputs = variant, plan, cut, inputs
    self.ids = {name: pl.program_id(axis) for axis, name in enumerate(cut.grid)}

  # The only block of a side may have any length, which no compiler can tell to be aligned at a
  # place that is computed.
  def queries(self, i: Any) -> Any:
    return block(0 if self.cut.queries or self.plan.q_blocks == 1 else i, self.plan.q_block)

  def keys(self, j: Any) -> Any:
    return block(0 if self.cut.keys or self.plan.k_blocks == 1 else j, self.plan.k_block)

  def state(self, i: Any, j: Any) -> jax.Array:
    states = self.inputs.work.states
    return states[0 if states.shape[0] == 1 else self.ids["row"], i, j]

  def tile(self, head: int, i: Any, j: Any) -> Tile:
    x, plan, variant = self.inputs, self.plan, self.variant
    at_q, at_k = self.queries(i), self.keys(j)

    def side(first, size, at, column, segments, flags, positions):
      shape = (size, 1) if column else (1, size)
      index = first + jax.lax.broadcasted_iota(jnp.int32, shape, 0 if column else 1)
      read = lambda ref: None if ref is None else ref[0, :, at].T if column else ref[0, :, at]
      return Side(index, read(segments), {name: read(ref) for name, ref in flags.items()},
                  read(positions))

    queries = side(x.scalars[4] + i * plan.q_block, plan.q_block, at_q, variant.by_query,
                   x.q_segments, x.q_flags, x.q_positions)
    keys = side(j * plan.k_block, plan.k_block, at_k, not variant.by_query,
                x.k_segments, x.k_flags, x.k_positions)
    turned = lambda pairs: pairs.T if variant.by_query else pairs
    words = rows = None
    if variant.dropout_rate:
      words = tuple(x.scalars[n].astype(jnp.uint32) for n in range(2))
      number = (x.scalars[2] + self.ids["row"]) * variant.num_heads + (
          x.scalars[3] + self.ids["group"] * plan.heads + head)
      rows = (number * variant.num_queries + queries.index).astype(jnp.uint32)
    return Tile(
        queries, keys,
        pairs=None if x.pairs is None else turned(x.pairs[0, at_k, at_q].astype(jnp.int32)),
        bias=None if x.bias is None else turned(x.bias[0, 0, head, at_k, at_q]),
        params={name: self.param(name, lambda n, ref=ref: ref[0, head:head + 1, n:n + 1])
                for name, ref in x.params.items()},
        words=words, rows=rows)

  def param(self, name: str, entry: Callable[[int], jax.Array]) -> Table | jax.Array:
    """A head's parameter of `Variant.bias`, of the entries that a function gives."""
    if name not in self.variant.tables:
      return entry(0)
    return Table(tuple(entry(n) for n in range(self.inputs.params[name].shape[-1])))

  def of_head(self, ref: Any, head: int, at: Any, width: int) -> jax.Array:
    """[block, width], a head's lanes."""
    return ref[0, at, head * width:(head + 1) * width]

  def each_keys(self, i: Any, do: Callable, carry: Any) -> Any:
    """`do(j, carry, masked)` for every block of keys that has something to do with queries i."""
    work = self.inputs.work
    return self._each(work and work.of_queries, i, lambda j: (i, j), do, carry)

  def each_queries(self, j: Any, do: Callable, carry: Any) -> Any:
    """The same for every block of queries, and keys j."""
    work = self.inputs.work
    return self._each(work and work.of_keys, j, lambda i: (i, j), do, carry)

  def _each(self, spans: Any, own: Any, pair: Callable, do: Callable, carry: Any) -> Any:
    def step(index, carry):
      if not self.variant.gaps:
        return do(index, carry, True)
      state = self.state(*pair(index))
      runs = [lambda c: c, lambda c: do(index, c, True), lambda c: do(index, c, False)]
      return jax.lax.switch(state, runs, carry)

    if spans is None:
      return do(0, carry, True)
    row = 0 if spans.shape[0] == 1 else self.ids["row"]
    return jax.lax.fori_loop(spans[row, 0, own], spans[row, 1, own], step, carry)


def lanes(parts: Sequence[jax.Array], axis: int) -> jax.Array:
  return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis)


def forward_program(variant: Variant, plan: Plan, cut: Cut, inputs: Inputs, refs, out):
  """Writes the output of a block of queries and the log of its sums."""
  variant = _by_query(variant, plan)
  read = Reader(variant, plan, cut, inputs)
  (q, k, v), (o, log_total) = refs, out
  i, shares = read.ids["query"], plan.heads // plan.kv_heads

  def step(j, carry, masked):
    at = read.keys(j)
    return [tiles.forward(variant, sums, read.of_head(q, h, read.queries(i), plan.width),
                          read.of_head(k, h // shares, at, plan.width),
                          read.of_head(v, h // shares, at, plan.v_width),
                          read.tile(h, i, j), masked)
            for h, sums in enumerate(carry)]

  start = [Sums.start(plan.q_block, plan.v_width, variant.by_query) for _ in range(plan.heads)]
  outs, logs = zip(*(sums.finish() for sums in read.each_keys(i, step, start)))
  o[0] = of_queries(variant, outs).astype(o.dtype)
  for head, log in enumerate(logs):
    log_total[0, 0, head:head + 1, :] = log.T if variant.by_query else log


def _by_query(variant: Variant, plan: Plan) -> Variant:
  """As a program of one block of queries and all keys has its tiles."""
  return variant._replace(by_query=plan.platform == "gpu")


def of_queries(variant: Variant, parts: Sequence[jax.Array]) -> jax.Array:
  """[Q, heads * n] of each head's [n, Q]."""
  return lanes(parts, 1) if variant.by_query else lanes(parts, 0).T


def deltas_of(read: Reader, o, d_o, at) -> list[jax.Array]:
  """The sum of each output times its gradient, [1, Q] of every head.

  A GPU has it from before, in the place of outputs: each program would read all of these.
  """
  plan = read.plan
  if plan.platform == "gpu":
    return [o[0, 0, h:h + 1, at] for h in range(plan.heads)]
  found = (o[0, at, :].astype(jnp.float32) * d_o[0, at, :].astype(jnp.float32)).T
  return [found[h * plan.v_width:(h + 1) * plan.v_width].sum(0, keepdims=True)
          for h in range(plan.heads)]


def tile_gradients(read: Reader, refs, i, j, masked: bool,
                   deltas: Sequence[jax.Array]) -> list[Gradients]:
  """Those of every head of a tile."""
  plan = read.plan
  q, k, v, _, d_o, log_total = refs
  at_q, at_k, shares = read.queries(i), read.keys(j), plan.heads // plan.kv_heads
  turned = lambda row: row.T if read.variant.by_query else row
  return [tiles.backward(
      read.variant, read.of_head(q, h, at_q, plan.width),
      read.of_head(k, h // shares, at_k, plan.width),
      read.of_head(v, h // shares, at_k, plan.v_width), read.of_head(d_o, h, at_q, plan.v_width),
      turned(log_total[0, 0, h:h + 1, at_q]), turned(delta), read.tile(h, i, j), masked)
          for h, delta in enumerate(deltas)]


def keys_program(variant: Variant, plan: Plan, cut: Cut, inputs: Inputs, refs, out, sums=None):
  """Writes the gradients of a block of keys and values, and adds to those of all queries.

  The parameters' and the bias's come with them; queries' only where `out` has a place for them, and
  with several blocks of keys by way of `sums` [T, heads * H], float32.
  """
  from jax.experimental import pallas as pl
  read = Reader(variant, plan, cut, inputs)
  d_q, d_k, d_v, d_bias, d_params = out
  j, shares = read.ids["key"], plan.heads // plan.kv_heads
  alone = plan.k_blocks == 1

  if d_q is not None and not (alone and plan.q_blocks == 1):  # some may have nothing to do
    start_of = d_q if alone else sums
    @pl.when(j == 0)
    def _():
      start_of[...] = jnp.zeros_like(start_of)
  if d_bias is not None:
    # The row is the last axis of the grid where all rows share a bias.
    first = True if d_bias.shape[0] > 1 or cut.grid[-1] != "row" else read.ids["row"] == 0
    @pl.when(first)
    def _():
      d_bias[...] = jnp.zeros_like(d_bias)

  def step(i, carry, masked):
    found = tile_gradients(read, refs, i, j, masked, deltas_of(read, *refs[3:5], read.queries(i)))
    at = read.queries(i)
    if d_q is not None:
      added = lanes([g.query for g in found], 0).T
      if alone:
        d_q[0, at, :] = added.astype(d_q.dtype)
      else:
        sums[at, :] += added
    if d_bias is not None:
      for h, g in enumerate(found):
        d_bias[0, 0, h, :, at] += g.logits
    keys, values, params = carry
    total = lambda parts: [sum(parts[n * shares:(n + 1) * shares]) for n in range(plan.kv_heads)]
    add = lambda a, b: jax.tree.map(jnp.add, a, b)
    return (add(keys, total([g.key for g in found])), add(values, total([g.value for g in found])),
            add(params, [g.params for g in found]))

  zeros = lambda width: [jnp.zeros((plan.k_block, width), jnp.float32)
                         for _ in range(plan.kv_heads)]
  start = zeros(plan.width), zeros(plan.v_width), [
      {name: read.param(name, lambda n: jnp.zeros((1, 1), jnp.float32))
       for name in inputs.params}
      for _ in range(plan.heads)]
  keys, values, params = read.each_queries(j, step, start)
  if d_q is not None and not alone:
    @pl.when(j == plan.k_blocks - 1)
    def _():
      d_q[0] = sums[...].astype(d_q.dtype)
  d_k[0] = lanes(keys, 1).astype(d_k.dtype)
  d_v[0] = lanes(values, 1).astype(d_v.dtype)
  for name, ref in d_params.items():
    for h in range(plan.heads):
      for n, entry in enumerate(jax.tree.leaves(params[h][name])):
        ref[0, 0, 0, h:h + 1, n:n + 1] = entry


def queries_program(variant: Variant, plan: Plan, cut: Cut, inputs: Inputs, refs, out):
  """Writes the gradient of a block of queries."""
  variant = _by_query(variant, plan)
  read = Reader(variant, plan, cut, inputs)
  i = read.ids["query"]
  deltas = deltas_of(read, *refs[3:5], read.queries(i))

  def step(j, carry, masked):
    found = tile_gradients(read, refs, i, j, masked, deltas)
    return [total + g.query for total, g in zip(carry, found)]

  shape = (plan.q_block, plan.width) if variant.by_query else (plan.width, plan.q_block)
  start = [jnp.zeros(shape, jnp.float32) for _ in range(plan.heads)]
  out[0][0] = of_queries(variant, read.each_keys(i, step, start)).astype(out[0].dtype)
