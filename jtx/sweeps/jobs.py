"""Runs the items of a sweep, several at a time, each with its share of this machine's devices.

The parent of the runs holds no device: nothing here asks JAX for one.
"""

import collections
from collections.abc import Mapping, Sequence
import contextlib
import datetime
import fcntl
import os
import signal
import subprocess
import time
from typing import Any, Protocol

from absl import logging

from jtx import config_files
from jtx.config import ConfigDict
from jtx.errors import RESTART, ConfigError
from jtx.launch.children import POLL_SECONDS, caught_signals, on_cores, signal_group, signal_name
from jtx.launch.shares import Share
from jtx.saved import claims, workdir as workdirs
from jtx.sweeps.sweep import SWEEP_FILE, Item, write

LOG_FILE = "log.txt"
EXIT_FILE = "exit_status"  # of a task of a cluster: its status, and where its log begins
GRACE_SECONDS = 10.0  # between asking a run to end and killing it


def status_of(stopped: int) -> int:
  """The exit status of a sweep whose runs a signal stopped and saved."""
  return 128 + stopped if stopped == signal.SIGINT else RESTART  # the former as a shell has it


def finished(config: ConfigDict, folder: str) -> bool:
  """Whether `folder` holds the finished run of `config`."""
  try:
    claims.check(config, folder)
    return workdirs.has_results(folder) and not workdirs.unevaluated(config, folder)
  except ConfigError:
    return False  # the train command says what is wrong with it


def check_same(items: Sequence[Item], workdir: str) -> None:
  """Raises ConfigError where the folder has begun runs of a sweep of which `items` are not.

  `sweep.json` would forget them. More items than there were are the same sweep.
  """
  path, ours = os.path.join(workdir, SWEEP_FILE), {item.name: item for item in items}
  known = config_files.read_json(path, missing="")["items"] if os.path.exists(path) else []
  for old in known:
    folder = os.path.join(workdir, old["name"])
    if not claims.holds_run(folder):
      continue
    if old["name"] not in ours:
      here = f", such as {items[0].name}" if items else ""
      raise ConfigError(f"--workdir={workdir} holds another sweep: its run {old['name']} is none of"
                        f" this one's{here}; choose another workdir, or repeat its command, which"
                        " may have more values")
    claims.check(ours[old["name"]].config, folder)


def environment(workdir: str) -> dict[str, str]:
  """Variables of the runs of a sweep, which share what they compile.

  This is for runs that differ in their seed only. It is kept in `workdir`/compiled, unless
  JAX_COMPILATION_CACHE_DIR names another folder.
  """
  name = "JAX_COMPILATION_CACHE_DIR"
  return {name: os.environ.get(name, os.path.join(os.path.abspath(workdir), "compiled"))}


class Work(Protocol):
  """Items that are to be run, of which each method is told, or asked."""

  def next(self) -> Item | None:
    """The item to start now; None where there is none, or not before another has ended."""

  def is_done(self) -> bool:
    """Whether nothing is left to start."""

  def started(self, item: Item) -> None:
    """The item runs."""

  def occupied(self, item: Item, folder: str) -> None:
    """Another process runs in the folder of the item that was to start."""

  def unwanted(self, item: Item) -> bool:
    """Whether a running item is to be told to stop; this is asked again and again."""

  def later(self, item: Item) -> None:
    """The item was told to stop, and goes on when it is started again."""

  def ended(self, item: Item, failure: str, age: str) -> None:
    """The item ended after a time; how it failed, or "" where it did not."""


def run(items: Sequence[Item], workdir: str, parts: Sequence[Share]) -> tuple[dict[str, str], int]:
  """Runs what is not finished, as many at a time as there are `parts`.

  A signal that ends this process ends the runs first; a run that fails does not.

  Returns:
    How runs failed, a sentence by the name of the item; and the signal that stopped the sweep,
    or 0.
  """
  work = _Listed(items, workdir)
  stopped = work_off(work, workdir, parts)
  return work.failed, stopped


