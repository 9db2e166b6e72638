"""The encoder-decoder Transformer (Vaswani et al. 2017) and its variants, by config."""

from typing import Mapping

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.attention import Context, Projections
from jtx.nn.block import BlockConfig
from jtx.nn.dropout import Dropout
from jtx.nn.positions import Position, Sinusoidal
from jtx.nn.stack import Segment, Stack
from jtx.parallel.sharding import constrain

Batch = Mapping[str, jax.Array]

SHARE = ("all", "output", "none")


@flax.struct.dataclass
class DecodeState:
  """What the decoder carries from token to token."""
  cache: tuple[Projections, ...]  # of each segment of layers, [layers, B, K, R, T, H]
  # [B, R, T]: which of the R hypotheses of a source wrote a place of this one's past; -1 is none.
  # They share what they have in common, so the cache is never copied.
  ancestors: jax.Array
  memory: tuple[Projections, ...]  # keys and values of the source, [layers, B, K, S, H]
  memory_segments: jax.Array  # [B, S]

  def reorder(self, rows: jax.Array) -> "DecodeState":
    """Hypothesis i goes on from the one at rows[i]; both have the same source."""
    shape = self.ancestors.shape
    return self.replace(ancestors=self.ancestors.reshape(-1, shape[-1])[rows].reshape(shape))

  def take(self, sources: jax.Array) -> "DecodeState":
    """The hypotheses of some sources [b] only."""
    of_layers = lambda tree: jax.tree.map(lambda x: x[:, sources], tree)
    return DecodeState(of_layers(self.cache), self.ancestors[sources], of_layers(self.memory),
                       self.memory_segments[sources])

  def grow(self, length: int) -> "DecodeState":
    """Makes room for `length` tokens; what there is stays."""
    more = max(length - self.ancestors.shape[-1], 0)
    pad = lambda x, axis, value: jnp.pad(
        x, [(0, more if i == axis else 0) for i in range(x.ndim)], constant_values=value)
    return self.replace(cache=jax.tree.map(lambda c: pad(c, 4, 0), self.cache),
                        ancestors=pad(self.ancestors, 2, -1))


