"""Ensembles: several models that write one target, by the mean of their probabilities."""

import dataclasses
import math
from typing import Any, Sequence

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class States:
  """The states of the models, of the same hypotheses; see `jtx.inference.decode`."""
  of_models: tuple[Any, ...]

  def reorder(self, rows: jax.Array) -> "States":
    return States(tuple(state.reorder(rows) for state in self.of_models))

  def grow(self, length: int) -> "States":
    return States(tuple(state.grow(length) for state in self.of_models))

  def take(self, sources: jax.Array) -> "States":
    return States(tuple(state.take(sources) for state in self.of_models))


@dataclasses.dataclass(frozen=True)
class Ensemble:
  """Models of one vocabulary; their parameters are a tuple, in the same order.

  Logits are the logarithm of the mean of the models' probabilities.
  """
  models: tuple[nn.Module, ...]

  @property
  def longest(self) -> int | None:
    return min((m.longest for m in self.models if m.longest is not None), default=None)

  def apart(self, params: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(model.apart(own) for model, own in zip(self.models, params, strict=True))

  def apply(self, variables: Any, inputs: Any, *more: Any, method: str | None = None) -> Any:
    """As `apply` of one model; the hidden states are a tuple, which "logits" takes."""
    members = list(zip(self.models, variables["params"], strict=True))
    if method == "logits":
      return mean([model.apply({"params": params}, hidden, method=method)
                   for (model, params), hidden in zip(members, inputs)])
    if method is None:
      return tuple(model.apply({"params": params}, inputs, *more) for model, params in members)
    if method == "step":
      state, index = more
      found = [model.apply({"params": params}, inputs, own, index, method=method)
               for (model, params), own in zip(members, state.of_models)]
    else:
      found = [model.apply({"params": params}, inputs, *more, method=method)
               for model, params in members]
    logits, states = zip(*found)
    return mean(logits), States(states)


def mean(logits: Sequence[jax.Array]) -> jax.Array:
  """The logarithm of the mean of probabilities, of logits [..., V] of each model."""
  log_p = jnp.stack([jax.nn.log_softmax(x.astype(jnp.float32)) for x in logits])
  return jax.nn.logsumexp(log_p, 0) - math.log(len(logits))
