"""Additive attention of a recurrent decoder (Bahdanau et al. 2014, equations 5 and 6, A.1.2)."""

import flax.struct
import jax
import jax.numpy as jnp

from jtx.nn.numerics import add_bias
from jtx.nn.recurrent import matmul


@flax.struct.dataclass
class Source:
  """What a decoder attends to."""
  values: jax.Array  # [B, S, E], the states h of the encoder
  keys: jax.Array  # [B, S, A], U h
  segments: jax.Array  # [B, S] int, 0 for padding

  def astype(self, dtype: jnp.dtype) -> "Source":
    """With values and keys of another type."""
    return self.replace(values=self.values.astype(dtype), keys=self.keys.astype(dtype))


def additive(query: jax.Array, source: Source, vector: jax.Array,
             segments: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The context of one place of every row: e = v^T tanh(W s + U h), softmax, sum of the h.

  Args:
    query: [B, A], W s of the decoder's state s before the place.
    source: of the rows.
    vector: [A], v.
    segments: [B] int, of the place, which sees its own segment of the source; padding sees nothing.

  Returns:
    The context float32 [B, E], and the weights float32 [B, S], which are zeros where nothing is
    seen.
  """
  visible = (source.segments == segments[:, None]) & (segments > 0)[:, None]
  energy = matmul(jnp.tanh(add_bias(source.keys, query[:, None])), vector)
  energy = jnp.where(visible, energy, -1e30)
  weights = jnp.where(visible, jnp.exp(energy - energy.max(-1, keepdims=True)), 0)
  weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)
  context = jnp.einsum("bs,bse->be", weights.astype(source.values.dtype), source.values,
                       preferred_element_type=jnp.float32)
  return context, weights


def place_of(segment_ids: jax.Array, wanted: jax.Array, last: bool) -> tuple[jax.Array, jax.Array]:
  """Where in a row segments begin, or end: places [B, T], and bool [B, T] whether they exist.

  Args:
    segment_ids: [B, S].
    wanted: [B, T], segments.
    last: the last place of a segment in place of the first.
  """
  same = segment_ids[:, None] == wanted[..., None]  # [B, T, S]
  found = same[..., ::-1].argmax(-1) if last else same.argmax(-1)
  place = segment_ids.shape[1] - 1 - found if last else found
  return place, same.any(-1) & (wanted > 0)
