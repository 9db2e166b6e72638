"""Runs the items of a sweep, several at a time, each with its share of this machine's devices.

The parent of the runs holds no device: nothing here asks JAX for one.
"""

import collections
from collections.abc import Mapping, Sequence
import datetime
import fcntl
import os
import signal
import subprocess
import time

from absl import logging

from jtx.config import ConfigDict
from jtx.errors import RESTART, ConfigError
from jtx.launch.children import POLL_SECONDS, caught_signals, on_cores, signal_group, signal_name
from jtx.launch.shares import Share
from jtx.saved import workdir as workdirs
from jtx.sweeps.sweep import Item, write

LOG_FILE = "log.txt"
GRACE_SECONDS = 10.0  # between asking a run to end and killing it


def finished(config: ConfigDict, folder: str) -> bool:
  """Whether `folder` holds the finished run of `config`."""
  try:
    workdirs.check_workdir(config, folder)
    return workdirs.has_results(folder) and not workdirs.unevaluated(config, folder)
  except ConfigError:
    return False  # the train command says what is wrong with it


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
    if status == 0 and workdirs.has_results(self._folder):
      return ""
    with open(self._path, "rb") as f:
      f.seek(self._offset)
      text = f.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
    last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
    how = f"signal {signal_name(-status)}" if status < 0 else f"exit status {status}"
    return f"{how}: {last} ({self._path})"


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
