"""Learning rate schedules: (lr, total_steps, width) -> (updates already made -> learning rate).

`warmup` is in updates, or below 1 a share of the run; `width` is the model's.
"""

from typing import Callable

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.ranges import Count, NotNegative, Positive, Share

Schedule = Callable[[jax.typing.ArrayLike], jax.Array]


def constant(lr: float, total_steps: int, width: int | None = None, *,
             warmup: NotNegative = 0.0) -> Schedule:
  """`lr` after a linear warm-up over `warmup` updates.

  Args:
    lr: the highest rate.
    total_steps: updates in the run.
    width: not needed.
    warmup: updates of the linear warm-up, or below 1 a share of the run.
  """
  warm = _warm(_updates(warmup, total_steps))
  return lambda step: lr * warm(step)


def step(lr: float, total_steps: int, width: int | None = None, *, warmup: NotNegative = 0.0,
         drops: tuple[Share, ...] = (2 / 3,), factor: Positive = 0.1) -> Schedule:
  """`lr`, and after each of `drops` a `factor` of what it was (He et al. 2015, section 3.4).

  Args:
    lr: the highest rate.
    total_steps: updates in the run.
    width: not needed.
    warmup: updates of the linear warm-up, or below 1 a share of the run.
    drops: shares of the run.
    factor: of the learning rate, at each drop.
  """
  warm = _warm(_updates(warmup, total_steps))
  ends = [round(share * total_steps) for share in drops]
  return lambda step: lr * warm(step) * factor ** sum(
      jnp.asarray(step >= end, jnp.float32) for end in ends)


def linear(lr: float, total_steps: int, width: int | None = None, *, warmup: NotNegative = 1000.0,
           end: NotNegative = 0.0) -> Schedule:
  """Linear warm-up to `lr`, then a line to `end * lr` when the run is over.

  Args:
    lr: the highest rate.
    total_steps: updates in the run.
    width: not needed.
    warmup: updates of the linear warm-up, or below 1 a share of the run.
    end: the last learning rate, as a share of `lr`.
  """
  warmup = _updates(warmup, total_steps)
  warm, progress = _warm(warmup), _progress(warmup, total_steps)
  return lambda step: lr * warm(step) * (1 - (1 - end) * progress(step))


def cosine(lr: float, total_steps: int, width: int | None = None, *, warmup: NotNegative = 1000.0,
           end: NotNegative = 0.0) -> Schedule:
  """Linear warm-up to `lr`, then half a cosine to `end * lr` (Loshchilov & Hutter 2017).

  Args:
    lr: the highest rate.
    total_steps: updates in the run.
    width: not needed.
    warmup: updates of the linear warm-up, or below 1 a share of the run.
    end: the last learning rate, as a share of `lr`.
  """
  warmup = _updates(warmup, total_steps)
  warm, progress = _warm(warmup), _progress(warmup, total_steps)
  return lambda step: lr * warm(step) * (
      end + (1 - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress(step))))


def wsd(lr: float, total_steps: int, width: int | None = None, *, warmup: NotNegative = 1000.0,
        decay: Share = 0.1, end: NotNegative = 0.0) -> Schedule:
  """Warm-up, stable, decay (Hu et al. 2024, MiniCPM).

  Args:
    lr: of the stable phase.
    total_steps: updates in the run.
    width: not needed.
    warmup: updates of the linear warm-up, or below 1 a share of the run.
    decay: the share of the run, at its end, in which a line goes to `end * lr`.
    end: the last learning rate, as a share of `lr`.
  """
  start = total_steps - round(decay * total_steps)
  warm, progress = _warm(_updates(warmup, total_steps)), _progress(start, total_steps)
  return lambda step: lr * warm(step) * (1 - (1 - end) * progress(step))


def noam(lr: float, total_steps: int, width: int | None, *, warmup: Count = 4000) -> Schedule:
  """lr * width^-0.5 * min(n^-0.5, n * warmup^-1.5) for update n = 1, 2, ...

  Vaswani et al. 2017, equation 3, where `lr` is 1.

  Args:
    lr: factor of the rate.
    total_steps: not needed.
    width: of the model's layers.
    warmup: updates up to the highest rate.
  """
  del total_steps
  if width is None:
    raise ConfigError("optim.schedule.name='noam' takes the width of the model's layers, and the"
                      " model has none")

  def schedule(step):
    n = jnp.asarray(step, jnp.float32) + 1
    return lr * width**-0.5 * jnp.minimum(n**-0.5, n * warmup**-1.5)

  return schedule


def rsqrt(lr: float, total_steps: int, width: int | None = None, *,
          hold: Count = 10_000) -> Schedule:
  """lr * max(n, hold)^-0.5 for update n = 1, 2, ... (Raffel et al. 2020, section 3.1.2, `lr` 1).

  Args:
    lr: factor of the rate.
    total_steps: not needed.
    width: not needed.
    hold: updates before the rate begins to fall.
  """
  del total_steps, width
  return lambda step: lr * jnp.maximum(jnp.asarray(step, jnp.float32) + 1, hold)**-0.5


def _updates(warmup: float, total_steps: int) -> int:
  """`warmup` in updates; below 1 it is a share of the run."""
  if warmup > 1 and warmup != round(warmup):
    raise ConfigError(f"optim.schedule.warmup={warmup}: must be a number of updates, or"
                      " below 1 a share of the run")
  return round(warmup * total_steps if warmup < 1 else warmup)


def _warm(warmup: int) -> Schedule:
  """n / warmup for update n = step + 1 up to `warmup`, so that the first is not lost; then 1."""
  return lambda step: jnp.minimum((jnp.asarray(step, jnp.float32) + 1) / max(warmup, 1), 1.0)


def _progress(start: int, stop: int) -> Schedule:
  """0 up to `start`, 1 from `stop` on: the last update of a run is just short of 1."""
  return lambda step: jnp.clip(
      (jnp.asarray(step, jnp.float32) - start) / max(stop - start, 1), 0.0, 1.0)


SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": constant,
    "step": step,
    "linear": linear,
    "cosine": cosine,
    "wsd": wsd,
    "noam": noam,
    "rsqrt": rsqrt,
}