class _Listed:
  """The work of a list of items."""

  def __init__(self, items: Sequence[Item], workdir: str):
    self.failed: dict[str, str] = {}
    self._items, self._workdir = items, workdir
    write(items, self.failed, workdir)
    self._waiting = collections.deque(
        i for i in items if not finished(i.config, os.path.join(workdir, i.name)))
    self._ended = len(items) - len(self._waiting)
    if self._ended:
      logging.info("%s finished before", self._count())

  def _count(self) -> str:
    return f"{self._ended}/{len(self._items)}"

  def next(self) -> Item | None:
    return self._waiting.popleft() if self._waiting else None

  def is_done(self) -> bool:
    return not self._waiting

  def unwanted(self, item: Item) -> bool:
    return False

  def started(self, item: Item) -> None:
    logging.info("%s start  %s", self._count(), item.name)

  def occupied(self, item: Item, folder: str) -> None:
    self.ended(item, f"another process is running in {folder}", "")

  def later(self, item: Item) -> None:
    self._waiting.append(item)
    logging.info("%s later  %s, which was told to stop", self._count(), item.name)

  def ended(self, item: Item, failure: str, age: str) -> None:
    self._ended += 1
    if not failure:
      logging.info("%s done   %s in %s", self._count(), item.name, age)
      return
    self.failed[item.name] = failure
    write(self._items, self.failed, self._workdir)
    logging.error("%s failed %s: %s", self._count(), item.name, failure)


def work_off(work: Work, workdir: str, parts: Sequence[Share]) -> int:
  """Runs items in their folders of `workdir`, as many at a time as there are `parts`.

  Returns:
    The signal that stopped it, or 0.
  """
  env = {**os.environ, **environment(workdir)}
  free, running = list(parts), []
  with caught_signals() as caught:
    try:
      while (running or not work.is_done()) and not caught:
        while free and (item := work.next()):
          folder = os.path.join(workdir, item.name)
          try:
            running.append(_Run(item, folder, free[-1], env))
            free.pop()
            work.started(item)
          except BlockingIOError:
            work.occupied(item, folder)
            break  # it may be asked for again, but not at once
        time.sleep(POLL_SECONDS)
        for r in [r for r in running if r.process.poll() is not None]:
          running.remove(r)
          free.append(r.share)
          if r.process.returncode == RESTART:
            work.later(r.item)
          else:
            work.ended(r.item, r.failure(), r.age())
        for r in running:
          if work.unwanted(r.item):
            r.stop()
    finally:
      _end([r.process for r in running])
  if caught:
    logging.error("stopped by %s, with %d running; the same command goes on",
                  signal.Signals(caught[0]).name, len(running))
  return caught[0] if caught else 0


def failure_of(item: Mapping[str, Any], folder: str) -> str:
  """How the run of an item of `sweep.json` failed, here or as a task of a cluster; "" is not."""
  path = os.path.join(folder, EXIT_FILE)
  if item["failed"] or not os.path.exists(path):
    return item["failed"] or ""
  with open(path, encoding="utf-8") as f:
    words = f.read().split()
  status, before = map(int, words) if len(words) == 2 else (1, 0)  # 1 where it is half written
  return _told(status, os.path.join(folder, LOG_FILE), before)


def _told(status: int, path: str, offset: int) -> str:
  """A status, or minus a signal, and the error in a log from an offset on."""
  with open(path, "rb") as f:
    f.seek(offset)
    text = f.read().decode(errors="replace")
  lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
  last = next((line for line in reversed(lines) if line.startswith("error: ")), lines[-1])
  how = f"signal {signal_name(-status)}" if status < 0 else f"exit status {status}"
  return f"{how}: {last} ({path})"


class _Run:
  """An item that is running, its output going to its log.

  Raises:
    BlockingIOError: another process runs there.
  """

  def __init__(self, item: Item, folder: str, share: Share, env: Mapping[str, str]):
    self.item, self.share, self._folder = item, share, folder
    self._start, self._told_to_stop = time.monotonic(), False
    os.makedirs(folder, exist_ok=True)
    self._path = os.path.join(folder, LOG_FILE)
    with open(self._path, "ab") as log:
      # The run inherits the lock with its output, and so has it even when we are killed.
      fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
      self._offset = log.tell()
      with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(folder, EXIT_FILE))  # of a task of a cluster, which this follows
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
    return _told(status, self._path, self._offset)

  def stop(self) -> None:
    """Tells the run, once, to save and end."""
    if not self._told_to_stop:
      self._told_to_stop = True
      signal_group(self.process, signal.SIGTERM)


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
