"""Generation by any model with a KV cache: prompts in one pass, then token by token."""

import functools
from typing import Any

import flax.linen as nn
import jax

from jtx.inference.decode import Beam, Decoded, Sample, cache_lengths, decode
from jtx.parallel.sharding import Batch


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def generate(model: nn.Module, method: Beam | Sample, max_length: int, eos_id: int, pad_id: int, *,
             params: Any, batch: Batch, prompt: jax.Array, prompt_lengths: jax.Array | None = None,
             present: jax.Array | None = None, keys: jax.Array | None = None) -> Decoded:
  """Generates up to `max_length` tokens behind every prompt.

  Compiled once for each of the first five arguments and the shapes of the others.

  Args:
    model: with `start` and `step`, as `jtx.models.encdec.EncDec` has them.
    method: of search or sampling.
    max_length: T, the end token included.
    eos_id: the token that ends a target.
    pad_id: stands after it.
    params: of the model.
    batch: what the model attends to beside the prompts, of B rows.
    prompt: [B, P] int, the start token first.
    prompt_lengths: [B], tokens of each prompt; None is P.
    present: [B] bool; the other rows are padding. None is all.
    keys: [B] random keys, for sampling.
  """
  variables = {"params": params}
  logits, state = model.apply(variables, batch, method.rows, max_length, prompt, prompt_lengths,
                              cache_lengths(max_length)[0], method="start")
  step = lambda tokens, state, index: model.apply(variables, tokens, state, index, method="step")
  return decode(method, logits, state, step, max_length=max_length, eos_id=eos_id, pad_id=pad_id,
                present=present, keys=keys)
