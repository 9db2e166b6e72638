"""The encoder-decoder Transformer (Vaswani et al. 2017) and its variants, by config."""

import dataclasses
from typing import Annotated

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.models.contract import flags_of
from jtx.models.generative import Generative
from jtx.models.heads import heads_of
from jtx.models.text_head import Head, HeadConfig
from jtx.nn import layers
from jtx.nn.block import Context, Memory
from jtx.nn.cache import DecodeState, Slots
from jtx.nn.dropout import Dropout
from jtx.nn.experts import SUMS
from jtx.nn.positions import Places, Sinusoidal
from jtx.nn.shift import shift_right
from jtx.nn.stack import Outputs, Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Positive, Size, Within

SUFFIXES = ("_segment_ids", "_positions")
TIES = ("source", "output", "positions")
# Fields by which stacks have the same parameters, but for those of cross-attention.
SAME = ("width", "num_layers", "block", "position", "position_at", "final_norm", "share")
ENCODER = StackConfig(position=Sinusoidal())
DECODER = StackConfig(position=Sinusoidal(), causal=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
  """The fields of embeddings and output. What is tied to the target's embedding is its own."""
  tie: tuple[str, ...] = TIES  # the source's embedding; output weights; both stacks' positions
  scale: bool = True  # times sqrt(width)
  norm: bool = False  # of each stack's input (BART)
  output_scale: float = 1.0  # of the hidden states before the logits (T5 has width^-0.5)
  output_bias: bool = False  # logits have a bias, a number a token (BART)
  init_std: Positive | None = None  # None is width^-0.5 with `scale`, and else 0.02
  final_dropout: bool = False  # also of both stacks' outputs (T5)

  def __post_init__(self):
    for name in self.tie:
      if name not in TIES:
        raise ConfigError(f"embedding.tie={self.tie}: {nearest(name, TIES)}")


class EncDec(Generative):
  """Source and target tokens to the decoder's hidden states, and these to logits.

  Batch keys, all int32: `src [B, S]`, `src_segment_ids [B, S]`, `src_positions [B, S]`, and
  the same for `tgt_in [B, T]` with `tgt_segment_ids` and `tgt_positions`. Target segment i
  attends to source segment i; segment 0 is padding.

  A head for texts takes batches of `text`, as an encoder's does. Both stacks read a text, the
  decoder behind `head_start`, and the head gets the decoder's hidden states, of which the last has
  seen all (Lewis et al. 2020, section 4.1).

  With `share_stacks` the encoder's layers are the decoder's (Raffel et al. 2020, section 3.2):
  self-attention, feed-forward, norms, the final norm and tables of positions are in the parameters
  once, as the decoder's. Cross-attention with its norms is the decoder's own.
  """
  vocab_size: Size  # V, tokens of targets; unset, the tokenizer's
  src_vocab_size: Size | None = None  # None: the target's vocabulary
  encoder: StackConfig = ENCODER  # the layers that read the source
  decoder: StackConfig = DECODER  # the layers that write the target
  share_stacks: bool = False  # the encoder has the parameters of the decoder's layers
  embedding: EmbeddingConfig = EmbeddingConfig()  # tokens to the layers' inputs; outputs to scores
  seq2seq: bool = True  # has scores of target tokens
  head: HeadConfig = HeadConfig(pool="last")  # for a task, beside or in place of `seq2seq`
  # The token before a text's first, that a head needs; -1 is the text's own last token (mBART)
  head_start: Annotated[int, Within("[-1, inf)")] | None = None
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, c = layers.compute_dtype(self.dtype), self.embedding
    src_vocab_size = self.src_vocab_size or self.vocab_size
    std = lambda stack: c.init_std or (stack.width**-0.5 if c.scale else 0.02)
    self.tgt_embed = layers.Embed(self.vocab_size, self.decoder.width, std(self.decoder), dtype)
    self.src_embed = self.tgt_embed
    if "source" not in c.tie:
      self.src_embed = layers.Embed(src_vocab_size, self.encoder.width, std(self.encoder), dtype)
    self.tgt_params = self.decoder.embed_params(
        self, prefix="" if "positions" in c.tie else "tgt_")
    self.src_params = self.tgt_params
    if "positions" not in c.tie:
      self.src_params = self.encoder.embed_params(self, prefix="src_")
    if c.norm:
      self.src_norm, self.tgt_norm = (s.block.norm.make(None) for s in (self.encoder, self.decoder))
    if self.seq2seq and "output" not in c.tie:
      self.output = layers.Dense((self.vocab_size,), ("embed", "vocab"), use_bias=False,
                                 dtype=dtype)
    if self.seq2seq and c.output_bias:
      self.bias = layers.param(self, "output_bias", nn.initializers.zeros, (self.vocab_size,),
                               ("vocab",))
    self.dropout = self.tgt_dropout = Dropout(self.encoder.block.dropout)
    if self.decoder.block.dropout != self.encoder.block.dropout:
      self.tgt_dropout = Dropout(self.decoder.block.dropout)
    if not self.share_stacks:
      self.encoder_stack = Stack(self.encoder, dtype=dtype, name="encoder", kept_as=jnp.int16)
    self.decoder_stack = Stack(self.decoder, cross=True, dtype=dtype, name="decoder",
                               kept_as=jnp.uint16)
    if self.head.task != "none":
      self.task_head = Head(self.head, self.decoder.block, dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    src_vocab_size = self.src_vocab_size or self.vocab_size
    tie = self.embedding.tie
    if "source" in tie and src_vocab_size != self.vocab_size:
      raise ConfigError(f"embedding.tie={tie} needs one vocabulary, not {src_vocab_size} source"
                        f" and {self.vocab_size} target tokens; leave out 'source'")
    if "source" in tie and self.encoder.width != self.decoder.width:
      raise ConfigError(f"embedding.tie={tie} needs encoder.width={self.encoder.width} and"
                        f" decoder.width={self.decoder.width} to be one; leave out 'source'")
    if (self.head.task == "none") != (self.head_start is None):
      raise ConfigError(f"head_start={self.head_start} goes with a head, and head.task is"
                        f" {self.head.task!r}")
    same = all(getattr(self.encoder, key) == getattr(self.decoder, key)
               for key in ("width", "position", "position_at"))
    tables = any(s.position.model_tables(s.width) for s in (self.encoder, self.decoder))
    if "positions" in tie and not same and tables:
      raise ConfigError(f"embedding.tie={tie} needs the same width, position and position_at of"
                        " encoder and decoder; leave out 'positions'")
    differing = [k for k in SAME if getattr(self.encoder, k) != getattr(self.decoder, k)]
    if self.share_stacks and differing:
      raise ConfigError(f"share_stacks=True needs {' and '.join(f'encoder.{k}' for k in differing)}"
                        " to be the decoder's; set them, or leave share_stacks False")
    if self.share_stacks and self.lora.rank:
      raise ConfigError(f"lora.rank={self.lora.rank} has no place with share_stacks=True, whose"
                        " encoder has no layers of its own to adapt; leave one of them out")

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {"encoder": self.encoder, "decoder": self.decoder}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"seq2seq"} if self.seq2seq else ()) | heads_of(self.head.task)

  def example(self) -> Batch:
    fields, tokens, rows = ("src", "tgt"), ("src", "tgt_in"), 2 if self.head.both_orders else 1
    if self.heads and not self.seq2seq:
      fields = tokens = ("text",)
    keys = [f"{field}{suffix}" for field in fields for suffix in SUFFIXES]
    return {key: jnp.zeros((rows, 1), jnp.int32) for key in (*tokens, *keys)}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """The decoder's hidden states [B, T, D]; `logits` maps them to the vocabulary."""
    pairs = self.pairs_of(batch)
    memory, _ = self.encode(pairs, train)
    hidden, _ = self.decode(pairs, memory, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.seq2seq:
        self.logits(hidden)
      if self.head.task != "none":
        self.outputs(hidden, {f"text{key}": pairs[f"tgt{key}"] for key in SUFFIXES})
    return hidden

  def pairs_of(self, batch: Batch) -> Batch:
    """A batch of texts as one of sources and targets, which are the same; another as it is."""
    if "src" in batch:
      return batch
    text, segments = batch["text"], batch["text_segment_ids"]
    same = {f"{field}{key}": batch[f"text{key}"] for field in ("src", "tgt") for key in SUFFIXES}
    return same | {"src": text, "tgt_in": shift_right(text, segments, self.head_start)}

  def encode(self, batch: Batch, train: bool = False, return_weights: bool = False):
    """Source [B, S] to its memory [B, S, D], and attention weights where asked for."""
    places = Places(batch["src_positions"])
    x = self.embed_source(batch["src"], places, train)
    ctx = Context(places, batch["src_segment_ids"], flags_of(batch, "src", self.encoder, places),
                  embed_params=self.encoder.shared(self.src_params), train=train,
                  return_weights=return_weights)
    if self.is_initializing() and self.share_stacks:
      return x, None  # the decoder makes the parameters
    x, out = (self.shared_stack if self.share_stacks else self.encoder_stack)(x, ctx)
    return self.dropout(x, train) if self.embedding.final_dropout else x, out.weights

  def shared_stack(self, x: jax.Array, ctx: Context) -> tuple[jax.Array, Outputs]:
    """The encoder's stack with the parameters of the decoder's that it has, too."""
    own = {name: {key: value for key, value in part.items() if not key.startswith("cross_")}
           if name.startswith("layers") else part
           for name, part in self.variables["params"]["decoder"].items()}
    stack = Stack(self.encoder, dtype=self.compute_dtype, name="encoder", parent=None,
                  kept_as=jnp.int16)
    rngs = {"dropout": self.make_rng("dropout")} if self.has_rng("dropout") else {}
    heard = [SUMS] if self.is_mutable_collection(SUMS) else []  # of experts
    result, told = stack.apply({"params": own}, x, ctx, rngs=rngs, mutable=heard)
    for name, sums in told.items():
      self.put_variable(name, "encoder", sums)
    return result

  def decode(self, batch: Batch, memory: jax.Array, train: bool = False,
             return_weights: bool = False):
    """Target inputs [B, T] to hidden states [B, T, D], and attention weights where asked for."""
    places = Places(batch["tgt_positions"])
    x = self.embed_target(batch["tgt_in"], places, train)
    ctx = Context(places, batch["tgt_segment_ids"], flags_of(batch, "tgt", self.decoder, places),
                  memory=Memory(memory, batch["src_segment_ids"], Places(batch["src_positions"])),
                  embed_params=self.decoder.shared(self.tgt_params), train=train,
                  return_weights=return_weights)
    x, out = self.decoder_stack(x, ctx)
    return self.tgt_dropout(x, train) if self.embedding.final_dropout else x, out.weights

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, each [layers, B, N, query, key], for pictures."""
    batch = self.pairs_of(batch)
    memory, encoder = self.encode(batch, return_weights=True)
    _, decoder = self.decode(batch, memory, return_weights=True)
    joined = lambda weights, name: jnp.concatenate([w[name] for w in weights])
    return {"encoder": joined(encoder, "self"), "decoder": joined(decoder, "self"),
            "cross": joined(decoder, "cross")}

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    c = self.embedding
    if c.output_scale != 1.0:
      hidden = hidden * c.output_scale
    logits = self.tgt_embed.attend(hidden) if "output" in c.tie else self.output(hidden)
    logits = logits.astype(jnp.float32)
    return logits + self.bias if c.output_bias else logits

  def memory(self, batch: Batch) -> Memory:
    states, _ = self.encode(batch)
    return Memory(states, batch["src_segment_ids"], Places(batch["src_positions"]))

  def advance(self, tokens: jax.Array, state: DecodeState, slots: Slots, positions: jax.Array,
              segments: jax.Array | None = None, memory: Memory = Memory()):
    """Hidden states of tokens [r, T] that go into `slots`, and the new state.

    Keys and values of a memory are kept in the state.
    """
    places = Places(positions)
    x = self.embed_target(tokens, places, train=False)
    new = memory.states is not None
    ctx = Context(places, segments, slots=slots, keep_memory=new,
                  memory=memory if new else Memory(segments=state.memory_segments),
                  embed_params=self.decoder.shared(self.tgt_params))
    x, out = self.decoder_stack(x, ctx, cache=state.cache, memory=state.memory)
    return x, state.replace(cache=out.cache, memory=out.memory if new else state.memory)

  def embed_source(self, tokens: jax.Array, places: Places, train: bool) -> jax.Array:
    """Tokens [B, S] to the input [B, S, D] of the encoder."""
    x = self.encoder.embed(self.scaled(self.src_embed(tokens)), places, self.src_params)
    x = self.src_norm(x) if self.embedding.norm else x
    return self.dropout(constrain(x, "batch", "residual", None), train)

  def embed_target(self, tokens: jax.Array, places: Places, train: bool) -> jax.Array:
    """Target inputs [B, T] to the input [B, T, D] of the decoder."""
    x = self.decoder.embed(self.scaled(self.tgt_embed(tokens)), places, self.tgt_params)
    x = self.tgt_norm(x) if self.embedding.norm else x
    return self.tgt_dropout(constrain(x, "batch", "residual", None), train)

  def scaled(self, x: jax.Array) -> jax.Array:
    return x * x.shape[-1] ** 0.5 if self.embedding.scale else x
