"""Which checkpoints of a run stay on disk: the newest, every n-th, and the best.

The policies are of Orbax's protocol `PreservationPolicy`.
"""

import dataclasses
from typing import Any, Iterable, Mapping, Sequence

from jtx.errors import ConfigError

SIGNS = {"min": -1, "max": 1}


@dataclasses.dataclass
class Newest:
  """The newest `number` of the newest step and those divisible by `every`."""
  number: int
  every: int

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    own = [c.step % self.every == 0 or c is checkpoints[-1] for c in checkpoints]
    return [mine and sum(own[i:]) <= self.number for i, mine in enumerate(own)]


@dataclasses.dataclass
class Best:
  """The best score's, or the first of equal ones, among the steps divisible by `every`."""
  scores: Mapping[int, float]
  sign: int
  every: int

  def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
    regular = (c.step for c in checkpoints if c.step % self.every == 0)
    best = best_of(regular, self.scores, self.sign)
    return [c.step == best for c in checkpoints]


def best_of(steps: Iterable[int], scores: Mapping[int, float], sign: int) -> int | None:
  """The step of the best score, or the first of equal ones; None where no step has a score.

  Args:
    steps: to choose from.
    scores: of steps; those of others do not count.
    sign: 1 where the highest is the best, -1 where the lowest is.
  """
  return max((step for step in steps if step in scores),
             key=lambda step: (sign * scores[step], -step), default=None)


def policy(keep: int, keep_every: int, every: int, best: str,
           scores: Mapping[int, float]) -> Any:
  """A checkpoint stays where any of its reasons holds; see `Checkpointer`.

  Args:
    keep: number of newest checkpoints, at least 1.
    keep_every: steps divisible by it; 0 for none.
    every: steps divisible by it are saved anyway.
    best: "min", "max" or "".
    scores: of steps, which may be filled in later.

  Raises:
    ConfigError: a number that is out of range.
  """
  if keep < 1:
    raise ConfigError(f"keep={keep}: at least 1 checkpoint must stay")
  if keep_every < 0:
    raise ConfigError(f"keep_every={keep_every}: it is a number of steps, or 0 for none")
  import orbax.checkpoint as ocp  # which takes a third of a second
  policies = [Newest(keep, every)]
  if keep_every:
    policies.append(ocp.checkpoint_managers.EveryNSteps(keep_every))
  if best:
    policies.append(Best(scores, SIGNS[best], every))
  return ocp.checkpoint_managers.AnyPreservationPolicy(policies)
