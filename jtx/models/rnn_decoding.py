"""Decoding with recurrent layers: the state of the layers is all that a step needs of before."""

from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from jtx.models.generative import segments_of
from jtx.nn.apart import with_tables
from jtx.parallel.sharding import Batch


@flax.struct.dataclass
class RecurrentState:
  """As `jtx.nn.cache.DecodeState`, of layers that have no cache; B sources, R hypotheses each."""
  layers: Any  # states of the layers, [B * R, ...]
  source: Any  # what is attended to, [B * R, ...] of equal rows, or None
  rows: int = flax.struct.field(pytree_node=False)  # R

  def reorder(self, rows: jax.Array) -> "RecurrentState":
    """Hypothesis i goes on from the one at rows[i]; both have the same source."""
    return self.replace(layers=jax.tree.map(lambda x: x[rows], self.layers))

  def take(self, sources: jax.Array) -> "RecurrentState":
    """The hypotheses of some sources [b] only."""
    rows = (sources[:, None] * self.rows + jnp.arange(self.rows)).reshape(-1)
    part = lambda tree: jax.tree.map(lambda x: x[rows], tree)
    return self.replace(layers=part(self.layers), source=part(self.source))

  def grow(self, length: int) -> "RecurrentState":
    """There is room for any number of tokens."""
    del length
    return self


class Recurrently(nn.Module):
  """The base of models of recurrent layers that decode.

  `source(batch)` gives what is attended to and the states that the layers begin from;
  `advance(tokens [r, T], segments [r, T], source, starts)` gives hidden states [r, T, D] and the
  layers' states of all places [r, T, ...]; `logits` maps the former to the vocabulary.
  """

  @property
  def longest(self) -> int | None:
    return None

  def apart(self, params: Any) -> Any:
    """Parameters for many calls of `step`; see `jtx.nn.apart`."""
    return with_tables(params)

  def start(self, batch: Batch, rows: int, length: int, prompt: jax.Array,
            prompt_lengths: jax.Array | None = None, cache_length: int | None = None,
            prompt_starts: jax.Array | None = None):
    """Encodes the source, where there is one, and decodes the prompts in one pass.

    Arguments and results are those of `jtx.models.generative.Generative.start`; lengths need no
    room.
    """
    del length, cache_length
    r, P = prompt.shape
    if prompt_lengths is None:
      prompt_lengths = jnp.full(r, P)
    if prompt_starts is None:
      prompt_starts = jnp.arange(r) * P
      segments = (jnp.arange(P) < prompt_lengths[:, None]).astype(jnp.int32)
    else:
      segments, _ = segments_of(prompt_starts, prompt_lengths, prompt.shape)
    source, starts = self.source(batch)
    hidden, states = self.advance(prompt, segments, source, starts)
    ends = prompt_starts + prompt_lengths - 1
    last = lambda x: x.reshape(r * P, *x.shape[2:])[ends]
    repeat = lambda tree: jax.tree.map(lambda x: jnp.repeat(x, rows, 0), tree)
    states = repeat(jax.tree.map(last, states))
    return self.logits(last(hidden)), RecurrentState(states, repeat(source), rows)

  def step(self, tokens: jax.Array, state: RecurrentState, index: jax.Array):
    """Logits [B, V] after tokens [B], and the new state."""
    del index  # layers know no positions
    ones = jnp.ones((len(tokens), 1), jnp.int32)
    hidden, states = self.advance(tokens[:, None], ones, state.source, state.layers)
    states = jax.tree.map(lambda x: x[:, 0], states)
    return self.logits(hidden[:, 0]), state.replace(layers=states)
