"""One layer: attention, cross-attention and feed-forward with residuals and norms."""

import dataclasses
from typing import Callable, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn.attention import Attention, AttentionConfig, LayerKind
from jtx.nn.cache import Projections, Slots
from jtx.nn.convolution import Convolution, ConvolutionConfig
from jtx.nn.dropout import Dropout
from jtx.nn.experts import Experts
from jtx.nn.kept import keep
from jtx.nn.layers import FeedForward, FfnConfig, NormConfig
from jtx.nn.masks import Rows
from jtx.nn.positions import Params, Places, Position, make_params
from jtx.nn.recurrence import Seen, sources
from jtx.nn.residual import ResidualConfig, skip_examples
from jtx.parallel.sharding import constrain, gather_rows, scatter_rows
from jtx.ranges import Positive, Rate

# Positions are added by the model, once; by every layer to its input, with a table of its own; or
# by every layer with the model's (ViT, appendix D.4).
POSITION_AT = ("stem", "layers", "shared")
ATTENTIONS = ("attention", "cross_attention")  # of a layer
# Attention, then feed-forward of its result; or both of one input, by one norm that they share
# (PaLM), or each by its own (GPT-NeoX).
PARALLEL = ("none", "shared_norm", "own_norms")


class Memory(NamedTuple):
  """The source of cross-attention."""
  states: jax.Array | None = None  # [B, S, D]; None where keys and values were kept
  segments: jax.Array | None = None  # [B, S] int
  places: Places | None = None  # for positions that act in cross-attention


