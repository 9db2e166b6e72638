"""Child processes: the cores that they start with, and the signals that they and we get."""

from collections.abc import Iterator
import contextlib
import os
import signal
import subprocess

POLL_SECONDS = 0.2  # between looks at whether they have ended


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


def signal_group(process: subprocess.Popen, number: int) -> None:
  with contextlib.suppress(ProcessLookupError):
    os.killpg(process.pid, number)
