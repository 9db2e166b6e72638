"""XLNet (Yang et al. 2019): an encoder that predicts tokens in any order, by a second stream.

The content stream is the encoder as it is. The query stream has a vector for each token that is to
be predicted, which knows its place and not its content. Both go through the same layers: the
queries are further tokens of the rows, which all see content alone and nothing sees (section 2.3).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.encoder import EmbeddingConfig, Encoder
from jtx.nn import layers
from jtx.nn.attention import AttentionConfig
from jtx.nn.block import BlockConfig, Context
from jtx.nn.numerics import spread
from jtx.nn.positions import Places
from jtx.nn.recurrence import remembered, seen_of
from jtx.nn.stack import StackConfig
from jtx.nn.transformer_xl import TransformerXl
from jtx.parallel.sharding import Batch, constrain

XLNET_STACK = StackConfig(
    width=768, num_layers=12, position=TransformerXl(),
    block=BlockConfig(
        attention=AttentionConfig(num_heads=12, dropout=0.1), init_std=0.02,
        ffn=layers.FfnConfig(dim=3072, activation="gelu", dropout=0.1),
        norm=layers.NormConfig(eps=1e-12)))
TOKENS_ALONE = EmbeddingConfig(types=0, norm=False)


def stream_pairs(seen: jax.Array, at: jax.Array) -> jax.Array:
  """Whether tokens of both streams see those of the content, bool [B, T + K, T], content first.

  Args:
    seen: [B, T, T] bool, whether the prediction of a token may depend on another.
    at: [B, K] int, the places of the queries.
  """
  content = seen | jnp.eye(seen.shape[1], dtype=bool)
  queries = jnp.take_along_axis(seen, at[:, :, None], 1)
  return jnp.concatenate([content, queries], 1)


class Xlnet(Encoder):
  """An `Encoder` with a query stream; batches are the encoder's.

  With `text_memory` [B, layers, M, D], what `remember` made of the rows before, the first text of
  each row sees that memory, too, as tokens of type 0.
  """
  stack: StackConfig = XLNET_STACK  # the layers, with positions that are not added to embeddings
  embedding: EmbeddingConfig = TOKENS_ALONE  # inputs of the layers are token embeddings alone
  plm: bool = False  # has the head of permutation language modelling

  def setup(self):
    self.check()
    super().setup()
    std = self.stack.block.init_std or 0.02
    self.mask_embedding = layers.param(self, "mask_embedding", nn.initializers.normal(std),
                                       (self.stack.width,), ("embed",))
    if self.plm:
      self.plm_bias = layers.param(self, "plm_bias", nn.initializers.zeros, (self.vocab_size,),
                                   ("vocab",))

  def check(self) -> None:
    """Raises ConfigError where a field does not go with two streams."""
    stack = self.stack
    if self.mlm:
      raise ConfigError("mlm=True is of model.name='encoder'; 'xlnet' has plm")
    if self.embedding != TOKENS_ALONE:
      raise ConfigError(f"embedding={self.embedding}: inputs of model.name='xlnet' are token"
                        " embeddings alone, with types=0 and norm=False")
    if stack.position.embeds:
      raise ConfigError(f"stack.position: a {type(stack.position).__name__} is added to embeddings,"
                        " and model.name='xlnet' needs one of attention, such as 'transformer_xl'")
    if stack.causal or set(stack.pattern) != {"global"}:
      raise ConfigError(f"stack.causal={stack.causal} and stack.pattern={stack.pattern}: layers of"
                        " model.name='xlnet' are 'global' and not causal; an order of prediction"
                        " says what is seen")

  @property
  def heads(self) -> frozenset[str]:
    return super().heads | ({"plm"} if self.plm else set())

  def predicted(self, batch: Batch, at: jax.Array, train: bool = False) -> jax.Array:
    """Scores float32 [B, K, V] of the tokens at places [B, K], as `streams` predicts them."""
    _, queries = self.streams(batch, at, train)
    return self.plm_logits(constrain(queries, "batch", "length", None))

  def plm_logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    return self.embed.attend(hidden).astype(jnp.float32) + self.plm_bias

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    places = self.places(batch)
    ctx = Context(places, batch["text_segment_ids"], pairs=batch.get("text_pairs"), train=train,
                  **returns)
    return self.encoder(self.embed_tokens(batch, places, train), self.recall(ctx, batch))

  def recall(self, ctx: Context, batch: Batch) -> Context:
    """The context with the memory of a batch, if it has one; none of its tokens sees a query."""
    length, states = batch["text"].shape[1], None
    if "text_memory" in batch:
      self.check_memory()
      states = jnp.moveaxis(batch["text_memory"], 1, 0)
    elif ctx.segments.shape[1] == length:
      return ctx
    return ctx.replace(seen=seen_of(ctx.places, ctx.segments, length, pairs=ctx.pairs,
                                    states=states))

  def check_memory(self) -> None:
    """Raises ConfigError where the layers have no use for a memory."""
    norm = self.stack.block.norm.position
    if norm in ("pre", "sandwich") or len(self.stack.segments) > 1:
      raise ConfigError(f"stack.block.norm.position={norm!r}: a memory is of layers that are all"
                        " alike, whose attention takes their input as it is, as with 'post'")

  def remember(self, batch: Batch, length: int) -> tuple[jax.Array, jax.Array]:
    """Hidden states [B, T, D], and the memory [B, layers, M, D] for the rows that follow.

    Args:
      batch: rows of one text each, without padding; with `text_memory` where others came before.
      length: M, the most tokens that are kept.
    """
    hidden, out = self.run(batch, return_hidden=True)
    first = self.embed_tokens(batch, self.places(batch), train=False)
    states = jnp.moveaxis(batch["text_memory"], 1, 0) if "text_memory" in batch else None
    inputs = jnp.concatenate([first[None], out.hidden[:-1]])
    return hidden, jnp.moveaxis(remembered(inputs, states, length), 0, 1)

  def streams(self, batch: Batch, at: jax.Array, train: bool = False,
              ) -> tuple[jax.Array, jax.Array]:
    """Hidden states of the last layer, of the content [B, T, D] and of queries [B, K, D].

    Args:
      batch: with `text_pairs` [B, T, T] bool, whether the prediction of a token may depend on
        another; a token's content is its own, whatever they say.
      at: [B, K] int, the places of the queries.
      train: dropout on.
    """
    both = lambda x: jnp.concatenate([x, jnp.take_along_axis(x, at, 1)], 1)
    places, (B, T) = self.places(batch), batch["text"].shape
    x = self.embed_tokens(batch, places, train)
    queries = spread(self.mask_embedding, (B, at.shape[1], x.shape[-1]), x.dtype)
    x = jnp.concatenate([x, self.dropout(queries, train)], 1)
    ctx = Context(Places(both(places.positions), both(places.types)),
                  both(batch["text_segment_ids"]),
                  pairs=stream_pairs(batch["text_pairs"].astype(bool), at), train=train)
    x, _ = self.encoder(constrain(x, "batch", "residual", None), self.recall(ctx, batch))
    return x[:, :T], x[:, T:]
