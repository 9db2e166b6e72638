"""One layer: attention, cross-attention and feed-forward with residuals and norms."""

import dataclasses
from typing import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.config import ConfigError
from jtx.nn import layers
from jtx.nn.attention import Attention, Context, LayerKind, Projections
from jtx.nn.dropout import Dropout
from jtx.nn.masks import FULL, Rows
from jtx.nn.positions import Position
from jtx.sharding import constrain

NORM_POSITIONS = ("post", "pre", "sandwich")


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
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array, ctx: Context, *, kind: jax.Array | None = None,
               update: Callable[[Projections], Projections] | None = None,
               memory: Projections | None = None):
    """[B, T, D] to [B, T, D].

    Args:
      x: the input.
      ctx: of the stack.
      kind: scalar index into `kinds`.
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

    x = self.residual("attention_norm", x, self_attention, ctx)
    if self.cross:
      x = self.residual("cross_attention_norm", x, cross_attention, ctx)
    x = self.residual("ffn_norm", x, feed_forward, ctx)
    return x, memory, attention if ctx.return_weights else None

  def attention(self, name: str) -> Attention:
    c = self.config
    return Attention(c.num_heads, c.num_kv_heads, c.head_dim, c.v_head_dim, c.attention_bias,
                     c.attention_dropout, c.score, c.kernel, c.init_std, self.dtype, name=name)

  def residual(self, name: str, x: jax.Array, sublayer: Callable[[jax.Array], jax.Array],
               ctx: Context) -> jax.Array:
    """The sub-layer with its norms: the one place where their order is written."""
    c = self.config
    norm_first = c.norm_position != "post" and (c.attention_norm or name != "attention_norm")
    y = c.make_norm(name)(x) if norm_first else x
    y = sublayer(y)
    if c.norm_position == "sandwich":
      y = c.make_norm(f"{name}_out")(y)
    y = x + Dropout(c.dropout)(y, ctx.train)
    if c.norm_position == "post":
      y = c.make_norm(name)(y)
    return constrain(y, "batch", "length", None)
