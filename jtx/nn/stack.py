"""Stacks of layers: ordered segments, each one scan over parameters [layers, ...].

A segment has one set of parameter shapes, and a pattern of layer kinds cycled over its
depth, e.g. ("global", "local", "local"). The kinds differ in their masks alone, so a
segment is a single scan whatever its pattern, and its parameter tree does not depend on
the pattern, on `unroll` or on rematerialisation.
"""

import dataclasses
from typing import Callable, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import masks
from jtx.nn.attention import Context, LayerKind, Projections
from jtx.nn.block import Block, BlockConfig
from jtx.nn.masks import Mask
from jtx.nn.positions import Position

# What the backward pass keeps of a layer; the rest is computed again.
REMAT: dict[str, Callable | None] = {
    "none": None,  # keep everything: no rematerialisation
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep products with weights
    "full": jax.checkpoint_policies.nothing_saveable,  # keep a layer's input only
}

KINDS = ("global", "local", "prefix", "global_tokens")
WINDOWED = ("local", "global_tokens")


@dataclasses.dataclass(frozen=True)
class Segment:
  """`num_layers` layers of one configuration, of the kinds in `pattern` in turn."""
  block: BlockConfig
  num_layers: int
  pattern: tuple[str, ...] = ("global",)


def kind_mask(kind: str, *, causal: bool, window: int) -> Mask:
  """The mask of a kind of layer.

  Args:
    kind: "global" sees everything (all before it, if causal); "local" sees `window` places
      to each side; "prefix" is causal after a prefix that sees itself whole;
      "global_tokens" is local, but pairs with a global token see each other.
    causal: whether later places are hidden.
    window: of local kinds.
  """
  if kind in WINDOWED and window < 1:
    raise ConfigError(f"pattern has layers of kind {kind!r}: set window to 1 or more")
  local = masks.window(window, 0 if causal else window)
  match kind:
    case "global":
      return masks.CAUSAL if causal else masks.FULL
    case "local":
      return local
    case "prefix":
      return masks.CAUSAL | masks.Prefix()
    case "global_tokens":
      return (local | masks.Global()) & masks.CAUSAL if causal else local | masks.Global()
  raise ConfigError(f"pattern: unknown kind of layer {kind!r}; {nearest(kind, KINDS)}")


class ScanLayer(Block):
  """A Block as scan wants it: (carry, slice of the inputs, shared) -> (carry, outputs)."""

  def __call__(self, carry, layer, ctx: Context):
    x, cache = carry
    depth, kind, skipped, memory = layer
    if memory is not None:
      memory = Projections(*(jnp.moveaxis(m, 1, 2) for m in memory))

    def update(new: Projections) -> Projections:
      # The whole stack's cache is the carry and one slice of it is written in place: as an
      # input and output of the scan, all of it would be copied at every token.
      nonlocal cache
      cache = Projections(*(write(c, n) for c, n in zip(cache, new)))
      return Projections(*(read(c) for c in cache))

    def write(c, new):  # [layers, B, K, R, S, H], [B * r, T, K, H]
      new = new.reshape(c.shape[1], -1, *new.shape[1:]).transpose(0, 3, 1, 2, 4)
      return jax.lax.dynamic_update_slice(c, new[None].astype(c.dtype),
                                          (depth, 0, 0, 0, ctx.index, 0))

    def read(c):  # [B, R * S, K, H]
      c = jax.lax.dynamic_index_in_dim(c, depth, keepdims=False)
      return jnp.moveaxis(c.reshape(*c.shape[:2], -1, c.shape[-1]), 1, 2)

    x, memory, weights = super().__call__(
        x, ctx, kind=kind, skipped=skipped, update=None if cache is None else update,
        memory=memory)
    kept = None
    if ctx.keep_memory:
      kept = Projections(*(jnp.moveaxis(m, 2, 1) for m in memory))
    return (x, cache), (kept, weights, x if ctx.return_hidden else None)


class Outputs(NamedTuple):
  """What a stack returns beside x; None where it was not asked for."""
  cache: tuple[Projections, ...] | None  # of each segment
  memory: tuple[Projections, ...] | None  # of each segment, [layers, B, K, S, H]
  weights: tuple[dict[str, jax.Array], ...] | None  # of each segment, [layers, B, N, T, S]
  hidden: jax.Array | None  # [layers, B, T, D] after each layer, before the final norm


