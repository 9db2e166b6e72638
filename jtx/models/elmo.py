"""ELMo (Peters et al. 2018): language models of both directions over words made of characters.

The vocabulary of inputs is open: a row is bytes, and words are what white space parts. Two stacks
of LSTMs read the words, one forward and one backward, and each predicts the word that comes next
to it. Hidden states are given at every byte, those of its word, so that heads, evaluators and
predictions are those of other encoders; tags stand at a word's first token.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.features import FeatureConfig, Features
from jtx.models.heads import heads_of
from jtx.models.text_head import Head, HeadConfig
from jtx.nn import layers
from jtx.nn.block import BlockConfig
from jtx.nn.characters import FIRST_BYTE_ID, CharacterCnn, CharacterConfig, Words, words_of
from jtx.nn.dropout import Dropout
from jtx.nn.recurrent import Carried, CellConfig, RecurrentConfig, RecurrentStack
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch
from jtx.ranges import Rate, Size, SizeOrNone

LSTMS = RecurrentConfig(
    dim=4096, num_layers=2, residual=True,
    cell=CellConfig(projection=512, forget_bias=1.0, cell_clip=3.0, projection_clip=3.0))


class Elmo(nn.Module):
  """Bytes to hidden states of words in both directions, and these to what heads make of them.

  Batch keys, all int32 [B, T]: `text`, ids of the tokenizer "bytes"; `text_segment_ids`, 0 for
  padding; `text_positions`; and for the objective "bilm" `text_targets`, at the first byte of a
  word its number in the output's vocabulary, which the op "word_targets" makes.

  With `features.layers` the head reads the states of the layers as they are: 0 the words' vectors,
  1 and 2 the LSTMs'. `features.combine='scalar_mix'` is gamma sum_j s_j h_j, with s a softmax
  (equation 1 of the paper).
  """
  vocab_size: Size  # of the inputs: 260, that of the tokenizer "bytes"; unset, the tokenizer's
  characters: CharacterConfig = CharacterConfig()  # words' vectors
  recurrent: RecurrentConfig = LSTMS  # the layers of each direction
  max_words: SizeOrNone = 0  # of a row, that are read; 0 is as many as can be in it
  output_vocab_size: Size | None = None  # words that are told apart; unset, the data's
  bilm: bool = False  # has scores of the words before and behind
  features: FeatureConfig = FeatureConfig()  # that the head reads, of layers as they are
  head: HeadConfig = HeadConfig(pool="mean")  # for a task
  dropout: Rate = 0.1  # of words' vectors and of what the last layers give
  dtype: str = "auto"  # of products; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, c = layers.compute_dtype(self.dtype), self.recurrent
    self.words = CharacterCnn(self.characters, c.width, dtype)
    self.forward_layers = RecurrentStack(c, c.width, dtype=dtype)
    self.backward_layers = RecurrentStack(c, c.width, reverse=True, dtype=dtype)
    self.drop = Dropout(self.dropout)
    if self.bilm:
      self.output = layers.Dense((self.output_vocab_size,), ("embed", "vocab"), dtype=dtype)
    if self.features.layers:
      self.extractor = Features(self.features, dtype)
    if self.head.task != "none":
      self.task_head = Head(self.head, BlockConfig(), dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    if self.vocab_size != FIRST_BYTE_ID + 256:
      raise ConfigError(f"vocab_size={self.vocab_size}: model.name='elmo' reads the"
                        f" {FIRST_BYTE_ID + 256} tokens of config.tokenizer.kind 'bytes'")
    if self.recurrent.bidirectional:
      raise ConfigError("recurrent.bidirectional=True: model.name='elmo' has two directions of its"
                        " own, which do not see each other; leave it False")
    if self.bilm and self.output_vocab_size is None:
      raise ConfigError("bilm=True needs output_vocab_size, which the op 'word_targets' gives")
    if self.features.layers:
      if self.head.task == "none":
        raise ConfigError(f"features.layers={self.features.layers} are for a head, and head.task is"
                          " 'none'")
      self.features.check_layers(self.recurrent.num_layers)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"bilm"} if self.bilm else ()) | heads_of(self.head.task)

  @property
  def longest(self) -> int | None:
    return None

  def example(self) -> Batch:
    keys = ("text", "text_segment_ids", "text_positions")
    return {key: jnp.zeros((2 if self.head.both_orders else 1, 1), jnp.int32) for key in keys}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """The last layers' states [B, T, 2 P] at every byte, forward before backward."""
    words = self.words_of(batch)
    x, ways, _ = self.read(words.characters, words.segments, train=train)
    hidden = at_places(self.drop(jnp.concatenate([way[-1] for way in ways], -1), train), words)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.bilm:
        self.logits(x)
      if self.head.task != "none":
        self.outputs(self.extract(batch) if self.features.layers else hidden, batch)
    return hidden

  def words_of(self, batch: Batch) -> Words:
    text = batch["text"]
    most = text.shape[1] // 2 + 1  # words of one letter; begin and end tokens need no space
    number = self.max_words or most + 2
    return words_of(text, batch["text_segment_ids"], number, self.characters.max_length)

  def read(self, characters: jax.Array, segments: jax.Array, starts=(None, None),
           train: bool = False) -> tuple[jax.Array, tuple[tuple[jax.Array, ...], ...],
                                         tuple[Carried, ...]]:
    """The vectors [B, W, P] of words, what every layer gives of them, and the layers' states.

    Args:
      characters: [B, W, C], see `jtx.nn.characters`.
      segments: [B, W] int, 0 for padding.
      starts: the states that each direction goes on from, `Carried.last` of the rows before.
      train: dropout on.

    Returns:
      The vectors; layers' outputs [B, W, P] of the forward and of the backward direction; and the
      states of both.
    """
    x = self.words(characters)
    y = self.drop(x, train)
    given, carried = zip(*(
        stack(y, segments, train, start) for stack, start in zip(
            (self.forward_layers, self.backward_layers), starts)))
    return x, given, carried

  def directions(self, batch: Batch, train: bool = False) -> tuple[jax.Array, ...]:
    """For "bilm": states [B, W, P] forward and backward, targets [B, W] and segments [B, W]."""
    words = self.words_of(batch)
    _, ways, _ = self.read(words.characters, words.segments, train=train)
    forward, backward = (self.drop(way[-1], train) for way in ways)
    targets = jnp.take_along_axis(batch["text_targets"], words.first, 1)
    return forward, backward, jnp.where(words.segments > 0, targets, -1), words.segments

  def logits(self, hidden: jax.Array) -> jax.Array:
    """[..., P] of either direction to float32 [..., V]: both have one output (section 3.1)."""
    return self.output(hidden).astype(jnp.float32)

  def hidden_states(self, batch: Batch) -> jax.Array:
    """[layers + 1, B, T, 2 P]: words' vectors, twice, then both directions of every layer."""
    words = self.words_of(batch)
    x, ways, _ = self.read(words.characters, words.segments)
    pairs = [(x, x), *zip(*ways)]
    return jnp.stack([at_places(jnp.concatenate(pair, -1), words) for pair in pairs])

  def extract(self, batch: Batch) -> jax.Array:
    """The features [B, T, D'] of layers that are not trained; see `FeatureConfig`."""
    return self.extractor(self.hidden_states(batch), batch["text_segment_ids"])

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """The head's outputs for hidden states; see `Head`."""
    return self.task_head(hidden, batch, num_texts, train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From bytes to the head's outputs."""
    hidden = self.extract(batch) if self.features.layers else self(batch, train)
    return self.outputs(hidden, batch, num_texts, train)

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """None: recurrent layers do not attend."""
    del batch
    return {}


def at_places(x: jax.Array, words: Words) -> jax.Array:
  """What words [B, W, D] have, at every byte [B, T, D]."""
  return jnp.take_along_axis(x, words.of_place[..., None], 1)
