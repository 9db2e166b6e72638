"""Decoder-only language models, by config: GPT, Llama, Gemma, OLMo 2, BLOOM and their like."""

import dataclasses

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.contract import flags_of
from jtx.models.generative import Generative
from jtx.models.heads import heads_of
from jtx.models.text_head import Head, HeadConfig
from jtx.nn import layers
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig, Context, Memory
from jtx.nn.cache import DecodeState, Slots
from jtx.nn.dropout import Dropout
from jtx.nn.positions import Learned, Params, Places
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Positive, Size

GPT2_STACK = StackConfig(
    width=768, num_layers=12, causal=True, position=Learned(max_length=1024),
    block=BlockConfig(
        attention=AttentionConfig(num_heads=12, biases=PROJECTIONS, dropout=0.1),
        ffn=layers.FfnConfig(dim=3072, activation="gelu_tanh"),
        norm=layers.NormConfig(position="pre", eps=1e-5), init_std=0.02))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
  """The fields of a decoder's embeddings and of its output."""
  width: Size | None = None  # None is the stack's (OPT 350M has less)
  scale: bool = False  # times sqrt(width) (Gemma)
  norm: bool = False  # of the embeddings (BLOOM)
  tie: bool = True  # the output weights are the embedding
  output_scale: float = 1.0  # of the hidden states before the logits (T5 has width^-0.5)
  init_std: Positive | None = None  # None is the kernels', or 0.02
  soft_cap: Positive | None = None  # c makes logits c tanh(logits / c) (Gemma 2)


class Decoder(Generative):
  """Tokens to hidden states of a causal stack, and these to scores of the next token.

  Batch keys are those of `jtx.models.encoder.Encoder` without token types: several documents share
  a row by their segments, and layers of kind "prefix" need `text_prefix`.
  """
  vocab_size: Size  # V, tokens; unset, the tokenizer's
  stack: StackConfig = GPT2_STACK  # the layers
  embedding: EmbeddingConfig = EmbeddingConfig()  # tokens to the layers' inputs; outputs to scores
  lm: bool = True  # has scores of the next token
  head: HeadConfig = HeadConfig(pool="last")  # for a task, beside or in place of `lm`
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    dtype, block, width = self.compute_dtype, self.stack.block, self.stack.width
    embed_width = self.embedding.width or width
    if not self.stack.causal:
      raise ConfigError("a decoder needs stack.causal=True")
    dense = lambda features, *axes: layers.Dense(
        (features,), axes, use_bias=False, init_std=block.init_std, dtype=dtype)
    std = self.embedding.init_std or block.init_std or 0.02
    self.embed = layers.Embed(self.vocab_size, embed_width, std, dtype)
    self.position_params = self.stack.embed_params(self)
    if self.embedding.norm:
      self.embed_norm = block.norm.make(None)
    self.dropout = Dropout(block.dropout)
    if embed_width != width:
      self.embed_projection = dense(width, "factors", "embed")
      if self.lm:
        self.output_projection = dense(embed_width, "embed", "factors")
    self.decoder = Stack(self.stack, dtype=dtype)
    if self.lm and not self.embedding.tie:
      self.output = dense(self.vocab_size, "embed", "vocab")
    if self.head.task != "none":
      self.task_head = Head(self.head, block, dtype)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {"decoder": self.stack}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"lm"} if self.lm else ()) | heads_of(self.head.task)

  def example(self) -> Batch:
    keys = ["text", "text_segment_ids", "text_positions"]
    keys += ["text_prefix"] if "prefix" in self.stack.flags else []
    return {key: jnp.zeros((2 if self.head.both_orders else 1, 1), jnp.int32) for key in keys}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer; `logits` maps them to the vocabulary."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.lm:
        self.logits(hidden)
      if self.head.task != "none":
        self.outputs(hidden, batch)
    return hidden

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    c = self.embedding
    if c.width not in (None, self.stack.width):
      hidden = self.output_projection(hidden)
    if c.output_scale != 1.0:
      hidden = hidden * c.output_scale
    logits = (self.embed.attend(hidden) if c.tie else self.output(hidden)).astype(jnp.float32)
    return logits if c.soft_cap is None else c.soft_cap * jnp.tanh(logits / c.soft_cap)

  def hidden_states(self, batch: Batch) -> jax.Array:
    """[layers + 1, B, T, D]: the embeddings, then every layer's output (the last one normed)."""
    x = self.embed_tokens(batch["text"], Places(batch["text_positions"]), train=False)
    last, out = self.run(batch, return_hidden=True)
    return jnp.concatenate([x[None], out.hidden[:-1], last[None]])

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, [layers, B, N, T, S], for pictures."""
    _, out = self.run(batch, return_weights=True)
    return {"decoder": jnp.concatenate([w["self"] for w in out.weights])}

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    places = Places(batch["text_positions"])
    ctx = Context(places, batch["text_segment_ids"], flags_of(batch, "text", self.stack, places),
                  batch.get("text_pairs"), train=train, **returns,
                  embed_params=self.stack.shared(self.position_params))
    return self.decoder(self.embed_tokens(batch["text"], places, train), ctx)

  def advance(self, tokens: jax.Array, state: DecodeState, slots: Slots, positions: jax.Array,
              segments: jax.Array | None = None, memory: Memory = Memory()):
    """Hidden states of tokens [r, T] that go into `slots`, and the new state."""
    places = Places(positions)
    flags, slots = self.prompt_flags(slots, segments)
    ctx = Context(places, segments, flags, slots=slots,
                  embed_params=self.stack.shared(self.position_params))
    x, out = self.decoder(self.embed_tokens(tokens, places, train=False), ctx, cache=state.cache)
    return x, state.replace(cache=out.cache)

  def prompt_flags(self, slots: Slots, segments: jax.Array | None) -> tuple[Params, Slots]:
    """The flags of new tokens, and the slots with theirs: a prompt is a prefix that it sees whole.

    What follows it sees all before it, as in other layers.
    """
    if "prefix" not in self.stack.flags:
      return {}, slots
    if slots.index is None:
      return {"prefix": segments > 0}, slots
    B, T, S = slots.pairs.shape
    none = lambda number: {"prefix": jnp.zeros((B, number), bool)}
    return none(T), slots.replace(flags=none(S))

  def embed_tokens(self, tokens: jax.Array, places: Places, train: bool) -> jax.Array:
    """Tokens [B, T] to the input [B, T, D] of the stack."""
    x = self.embed(tokens)
    x = x * x.shape[-1] ** 0.5 if self.embedding.scale else x
    x = x if x.shape[-1] == self.stack.width else self.embed_projection(x)
    x = self.stack.embed(x, places, self.position_params)
    x = self.embed_norm(x) if self.embedding.norm else x
    return constrain(self.dropout(x, train), "batch", "residual", None)
