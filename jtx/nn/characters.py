"""Vectors of words from their characters (Kim et al. 2016; Jozefowicz et al. 2016; ELMo).

A word is the bytes of its UTF-8 between a begin and an end, then padding, `max_length` in all.
Convolutions of several widths each give their largest value over the word, and highway layers and
a projection stand on them. The bytes of a row become words here, too: white space parts them.
"""

import dataclasses
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.activations import activate
from jtx.nn.numerics import add_bias
from jtx.ranges import LayersOrNone, Size

BYTES = 256
# Characters that are no bytes: texts' begin and end, words' begin and end, and padding.
TEXT_BEGIN, TEXT_END, BEGIN, END, PAD = range(BYTES, BYTES + 5)
CHARACTERS = BYTES + 5
# Ids of tokens, as `jtx.data.tokenizers.utf8.Bytes` has them.
TEXT_BEGIN_ID, TEXT_END_ID, FIRST_BYTE_ID = 1, 2, 4
SPACES = (0x09, 0x0A, 0x0B, 0x0C, 0x0D, 0x20)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharacterConfig:
  """The fields of character convolutions, by default those of ELMo."""
  dim: Size = 16  # of a character's vector
  # (width in characters, number) of the convolutions
  filters: tuple[tuple[Size, Size], ...] = (
      (1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
  highways: LayersOrNone = 2  # layers g relu(W x) + (1 - g) x on them (Srivastava et al. 2015)
  max_length: Size = 50  # characters of a word, its begin and end counted; further ones are cut
  activation: str = "relu"  # of the convolutions

  def __post_init__(self):
    if not self.filters:
      raise ConfigError("characters.filters=(): name at least one width and number")
    if (least := max(width for width, _ in self.filters)) > self.max_length:
      raise ConfigError(f"characters.max_length={self.max_length} is less than the widest filter,"
                        f" {least}")

  @property
  def width(self) -> int:
    """Of what the convolutions give."""
    return sum(number for _, number in self.filters)


class Words(NamedTuple):
  """The W words of rows of bytes."""
  characters: jax.Array  # [B, W, C] int
  segments: jax.Array  # [B, W] int, 0 where there is none
  first: jax.Array  # [B, W] int, the place of the first byte
  of_place: jax.Array  # [B, T] int, the word of each byte; of white space the next one


def words_of(tokens: jax.Array, segment_ids: jax.Array, number: int, max_length: int) -> Words:
  """The words of rows of bytes; begin and end tokens of a text are words of their own.

  Args:
    tokens: [B, T] ids of bytes.
    segment_ids: [B, T] int, 0 for padding.
    number: W; words beyond are left out.
    max_length: C, characters of a word.
  """
  T = tokens.shape[1]
  byte = tokens - FIRST_BYTE_ID
  space = jnp.isin(byte, jnp.array(SPACES))
  before = lambda x, fill: jnp.pad(x[:, :-1], ((0, 0), (1, 0)), constant_values=fill)
  alone = byte < 0
  inside = (segment_ids > 0) & ~space
  starts = inside & (before(space, True) | alone | before(alone, True)
                     | (before(segment_ids, 0) != segment_ids))
  count = jnp.cumsum(starts, 1)  # words that have begun
  index = jnp.where(inside, count - 1, -1)
  rows = jnp.arange(len(tokens))[:, None]
  at = jnp.where(starts, index, number)
  place = jnp.broadcast_to(jnp.arange(T), tokens.shape)
  first = jnp.zeros((len(tokens), number), int).at[rows, at].set(place, mode="drop")
  exists = jnp.arange(number) < count[:, -1:]
  own = jnp.arange(number)[:, None]  # [W, 1]
  # The place of every character of the word but its begin: a word of n bytes ends at n.
  to = first[..., None] + jnp.arange(max_length - 1)  # [B, W, C - 1]
  take = lambda x: jnp.take_along_axis(
      x, jnp.minimum(to, T - 1).reshape(len(x), -1), 1).reshape(to.shape)
  belongs = (to < T) & (take(index) == own) & (jnp.arange(max_length - 1) < max_length - 2)
  ids = take(tokens)
  special = jnp.where(ids == TEXT_END_ID, TEXT_END, TEXT_BEGIN)
  characters = jnp.where(belongs, jnp.where(ids < FIRST_BYTE_ID, special, ids - FIRST_BYTE_ID), PAD)
  length = belongs.sum(-1, keepdims=True)
  characters = jnp.where(jnp.arange(max_length - 1) == length, END, characters)
  characters = jnp.pad(characters, ((0, 0), (0, 0), (1, 0)), constant_values=BEGIN)
  segments = jnp.where(exists, jnp.take_along_axis(segment_ids, first, 1), 0)
  # White space belongs to the word behind it, if this is of its segment.
  following = jnp.minimum(count, number - 1)
  same = jnp.take_along_axis(segments, following, 1) == segment_ids
  of_place = jnp.where(space & same, following, jnp.maximum(count - 1, 0))
  return Words(characters, segments, first, jnp.minimum(of_place, number - 1))


class CharacterCnn(nn.Module):
  """Characters [..., C] to vectors [..., width] of their words."""
  config: CharacterConfig
  width: int
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, characters: jax.Array) -> jax.Array:
    c = self.config
    table = layers.param(self, "embedding", nn.initializers.uniform(1.0), (CHARACTERS, c.dim),
                         ("types", "factors"))
    rows = characters.reshape(-1, characters.shape[-1])
    x, found = table[rows].astype(self.dtype), []
    for i, (width, number) in enumerate(c.filters):
      kernel = layers.param(self, f"filter_{i}", layers.kernel_init(None, 2, 3),
                            (width, c.dim, number), ("conv", "factors", "channels"))
      bias = layers.param(self, f"filter_bias_{i}", nn.initializers.zeros, (number,), ("channels",))
      y = jax.lax.conv_general_dilated(x, kernel.astype(self.dtype), (1,), "VALID",
                                       dimension_numbers=("NWC", "WIO", "NWC"))
      found.append(activate(c.activation, add_bias(y.max(1), bias)))
    x = jnp.concatenate(found, -1)
    dense = lambda name, width, std=None: layers.Dense(
        (width,), ("channels", "embed"), init_std=std, dtype=self.dtype, name=name)
    for i in range(c.highways):
      gate = nn.sigmoid(dense(f"gate_{i}", c.width)(x))
      x = gate * nn.relu(dense(f"highway_{i}", c.width)(x)) + (1 - gate) * x
    return dense("projection", self.width)(x).reshape(*characters.shape[:-1], self.width)
