"""The KV cache of decoding: keys and values of all layers, shared by the hypotheses of a source.

New tokens of all sources are written into the same slot of a stack's cache, in place; which row
index stands in a slot is told for each source, so prompts of different lengths share a batch.
"""

from typing import Any, Mapping, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jtx.parallel.sharding import platform


class Projections(NamedTuple):
  """Keys and values of all places of a row, or the cache that holds them."""
  key: jax.Array  # [B, S, K, H]
  value: jax.Array  # [B, S, K, Hv]


# Of each segment of layers [layers, B, K, S * R, H], or where layers are apart of each layer in it
# [B, K, S * R, H]. Heads come first and hypotheses last, so that attention reads it as it lies.
Cache = tuple[Projections | tuple[Projections, ...], ...]


def layers_apart() -> bool:
  """Whether layers that decode have arrays of their own.

  A CPU's products read whole arrays: of a part of one they would make a copy at every token.
  """
  return platform() == "cpu"


def empty(config: Any, batch: int, rows: int, length: int, dtype: Any) -> Cache:
  """The cache of a stack, zeros, for `batch` sources with `rows` hypotheses R of `length` S each.

  Args:
    config: a `StackConfig`.
    batch: B.
    rows: R.
    length: S.
    dtype: of keys and values.
  """
  def zeros(segment):
    attention, number = segment.block.attention, segment.num_layers
    head_dim = attention.sizes(config.width).head_dim
    shape = batch, attention.kv_heads, length * rows
    part = lambda shape: Projections(jnp.zeros((*shape, head_dim), dtype),
                                     jnp.zeros((*shape, attention.v_head_dim or head_dim), dtype))
    return (part(shape),) * number if layers_apart() else part((number, *shape))

  return tuple(zeros(segment) for segment in config.segments)


@flax.struct.dataclass
class Slots:
  """Where new tokens go in a cache, and what is in its slots already.

  Of prompts, which see themselves alone, there is nothing in them: `index` and `pairs` are None.
  """
  start: jax.Array  # scalar, the slot of the first new token
  hypotheses: int = flax.struct.field(pytree_node=False)  # R
  index: jax.Array | None = None  # [B, S * R], the row index of what stands in each slot
  pairs: jax.Array | None = None  # [B, r * T, S * R] bool, which slots are a new token's own past
  # [B, P], where the tokens of each prompt are among those of all rows; None is a row a prompt.
  prompts: jax.Array | None = None
  # name -> [B, S * R] bool, of what stands in the slots, where masks of layers need flags
  flags: Mapping[str, jax.Array] = flax.struct.field(default_factory=dict)


def write(cache: jax.Array, new: jax.Array, layer: jax.Array | None, slots: Slots) -> jax.Array:
  """A cache with the new tokens [B * r, T, K, H] of a layer, where r is 1 or R, or with prompts.

  Args:
    cache: of a segment, or where layers are apart of the layer.
    new: keys or values.
    layer: which of the segment's it is; None where layers are apart.
    slots: where the tokens go.
  """
  if slots.prompts is not None:
    new = new.reshape(-1, *new.shape[2:])[slots.prompts]
  new = new.reshape(cache.shape[-4], -1, *new.shape[1:]).transpose(0, 3, 2, 1, 4)
  new = jnp.pad(new, [(0, slots.hypotheses - new.shape[3] if i == 3 else 0) for i in range(5)])
  new = new.reshape(*new.shape[:2], -1, new.shape[-1]).astype(cache.dtype)
  place = 0, 0, slots.start * slots.hypotheses, 0
  if layer is None:
    return jax.lax.dynamic_update_slice(cache, new, place)
  return jax.lax.dynamic_update_slice(cache, new[None], (layer, *place))


def read(cache: jax.Array, layer: jax.Array | None) -> jax.Array:
  """A layer's part [B, S * R, K, H] of a cache; see `write`."""
  if layer is not None:
    cache = jax.lax.dynamic_index_in_dim(cache, layer, keepdims=False)
  return jnp.moveaxis(cache, 1, 2)


