"""Keys of self-attention that are more or fewer than all tokens of its rows.

More are those of Transformer-XL's memory (Dai et al. 2019, section 3.2), tokens that came before a
row: keys and values of every layer are made of the inputs that it had for them, too. No gradient
goes through these. Fewer are those of the first tokens of a row, as of XLNet's content stream.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jtx.nn.masks import Rows
from jtx.nn.positions import Places


@flax.struct.dataclass
class Seen:
  """The keys that T tokens of a row see: of M tokens before them, and of the first S of them."""
  states: jax.Array | None  # [layers, B, M, D], the layers' inputs; [B, M, D] in a layer
  places: Places  # [B, M + S], of all keys
  rows: Rows  # with k_segments [B, M + S], and pairs [B, T, M + S] where there are any


def seen_of(places: Places, segments: jax.Array, number: int, *, pairs: jax.Array | None,
            states: jax.Array | None = None) -> Seen:
  """The keys that tokens of rows see, with those before it that the first text of a row sees.

  Args:
    places: of the T tokens of the rows; those before them are of token type 0.
    segments: [B, T] int, of the rows; the first text is segment 1.
    number: S, the tokens from the first on that are seen, which stand one behind the other.
    pairs: [B, T, S] bool, what may attend to what, or None.
    states: [layers, B, M, D], or None, where nothing was before.
  """
  M = 0 if states is None else states.shape[2]
  before = lambda x, value: jnp.concatenate(
      [jnp.broadcast_to(jnp.asarray(value, x.dtype), (*x.shape[:-1], M)), x], -1)
  first = lambda x, value: None if x is None else before(x[:, :number], value)
  return Seen(None if states is None else jax.lax.stop_gradient(states),
              Places(first(places.positions, jnp.arange(-M, 0)), first(places.types, 0),
                     in_order=number),
              Rows(q_segments=segments, k_segments=first(segments, 1),
                   pairs=None if pairs is None else before(pairs, True)))


def of_layer(ctx: Any, depth: jax.Array | None) -> Any:
  """The `jtx.nn.block.Context` of a layer of a stack of one segment."""
  if ctx.seen is None or ctx.seen.states is None:
    return ctx
  return ctx.replace(seen=ctx.seen.replace(states=ctx.seen.states[depth]))


def sources(x: jax.Array, ctx: Any) -> dict[str, Any]:
  """Arguments of self-attention of x [B, T, D]: its keys and values are of what it sees."""
  seen = ctx.seen
  if seen is None:
    return {"source": x if ctx.source is None else ctx.source, "rows": ctx.rows}
  source = x[:, :seen.places.in_order]
  if seen.states is not None:
    source = jnp.concatenate([seen.states.astype(x.dtype), source], 1)
  return {"source": source, "source_places": seen.places, "rows": seen.rows}


def remembered(inputs: jax.Array, states: jax.Array | None, length: int) -> jax.Array:
  """The last `length` of those before a row and those of a row, [layers, B, M, D].

  Args:
    inputs: [layers, B, T, D].
    states: [layers, B, M', D], or None.
    length: the most that are kept, 1 or more.
  """
  inputs = inputs if states is None else jnp.concatenate([states, inputs], 2)
  return jax.lax.stop_gradient(inputs[:, :, -length:])
