"""The contract of an objective: a loss of a model on a batch, and what it needs of the two."""

from typing import Any, Mapping, Protocol

import flax.linen as nn
import jax

from jtx.objectives.sums import Batch, Sums

# The part of a run's parameters that is the objective's, which exports leave out; an objective that
# has some has `own_params(model, key)`, a nested dict of them with axis names.
OWN = "objective"


class Objective(Protocol):
  """A frozen dataclass of its config, with pure functions of a batch.

  Where the divisor of `loss` is no count, it also has what `units_of` asks for.
  """
  unit: str  # what a run counts, such as "tokens": as a rule what the loss is a mean of
  heads: frozenset[str]  # that the model must have: see `jtx.models.contract`
  keys: tuple[str, ...]  # that a batch must have

  def model_inputs(self, batch: Batch) -> Batch:
    """The batch as the model takes it."""

  def weights(self, batch: Batch) -> Mapping[str, jax.Array]:
    """The divisor of each loss term.

    They are known before the forward pass, so that accumulated gradients are exact.
    """

  def __call__(self, model: nn.Module, params: Any, batch: Batch, *, train: bool,
               rngs: Mapping[str, jax.Array] | None = None) -> Sums:
    """Sums and weights of the loss terms and of metrics."""


def units_of(objective: Objective, sums: Mapping[str, Any]) -> float:
  """How many units the sums of training batches are of.

  It is the divisor of `loss`. An objective in which that is weighed, or counts a unit twice, has a
  method `units(sums)` instead; sums of a state are linear in batches, and so must that be.

  Args:
    objective: that made them.
    sums: by name a pair (sum, weight), or an array of them `[2]`.
  """
  counted = getattr(objective, "units", None)
  return float(counted(sums) if counted else sums["loss"][1])
