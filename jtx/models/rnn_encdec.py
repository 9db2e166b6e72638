"""The recurrent encoder-decoder, with attention (Bahdanau et al. 2014) and without it.

Without attention all that the decoder knows of a source is the state that it begins from (Cho et
al. 2014; Sutskever et al. 2014).
"""

import dataclasses
import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.models.rnn_decoding import Recurrently
from jtx.nn import layers
from jtx.nn.additive import Source, additive, place_of
from jtx.nn.dropout import Dropout
from jtx.nn.recurrent import (
    CellConfig,
    Recurrent,
    RecurrentConfig,
    RecurrentStack,
    State,
    matmul,
    over_time,
)
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Positive, Rate, Size, SizeOrNone

GRU = CellConfig(kind="gru")
TIES = ("source", "output")
BRIDGES = ("dense", "copy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RnnEmbeddingConfig:
  """The fields of embeddings and output."""
  width: Size = 256  # E, of a token's vector
  tie: tuple[str, ...] = ()  # what is the target's embedding: the source's; the output weights
  output_bias: bool = True  # logits have a bias, a number a token
  init_std: Positive = 0.1  # of the vectors' first values
  dropout: Rate = 0.0  # of the vectors

  def __post_init__(self):
    for name in self.tie:
      if name not in TIES:
        raise ConfigError(f"embedding.tie={self.tie}: {nearest(name, TIES)}")


class RnnEncDec(Recurrently):
  """Source and target tokens to the decoder's hidden states, and these to logits.

  Batches are those of `jtx.models.encdec.EncDec`. With attention the first layer of the decoder
  reads [y; c], the token before and the context that the last layer's state before attends to.
  What is mapped to the vocabulary is tanh(W [s; c; y]) with `readout` (in place of the maxout of
  Bahdanau et al. 2014, A.2.2), and the last layer's s without.

  The decoder begins from tanh(W [h_S; h_1]) of the last forward and the first backward state of the
  encoder's last layer (the paper has the backward one alone), in a cell without tanh and of cells;
  or layer for layer from the states of an encoder of the same layers.
  """
  vocab_size: Size  # V, tokens of targets; unset, the tokenizer's
  src_vocab_size: Size | None = None  # None: the target's vocabulary
  encoder: RecurrentConfig = RecurrentConfig(cell=GRU, bidirectional=True)  # reads the source
  decoder: RecurrentConfig = RecurrentConfig(cell=GRU)  # writes the target
  attention: SizeOrNone = 256  # A, width of additive attention; 0: there is none
  bridge: str = "dense"  # from the encoder's states to the decoder's first ones; or "copy"
  readout: SizeOrNone = 256  # width of the layer before the logits; 0: there is none
  readout_dropout: Rate = 0.0  # of what this layer gives
  embedding: RnnEmbeddingConfig = RnnEmbeddingConfig()  # tokens to vectors; outputs to scores
  dtype: str = "auto"  # of products; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, c, e, d = (layers.compute_dtype(self.dtype), self.embedding, self.encoder, self.decoder)
    embed = lambda number: layers.Embed(number, c.width, c.init_std, dtype)
    dense = lambda width, *axes, **more: layers.Dense((width,), axes, dtype=dtype, **more)
    self.tgt_embed = self.src_embed = embed(self.vocab_size)
    if "source" not in c.tie:
      self.src_embed = embed(self.src_vocab_size or self.vocab_size)
    self.embed_dropout, self.readout_drop = Dropout(c.dropout), Dropout(self.readout_dropout)
    self.between = Dropout(d.dropout)
    self.encoder_stack = RecurrentStack(e, c.width, dtype=dtype, name="encoder")
    R = d.cell.outputs(d.dim)
    self.layers = [Recurrent(d.cell, R if i else c.width, d.dim, dtype=dtype, name=f"decoder_{i}")
                   for i in range(d.num_layers)]
    if self.attention:
      self.key = dense(self.attention, "embed", "factors")
      # Of every place in turn: the state before, its products, and the context for the gates.
      self.query = layers.param(self, "query", layers.kernel_init(None, 1, 2),
                                (R, self.attention), ("lstm", "factors"))
      self.vector = layers.param(self, "vector", nn.initializers.normal(self.attention**-0.5),
                                 (self.attention,), ("factors",))
      self.context = layers.param(self, "context", layers.kernel_init(None, 1, 3),
                                  (e.width, d.cell.gates, d.dim), ("embed", "gates", "lstm"))
    if self.bridge == "dense":
      self.bridges = [{part: dense(width, "lstm", "embed", name=f"bridge_{part}_{i}")
                       for part, width in (("hidden", R), ("cell", d.dim))
                       if part == "hidden" or d.cell.kind == "lstm"} for i in range(d.num_layers)]
    if self.readout:
      self.readout_layer = dense(self.readout, "lstm", "embed", name="readout")
    if "output" not in c.tie:
      self.output = dense(self.vocab_size, "embed", "vocab", use_bias=c.output_bias)
    elif c.output_bias:
      self.bias = layers.param(self, "output_bias", nn.initializers.zeros, (self.vocab_size,),
                               ("vocab",))

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    c, e, d = self.embedding, self.encoder, self.decoder
    src_vocab_size = self.src_vocab_size or self.vocab_size
    if "source" in c.tie and src_vocab_size != self.vocab_size:
      raise ConfigError(f"embedding.tie={c.tie} needs one vocabulary, not {src_vocab_size} source"
                        f" and {self.vocab_size} target tokens; leave out 'source'")
    width = self.readout or d.width
    if "output" in c.tie and width != c.width:
      raise ConfigError(f"embedding.tie={c.tie} needs embedding.width={c.width} to be"
                        f" {'readout' if self.readout else 'the decoder layers` width'}={width};"
                        " leave out 'output'")
    if d.bidirectional:
      raise ConfigError("decoder.bidirectional=True: a decoder reads what it has written only")
    if self.bridge not in BRIDGES:
      raise ConfigError(f"bridge={self.bridge!r}: {nearest(self.bridge, BRIDGES)}")
    alike = [getattr(e, key) == getattr(d, key) for key in ("cell", "dim", "num_layers")]
    if self.bridge == "copy" and (e.bidirectional or not all(alike)):
      raise ConfigError("bridge='copy' needs an encoder of one direction, with the decoder's cell,"
                        " dim and num_layers; 'dense' takes any")
    if self.readout_dropout and not self.readout:
      raise ConfigError(f"readout_dropout={self.readout_dropout} goes with readout above 0")

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"seq2seq"})

  def example(self) -> Batch:
    keys = [f"{field}{suffix}" for field in ("src", "tgt")
            for suffix in ("_segment_ids", "_positions")]
    return {key: jnp.zeros((1, 1), jnp.int32) for key in ("src", "tgt_in", *keys)}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """The hidden states [B, T, D] that `logits` maps to the vocabulary."""
    source, starts = self.encode(batch, batch["tgt_segment_ids"], train)
    hidden, _, _ = self.decode(batch["tgt_in"], batch["tgt_segment_ids"], source, starts, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      self.logits(hidden)
    return hidden

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of the target's tokens on the source's, as "cross" [1, B, 1, T, S]."""
    if not self.attention:
      return {}
    source, starts = self.encode(batch, batch["tgt_segment_ids"])
    _, _, weights = self.decode(batch["tgt_in"], batch["tgt_segment_ids"], source, starts)
    return {"cross": weights[None, :, None]}

  def encode(self, batch: Batch, wanted: jax.Array,
             train: bool = False) -> tuple[Source | None, tuple[State, ...]]:
    """What the decoder attends to, and the states [B, T, ...] that its segments begin from.

    Args:
      batch: with the source's keys.
      wanted: [B, T] int, the segments of the target.
      train: dropout on.
    """
    segments = batch["src_segment_ids"]
    x = self.embed_dropout(self.src_embed(batch["src"]), train)
    given, carried = self.encoder_stack(constrain(x, "batch", "length", None), segments, train)
    source = None
    if self.attention:
      source = Source(given[-1], self.key(given[-1]), segments)
    pick = lambda last: lambda x: at_ends(x, segments, wanted, last)
    ends = [tuple(jax.tree.map(pick(way == "forward"), state)
                  for way, state in zip(self.encoder.directions, of_layer))
            for of_layer in carried.states]
    if self.bridge == "copy":
      return source, tuple(state for state, in ends)
    hidden, cell = (jnp.concatenate([end[i] if end[i] is not None else end[0] for end in ends[-1]],
                                    -1) for i in (0, 1))
    starts = []
    for parts in self.bridges:
      first = jnp.tanh(parts["hidden"](hidden)).astype(jnp.float32)
      starts.append(State(first, parts["cell"](cell).astype(jnp.float32)
                          if "cell" in parts else None))
    return source, tuple(starts)

  def decode(self, tokens: jax.Array, segments: jax.Array, source: Source | None,
             starts: tuple[State, ...], train: bool = False):
    """Target inputs [B, T] to hidden states [B, T, D], the layers' states and weights [B, T, S].

    Args:
      tokens: [B, T].
      segments: [B, T] int.
      source: of the encoder, or None.
      starts: states that segments begin from, [B, ...] or [B, T, ...].
      train: dropout on.
    """
    c, B = self.decoder, len(tokens)
    x = constrain(self.embed_dropout(self.tgt_embed(tokens), train), "batch", "length", None)
    readers, steps = zip(*((layer.reader(), layer.stepper()) for layer in self.layers))
    noise = [self.between(jnp.ones((*tokens.shape, layer.inputs)), train)
             for layer in self.layers[1:]] if train and c.dropout else None
    # What the last layer gives: with residuals, what all of them do.
    top = lambda states: sum(s.hidden for s in (states if c.residual else states[-1:]))
    # Float32 until the step: the gradients of both are sums over the target's places.
    wide = source and source.astype(jnp.float32)

    def step(states, place):
      gates, segment, noise = place
      context = weights = None
      if wide is not None:
        context, of_context, weights = self.attend(top(states), wide.astype(x.dtype), segment)
        gates = gates + of_context
      new = []
      for i, (read, step) in enumerate(zip(readers, steps)):
        if i:
          below = top(new)
          gates = read(below if noise is None else below * noise[i - 1])
        new.append(step(gates, states[i]))
      return tuple(new), (top(new), context, weights)

    states, (given, context, weights), _ = over_time(
        step, (c.cell.zeros(B, c.dim),) * c.num_layers, (readers[0](x), segments, noise),
        segment_ids=segments, starts=starts)
    hidden = given.astype(x.dtype)
    if self.readout:
      parts = [hidden, x] if context is None else [hidden, context.astype(x.dtype), x]
      hidden = jnp.tanh(self.readout_layer(jnp.concatenate(parts, -1)))
      hidden = self.readout_drop(hidden, train)
    return hidden, states, weights

  def attend(self, before: jax.Array, source: Source, segments: jax.Array):
    """The context [B, E] of a place, its part of the first layer's gates, and weights [B, S].

    Args:
      before: [B, R], what the last layer gave at the place before.
      source: of the rows.
      segments: [B] int, of the place.
    """
    dtype = source.values.dtype
    query, vector, C = (x.astype(dtype) for x in (self.query, self.vector, self.context))
    context, weights = additive(matmul(before, query), source, vector, segments)
    of_context = matmul(context, C.reshape(len(C), -1)).reshape(len(before), *C.shape[1:])
    return context, of_context, weights

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    c = self.embedding
    if "output" not in c.tie:
      return self.output(hidden).astype(jnp.float32)
    logits = self.tgt_embed.attend(hidden).astype(jnp.float32)
    return logits + self.bias if c.output_bias else logits

  def source(self, batch: Batch) -> tuple[Source | None, tuple[State, ...]]:
    """As `Recurrently` asks for it: each row of the batch is one source."""
    ones = jnp.ones((len(batch["src"]), 1), jnp.int32)
    source, starts = self.encode(batch, ones)
    return source, jax.tree.map(lambda x: x[:, 0], starts)

  def advance(self, tokens: jax.Array, segments: jax.Array, source: Source | None,
              starts: tuple[State, ...]):
    hidden, states, _ = self.decode(tokens, segments, source, starts)
    return hidden, states


def at_ends(x: jax.Array, segment_ids: jax.Array, wanted: jax.Array, last: bool) -> jax.Array:
  """[B, S, D] at the first or last place of the segments [B, T] that are wanted, else zeros."""
  place, exists = place_of(segment_ids, wanted, last)
  return jnp.where(exists[..., None], jnp.take_along_axis(x, place[..., None], 1), 0)
