"""Runs the items of a sweep, several at a time, each with its share of this machine's devices.

The parent of the runs holds no device, so nothing here imports JAX before a run is looked at.
"""

import collections
from collections.abc import Iterator, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import fcntl
import os
import signal
import subprocess
import sys
import time
from typing import Any

from absl import logging

from jtx.config import ConfigDict
from jtx.errors import RESTART, ConfigError
from jtx.sweeps.sweep import Item, write

LOG_FILE = "log.txt"
POLL_SECONDS = 0.2
GRACE_SECONDS = 10.0  # between asking a run to end and killing it


# ----------------------------------------------------------------------------- devices


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


# ------------------------------------------------------------------------------- running


def finished(config: ConfigDict, folder: str) -> bool:
  """Whether `folder` holds the finished run of `config`."""
  from jtx.saved import workdir as workdirs

  try:
    workdirs.check_workdir(config, folder)
  except ConfigError:
    return False  # the train command says what is wrong with it
  return os.path.exists(os.path.join(folder, "results.json"))


def run(items: Sequence[Item], workdir: str, parts: Sequence[Share]) -> tuple[dict[str, str], int]:
  """Runs what is not finished, as many at a time as there are `parts`.

  A signal that ends this process ends the runs first; a run that fails does not. Runs keep what
  they compile in `workdir`/compiled, for runs that differ in numbers only, unless
  JAX_COMPILATION_CACHE_DIR names another folder.

  Returns:
    How runs failed, a sentence by the name of the item; and the signal that stopped the sweep,
    or 0.
  """
  failed: dict[str, str] = {}
  write(items, failed, workdir)
  compiled = os.path.join(os.path.abspath(workdir), "compiled")
  env = {"JAX_COMPILATION_CACHE_DIR": compiled, **os.environ}
  waiting = collections.deque(
      i for i in items if not finished(i.config, os.path.join(workdir, i.name)))
  free, running = list(parts), []
  total, ended = len(items), len(items) - len(waiting)
  if ended:
    logging.info("%d/%d finished before", ended, total)

  def fail(item: Item, reason: str) -> None:
    failed[item.name] = reason
    write(items, failed, workdir)
    logging.error("%d/%d failed %s: %s", ended, total, item.name, reason)

  with caught_signals() as caught:
    try:
      while (waiting or running) and not caught:
        while waiting and free:
          item = waiting.popleft()
          try:
            running.append(_Run(item, os.path.join(workdir, item.name), free[-1], env))
            free.pop()
            logging.info("%d/%d start  %s", ended, total, item.name)
          except BlockingIOError:
            ended += 1
            fail(item, f"another process is running in {os.path.join(workdir, item.name)}")
        time.sleep(POLL_SECONDS)
        for r in [r for r in running if r.process.poll() is not None]:
          running.remove(r)
          free.append(r.share)
          if r.process.returncode == RESTART:
            waiting.append(r.item)
            logging.info("%d/%d later  %s, which was told to stop", ended, total, r.item.name)
            continue
          ended += 1
          if reason := r.failure():
            fail(r.item, reason)
          else:
            logging.info("%d/%d done   %s in %s", ended, total, r.item.name, r.age())
    finally:
      _end([r.process for r in running])
  if caught:
    logging.error("stopped by %s, %d of %d runs ended before and %d now; the same command goes on",
                  signal.Signals(caught[0]).name, ended, total, len(running))
  return failed, caught[0] if caught else 0


class _Run:
  """An item that is running, its output going to its log.

  Raises:
    BlockingIOError: another process runs there.
  """

  def __init__(self, item: Item, folder: str, share: Share, env: Mapping[str, str]):
    self.item, self.share, self._folder = item, share, folder
    self._start = time.monotonic()
    os.makedirs(folder, exist_ok=True)
    self._path = os.path.join(folder, LOG_FILE)
    with open(self._path, "ab") as log:
      # The run inherits the lock with its output, and so has it even when we are killed.
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
      self._offset = log.tell()
      with on_cores(share.cores):
        # A session of its own, so that Ctrl-C reaches only us, and the run's workers end with it.
        self.process = subprocess.Popen(
            item.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            env={**env, **share.env}, start_new_session=True)

  def age(self) -> str:
    return str(datetime.timedelta(seconds=round(time.monotonic() - self._start)))

  def failure(self) -> str:
    """How the run failed: status or signal, its error, and its log; "" where it did not."""
    status = self.process.returncode
    if status == 0 and os.path.exists(os.path.join(self._folder, "results.json")):
      return ""
    with open(self._path, "rb") as f:
      f.seek(self._offset)
      text = f.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"signal {signal_name(-status)}" if status < 0 else f"exit status {status}"
    return f"{how}: {last} ({self._path})"


def signal_name(number: int) -> str:
  try:
    return signal.Signals(number).name
  except ValueError:
    return str(number)


@contextlib.contextmanager
def on_cores(cores: frozenset[int] | None) -> Iterator[None]:
  """A process that is started inside has only these cores, from its first instruction."""
  if cores is None:
    yield
    return
  before = os.sched_getaffinity(0)
  os.sched_setaffinity(0, cores)
  try:
    yield
  finally:
    os.sched_setaffinity(0, before)


@contextlib.contextmanager
def caught_signals() -> Iterator[list[int]]:
  """A list to which the signals that would end us are added instead."""
  caught: list[int] = []
  # What is ignored, as SIGHUP below nohup, stays so.
  before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
  ours = [s for s, handler in before.items() if handler is not signal.SIG_IGN]
  for s in ours:
    signal.signal(s, lambda number, _: caught.append(number))
  try:
    yield caught
  finally:
    for s in ours:
      signal.signal(s, before[s])


def _end(processes: Sequence[subprocess.Popen]) -> None:
  """Ends processes, and what they started; those that take long are killed."""
  for p in processes:
    signal_group(p, signal.SIGTERM)
  deadline = time.monotonic() + GRACE_SECONDS
  for p in processes:
    try:
      p.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      signal_group(p, signal.SIGKILL)
      p.wait()


def signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)