class Stack(nn.Module):
  """Segments in order, then a final norm unless layers end with one (post-norm)."""
  segments: tuple[Segment, ...]
  position: Position = Position()
  causal: bool = False
  cross: bool = False
  window: int = 0
  position_at: str = "stem"  # of `jtx.nn.block.PLACES`
  share: bool = False  # the layers of a segment are one set of parameters, without [layers, ...]
  unroll: int = 1  # layers unrolled in a scan; -1 is all
  remat: str = "none"
  final_norm: bool = True  # False: what reads a pre-norm stack has a norm of its own
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, ctx: Context, *, cache: tuple[Projections, ...] | None = None,
               memory: tuple[Projections, ...] | None = None):
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      ctx: what all layers see.
      cache: of each segment, as `empty_cache` makes it; those of x are written at place
        ctx.index, and a query attends to the places that ctx.cache_pairs allows.
      memory: of each segment, the keys and values [layers, B, K, S, H] of ctx.memory, as a
        call with ctx.keep_memory returned them.

    Returns:
      The output and an `Outputs`.
    """
    if self.remat not in REMAT:
      raise ConfigError(f"remat={self.remat!r}: {nearest(self.remat, REMAT)}")
    if self.window and not any(kind in WINDOWED for s in self.segments for kind in s.pattern):
      raise ConfigError(f"window={self.window} is for layers of kind {' or '.join(WINDOWED)}, and"
                        " pattern has none; leave it 0")
    num_heads = self.segments[0].block.num_heads
    if table := self.position.bias_table(num_heads):
      if any(s.block.num_heads != num_heads for s in self.segments):
        raise ConfigError("segments that share a position bias need the same num_heads")
      ctx = ctx.replace(bias_table=table.make(self, "position_bias"))
    caches, memories, weights, hidden = [], [], [], []
    first, total = 0, sum(s.num_layers for s in self.segments)
    for i, segment in enumerate(self.segments):
      name = "layers" if len(self.segments) == 1 else f"layers_{i}"
      (x, new_cache), (new_memory, w, h) = self.scan(segment, name)(
          (x, None if cache is None else cache[i]),
          (jnp.arange(segment.num_layers), self.kinds(segment)[1],
           segment.block.residual.skipped(first, segment.num_layers, total),
           None if memory is None else memory[i]), ctx)
      first += segment.num_layers
      caches.append(new_cache)
      memories.append(new_memory)
      weights.append(w)
      hidden.append(h)
    last = self.segments[-1].block
    if last.norm_position != "post" and self.final_norm:
      x = last.make_norm("final_norm")(x)
    return x, Outputs(None if cache is None else tuple(caches),
                      tuple(memories) if ctx.keep_memory else None,
                      tuple(weights) if ctx.return_weights else None,
                      jnp.concatenate(hidden) if ctx.return_hidden else None)

  def kinds(self, segment: Segment) -> tuple[tuple[str, ...], jax.Array]:
    """The distinct kinds of a segment, and each layer's index among them [layers]."""
    distinct = tuple(dict.fromkeys(segment.pattern))
    cycle = [distinct.index(kind) for kind in segment.pattern]
    return distinct, jnp.array([cycle[i % len(cycle)] for i in range(segment.num_layers)])

  def scan(self, segment: Segment, name: str) -> nn.Module:
    kinds = tuple(
        LayerKind(kind_mask(kind, causal=self.causal, window=self.window), kind in WINDOWED)
        for kind in self.kinds(segment)[0])
    layer = ScanLayer
    if self.remat != "none":
      layer = nn.remat(layer, policy=REMAT[self.remat], prevent_cse=False)
    unroll = segment.num_layers if self.unroll == -1 else min(self.unroll, segment.num_layers)
    if self.share:
      sharing = dict(variable_broadcast="params", split_rngs={"params": False, "dropout": True})
    else:
      sharing = dict(variable_axes={"params": 0}, split_rngs={"params": True, "dropout": True},
                     metadata_params={nn.PARTITION_NAME: "layers"})
    scan = nn.scan(layer, in_axes=(0, nn.broadcast), length=segment.num_layers, unroll=unroll,
                   **sharing)
    return scan(segment.block, kinds, self.position, self.causal, self.cross, self.position_at,
                self.dtype, name=name)

  def empty_cache(self, batch: int, rows: int, length: int,
                  width: int) -> tuple[Projections, ...]:
    """Zeros for keys and values of `batch` sources with `rows` hypotheses R of `length` S each.

    [layers, B, K, R, S, H] a segment: heads first, so that attention reads it as it lies.
    """
    def zeros(segment):
      b = segment.block
      head_dim = b.head_dim or width // b.num_heads
      shape = segment.num_layers, batch, b.num_kv_heads or b.num_heads, rows, length
      return Projections(jnp.zeros((*shape, head_dim), self.dtype),
                         jnp.zeros((*shape, b.v_head_dim or head_dim), self.dtype))
    return tuple(zeros(s) for s in self.segments)
