"""One layer: attention, cross-attention and feed-forward with residuals and norms."""

import dataclasses
from typing import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.attention import Attention, Context, LayerKind, Projections
from jtx.nn.dropout import Dropout
from jtx.nn.masks import FULL, Rows
from jtx.nn.positions import Position
from jtx.parallel.sharding import constrain

NORM_POSITIONS = ("post", "pre", "sandwich")
# Positions are added by the model, once; by every layer to its input, with a table of its own; or
# by every layer with the model's (ViT, appendix D.4).
PLACES = ("stem", "layers", "shared")


@dataclasses.dataclass(frozen=True)
class ResidualConfig:
  """What becomes of a sub-layer's output before it is added (DeiT III; Touvron et al. 2022)."""
  layer_scale: float | None = None  # first value of a factor a channel (CaiT; Touvron et al. 2021)
  drop_path: float = 0.0  # share of examples that skip a sub-layer (Huang et al. 2016)
  uniform: bool = False  # of every layer; else the share grows from 0 to drop_path over the depth

  def __post_init__(self):
    if not 0 <= self.drop_path < 1:
      raise ConfigError(f"residual.drop_path={self.drop_path} is not from 0 to below 1")

  def skipped(self, first: int, number: int, total: int) -> jax.Array | None:
    """The shares [number] of layers `first` and on, of `total`; None where none is skipped."""
    if not self.drop_path:
      return None
    depth = jnp.arange(first, first + number)
    return jnp.full(number, self.drop_path) if self.uniform else (
        self.drop_path * depth / max(total - 1, 1))


@dataclasses.dataclass(frozen=True)
class BlockConfig:
  """The fields of a layer. The defaults are those of Vaswani et al. 2017, base."""
  num_heads: int = 8
  num_kv_heads: int | None = None  # None is num_heads
  head_dim: int | None = None  # None is width / num_heads
  v_head_dim: int | None = None  # None is head_dim
  score: str = "dot"
  attention_bias: bool = False
  ffn_dim: int = 2048
  activation: str = "relu"
  gated: bool = False
  use_bias: bool = True  # of the feed-forward layers and of LayerNorm
  norm: str = "layernorm"
  norm_position: str = "post"
  norm_eps: float = 1e-6
  attention_norm: bool = True  # False: the attention of a "pre" layer takes x as it is
  dropout: float = 0.1  # of each sub-layer's output, before the residual
  attention_dropout: float = 0.0  # of the attention weights
  ffn_dropout: float = 0.0  # of the feed-forward hidden activations
  init_std: float | None = None  # of the kernels; None is Glorot uniform
  kernel: str = "auto"  # the attention kernel
  residual: ResidualConfig = ResidualConfig()

  def __post_init__(self):
    if self.norm_position not in NORM_POSITIONS:
      raise ConfigError(
          f"norm_position={self.norm_position!r}: valid are {', '.join(NORM_POSITIONS)}")
    if not self.attention_norm and self.norm_position != "pre":
      raise ConfigError(f"attention_norm=False goes with norm_position='pre', not"
                        f" {self.norm_position!r}")

  def make_norm(self, name: str) -> nn.Module:
    return layers.norm(self.norm, self.norm_eps, self.use_bias, name)


class Block(nn.Module):
  """Self-attention, cross-attention where `cross` is set, and feed-forward."""
  config: BlockConfig
  kinds: tuple[LayerKind, ...]  # of layers in the stack
  position: Position = Position()
  causal: bool = False
  cross: bool = False
  position_at: str = "stem"  # where `position.embed` is called, see `PLACES`
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
      memory: keys and values of ctx.memory where they were computed before.

    Returns:
      The output, the keys and values of the memory (None without cross-attention), and a
      dict of attention weights where the context asks for them.
    """
    attention = {}
    rows = Rows(ctx.segments, ctx.segments, ctx.prefix_length, ctx.global_tokens, ctx.global_tokens)
    if update is not None:
      rows = Rows(pairs=ctx.cache_pairs)  # a cache holds one segment a row and no padding

    def self_attention(y):
      y, _, attention["self"] = self.attention("attention")(
          y, y, ctx, kinds=self.kinds, kind=kind, position=self.position, causal=self.causal,
          rows=rows, update=update)
      return y

    def cross_attention(y):
      nonlocal memory
      cross_rows = Rows(ctx.segments, ctx.memory_segments)
      if ctx.index is not None:
        cross_rows = Rows(None, ctx.memory_segments)
      y, memory, attention["cross"] = self.attention("cross_attention")(
          y, ctx.memory, ctx, kinds=(LayerKind(FULL),), kind=None, position=Position(),
          causal=False, rows=cross_rows, projected=memory)
      return y

    def feed_forward(y):
      c = self.config
      return layers.FeedForward(c.ffn_dim, c.activation, c.gated, c.use_bias, c.ffn_dropout,
                                c.init_std, self.dtype, name="ffn")(y, ctx.train)

    if self.position_at != "stem":
      table = ctx.position_table
      if self.position_at == "layers" and (own := self.position.embedding_table(x.shape[-1])):
        table = own.make(self, "position_embedding")
      x = self.position.embed(x, ctx.positions, table)
    x = self.residual("attention_norm", x, self_attention, ctx, skipped)
    if self.cross:
      x = self.residual("cross_attention_norm", x, cross_attention, ctx, skipped)
    x = self.residual("ffn_norm", x, feed_forward, ctx, skipped)
    return x, memory, attention if ctx.return_weights else None

  def attention(self, name: str) -> Attention:
    c = self.config
    return Attention(c.num_heads, c.num_kv_heads, c.head_dim, c.v_head_dim, c.attention_bias,
                     c.attention_dropout, c.score, c.kernel, c.init_std, self.dtype, name=name)

  def residual(self, name: str, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array],
               ctx: Context, skipped: jax.Array | None) -> jax.Array:
    """The sub-layer with its norms: the one place where their order is written."""
    c = self.config
    norm_first = c.norm_position != "post" and (c.attention_norm or name != "attention_norm")
    y = c.make_norm(name)(x) if norm_first else x
    y = sublayer(y)
    if c.norm_position == "sandwich":
      y = c.make_norm(f"{name}_out")(y)
    y = Dropout(c.dropout)(y, ctx.train)
    if c.residual.layer_scale is not None:
      scale = layers.param(self, name.replace("norm", "scale"),
                           nn.initializers.constant(c.residual.layer_scale), y.shape[-1:],
                           ("norm",))
      y *= scale.astype(y.dtype)
    if skipped is not None and ctx.train:
      y = skip_examples(y, skipped, self.make_rng("dropout"))
    y += x
    if c.norm_position == "post":
      y = c.make_norm(name)(y)
    return constrain(y, "batch", "length", None)


def skip_examples(y: jax.Array, share: jax.Array, key: jax.Array) -> jax.Array:
  """y [B, T, D] with a share of its examples at 0 and the others divided by 1 - share."""
  drawn = jax.random.uniform(key, (y.shape[0], 1, 1))
  return jnp.where(drawn >= share, y / (1 - share), 0).astype(y.dtype)
