"""The choice of an attention kernel: what each supports, and which is taken."""

import functools
import inspect
from typing import Callable, NamedTuple

from absl import logging

from jtx.errors import ConfigError, nearest
from jtx.nn.bias import PairBias
from jtx.nn.kernels import blocked, fused, reference, table
from jtx.nn.masks import Mask
from jtx.parallel.sharding import platform


class Request(NamedTuple):
  """The static part of a call to `attend`, by which kernels say what they support."""
  mask: Mask
  segments: bool
  score: str
  weights: bool
  indexed: bool  # queries or keys are not the places of a row in order
  shared_bias: bool  # one array is the bias of all rows
  queries: int  # T
  keys: int  # S


class Kernel(NamedTuple):
  run: Callable
  platforms: tuple[str, ...] | None  # None is every platform
  supports: Callable[[Request, str], bool]  # of the platform, too
  # Whether it pays: else another is taken, unless it is asked for by name.
  pays: Callable[[Request], bool] = lambda request: True
  names_kept: bool = False  # names KEPT what it computes in blocks; all else is cheap to make again
  # Whether it computes a bias that is a function of places by itself.
  calls_bias: Callable[[PairBias], bool] = lambda bias: False


# In order of preference.
KERNELS: dict[str, Kernel] = {
    "fused": Kernel(
        fused.attend, ("tpu", "gpu"),
        lambda r, platform: r.score == "dot" and not (
            r.weights or r.indexed or r.shared_bias and platform == "gpu"),
        pays=lambda r: r.queries >= 32, names_kept=True,
        calls_bias=lambda bias: bias.largest <= table.LARGEST),
    "blocked": Kernel(
        blocked.attend, None,
        lambda r, platform: r.score == "dot" and not (r.weights or r.indexed),
        pays=lambda r: r.queries * r.keys >= 2048**2, names_kept=True,
        calls_bias=lambda bias: True),
    "xla": Kernel(reference.attend, None, lambda r, platform: True),
}


def choose(name: str, request: Request) -> Kernel:
  """The kernel to run; the log says which, once for every mask."""
  here = platform()
  if name != "auto":
    if name not in KERNELS:
      raise ConfigError(f"kernel={name!r}: {nearest(name, ['auto', *KERNELS])}")
    kernel = KERNELS[name]
    if kernel.platforms and here not in kernel.platforms:
      raise ConfigError(f"kernel={name!r} is for {' and '.join(kernel.platforms)}, and this is"
                        f" {here}; use kernel='auto'")
    if not kernel.supports(request, here):
      raise ConfigError(f"kernel={name!r} does not support {request}; use kernel='auto'")
  else:
    name = next(n for n, kernel in KERNELS.items()
                if here in (kernel.platforms or (here,)) and kernel.supports(request, here)
                and kernel.pays(request))
  announce(name, request.mask, request.segments)
  return KERNELS[name]


@functools.cache
def announce(kernel: str, mask: Mask, segments: bool) -> None:
  logging.info("attention kernel %s for mask %s%s", kernel, mask, ", segments" if segments else "")


def bind(kernel: Kernel, **options) -> Callable:
  """The kernel of q, k and v; of the options it gets those that it takes.

  Raises:
    TypeError: one that it does not take would change the result.
  """
  takes = inspect.signature(kernel.run).parameters
  for name, value in options.items():
    unset = value is None or value is False or (
        isinstance(value, float | str) and value in (0.0, "dot"))
    if name not in takes and not unset:
      raise TypeError(f"{kernel.run.__module__} does not take {name}, which its `supports` let in")
  return functools.partial(kernel.run, **{k: v for k, v in options.items() if k in takes})
