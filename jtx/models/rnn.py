"""Recurrent networks over texts: classifiers, taggers and language models of LSTM or GRU layers.

A language model of one LSTM layer of 2,048 units is what Radford et al. 2018 compare GPT with
(section 5, table 5).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.heads import heads_of
from jtx.models.rnn_decoding import Recurrently
from jtx.models.rnn_encdec import RnnEmbeddingConfig
from jtx.models.text_head import Head, HeadConfig
from jtx.nn import layers
from jtx.nn.block import BlockConfig
from jtx.nn.dropout import Dropout
from jtx.nn.recurrent import Carried, RecurrentConfig, RecurrentStack
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Rate, Size


class Rnn(Recurrently):
  """Tokens to hidden states of recurrent layers, and these to what the heads make of them.

  Batch keys, all int32 [B, T]: `text`, `text_segment_ids`, 0 for padding, by which several texts
  share a row, and `text_positions`.
  """
  vocab_size: Size  # V, tokens; unset, the tokenizer's
  recurrent: RecurrentConfig = RecurrentConfig()  # the layers
  embedding: RnnEmbeddingConfig = RnnEmbeddingConfig()  # tokens to vectors; outputs to scores
  dropout: Rate = 0.0  # of what the last layer gives
  lm: bool = False  # has scores of the next token; needs layers of one direction
  head: HeadConfig = HeadConfig(pool="mean")  # for a task, beside or in place of `lm`
  dtype: str = "auto"  # of products; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, c = layers.compute_dtype(self.dtype), self.embedding
    self.embed = layers.Embed(self.vocab_size, c.width, c.init_std, dtype)
    self.embed_dropout, self.output_dropout = Dropout(c.dropout), Dropout(self.dropout)
    self.stack = RecurrentStack(self.recurrent, c.width, dtype=dtype, name="recurrent_layers")
    if self.lm and "output" not in c.tie:
      self.output = layers.Dense((self.vocab_size,), ("embed", "vocab"), use_bias=c.output_bias,
                                 dtype=dtype)
    elif self.lm and c.output_bias:
      self.bias = layers.param(self, "output_bias", nn.initializers.zeros, (self.vocab_size,),
                               ("vocab",))
    if self.head.task != "none":
      self.task_head = Head(self.head, BlockConfig(), dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    c, width = self.embedding, self.recurrent.width
    if "source" in c.tie:
      raise ConfigError(f"embedding.tie={c.tie}: there is no source; leave out 'source'")
    if self.lm and self.recurrent.bidirectional:
      raise ConfigError("lm=True needs recurrent.bidirectional=False: a layer that reads backward"
                        " has seen the next token")
    if "output" in c.tie and (not self.lm or c.width != width):
      raise ConfigError(f"embedding.tie={c.tie} needs lm=True and embedding.width={c.width} to be"
                        f" the layers' width={width}; leave out 'output'")

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"lm"} if self.lm else ()) | heads_of(self.head.task)

  def example(self) -> Batch:
    keys = ("text", "text_segment_ids", "text_positions")
    return {key: jnp.zeros((2 if self.head.both_orders else 1, 1), jnp.int32) for key in keys}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer."""
    hidden, _ = self.run(batch["text"], batch["text_segment_ids"], train=train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.lm:
        self.logits(hidden)
      if self.head.task != "none":
        self.outputs(hidden, batch)
    return hidden

  def run(self, tokens: jax.Array, segments: jax.Array, starts=None,
          train: bool = False) -> tuple[jax.Array, Carried]:
    """Hidden states [B, T, D] of tokens [B, T], and the states of the layers."""
    x = self.embed_dropout(self.embed(tokens), train)
    given, carried = self.stack(constrain(x, "batch", "length", None), segments, train, starts)
    return self.output_dropout(given[-1], train), carried

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """None: recurrent layers do not attend."""
    del batch
    return {}

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """The head's outputs for hidden states; see `jtx.models.text_head.Head`."""
    return self.task_head(hidden, batch, num_texts, train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From tokens to the head's outputs."""
    return self.outputs(self(batch, train), batch, num_texts, train)

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V], scores of the next token."""
    c = self.embedding
    if "output" not in c.tie:
      return self.output(hidden).astype(jnp.float32)
    logits = self.embed.attend(hidden).astype(jnp.float32)
    return logits + self.bias if c.output_bias else logits

  def source(self, batch: Batch) -> tuple[None, None]:
    """Nothing: a text begins from zeros."""
    del batch
    return None, None

  def advance(self, tokens: jax.Array, segments: jax.Array, source: None, starts):
    hidden, carried = self.run(tokens, segments, starts)
    return hidden, carried.states
