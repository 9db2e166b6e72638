"""Stacks of layers: ordered segments, each one scan over parameters [layers, ...].

A segment has one set of parameter shapes, and a pattern of layer kinds cycled over its
depth, e.g. ("global", "local", "local"). The kinds differ in their masks alone, so a
segment is a single scan whatever its pattern, and its parameter tree does not depend on
the pattern, on `unroll` or on rematerialisation.
"""

import dataclasses
from typing import Annotated, Callable, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import cache as kv
from jtx.nn import kinds as layer_kinds, shapes
from jtx.nn.apart import one_by_one
from jtx.nn.attention import LayerKind
from jtx.nn.block import POSITION_AT, Block, BlockConfig, Context
from jtx.nn.cache import Projections
from jtx.nn.convolution import ConvolutionConfig
from jtx.nn.experts import SUMS
from jtx.nn.kept import REMAT, kept_as, remat_of
from jtx.nn.positions import Params, Places, Position, make_params
from jtx.nn.recurrence import of_layer
from jtx.parallel.sharding import constrain, gather_rows, platform
from jtx.ranges import Layers, Size, SizeOrNone, Within

@dataclasses.dataclass(frozen=True)
class Segment:
  """`num_layers` layers of one configuration, of the kinds in `pattern` in turn."""
  block: BlockConfig
  num_layers: int
  pattern: tuple[str, ...] = ("global",)

  @property
  def kinds(self) -> tuple[tuple[str, ...], list[int], tuple[float, ...]]:
    """The distinct kinds, each layer's index among them, and the share of layers of each."""
    distinct = tuple(dict.fromkeys(self.pattern))
    index = [distinct.index(self.pattern[i % len(self.pattern)]) for i in range(self.num_layers)]
    return distinct, index, tuple(index.count(i) / max(len(index), 1) for i in range(len(distinct)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class StackConfig:
  """The fields of a stack. The defaults are those of Vaswani et al. 2017, base."""
  width: Size = 512  # D, of hidden states
  num_layers: Layers = 6  # depth
  block: BlockConfig = BlockConfig()  # all that layers have in common
  position: Position = Position()  # encoding of where tokens are
  position_at: str = "stem"  # of `POSITION_AT`
  pattern: tuple[str, ...] = ("global",)  # kinds of layers in turn, as jtx/nn/kinds.py names them
  window: SizeOrNone = 0  # of other windowed layers, places to each side
  causal: bool = False  # later places are hidden
  final_norm: bool = True  # False: what reads a pre-norm stack has a norm of its own
  share: bool = False  # one set of parameters, without [layers, ...], for all layers (ALBERT)
  remat: str = "auto"  # of `REMAT`; "auto" is "cheap" on TPU, "projected" on GPU, "none" on CPU
  unroll: Annotated[int, Within("[-1, 4096]")] = 1  # layers unrolled; -1 all, 0 all to train on CPU

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    if self.remat not in ("auto", *REMAT):
      raise ConfigError(f"remat={self.remat!r}: {nearest(self.remat, ['auto', *REMAT])}")
    if self.position_at not in POSITION_AT:
      raise ConfigError(
          f"position_at={self.position_at!r}: {nearest(self.position_at, POSITION_AT)}")
    layer_kinds.check(self)
    self.position.check_kinds(self.windowed)
    if self.position_at != "stem" and not self.position.embeds:
      raise ConfigError(f"position_at={self.position_at!r} is for positions that are added to"
                        f" embeddings, and {type(self.position).__name__} is not; leave it 'stem'")
    self.block.convolution.check(self.causal, self.block.norm.position)
    if not self.final_norm and self.block.norm.position == "post":
      raise ConfigError("final_norm=False goes with norm.position='pre', 'sandwich' or 'output';"
                        " 'post' has none behind the last layer")

  @property
  def windowed(self) -> bool:
    """Whether some of its layers see a window only."""
    return any(kind.windowed for kind in layer_kinds.known(self.pattern))

  @property
  def flags(self) -> tuple[str, ...]:
    """The flags of tokens that its masks need."""
    known = layer_kinds.known(self.pattern)
    return tuple(dict.fromkeys(name for kind in known for name in kind.flags))

  def embed_params(self, module: nn.Module, width: int | None = None, prefix: str = "") -> Params:
    """The position's parameters that `module`, the model, owns.

    Args:
      module: bound.
      width: of its embeddings; None is the stack's.
      prefix: of their names.
    """
    if self.position_at == "layers":
      return {}
    if self.position_at == "shared" and width not in (None, self.width):
      raise ConfigError("position_at='shared' needs embeddings as wide as the layers")
    return make_params(module, self.position.model_tables(width or self.width), prefix)

  def embed(self, x: jax.Array, places: Places, params: Params) -> jax.Array:
    """Embeddings [B, T, D] with the positions that are added at the stem."""
    return self.position.embed(x, places, params) if self.position_at == "stem" else x

  def shared(self, params: Params) -> Params:
    """Those of the model's parameters that every layer adds."""
    return params if self.position_at == "shared" else {}

  @property
  def segments(self) -> tuple[Segment, ...]:
    """The layers; the first stands alone where it lacks a norm or has a convolution."""
    norm = self.block.norm
    if norm.attention and not self.block.convolution.size:
      return (Segment(self.block, self.num_layers, self.pattern),)
    rest = dataclasses.replace(self.block, norm=dataclasses.replace(norm, attention=True),
                               convolution=ConvolutionConfig())
    turned = self.pattern[1:] + self.pattern[:1]
    first = Segment(self.block, 1, self.pattern[:1])
    if self.num_layers == 1:
      return (first,)
    return first, Segment(rest, self.num_layers - 1, turned)


class ScanLayer(Block):
  """A Block as scan wants it: (carry, slice of the inputs, shared) -> (carry, outputs)."""

  def __call__(self, carry, layer, ctx: Context):
    x, cache = carry
    if platform() != "cpu":
      # Its several products would each cut a copy of their own out of all layers' on the way back.
      x = jax.lax.optimization_barrier(x)
    depth, kind, skipped, memory = layer
    if memory is not None:
      memory = Projections(*(jnp.moveaxis(m, 1, 2) for m in memory))

    def update(new: Projections) -> Projections:
      # The whole stack's cache is the carry and one slice of it is written in place: as an
      # input and output of the scan, all of it would be copied at every token.
      nonlocal cache
      cache, seen = kv.update(cache, new, depth, ctx.slots)
      return seen

    x, memory, weights = super().__call__(
        x, of_layer(ctx, depth), kind=kind, skipped=skipped,
        update=None if cache is None else update, memory=memory)
    kept = Projections(*(jnp.moveaxis(m, 2, 1) for m in memory)) if ctx.keep_memory else None
    return (x, cache), (kept, weights, x if ctx.return_hidden else None)


class Outputs(NamedTuple):
  """The outputs of a stack beside x; None where it was not asked for."""
  cache: kv.Cache | None
  memory: kv.Cache | None
  weights: tuple[dict[str, jax.Array], ...] | None  # of each segment, [layers, B, N, T, S]
  hidden: jax.Array | None  # [layers, B, T, D] after each layer, before the final norm


class Stack(nn.Module):
  """Segments in order, then a final norm unless layers end with one (post-norm)."""
  config: StackConfig
  cross: bool = False  # attends to a memory, too
  dtype: jnp.dtype = jnp.float32
  segments: tuple[Segment, ...] = ()  # in place of those of the config
  below: int = 0  # layers of the model before these, of stochastic depth
  of: int = 0  # layers of the model; 0 is those of the stack
  kept_as: jnp.dtype | None = None  # 16-bit integers, if another stack keeps arrays of these shapes

  @nn.compact
  def __call__(self, x: jax.Array, ctx: Context, *, cache: kv.Cache | None = None,
               memory: kv.Cache | None = None):
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      ctx: what all layers see.
      cache: of each segment, as `cache.empty` makes it; those of x are written at ctx.slots.
      memory: the keys and values of ctx.memory, as a call with ctx.keep_memory returned them.

    Returns:
      The output and an `Outputs`.
    """
    config, segments = self.config, self.segments or self.config.segments
    config.check()
    if config.position.crosses and not self.cross:
      raise ConfigError("position.cross=True is for stacks with cross-attention, and this one has"
                        " none")
    if "cross_attention" in segments[0].block.aligned and not self.cross:
      raise ConfigError("block.aligned: this stack has no cross_attention")
    attention = segments[0].block.attention
    tables = config.position.stack_tables(attention.sizes(x.shape[-1]))
    if tables and any(s.block.attention.num_heads != attention.num_heads for s in segments):
      raise ConfigError("segments that share a position bias need the same num_heads")
    ctx = ctx.replace(params=make_params(self, tables), places=ctx.places.replace(
        causal=config.causal and "prefix" not in config.pattern))
    x, outputs = constrain(x, "batch", "residual", None), []
    first, total = self.below, self.of or sum(s.num_layers for s in segments)
    for i, segment in enumerate(segments):
      name = "layers" if len(segments) == 1 else f"layers_{i}"
      own = None if cache is None else cache[i]
      scan = self.scan(segment, name, not isinstance(own, Projections | None), ctx.train)
      with kept_as(self.kept_as if remat_of(config.remat) == "cheap" else None):
        (x, new_cache), (new_memory, w, h) = scan(
            (x, own), (jnp.arange(segment.num_layers), jnp.array(segment.kinds[1]),
                       segment.block.residual.skipped(first, segment.num_layers, total),
                       None if memory is None else memory[i]), ctx)
      first += segment.num_layers
      outputs.append((new_cache, new_memory, w, h))
    caches, memories, weights, hidden = zip(*outputs)
    norm = segments[-1].block.norm
    if norm.position != "post" and config.final_norm:
      x = norm.make("final_norm")(x)
    return gather_rows(x), Outputs(
        None if cache is None else caches, memories if ctx.keep_memory else None,
        weights if ctx.return_weights else None,
        jnp.concatenate(hidden) if ctx.return_hidden else None)

  def scan(self, segment: Segment, name: str, apart: bool, train: bool) -> Callable:
    c, (distinct, _, shares) = self.config, segment.kinds
    kinds = tuple(LayerKind(*layer_kinds.of_layer(c, name), share)
                  for name, share in zip(distinct, shares))
    fields = segment.block, kinds, c.position, self.cross, c.position_at, self.dtype
    if apart:
      return one_by_one(ScanLayer, fields, name, segment.num_layers, c.share)
    remat, layer = remat_of(c.remat), ScanLayer
    if remat != "none":
      layer = nn.remat(layer, policy=REMAT[remat], prevent_cse=False)
    whole = c.unroll == -1 or c.unroll == 0 and train and platform() == "cpu"
    unroll = segment.num_layers if whole else min(max(c.unroll, 1), segment.num_layers)
    if self.is_initializing():
      unroll = 1  # the same draws, of a program that compiles in a fraction of the time
    sharing = dict(variable_axes={"params": 0, SUMS: 0},
                   split_rngs={"params": not c.share, "dropout": True},
                   metadata_params={nn.PARTITION_NAME: "layers"})
    if c.share:
      sharing |= dict(variable_axes={SUMS: 0}, variable_broadcast="params")
    # Flax traces the layer once ahead of the loop, where numbers are drawn, too, and what layers
    # share is made: without it a seed would draw others. Where none are drawn it is not needed.
    draws = self.has_rng("params") and (c.share or not shapes.alone()) or self.has_rng("dropout")
    return nn.scan(layer, in_axes=(0, nn.broadcast), length=segment.num_layers, unroll=unroll,
                   check_constancy_invariants=draws, **sharing)(*fields, name=name)
