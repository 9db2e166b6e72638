"""Classification with a penalty on sure predictions."""

import dataclasses

import jax
import jax.numpy as jnp

from jtx.objectives import OBJECTIVES
from jtx.objectives.classify import Classify


@dataclasses.dataclass(frozen=True)
class ClassifyEntropy(Classify):
  """As `Classify`, with penalty times the entropy taken off (Pereyra et al. 2017, section 3)."""
  penalty: float = 0.1  # weight of the entropy

  def class_loss(self, outputs: jax.Array, shares: jax.Array) -> jax.Array:
    """Nats [...] of scores [..., C], given the share of each class."""
    log_p = jax.nn.log_softmax(outputs)
    entropy = -jnp.sum(jnp.exp(log_p) * log_p, -1)
    return super().class_loss(outputs, shares) - self.penalty * entropy


OBJECTIVES["classify_entropy"] = ClassifyEntropy
