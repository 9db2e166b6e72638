"""Losses and metrics that layers have of themselves: those of mixtures of experts."""

from typing import Any

from flax.traverse_util import flatten_dict
import jax.numpy as jnp

from jtx.nn.experts import SUMS
from jtx.objectives.sums import Batch, Sums

LOSS = "expert_loss"


class Listened:
  """A model of which calls by an objective also keep what its layers sow."""

  def __init__(self, model: Any):
    self._model, self._sown = model, []

  def __getattr__(self, name: str) -> Any:
    return getattr(self._model, name)

  def apply(self, *args: Any, **options: Any) -> Any:
    result, found = self._model.apply(*args, mutable=[SUMS], **options)
    if SUMS in found:
      self._sown.append(found[SUMS])
    return result

  def sums(self) -> Sums:
    """The losses of all layers added up, and the means of their metrics."""
    by_name: dict[str, list] = {}
    for sown in self._sown:
      for (*_, name), (value,) in flatten_dict(sown).items():  # [layers], or [layers, E]
        by_name.setdefault(name, []).append(value)
    whole = {name: jnp.concatenate(values) for name, values in by_name.items()}
    one = jnp.float32(1)
    result = {LOSS: (whole["loss"].sum(), one)}
    result |= {f"expert_{name}": (whole[name].mean(), one) for name in ("balance", "z")}
    load = whole["load"].mean(0)
    return result | {f"expert_load/{i}": (x, one) for i, x in enumerate(load)}


def sums_of(objective: Any, model: Any, params: Any, batch: Batch, **options: Any) -> Sums:
  """The sums of an objective, and those of the model's layers where these have experts."""
  if not any(stack.block.ffn.experts.number for stack in getattr(model, "stacks", {}).values()):
    return objective(model, params, batch, **options)
  model = Listened(model)
  return objective(model, params, batch, **options) | model.sums()
