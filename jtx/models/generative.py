"""The base of models that decode: prompts in one pass, then a step a token."""

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.block import Memory
from jtx.nn.cache import DecodeState, empty, new_state
from jtx.nn.lora import Adapted
from jtx.parallel.sharding import Batch


class Generative(Adapted):
  """A model with a stack that decodes.

  The stack is the one called "decoder". `advance(tokens, state, slot, hypotheses, memory)` gives
  the hidden states [B * hypotheses, P, D] of tokens that go into `slot` and those behind it, and
  the new state; `logits` maps them to the vocabulary. A head for a task is its `task_head`.
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

  def start(self, batch: Batch, rows: int, length: int, prompt: jax.Array,
            prompt_lengths: jax.Array | None = None, cache_length: int | None = None):
    """Encodes the source, where there is one, and decodes the prompts in one pass.

    Args:
      batch: with the source's keys.
      rows: hypotheses of each prompt, in `step`.
      length: T, the most tokens that will be decoded.
      prompt: [B, P], the tokens that are gone on from; a target has its start token first.
      prompt_lengths: [B], of the prompts; what is behind is padding. None is P.
      cache_length: tokens that the state has room for before it grows; None is all.

    Returns:
      Logits [B, V] after the prompts, and the state of `step` for B * rows hypotheses.

    Raises:
      ConfigError: the stack is not causal, or its positions do not reach that far.
    """
    stack = self.stacks["decoder"]
    if not stack.causal:
      raise ConfigError("decoding needs causal=True of the decoder's stack")
    B, P = prompt.shape
    stack.position.check_length(length + P - 1)
    memory = self.memory(batch)
    if prompt_lengths is None:
      prompt_lengths = jnp.full(B, P)
    cache = empty(stack, B, rows, (cache_length or length) + P - 1, self.compute_dtype)
    state = new_state(cache, rows, prompt_lengths, P, memory.segments)
    hidden, state = self.advance(prompt, state, jnp.array(0), 1, memory)
    last = jnp.take_along_axis(hidden, (prompt_lengths - 1)[:, None, None], 1)
    return self.logits(last[:, 0]), state

  def step(self, tokens: jax.Array, state: DecodeState, index: jax.Array):
    """Logits [B, V] after tokens [B], the `index`-th ones behind the prompts, and the new state.

    The batch may be a multiple of the prompts': consecutive rows share a prompt.
    """
    slot = index + state.prompt - 1
    state = state.wrote(slot)
    hidden, state = self.advance(tokens[:, None], state, slot, len(tokens) // len(state.lengths))
    return self.logits(hidden[:, -1]), state
