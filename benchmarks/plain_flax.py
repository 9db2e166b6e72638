"""BERT for masked tokens as one writes it with Flax's own layers."""

import flax.linen as nn
import jax
import jax.numpy as jnp


class Layer(nn.Module):
  num_heads: int
  ffn_dim: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
    norm = lambda x: nn.LayerNorm(1e-12, dtype=self.dtype)(x)
    dropout = lambda x: nn.Dropout(0.1, deterministic=not train)(x)
    y = nn.MultiHeadDotProductAttention(self.num_heads, dtype=self.dtype, dropout_rate=0.1,
                                        deterministic=not train)(x, x, mask=mask)
    x = norm(x + dropout(y))
    y = nn.gelu(nn.Dense(self.ffn_dim, dtype=self.dtype)(x), approximate=False)
    return norm(x + dropout(nn.Dense(x.shape[-1], dtype=self.dtype)(y)))


class Bert(nn.Module):
  """[B, T] ids and mask to float32 scores [B, T, V]."""
  vocab_size: int
  width: int
  num_layers: int
  num_heads: int
  ffn_dim: int
  max_length: int
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, ids: jax.Array, mask: jax.Array, train: bool) -> jax.Array:
    embed = nn.Embed(self.vocab_size, self.width, dtype=self.dtype)
    x = embed(ids) + nn.Embed(self.max_length, self.width, dtype=self.dtype)(
        jnp.arange(ids.shape[1]))
    x += nn.Embed(2, self.width, dtype=self.dtype)(jnp.zeros_like(ids))
    x = nn.Dropout(0.1, deterministic=not train)(nn.LayerNorm(1e-12, dtype=self.dtype)(x))
    seen = nn.make_attention_mask(mask > 0, mask > 0)
    for _ in range(self.num_layers):
      x = Layer(self.num_heads, self.ffn_dim, self.dtype)(x, seen, train)
    x = nn.gelu(nn.Dense(self.width, dtype=self.dtype)(x), approximate=False)
    x = nn.LayerNorm(1e-12, dtype=self.dtype)(x)
    bias = self.param("bias", nn.initializers.zeros, (self.vocab_size,))
    return embed.attend(x).astype(jnp.float32) + bias
