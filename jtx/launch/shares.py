"""Equal shares of this machine's devices for processes that run side by side.

Nothing here imports JAX: a process that asks it for devices holds them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import os
import subprocess
import sys
from typing import Any

from absl import logging

from jtx.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Share:
  """The devices of one run: variables that show it no others, and CPU cores (None is all)."""
  env: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cores: frozenset[int] | None = None


# Chips in the order of their numbers are rectangles of a host only at these sizes.
TPU_BOUNDS = {1: "1,1,1", 2: "1,2,1", 4: "2,2,1"}


def shares(jobs: int) -> list[Share]:
  """This machine's devices in `jobs` equal parts.

  Raises:
    ConfigError: there are fewer devices than jobs.
  """
  if jobs == 1:
    return [Share()]
  platform, count = _probe()
  if platform == "cpu":
    if not hasattr(os, "sched_getaffinity"):
      return [Share()] * jobs  # the system has no way to divide cores
    return divide("cpu", sorted(os.sched_getaffinity(0)), jobs)
  visible = os.environ.get(_VISIBLE[platform]) if platform in _VISIBLE else None
  return divide(platform, visible.split(",")[:count] if visible else range(count), jobs)


_VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "tpu": "TPU_VISIBLE_CHIPS"}


def divide(platform: str, devices: Sequence[Any], jobs: int) -> list[Share]:
  """`devices` in `jobs` equal parts; equal, since a result can depend on their number.

  Args:
    platform: JAX's name: cpu, gpu or tpu.
    devices: CPU cores, or the numbers of GPUs or of TPU chips.
    jobs: number of parts.

  Raises:
    ConfigError: there are fewer devices than jobs, or devices that can't be divided.
  """
  noun = {"cpu": "CPU cores", "gpu": "GPUs", "tpu": "TPU chips"}.get(platform)
  if noun is None:
    raise ConfigError(f"--jobs={jobs}: the devices of platform {platform!r} can't be divided among"
                      " runs; leave --jobs at 1")
  if jobs > len(devices):
    raise ConfigError(f"--jobs={jobs} is more than the {noun} to divide, of which there are"
                      f" {len(devices)}")
  size = len(devices) // jobs
  if platform == "tpu":
    size = max(n for n in TPU_BOUNDS if n <= size)
  if idle := len(devices) - size * jobs:
    logging.warning("--jobs=%d: each run gets %d of %d %s, and %d stay idle", jobs, size,
                    len(devices), noun, idle)
  parts = [devices[i * size:(i + 1) * size] for i in range(jobs)]
  if platform == "cpu":
    return [Share(cores=frozenset(part)) for part in parts]
  env = [{_VISIBLE[platform]: ",".join(map(str, part))} for part in parts]
  if platform == "tpu":
    alone = {"TPU_CHIPS_PER_PROCESS_BOUNDS": TPU_BOUNDS[size], "TPU_PROCESS_BOUNDS": "1,1,1",
             "CLOUD_TPU_TASK_ID": "0", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    env = [e | alone for e in env]
  return [Share(env=e) for e in env]


def _probe() -> tuple[str, int]:
  """Platform and number of local devices (chips of a TPU), asked for in another process.

  A process that asks holds the devices as long as it lives.
  """
  code = ("import jax; d = jax.local_devices(); p = d[0].platform;"
          "print(p, len({tuple(x.coords) for x in d} if p == 'tpu' else d))")
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  if done.returncode:
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    raise ConfigError(f"--jobs: JAX finds no devices here: {lines[-1]}")
  platform, count = done.stdout.split()[-2:]
  return platform, int(count)