class EncDec(nn.Module):
  """Source and target tokens to the decoder's hidden states, and these to logits.

  Batch keys, all int32: `src [B, S]`, `src_segment_ids [B, S]`, `src_positions [B, S]`, and
  the same for `tgt_in [B, T]` with `tgt_segment_ids` and `tgt_positions`. Target segment i
  attends to source segment i; segment 0 is padding.
  """
  vocab_size: int
  src_vocab_size: int | None = None  # None: the target's vocabulary
  width: int = 512
  num_layers: int = 6
  num_decoder_layers: int | None = None  # None is num_layers
  block: BlockConfig = BlockConfig()
  position: Position = Sinusoidal()
  pattern: tuple[str, ...] = ("global",)  # kinds of layers, cycled over the depth
  window: int = 0  # of local layers, places to each side
  share_embeddings: str = "all"  # source, target and output; "output": the last two; or "none"
  scale_embeddings: bool = True  # times sqrt(width)
  output_bias: bool = False
  unroll: int = 1
  remat: str = "none"
  dtype: str = "auto"

  def setup(self):
    if self.share_embeddings not in SHARE:
      raise ConfigError(f"share_embeddings={self.share_embeddings!r}: valid are {', '.join(SHARE)}")
    src_vocab_size = self.src_vocab_size or self.vocab_size
    shared = self.share_embeddings == "all"
    if shared and src_vocab_size != self.vocab_size:
      raise ConfigError(f"share_embeddings='all' needs one vocabulary, not {src_vocab_size} source"
                        f" and {self.vocab_size} target tokens; set it to 'output' or 'none'")
    dtype = layers.compute_dtype(self.dtype)
    std = self.width**-0.5 if self.scale_embeddings else 0.02
    self.tgt_embed = layers.Embed(self.vocab_size, self.width, std, dtype)
    self.src_embed = self.tgt_embed
    if not shared:
      self.src_embed = layers.Embed(src_vocab_size, self.width, std, dtype)
    if table := self.position.embedding_table(self.width):
      self.position_table = table.make(self, "position_embedding")
    if self.share_embeddings == "none":
      self.output = layers.Dense((self.vocab_size,), ("embed", "vocab"), use_bias=False,
                                 dtype=dtype)
    if self.output_bias:
      self.bias = layers.param(self, "output_bias", nn.initializers.zeros, (self.vocab_size,),
                               ("vocab",))
    self.dropout = Dropout(self.block.dropout)

    def stack(num_layers, causal):
      return Stack((Segment(self.block, num_layers, self.pattern),), self.position, causal,
                   cross=causal, window=self.window, unroll=self.unroll, remat=self.remat,
                   dtype=dtype)

    self.encoder = stack(self.num_layers, causal=False)
    self.decoder = stack(self.num_decoder_layers or self.num_layers, causal=True)

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """The decoder's hidden states [B, T, D]; `logits` maps them to the vocabulary."""
    memory, _ = self.encode(batch, train)
    hidden, _ = self.decode(batch, memory, train)
    if self.is_initializing():
      self.logits(hidden)  # creates the output kernel, which a call does not use
    return hidden

  def encode(self, batch: Batch, train: bool = False, return_weights: bool = False):
    """Source [B, S] to its memory [B, S, D], and attention weights where asked for."""
    x = self.embed(self.src_embed, batch["src"], batch["src_positions"], train)
    ctx = Context(batch["src_positions"], batch["src_segment_ids"], train=train,
                  return_weights=return_weights)
    x, out = self.encoder(x, ctx)
    return x, out.weights

  def decode(self, batch: Batch, memory: jax.Array, train: bool = False,
             return_weights: bool = False):
    """Target inputs [B, T] to hidden states [B, T, D], and attention weights where asked for."""
    x = self.embed(self.tgt_embed, batch["tgt_in"], batch["tgt_positions"], train)
    ctx = Context(batch["tgt_positions"], batch["tgt_segment_ids"], memory=memory,
                  memory_segments=batch["src_segment_ids"], train=train,
                  return_weights=return_weights)
    x, out = self.decoder(x, ctx)
    return x, out.weights

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, each [layers, B, N, query, key], for pictures."""
    memory, (encoder,) = self.encode(batch, return_weights=True)
    _, (decoder,) = self.decode(batch, memory, return_weights=True)
    return {"encoder": encoder["self"], "decoder": decoder["self"], "cross": decoder["cross"]}

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    if self.share_embeddings == "none":
      logits = self.output(hidden)
    else:
      logits = self.tgt_embed.attend(hidden)
    logits = logits.astype(jnp.float32)
    return logits + self.bias if self.output_bias else logits

  def start(self, batch: Batch, rows: int, length: int, bos_id: int,
            cache_length: int | None = None):
    """Encodes the source and decodes the first token.

    Args:
      batch: with `src [B, S]`, `src_segment_ids` and `src_positions`.
      rows: hypotheses of each source, in `step`.
      length: T, the most tokens that will be decoded.
      bos_id: the token that the target starts from.
      cache_length: tokens that the state has room for before it grows; None is all.

    Returns:
      Logits [B, V] after bos_id, and the state of `step` for B * rows hypotheses.
    """
    self.position.check_length(length)
    memory, _ = self.encode(batch)
    B = memory.shape[0]
    room = cache_length or length
    cache = self.decoder.empty_cache(B, rows, room, self.width)
    # All start from what the first one writes.
    ancestors = jnp.full((B, rows, room), -1, jnp.int32).at[:, :, 0].set(0)
    state = DecodeState(cache, ancestors, None, batch["src_segment_ids"])
    return self.advance(jnp.full(B, bos_id, jnp.int32), state, jnp.array(0), memory)

  def step(self, tokens: jax.Array, state: DecodeState, index: jax.Array):
    """Logits [B, V] after tokens [B], which stand at place `index`, and the new state.

    The batch may be a multiple of the source's: consecutive rows share a source.
    """
    rows = jnp.arange(state.ancestors.shape[1])
    state = state.replace(ancestors=state.ancestors.at[:, :, index].set(rows))
    return self.advance(tokens, state, index, None)

  def advance(self, tokens: jax.Array, state: DecodeState, index: jax.Array,
              memory: jax.Array | None):
    """Tokens of the first hypotheses; with a memory [B, S, D] its keys and values are kept."""
    B, R, T = state.ancestors.shape
    ancestors = state.ancestors[:, :len(tokens) // B]
    own = ancestors[:, :, None, :] == jnp.arange(R)[:, None]  # [B, r, R, T]
    tokens = tokens[:, None]
    positions = jnp.broadcast_to(index, tokens.shape)
    x = self.embed(self.tgt_embed, tokens, positions, train=False)
    ctx = Context(positions, memory=memory, memory_segments=state.memory_segments, index=index,
                  cache_index=jnp.tile(jnp.arange(T), R), cache_pairs=own.reshape(B, -1, R * T),
                  keep_memory=memory is not None)
    x, out = self.decoder(x, ctx, cache=state.cache, memory=state.memory)
    state = state.replace(cache=out.cache, memory=state.memory if memory is None else out.memory)
    return self.logits(x[:, -1]), state

  def embed(self, table: layers.Embed, tokens: jax.Array, positions: jax.Array,
            train: bool) -> jax.Array:
    """Tokens [B, T] to the input [B, T, D] of a stack."""
    x = table(tokens)
    if self.scale_embeddings:
      x *= self.width**0.5
    has_table = self.position.embedding_table(self.width) is not None
    x = self.position.embed(x, positions, self.position_table if has_table else None)
    x = constrain(x, "batch", "length", None)
    return self.dropout(x, train)
