"""Factors of the learning rate for single parameters and layers, from regular expressions."""

import re
from typing import Any, Collection, Iterable, NamedTuple

from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jtx.errors import ConfigError
from jtx.train.paths import layer_path


class FrozenState(NamedTuple):
  """Of `frozen_between`."""
  count: jax.Array  # updates that were made


def multipliers(lr_mults: Iterable[tuple[str, float]], params: Any, stacked: Collection[str],
                fixed: Collection[str] = (), *, default: float = 1.0,
                key: str = "lr_mults") -> Any:
  """The learning rate's factor for every parameter, or another number by the paths of layers.

  Args:
    lr_mults: (regex, factor) pairs; the first regex found in a layer's path (`layer_path`)
      decides; `default` where none is.
    params: nested dict of (abstract) parameters.
    stacked: paths of parameters that have a leading axis of layers.
    fixed: paths of parameters that no run trains.
    default: the number of parameters that no regex is of.
    key: of the section optim, for errors.

  Returns:
    Nested dict of float32 arrays that broadcast to the parameters: [layers, 1, ...] where
    stacked, else [].

  Raises:
    ConfigError: an entry is not a pair of a regex and a number from 0, or matches nothing.
  """
  rules = [_rule(entry, key) for entry in lr_mults]
  unmatched = {regex.pattern for regex, _ in rules}

  def factor(path):
    found = [(regex.pattern, mult) for regex, mult in rules if regex.search(path)]
    unmatched.difference_update(pattern for pattern, _ in found)
    return found[0][1] if found else default

  result = {}
  for path, x in flatten_dict(params, sep="/").items():
    if path in stacked:
      mults = [factor(layer_path(path, i)) for i in range(x.shape[0])]
      result[path] = np.array(mults, np.float32).reshape(-1, *(1,) * (len(x.shape) - 1))
    else:
      result[path] = np.array(factor(path), np.float32)
  result |= {path: np.zeros_like(result[path]) for path in fixed}
  if unmatched:
    path = next((p for p in result if p in stacked), next(iter(result)))
    example = layer_path(path, 0) if path in stacked else path
    raise ConfigError(f"optim.{key}: {min(unmatched)!r} matches no parameter;"
                      f" their paths are like {example}")
  return unflatten_dict(result, sep="/")


def _rule(entry: tuple[str, float], key: str) -> tuple[re.Pattern, float]:
  try:
    pattern, mult = entry
    regex, mult = re.compile(pattern), float(mult)
  except (TypeError, ValueError, re.error) as e:
    raise ConfigError(f"optim.{key}: {entry!r} is not a pair (regex, factor)") from e
  if not mult >= 0:
    raise ConfigError(f"optim.{key}: the factor of {pattern!r} is {mult}; it must be 0 or more")
  return regex, mult


def scale_by(factors: Any) -> optax.GradientTransformation:
  """Multiplies updates by a tree of constants; where one is 0 so is the update, even if NaN."""
  def scale(updates, params):
    del params
    return jax.tree.map(lambda u, f: jnp.where(f == 0, 0, u * f).astype(u.dtype), updates, factors)

  return optax.stateless(scale)


def stretches(frozen: Iterable[tuple[str, float, float]], params: Any,
              stacked: Collection[str]) -> tuple[Any, Any]:
  """Two shares of the run for every parameter, between which it is frozen; both 0 where it is not.

  Arguments are those of `multipliers`, but for `frozen`: (regex, share, share).

  Raises:
    ConfigError: an entry is not of that form, or matches nothing.
  """
  for entry in frozen:
    if not isinstance(entry, tuple) or len(entry) != 3 or not entry[1] < entry[2]:
      raise ConfigError(f"optim.frozen: {entry!r} is not (regex, share of the run, larger share)")
  return tuple(multipliers([(entry[0], entry[i]) for entry in frozen], params, stacked, default=0.0,
                           key="frozen") for i in (1, 2))


def frozen_between(starts: Any, ends: Any, total_steps: int) -> optax.GradientTransformation:
  """Updates are 0 in a stretch of the run that differs from parameter to parameter.

  Args:
    starts: tree of constants that broadcast to the parameters, shares of the run.
    ends: likewise.
    total_steps: updates in the run.
  """
  def init(params):
    del params
    return FrozenState(count=jnp.int32(0))

  def update(updates, state, params=None):
    del params
    done = state.count / total_steps
    kept = jax.tree.map(lambda u, a, b: jnp.where((done >= a) & (done < b), 0, u), updates, starts,
                        ends)
    return kept, FrozenState(optax.safe_increment(state.count))

  return optax.GradientTransformation(init, update)
