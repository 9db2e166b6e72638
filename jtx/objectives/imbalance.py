"""Weights of classes, and the focal loss, against classes of very different numbers."""

import dataclasses
from typing import Any, Callable, ClassVar, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError

BALANCED = ("balanced",)  # in the place of weights: by the training data


def check_fields(key: str, weights: Sequence[Any], focal_gamma: float) -> None:
  """Raises ConfigError where `weights`, the field `key`, or `focal_gamma` can't be used."""
  numbers = all(isinstance(w, (int, float)) and not isinstance(w, bool) and 0 <= w < float("inf")
                for w in weights)
  if tuple(weights) != BALANCED and (not numbers or weights and not any(weights)):
    raise ConfigError(f"objective.{key}={weights!r}: give a number a class, not negative and not"
                      " all 0, or 'balanced'")
  if not 0 <= focal_gamma < float("inf"):
    raise ConfigError(f"objective.focal_gamma={focal_gamma} must not be negative; 0 is off")


def as_array(key: str, weights: Sequence[float], number: int) -> jax.Array:
  """The weights [C] of `number` classes.

  Raises:
    ConfigError: there are others, or they were not yet taken from the training data.
  """
  if tuple(weights) == BALANCED:
    raise ConfigError(f"objective.{key}='balanced' needs the labels of training data, and there is"
                      " none; give numbers")
  if len(weights) != number:
    raise ConfigError(f"objective.{key} has {len(weights)} numbers, and the model has {number}"
                      " outputs")
  return jnp.array(weights, jnp.float32)


def of_classes(shares: Sequence[float]) -> tuple[float, ...]:
  """Weights of classes that exclude one another: 1 / (C share), so all weigh the same together.

  King and Zeng 2001, "Logistic regression in rare events data"; scikit-learn's "balanced".

  Args:
    shares: of the training examples, for each class.

  Raises:
    ConfigError: no training example has a class.
  """
  _check_shares("class_weights", shares)
  return tuple(float(1 / (len(shares) * share)) for share in shares)


def of_labels(shares: Sequence[float]) -> tuple[float, ...]:
  """`pos_weight` of labels: (1 - share) / share, so that present and absent weigh the same.

  Args:
    shares: of the training examples, for each label.

  Raises:
    ConfigError: no training example has a label, or all have.
  """
  _check_shares("pos_weight", shares)
  if (place := int(np.argmax(shares))) >= 0 and shares[place] == 1:
    raise ConfigError(f"objective.pos_weight='balanced': all training examples have label {place}"
                      " (they count from 0); give numbers")
  return tuple(float((1 - share) / share) for share in shares)


def _check_shares(key: str, shares: Sequence[float]) -> None:
  if 0 in shares:
    raise ConfigError(f"objective.{key}='balanced': no training example has label"
                      f" {list(shares).index(0)} (they count from 0); give numbers, or leave it out"
                      " of the names")


class Balanced:
  """An objective, a dataclass, with a field that may be `BALANCED`.

  `balanced` has its name, and the weights as a function of the share of training examples that has
  each class or label.
  """
  balanced: ClassVar[Mapping[str, Callable[[Sequence[float]], tuple[float, ...]]]]

  @property
  def needs_shares(self) -> bool:
    return any(tuple(getattr(self, key)) == BALANCED for key in self.balanced)

  def with_shares(self, shares: Sequence[float]) -> Any:
    """The objective with weights by these shares."""
    return dataclasses.replace(self, **{key: of(shares) for key, of in self.balanced.items()})


def focal(log_p: jax.Array, gamma: float) -> jax.Array:
  """Focal loss (1 - p)^gamma (-log p) in nats (Lin et al. 2017, equation 4), given log p [...]."""
  if not gamma:
    return -log_p
  rest = jnp.maximum(-jnp.expm1(log_p), jnp.finfo(log_p.dtype).tiny)  # a gradient where p is 1
  return -(rest**gamma) * log_p
