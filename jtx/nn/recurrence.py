"""The memory of Transformer-XL (Dai et al. 2019, section 3.2): tokens that came before a row.

Keys and values of every layer are made of the inputs that it had for them, too. No gradient goes
through these.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jtx.nn.masks import Rows
from jtx.nn.positions import Places


@flax.struct.dataclass
class Past:
  """What self-attention sees of M tokens before the T of a row."""
  states: jax.Array  # [layers, B, M, D], the layers' inputs; [B, M, D] in a layer
  places: Places  # [B, M + T], of all keys
  rows: Rows  # with k_segments [B, M + T], and pairs [B, T, M + T] where there are any


def past_of(states: jax.Array, places: Places, segments: jax.Array,
            pairs: jax.Array | None) -> Past:
  """The past of the first text of each row, all of which sees it.

  Args:
    states: [layers, B, M, D].
    places: of the T tokens of the rows; those before them are of token type 0.
    segments: [B, T] int, of the rows; the first text is segment 1.
    pairs: [B, T, T] bool, what may attend to what, or None.
  """
  _, B, M, _ = states.shape
  before = lambda x, value: jnp.concatenate(
      [jnp.broadcast_to(jnp.asarray(value, x.dtype), (*x.shape[:-1], M)), x], -1)
  types = None if places.types is None else before(places.types, 0)
  return Past(jax.lax.stop_gradient(states),
              Places(before(places.positions, jnp.arange(-M, 0)), types),
              Rows(q_segments=segments, k_segments=before(segments, 1),
                   pairs=None if pairs is None else before(pairs, True)))


def of_layer(ctx: Any, depth: jax.Array | None) -> Any:
  """The `jtx.nn.block.Context` of a layer of a stack of one segment."""
  if ctx.past is None:
    return ctx
  return ctx.replace(past=ctx.past.replace(states=ctx.past.states[depth]))


def sources(x: jax.Array, ctx: Any) -> dict[str, Any]:
  """Arguments of self-attention of x [B, T, D]: its keys and values are of the past, too."""
  if ctx.past is None:
    return {"source": x if ctx.source is None else ctx.source, "rows": ctx.rows}
  source = jnp.concatenate([ctx.past.states.astype(x.dtype), x], 1)
  return {"source": source, "source_places": ctx.past.places, "rows": ctx.past.rows}


def remembered(inputs: jax.Array, states: jax.Array | None, length: int) -> jax.Array:
  """The last `length` of those before a row and those of a row, [layers, B, M, D].

  Args:
    inputs: [layers, B, T, D].
    states: [layers, B, M', D], or None.
    length: the most that are kept, 1 or more.
  """
  inputs = inputs if states is None else jnp.concatenate([states, inputs], 2)
  return jax.lax.stop_gradient(inputs[:, :, -length:])
