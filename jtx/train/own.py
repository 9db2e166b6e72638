"""Parameters of an objective, such as learned maps from a student to its teacher.

In the state of a run they are beside the model's, as `objective`, so optimisers, averages and
`optim.lr_mults` treat them like these. In a checkpoint they are items of their own, which only a
run that goes on reads: whoever opens the model does not get them.
"""

from typing import Any, Mapping

import jax

from jtx.objectives.contract import OWN

ITEMS = ("params", "ema")  # of a state, that may have them


def own_params(objective: Any, model: Any, key: jax.Array) -> dict[str, Any]:
  """Fresh parameters of the objective, with axis names, as a part of those of a run."""
  make = getattr(objective, "own_params", None)
  own = make(model, key) if make else {}
  return {OWN: own} if own else {}


def without_own(params: Mapping[str, Any]) -> dict[str, Any]:
  """A run's parameters that are the model's."""
  return {key: value for key, value in params.items() if key != OWN}


def apart(state: Mapping[str, Any]) -> dict[str, Any]:
  """A state, as a dict, with the objective's parameters as items beside the model's."""
  found = {f"{OWN}_{key}": state[key][OWN] for key in ITEMS if OWN in state[key]}
  return {**state, **{key: without_own(state[key]) for key in ITEMS}, **found}


def together(state: Mapping[str, Any]) -> dict[str, Any]:
  """The inverse of `apart`."""
  result = {key: value for key, value in state.items() if not key.startswith(f"{OWN}_")}
  for key in ITEMS:
    if f"{OWN}_{key}" in state:
      result[key] = {**state[key], OWN: state[f"{OWN}_{key}"]}
  return result
