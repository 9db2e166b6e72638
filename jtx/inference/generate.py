"""Generation by any model with a KV cache: prompts in one pass, then token by token."""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.inference.decode import Beam, Decoded, Ends, Sample, Start, cache_lengths, decode
from jtx.models.generative import of_prompts
from jtx.nn import cache
from jtx.parallel.sharding import Batch


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def generate(model: nn.Module, method: Beam | Sample, max_length: int, ends: Ends, *, params: Any,
             batch: Batch, prompt: jax.Array, present: jax.Array | None = None,
             keys: jax.Array | None = None, **lengths: jax.Array | None) -> Decoded:
  """Generates up to `max_length` tokens behind every prompt, in one program.

  Compiled once for each of the first four arguments and the shapes of the others.

  Args:
    model: a `jtx.models.generative.Generative`.
    method: of search or sampling.
    max_length: T, the end token included.
    ends: the tokens that end a target.
    params: of the model.
    batch: what the model attends to beside the prompts, of B rows.
    prompt: the prompts, as `jtx.models.generative.Generative.start` takes them.
    present: [B] bool; the other rows are padding. None is all.
    keys: [B] random keys, for sampling.
    lengths: prompt_lengths and prompt_starts, likewise.
  """
  start = begun(model, method, max_length, params=params, batch=batch, prompt=prompt,
                present=present, keys=keys, **lengths)
  return decode(method, start, step_of(model, params), max_length, ends, prompt.shape[-1])


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def prefill(model: nn.Module, method: Beam | Sample, max_length: int, ends: Ends, **inputs: Any):
  """The carry of `method` behind the prompts; `inputs` are those of `generate`."""
  return method.begin(begun(model, method, max_length, **inputs), max_length, ends)


def apart(model: nn.Module, params: Any) -> Any:
  """Parameters for many calls of `go_on`; see `jtx.nn.apart`."""
  return jax.jit(model.apart)(params) if cache.layers_apart() else params


@functools.partial(jax.jit, static_argnums=0)
def grow(length: int, carry: Any) -> Any:
  """The carry with room for `length` tokens in its state."""
  return carry._replace(state=carry.state.grow(length))


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=4)
def go_on(model: nn.Module, method: Beam | Sample, ends: Ends, params: Any, carry: Any,
          until: jax.Array) -> Any:
  """The carry after `until` tokens, or as many as there were when all rows were done."""
  step = step_of(model, params)
  return jax.lax.while_loop(lambda c: (c.index < until) & ~method.done(c).all(),
                            lambda c: method.advance(c, step, ends), carry)


def begun(model: nn.Module, method: Beam | Sample, max_length: int, *, params: Any, batch: Batch,
          prompt: jax.Array, prompt_lengths: jax.Array | None = None,
          prompt_starts: jax.Array | None = None, present: jax.Array | None = None,
          keys: jax.Array | None = None) -> Start:
  """The state behind the prompts; arguments are those of `generate`."""
  r, P = prompt.shape
  logits, state = model.apply({"params": params}, batch, method.rows, max_length, prompt,
                              prompt_lengths, cache_lengths(max_length, P)[0], prompt_starts,
                              method="start")
  B, seen = len(logits), None
  if method.repetition_penalty != 1:
    starts = jnp.arange(B) * P if prompt_starts is None else prompt_starts
    prompt = prompt.reshape(-1)[of_prompts(starts, (r, P))]
    real = jnp.arange(P) < (jnp.full(B, P) if prompt_lengths is None else prompt_lengths)[:, None]
    seen = jnp.zeros(logits.shape, bool).at[jnp.arange(B)[:, None], prompt].max(real)
  absent = jnp.zeros(B, bool) if present is None else ~present
  return Start(logits, state, absent, keys=keys, seen=seen)


def step_of(model: nn.Module, params: Any):
  """The step of a loop over tokens, outside of which it is to be called."""
  params = model.apart(params)
  return lambda tokens, state, index: model.apply(
      {"params": params}, tokens, state, index, method="step")
