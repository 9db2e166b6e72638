"""The benchmarks' models of text as one writes them with Flax's own layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp

HALF_WINDOW, GLOBAL_EVERY = 64, 3  # of ModernBERT


def exact_gelu(x: jax.Array) -> jax.Array:
  return nn.gelu(x, approximate=False)


class Layer(nn.Module):
  """BERT's, with a norm behind each sub-layer, or before it; and cross-attention to a memory."""
  num_heads: int
  ffn_dim: int
  dtype: jnp.dtype
  dropout: float = 0.1
  attention_dropout: float = 0.1
  attention_bias: bool = True
  activation: str = "gelu"
  norm_first: bool = False

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array | None, train: bool,
               memory: jax.Array | None = None, memory_mask: jax.Array | None = None) -> jax.Array:
    def residual(x, sublayer):
      norm = nn.LayerNorm(1e-12, dtype=self.dtype)
      y = sublayer(norm(x) if self.norm_first else x)
      y = x + nn.Dropout(self.dropout, deterministic=not train)(y)
      return y if self.norm_first else norm(y)

    def attend(y, source, mask):
      return nn.MultiHeadDotProductAttention(
          self.num_heads, dtype=self.dtype, use_bias=self.attention_bias,
          dropout_rate=self.attention_dropout, deterministic=not train)(y, source, mask=mask)

    def feed_forward(y):
      y = nn.Dense(self.ffn_dim, dtype=self.dtype)(y)
      y = exact_gelu(y) if self.activation == "gelu" else nn.relu(y)
      return nn.Dense(x.shape[-1], dtype=self.dtype)(y)

    x = residual(x, lambda y: attend(y, y, mask))
    if memory is not None:
      x = residual(x, lambda y: attend(y, memory, memory_mask))
    return residual(x, feed_forward)


class Bert(nn.Module):
  """[B, T] ids and mask to float32 scores [B, T, V], and with `pairs` of sentence pairs [B, 2]."""
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  max_length: int
  dtype: jnp.dtype
  pairs: bool = False

  @nn.compact
  def __call__(self, ids: jax.Array, mask: jax.Array, train: bool):
    embed = nn.Embed(self.vocab_size, self.width, dtype=self.dtype)
    x = embed(ids) + nn.Embed(self.max_length, self.width, dtype=self.dtype)(
        jnp.arange(ids.shape[1]))
    x += nn.Embed(2, self.width, dtype=self.dtype)(jnp.zeros_like(ids))
    x = nn.Dropout(0.1, deterministic=not train)(nn.LayerNorm(1e-12, dtype=self.dtype)(x))
    seen = nn.make_attention_mask(mask > 0, mask > 0)
    for _ in range(self.num_layers):
      x = Layer(self.num_heads, self.ffn_dim, self.dtype)(x, seen, train)
    scores = scores_of(self, embed, x)
    if not self.pairs:
      return scores
    pooled = jnp.tanh(nn.Dense(self.width, dtype=self.dtype)(x[:, 0]))
    pooled = nn.Dropout(0.1, deterministic=not train)(pooled)
    return scores, nn.Dense(2, dtype=self.dtype)(pooled).astype(jnp.float32)


def scores_of(module: nn.Module, embed: nn.Embed, x: jax.Array, bias: bool = True) -> jax.Array:
  """The vocabulary's scores [B, T, V] of hidden states [B, T, D], by an encoder's head."""
  x = exact_gelu(nn.Dense(x.shape[-1], use_bias=bias, dtype=embed.dtype)(x))
  x = nn.LayerNorm(1e-12, use_bias=bias, dtype=embed.dtype)(x)
  table_bias = module.param("bias", nn.initializers.zeros, (embed.num_embeddings,))
  return embed.attend(x).astype(jnp.float32) + table_bias


class EncDec(nn.Module):
  """Source ids [B, S] and target ids [B, T], 0 for padding, to float32 logits [B, T, V]."""
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, src: jax.Array, tgt: jax.Array, train: bool) -> jax.Array:
    table = nn.Embed(self.vocab_size, self.width, dtype=self.dtype)
    layer = lambda: Layer(self.num_heads, self.ffn_dim, self.dtype, attention_dropout=0.0,
                          attention_bias=False, activation="relu")

    def embed(ids):
      x = table(ids) * self.width**0.5 + sines(ids.shape[1], self.width).astype(self.dtype)
      return nn.Dropout(0.1, deterministic=not train)(x)

    x, mask = embed(src), nn.make_attention_mask(src > 0, src > 0)
    for _ in range(self.num_layers):
      x = layer()(x, mask, train)
    y = embed(jnp.pad(tgt, ((0, 0), (1, 0)), constant_values=1)[:, :-1])
    mask = nn.combine_masks(nn.make_attention_mask(tgt > 0, tgt > 0), nn.make_causal_mask(tgt))
    for _ in range(self.num_layers):
      y = layer()(y, mask, train, x, nn.make_attention_mask(tgt > 0, src > 0))
    return table.attend(y).astype(jnp.float32)


def sines(length: int, width: int) -> jax.Array:
  """[T, D] (Vaswani et al. 2017, section 3.5)."""
  angle = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(0, width, 2) / width)
  return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)


class ModernLayer(nn.Module):
  """Warner et al. 2024: rotary positions, gated feed-forward, no biases."""
  num_heads: int
  ffn_dim: int
  local: bool
  first: bool
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    dense = lambda width: nn.Dense(width, use_bias=False, dtype=self.dtype)
    norm = lambda: nn.LayerNorm(1e-5, use_bias=False, dtype=self.dtype)
    (B, T, D), N = x.shape, self.num_heads
    y = x if self.first else norm()(x)
    q, k, v = (dense(D)(y).reshape(B, T, N, -1) for _ in range(3))
    q, k = (rotated(x, 10_000.0 if self.local else 160_000.0) for x in (q, k))
    if self.local:
      place = jnp.arange(T)
      mask &= jnp.abs(place[:, None] - place) <= HALF_WINDOW
    x += dense(D)(nn.dot_product_attention(q, k, v, mask=mask).reshape(B, T, D))
    y = norm()(x)
    return x + dense(D)(exact_gelu(dense(self.ffn_dim)(y)) * dense(self.ffn_dim)(y))


def rotated(x: jax.Array, base: float) -> jax.Array:
  """RoPE of [B, T, N, H]."""
  half = x.shape[-1] // 2
  angle = jnp.arange(x.shape[1])[:, None, None] * base ** (-jnp.arange(half) / half)
  cos, sin = jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype)
  a, b = jnp.split(x, 2, -1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


class ModernBert(nn.Module):
  """[B, T] ids and mask to float32 scores [B, T, V]."""
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, ids: jax.Array, mask: jax.Array) -> jax.Array:
    embed = nn.Embed(self.vocab_size, self.width, dtype=self.dtype)
    norm = lambda: nn.LayerNorm(1e-5, use_bias=False, dtype=self.dtype)
    x, seen = norm()(embed(ids)), nn.make_attention_mask(mask > 0, mask > 0, dtype=bool)
    for i in range(self.num_layers):
      layer = ModernLayer(self.num_heads, self.ffn_dim, local=i % GLOBAL_EVERY > 0, first=i == 0,
                          dtype=self.dtype)
      x = layer(x, seen)
    return scores_of(self, embed, norm()(x), bias=False)
