"""The base of models that decode: prompts in one pass, then a step a token."""

from typing import Any

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.apart import apart, with_tables
from jtx.nn.block import Memory
from jtx.nn.cache import DecodeState, Slots, empty, new_state
from jtx.nn.lora import Adapted
from jtx.parallel.sharding import Batch


class Generative(Adapted):
  """A model with a stack that decodes.

  The stack is the one called "decoder". `advance(tokens, state, slots, positions, segments,
  memory)` gives the hidden states [r, T, D] of tokens [r, T] that go into the slots, and the new
  state; `logits` maps them to the vocabulary. A head for a task is its `task_head`.
  """

  @property
  def compute_dtype(self) -> jnp.dtype:
    return layers.compute_dtype(self.dtype)

  @property
  def longest(self) -> int | None:
    limits = [stack.position.limit for stack in self.stacks.values()]
    return min((limit for limit in limits if limit is not None), default=None)

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """The task head's outputs for hidden states; see `jtx.models.text_head.Head`."""
    return self.task_head(hidden, batch, num_texts, train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From tokens to the task head's outputs."""
    return self.outputs(self(batch, train), batch, num_texts, train)

  def memory(self, batch: Batch) -> Memory:
    """What the stack attends to beside its own tokens: nothing, unless a model has a source."""
    return Memory()

  def apart(self, params: Any) -> Any:
    """Parameters for many calls of `step`; see `jtx.nn.apart`."""
    own = apart(params["decoder"], self.stacks["decoder"].share)
    return with_tables({**params, "decoder": own})

  def start(self, batch: Batch, rows: int, length: int, prompt: jax.Array,
            prompt_lengths: jax.Array | None = None, cache_length: int | None = None,
            prompt_starts: jax.Array | None = None):
    """Encodes the source, where there is one, and decodes the prompts in one pass.

    Args:
      batch: with the source's keys.
      rows: hypotheses of each prompt, in `step`.
      length: T, the most tokens that will be decoded.
      prompt: [B, P], the tokens that are gone on from; a target has its start token first. Or
        [r, P], rows that hold several prompts each, of a model without a source.
      prompt_lengths: [B], of the prompts; what is behind is padding. None is P.
      cache_length: tokens that the state has room for before it grows; None is all.
      prompt_starts: [B], where each prompt begins among the tokens of all rows, where a row holds
        several.

    Returns:
      Logits [B, V] after the prompts, and the state of `step` for B * rows hypotheses.

    Raises:
      ConfigError: the stack is not causal, or its positions do not reach that far.
    """
    stack = self.stacks["decoder"]
    if not stack.causal:
      raise ConfigError("decoding needs causal=True of the decoder's stack")
    r, P = prompt.shape
    stack.position.check_length(length + P - 1)
    memory = self.memory(batch)
    if prompt_lengths is None:
      prompt_lengths = jnp.full(r, P)
    B = len(prompt_lengths)
    cache = empty(stack, B, rows, (cache_length or length) + P - 1, self.compute_dtype)
    state = new_state(cache, rows, prompt_lengths, P, memory.segments)
    slots, end = Slots(jnp.array(0), rows), prompt_lengths - 1
    if prompt_starts is None:
      positions = jnp.broadcast_to(jnp.arange(P), (B, P))
      segments = (positions < prompt_lengths[:, None]).astype(jnp.int32)
      hidden, state = self.advance(prompt, state, slots, positions, segments, memory)
      last = jnp.take_along_axis(hidden, end[:, None, None], 1)[:, 0]
    else:
      segments, positions = segments_of(prompt_starts, prompt_lengths, prompt.shape)
      slots = slots.replace(prompts=of_prompts(prompt_starts, prompt.shape))
      hidden, state = self.advance(prompt, state, slots, positions, segments, memory)
      last = hidden.reshape(r * P, -1)[prompt_starts + end]
    return self.logits(last), state

  def step(self, tokens: jax.Array, state: DecodeState, index: jax.Array):
    """Logits [B, V] after tokens [B], the `index`-th ones behind the prompts, and the new state.

    The batch may be a multiple of the prompts': consecutive rows share a prompt.
    """
    slot = index + state.prompt - 1
    state = state.wrote(slot)
    slots, positions = state.slots(slot, 1, len(tokens) // len(state.lengths))
    hidden, state = self.advance(tokens[:, None], state, slots, positions)
    return self.logits(hidden[:, -1]), state


def of_prompts(starts: jax.Array, shape: tuple[int, int]) -> jax.Array:
  """Where the tokens of prompts [B, P] are among those of all rows [r, P]; not behind the last."""
  r, P = shape
  return jnp.minimum(starts[:, None] + jnp.arange(P), r * P - 1)


def segments_of(starts: jax.Array, lengths: jax.Array,
                shape: tuple[int, int]) -> tuple[jax.Array, jax.Array]:
  """The segments and positions of rows [r, P] of prompts; 0 where there is none."""
  at = jnp.arange(shape[0] * shape[1])[:, None] - starts  # [r * P, B]
  inside = (at >= 0) & (at < lengths)
  segments = jnp.where(inside, jnp.arange(len(starts)) + 1, 0).sum(1)
  return segments.reshape(shape), jnp.where(inside, at, 0).sum(1).reshape(shape)
