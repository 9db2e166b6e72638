"""The KV cache of decoding: keys and values of all layers, shared by the hypotheses of a source.

New tokens of all sources are written into the same slot of a stack's cache, in place; which row
index stands in a slot is told for each source, so prompts of different lengths share a batch.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp


class Projections(NamedTuple):
  """Keys and values of all places of a row, or the cache that holds them."""
  key: jax.Array  # [B, S, K, H]
  value: jax.Array  # [B, S, K, Hv]


def empty(config: Any, batch: int, rows: int, length: int, dtype: Any) -> tuple[Projections, ...]:
  """The cache of a stack, zeros, for `batch` sources with `rows` hypotheses R of `length` S each.

  [layers, B, K, R, S, H] a segment: heads first, so that attention reads it as it lies.

  Args:
    config: a `StackConfig`.
    batch: B.
    rows: R.
    length: S.
    dtype: of keys and values.
  """
  def zeros(segment):
    attention = segment.block.attention
    head_dim = attention.sizes(config.width).head_dim
    shape = segment.num_layers, batch, attention.kv_heads, rows, length
    return Projections(jnp.zeros((*shape, head_dim), dtype),
                       jnp.zeros((*shape, attention.v_head_dim or head_dim), dtype))

  return tuple(zeros(segment) for segment in config.segments)


@flax.struct.dataclass
class Slots:
  """Where new tokens go in a cache, and what is in its slots already."""
  start: jax.Array  # scalar, the slot of the first new token
  index: jax.Array  # [B, R * S], the row index of what stands in each slot of each hypothesis
  pairs: jax.Array  # [B, r * T, R * S] bool, which slots are a new token's own past


def write(cache: jax.Array, new: jax.Array, layer: jax.Array, slots: Slots) -> jax.Array:
  """A stack's cache [layers, B, K, R, S, H] with the new tokens [B * r, T, K, H] of a layer."""
  new = new.reshape(cache.shape[1], -1, *new.shape[1:]).transpose(0, 3, 1, 2, 4)
  return jax.lax.dynamic_update_slice(cache, new[None].astype(cache.dtype),
                                      (layer, 0, 0, 0, slots.start, 0))


def read(cache: jax.Array, layer: jax.Array) -> jax.Array:
  """A layer's part [B, R * S, K, H] of a stack's cache."""
  cache = jax.lax.dynamic_index_in_dim(cache, layer, keepdims=False)
  return jnp.moveaxis(cache.reshape(*cache.shape[:2], -1, cache.shape[-1]), 1, 2)


@flax.struct.dataclass
class DecodeState:
  """The state of a decoder between tokens; R hypotheses go on from each of B sources."""
  cache: tuple[Projections, ...]  # of each segment of layers, [layers, B, K, R, S, H]
  # [B, R, S]: which of the R hypotheses of a source wrote a slot of this one's past; -1 is none.
  # They share what they have in common, so the cache is never copied.
  ancestors: jax.Array
  lengths: jax.Array  # [B], tokens of the prompts
  # Keys and values of the source, [layers, B, K, S, H], and its segments [B, S], where the decoder
  # attends to one.
  memory: tuple[Projections, ...] | None = None
  memory_segments: jax.Array | None = None
  prompt: int = flax.struct.field(pytree_node=False, default=1)  # slots of the prompts

  def slots(self, start: jax.Array, number: int, hypotheses: int) -> tuple[Slots, jax.Array]:
    """Where `number` new tokens go, and their row indices [B, number].

    Behind its prompt, which may be shorter than that of others, a source goes on at once.
    """
    B, R, S = self.ancestors.shape
    slot = jnp.arange(S)
    gap = (self.prompt - self.lengths)[:, None]
    index = jnp.where(slot < self.prompt, slot, slot - gap)  # [B, S]
    new = jax.lax.dynamic_slice_in_dim(index, start, number, 1)
    ancestors = self.ancestors[:, :hypotheses]
    own = ancestors[:, :, None, :] == jnp.arange(R)[:, None]  # [B, r, R, S]
    own = jnp.broadcast_to(own[:, :, None], (B, hypotheses, number, R, S))
    index = jnp.broadcast_to(index[:, None], (B, R, S)).reshape(B, R * S)
    return Slots(start, index, own.reshape(B, hypotheses * number, R * S)), new

  def wrote(self, start: jax.Array) -> "DecodeState":
    """Every hypothesis has written the slot `start` of its own."""
    return self.replace(ancestors=self.ancestors.at[:, :, start].set(
        jnp.arange(self.ancestors.shape[1])))

  def reorder(self, rows: jax.Array) -> "DecodeState":
    """Hypothesis i goes on from the one at rows[i]; both have the same source."""
    shape = self.ancestors.shape
    return self.replace(ancestors=self.ancestors.reshape(-1, shape[-1])[rows].reshape(shape))

  def take(self, sources: jax.Array) -> "DecodeState":
    """The hypotheses of some sources [b] only."""
    of_layers = lambda tree: jax.tree.map(lambda x: x[:, sources], tree)
    of_rows = lambda tree: jax.tree.map(lambda x: x[sources], tree)
    return self.replace(
        cache=of_layers(self.cache), ancestors=self.ancestors[sources],
        lengths=self.lengths[sources], memory=of_layers(self.memory),
        memory_segments=of_rows(self.memory_segments))

  def grow(self, length: int) -> "DecodeState":
    """Makes room for `length` tokens, the last of the prompt among them; what there is stays."""
    more = max(length + self.prompt - 1 - self.ancestors.shape[-1], 0)
    pad = lambda x, axis, value: jnp.pad(
        x, [(0, more if i == axis else 0) for i in range(x.ndim)], constant_values=value)
    return self.replace(cache=jax.tree.map(lambda c: pad(c, 4, 0), self.cache),
                        ancestors=pad(self.ancestors, 2, -1))


def new_state(cache: tuple[Projections, ...], rows: int, lengths: jax.Array, prompt: int,
              memory_segments: jax.Array | None = None) -> DecodeState:
  """The state before the prompts are decoded; all hypotheses start from what the first one writes.

  Args:
    cache: empty, with room for S slots.
    rows: R.
    lengths: [B], tokens of the prompts.
    prompt: slots of the prompts, the longest length.
    memory_segments: [B, S] of the source, if any.
  """
  slots = cache[0].key.shape[4]
  written = jnp.arange(slots) < lengths[:, None]  # [B, S]
  ancestors = jnp.broadcast_to(jnp.where(written, 0, -1)[:, None],
                               (len(lengths), rows, slots)).astype(jnp.int32)
  return DecodeState(cache, ancestors, lengths, memory_segments=memory_segments, prompt=prompt)
