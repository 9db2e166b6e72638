"""A task's loss and terms against a teacher, weighted and added, in stages of a run."""

import dataclasses
import functools
from typing import Any, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.taps import Tapped
from jtx.objectives.contract import OWN, units_of
from jtx.objectives.distill_classes import as_taught
from jtx.objectives.sums import Batch, Sums, even_slots, weighted_sums
from jtx.objectives.terms import ALWAYS, Both, Soft, Term, check_during, name_of


class Maps(nn.Module):
  """Learned matrices from the student's widths to the teacher's, by name."""
  widths: tuple[tuple[str, tuple[int, int]], ...]  # name, and from which to which

  def setup(self):
    self.kernels = {name: layers.param(self, name, layers.kernel_init(None, 1, 2), shape,
                                       ("embed", "factors")) for name, shape in self.widths}

  def __call__(self, name: str, x: jax.Array) -> jax.Array:
    """[..., D] to [..., D'], float32."""
    return x.astype(jnp.float32) @ self.kernels[name]


@dataclasses.dataclass(frozen=True)
class Distilled:
  """An objective of any task with terms of `jtx.objectives.terms`.

  Each term is in its stage of the run, of which `done` says how much is behind. Without a teacher's
  parameters, as in an evaluation, it is the task.
  """
  task: Any  # an objective
  terms: tuple[Term, ...]
  teacher: str  # its folder
  task_weight: float = 1.0
  task_during: tuple[float, float] = ALWAYS
  model: nn.Module | None = None  # the teacher
  done: jax.Array | float | None = None  # share of the run; None is in all stages at once

  section = "distill"  # of the config, which has the teacher

  def __post_init__(self):
    check_during("task_during", self.task_during)
    if not any(term.weight for term in self.terms):
      raise ConfigError(f"distill.teacher={self.teacher} teaches nothing: distill.terms has no term"
                        " with a weight above 0")
    for key in ("mixup", "cutmix"):
      if getattr(self.task, key, 0):
        raise ConfigError(f"objective.{key} mixes images that the teacher would see unmixed; of"
                          " mixed images objective.name='distill_classes' learns")
    if self.soft and getattr(self.task, "logits_chunk", 0):
      raise ConfigError("objective.logits_chunk holds some tokens' scores at a time, and 'soft' of"
                        " distill.terms needs all; leave it 0")
    if hasattr(self.task, "taught_by"):
      raise ConfigError(f"distill.teacher={self.teacher} is a second one beside that of the"
                        " objective; choose an objective without a teacher")

  @property
  def unit(self) -> str:
    return self.task.unit

  def units(self, sums: Mapping[str, Any]) -> float:
    """Those of the task."""
    return units_of(self.task, sums)

  @property
  def heads(self) -> frozenset[str]:
    return self.task.heads

  @property
  def keys(self) -> tuple[str, ...]:
    return self.task.keys

  @property
  def active(self) -> list[tuple[str, Term]]:
    """The terms that have a weight, by their names in metrics: "hidden", "hidden_2" of another."""
    kinds = [name_of(term) for term in self.terms]
    numbers = [kinds[:i + 1].count(kind) for i, kind in enumerate(kinds)]
    return [(kind if number == 1 else f"{kind}_{number}", term)
            for kind, number, term in zip(kinds, numbers, self.terms) if term.weight]

  @property
  def soft(self) -> bool:
    """Whether scores are compared."""
    return any(isinstance(term, Soft) for _, term in self.active)

  def model_inputs(self, batch: Batch) -> Batch:
    return self.task.model_inputs(batch)

  def taught_by(self, model: nn.Module) -> "Distilled":
    """The objective with the teacher's module; its parameters come with every call."""
    if self.soft:
      for head in sorted(self.task.heads - model.heads):
        raise ConfigError(f"distill.teacher={self.teacher} has no head {head!r}, whose scores the"
                          " term 'soft' of distill.terms needs")
    return dataclasses.replace(self, model=model)

  @property
  def staged(self) -> bool:
    """Whether the loss depends on how far the run is."""
    stages = [self.task_during, *(term.during for _, term in self.active)]
    return any(tuple(stage) != ALWAYS for stage in stages)

  def at(self, done: jax.Array | float) -> "Distilled":
    """The objective when this share of the run is behind."""
    return dataclasses.replace(self, done=done)

  def maps(self, model: nn.Module) -> Maps:
    """The learned maps of all terms for a student."""
    return Maps(tuple((f"{name}_{key}", widths) for name, term in self.active
                      for key, widths in term.maps(model, self.model).items()))

  def own_params(self, model: nn.Module, key: jax.Array) -> Any:
    """Fresh parameters of the learned maps, with axis names; an empty dict where there are none."""
    maps = self.maps(model)
    if not maps.widths:
      return {}
    name, (width, _) = maps.widths[0]
    return maps.init(key, name, jnp.zeros((1, width)))["params"]

  def weights(self, batch: Batch) -> dict[str, jax.Array]:
    """The divisor of each loss term's sum: a number, over the weight; infinite out of its stage."""
    scaled = lambda number, weight, during: number / (weight * self._in_stage(during))
    divisors = {}
    if self.task_weight:
      divisors = {name: scaled(number, self.task_weight, self.task_during)
                  for name, number in self.task.weights(batch).items()}
    return divisors | {
        f"{name}_loss": scaled(term.weights(self.task, batch).sum(), term.weight, term.during)
        for name, term in self.active}

  def _in_stage(self, during: tuple[float, float]) -> jax.Array:
    if self.done is None or tuple(during) == ALWAYS:
      return jnp.float32(1)
    return jnp.float32((self.done >= during[0]) & (self.done < during[1]))

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None,
               teacher: Any = None) -> Sums:
    """Sums of the task, and NAME_loss of every term over what it compares.

    Args:
      model, batch, train, rngs: as of any objective.
      params: of the model, and as `OWN` those of `own_params`.
      teacher: the teacher's parameters; None leaves its terms out.
    """
    own = params.get(OWN, {})
    params = {key: value for key, value in params.items() if key != OWN}
    if teacher is None:
      return self.task(model, params, batch, train=train, rngs=rngs)
    batch = even_slots(batch)
    wanted = frozenset().union(*(term.taps for _, term in self.active))
    ours, theirs = Tapped(model, wanted), Tapped(self.model, wanted)
    sums = self.task(ours, params, batch, train=train, rngs=rngs)
    self._teach(theirs, jax.lax.stop_gradient(teacher), as_taught(model, self.model, batch))
    for name, term in self.active:
      project = functools.partial(self._project, self.maps(model), own, name)
      both = Both(ours, theirs, task=self.task, batch=batch, project=project)
      sums |= weighted_sums(term.weights(self.task, batch), **{f"{name}_loss": term.distance(both)})
    return sums

  def _project(self, maps: Maps, own: Any, term: str, name: str, x: jax.Array) -> jax.Array:
    """Hidden states through a term's learned map; as they are where it has none."""
    name = f"{term}_{name}"
    return maps.apply({"params": own}, name, x) if name in dict(maps.widths) else x

  def _teach(self, theirs: Tapped, params: Any, batch: Batch) -> None:
    """Runs the teacher: for its scores as the task does, and else its layers alone."""
    if self.soft:
      self.task(theirs, params, batch, train=False)
    else:
      theirs.apply({"params": params}, self.task.model_inputs(batch), False)