@flax.struct.dataclass
class Context:
  """The context that all layers of a stack share."""
  places: Places
  segments: jax.Array | None = None  # [B, T] int, 0 is padding
  flags: Params = flax.struct.field(default_factory=dict)  # name -> [B, T] bool, see `masks.Rows`
  pairs: jax.Array | None = None  # [B, T, T] bool, what may attend to what, on top of the masks
  memory: Memory = Memory()
  seen: Seen | None = None  # by self-attention, in place of all tokens of the rows
  source: jax.Array | None = None  # [B, T, D], of keys and values in place of each layer's input
  params: Params = flax.struct.field(default_factory=dict)  # of the position, by the stack
  embed_params: Params = flax.struct.field(default_factory=dict)  # the model's, for "shared"
  slots: Slots | None = None  # of the cache, when decoding
  train: bool = flax.struct.field(pytree_node=False, default=False)  # dropout on
  return_weights: bool = flax.struct.field(pytree_node=False, default=False)
  keep_memory: bool = flax.struct.field(pytree_node=False, default=False)  # return memory's k, v
  return_hidden: bool = flax.struct.field(pytree_node=False, default=False)  # of every layer

  @property
  def rows(self) -> Rows:
    """Of self-attention; a cache holds one segment a row and no padding."""
    if self.slots is not None and self.slots.index is not None:
      return Rows(q_flags=self.flags, k_flags=self.slots.flags, pairs=self.slots.pairs)
    return Rows(q_segments=self.segments, k_segments=self.segments, q_flags=self.flags,
                k_flags=self.flags, pairs=self.pairs)

  @property
  def cross_rows(self) -> Rows:
    return Rows(None if self.slots is not None else self.segments, self.memory.segments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
  """The fields of a layer. The defaults are those of Vaswani et al. 2017, base."""
  attention: AttentionConfig = AttentionConfig()  # self-attention, and cross-attention
  ffn: FfnConfig = FfnConfig()  # the feed-forward sub-layer
  norm: NormConfig = NormConfig()  # its kind, and where sub-layers have it
  residual: ResidualConfig = ResidualConfig()
  dropout: Rate = 0.1  # of each sub-layer's output, before the residual
  init_std: Positive | None = None  # of the kernels; None is Glorot uniform
  parallel: str = "none"  # of `PARALLEL`: attention and feed-forward side by side
  convolution: ConvolutionConfig = ConvolutionConfig()  # beside the first layer
  aligned: tuple[str, ...] = ()  # of `ATTENTIONS`, where keys begin as queries: nn/aligned.py

  def __post_init__(self):
    for name in self.aligned:
      if name not in ATTENTIONS:
        raise ConfigError(f"block.aligned={self.aligned}: {nearest(name, ATTENTIONS)}")
    if self.parallel not in PARALLEL:
      raise ConfigError(f"block.parallel={self.parallel!r}: {nearest(self.parallel, PARALLEL)}")
    if self.parallel != "none" and (self.norm.position != "pre" or not self.norm.attention):
      raise ConfigError(f"block.parallel={self.parallel!r} goes with norm.position='pre' and"
                        " norm.attention=True")

  @property
  def out_init_std(self) -> float | None:
    """Of the kernels whose products are added to the residuals."""
    return self.init_std if self.residual.init_std is None else self.residual.init_std


class Block(nn.Module):
  """Self-attention, cross-attention where `cross` is set, feed-forward, a convolution beside."""
  config: BlockConfig
  kinds: tuple[LayerKind, ...]  # of layers in the stack
  position: Position = Position()
  cross: bool = False
  position_at: str = "stem"  # where `position.embed` is called, of `POSITION_AT`
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, ctx: Context, *, kind: jax.Array | None = None,
               skipped: jax.Array | None = None,
               update: Callable[[Projections], Projections] | None = None,
               memory: Projections | None = None):
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      ctx: of the stack.
      kind: scalar index into `kinds`.
      skipped: the share of examples that skip a sub-layer in training; None is none.
      update: puts the layer's new keys and values into a cache and returns all of them.
      memory: keys and values of the memory where they were computed before.

    Returns:
      The output, the keys and values of the memory (None without cross-attention), and a
      dict of attention weights where the context asks for them.
    """
    c, attention, start = self.config, {}, x

    def self_attention(y):
      y, _, attention["self"] = self.attention("attention")(
          y, **sources(y, ctx), places=ctx.places, kinds=self.kinds, kind=kind,
          position=self.position, params=ctx.params, update=update, slots=ctx.slots,
          train=ctx.train, return_weights=ctx.return_weights)
      return y

    def cross_attention(y):
      nonlocal memory
      y, memory, attention["cross"] = self.attention("cross_attention")(
          y, ctx.memory.states, places=ctx.places.replace(causal=False),
          source_places=ctx.memory.places,
          position=self.position if self.position.crosses else Position(), params=ctx.params,
          rows=ctx.cross_rows, projected=memory, train=ctx.train, return_weights=ctx.return_weights)
      return y

    def feed_forward(y):
      kind = Experts if c.ffn.experts.number else FeedForward
      layer = kind(c.ffn, c.init_std, c.out_init_std, self.dtype, name="ffn")
      return layer(y, ctx.train, ctx.segments)

    if self.position_at != "stem":
      params = ctx.embed_params if self.position_at == "shared" else make_params(
          self, self.position.model_tables(x.shape[-1]))
      x = self.position.embed(x, ctx.places, params)
    if c.parallel != "none":
      x = self.parallel(x, self_attention, feed_forward, ctx, skipped)
    else:
      x = self.residual("attention_norm", x, self_attention, ctx, skipped)
      if self.cross:
        x = self.residual("cross_attention_norm", x, cross_attention, ctx, skipped)
      x = self.residual("ffn_norm", x, feed_forward, ctx, skipped)
    if c.convolution.size:
      layer = Convolution(c.convolution, c.init_std, self.dtype, name="convolution")
      convolve = lambda _: layer(gather_rows(start), ctx.segments)
      x = self.residual("convolution_norm", x, convolve, ctx, skipped)
    return x, memory, attention if ctx.return_weights else None

  def attention(self, name: str) -> Attention:
    c = self.config
    return Attention(c.attention, c.norm, c.init_std, c.out_init_std, dtype=self.dtype, name=name,
                     aligned=name in c.aligned)

  def residual(self, name: str, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array],
               ctx: Context, skipped: jax.Array | None) -> jax.Array:
    """The sub-layer with its norms: the one place where their order is written."""
    c = self.config
    norm_first = c.norm.position in ("pre", "sandwich") and (
        c.norm.attention or name != "attention_norm")
    y = c.norm.make(name)(x) if norm_first else x
    y = scatter_rows(sublayer(gather_rows(y)))
    if c.norm.position in ("sandwich", "output"):
      y = c.norm.make(f"{name}_out")(y)
    y = keep(self.scaled(name, y, ctx, skipped) + x, "residual")
    if c.norm.position == "post":
      y = c.norm.make(name)(y)
    return constrain(y, "batch", "residual", None)

  def parallel(self, x: jax.Array, self_attention: Callable, feed_forward: Callable, ctx: Context,
               skipped: jax.Array | None) -> jax.Array:
    """x + attention(norm(x)) + feed-forward(norm(x)) (Chowdhery et al. 2022, section 2).

    Raises:
      ConfigError: there is cross-attention, which has no place in it.
    """
    if self.cross:
      raise ConfigError(f"block.parallel={self.config.parallel!r} has no place for cross-attention")
    norm = self.config.norm.make
    y = gather_rows(norm("attention_norm")(x))
    z = gather_rows(norm("ffn_norm")(x)) if self.config.parallel == "own_norms" else y
    y = x + self.scaled("attention_norm", scatter_rows(self_attention(y)), ctx, skipped)
    y += self.scaled("ffn_norm", scatter_rows(feed_forward(z)), ctx, skipped)
    return constrain(y, "batch", "residual", None)

  def scaled(self, name: str, y: jax.Array, ctx: Context, skipped: jax.Array | None) -> jax.Array:
    """A sub-layer's output as it is added: after dropout, layer scale and stochastic depth."""
    y = Dropout(self.config.dropout)(y, ctx.train)
    y = self.config.residual.layer_scaled(self, name.replace("norm", "scale"), y)
    if skipped is not None and ctx.train:
      y = skip_examples(y, skipped, self.make_rng("dropout"))
    return y