def update(cache: Projections, new: Projections, layer: jax.Array | None,
           slots: Slots) -> tuple[Projections, Projections]:
  """The cache with new keys and values, and those that the new tokens may see; see `write`."""
  cache = Projections(*(write(c, n, layer, slots) for c, n in zip(cache, new)))
  if slots.index is None:  # prompts see themselves alone
    return cache, new
  return cache, Projections(*(read(c, layer) for c in cache))


@flax.struct.dataclass
class DecodeState:
  """The state of a decoder between tokens; R hypotheses go on from each of B sources."""
  cache: Cache
  # [B, R, S]: which of the R hypotheses of a source wrote a slot of this one's past; -1 is none.
  # They share what they have in common, so the cache is never copied.
  ancestors: jax.Array
  lengths: jax.Array  # [B], tokens of the prompts
  # Keys and values of the source, as the cache with one hypothesis, and its segments [B, S], where
  # the decoder attends to one.
  memory: Cache | None = None
  memory_segments: jax.Array | None = None
  prompt: int = flax.struct.field(pytree_node=False, default=1)  # slots of the prompts

  def slots(self, start: jax.Array, number: int, hypotheses: int) -> tuple[Slots, jax.Array]:
    """Where `number` new tokens go, and their row indices [B * hypotheses, number].

    Behind its prompt, which may be shorter than that of others, a source goes on at once.
    """
    B, R, S = self.ancestors.shape
    slot = jnp.arange(S)
    gap = (self.prompt - self.lengths)[:, None]
    index = jnp.where(slot < self.prompt, slot, slot - gap)  # [B, S]
    new = jax.lax.dynamic_slice_in_dim(index, start, number, 1)
    ancestors = self.ancestors[:, :hypotheses]
    own = ancestors[..., None] == jnp.arange(R)  # [B, r, S, R]
    own = jnp.broadcast_to(own[:, :, None], (B, hypotheses, number, S, R))
    index = jnp.repeat(index, R, 1)
    pairs = own.reshape(B, hypotheses * number, S * R)
    return Slots(start, R, index, pairs), jnp.repeat(new, hypotheses, 0)

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
    of_layers = lambda tree: jax.tree.map(lambda x: jnp.take(x, sources, -4), tree)
    of_rows = lambda tree: jax.tree.map(lambda x: x[sources], tree)
    return self.replace(
        cache=of_layers(self.cache), ancestors=self.ancestors[sources],
        lengths=self.lengths[sources], memory=of_layers(self.memory),
        memory_segments=of_rows(self.memory_segments))

  def grow(self, length: int) -> "DecodeState":
    """Makes room for `length` tokens, the last of the prompt among them; what there is stays."""
    _, R, S = self.ancestors.shape
    more = max(length + self.prompt - 1 - S, 0)
    return self.replace(
        cache=jax.tree.map(lambda c: padded(c, -2, more * R, 0), self.cache),
        ancestors=padded(self.ancestors, -1, more, -1))


def padded(x: jax.Array, axis: int, more: int, value: int) -> jax.Array:
  """x with `more` of a value behind it along an axis."""
  pads = [(0, 0)] * x.ndim
  pads[axis] = 0, more
  return jnp.pad(x, pads, constant_values=value)


def new_state(cache: Cache, rows: int, lengths: jax.Array, prompt: int,
              memory_segments: jax.Array | None = None) -> DecodeState:
  """The state before the prompts are decoded; all hypotheses start from what the first one writes.

  Args:
    cache: empty, with room for S slots.
    rows: R.
    lengths: [B], tokens of the prompts.
    prompt: slots of the prompts, the longest length.
    memory_segments: [B, S] of the source, if any.
  """
  slots = jax.tree.leaves(cache)[0].shape[-2] // rows
  written = jnp.arange(slots) < lengths[:, None]  # [B, S]
  ancestors = jnp.broadcast_to(jnp.where(written, 0, -1)[:, None],
                               (len(lengths), rows, slots)).astype(jnp.int32)
  return DecodeState(cache, ancestors, lengths, memory_segments=memory_segments, prompt=prompt)
