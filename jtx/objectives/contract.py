"""The contract of an objective: a loss of a model on a batch, and what it needs of the two."""

from typing import Any, Mapping, Protocol

import flax.linen as nn
import jax

from jtx.objectives.sums import Batch, Sums

# The part of a run's parameters that is the objective's, which exports leave out; an objective that
# has some has `own_params(model, key)`, a nested dict of them with axis names.
OWN = "objective"


class Objective(Protocol):
  """A frozen dataclass of its config, with pure functions of a batch."""
  unit: str  # what the loss is a mean of, such as "tokens"
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
