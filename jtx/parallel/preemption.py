"""Preemption (signals, time limits): a run saves, and ends with a status for "start me again".

Machines of a cloud are taken back, and jobs of a cluster run out of time; both say so by SIGTERM.
Who closes a terminal sends SIGHUP, and who types ctrl-C SIGINT.
JAX is imported only where a run is under way, since launchers use this module without it.
"""

import contextlib
import os
import signal
import threading
import time
from typing import Any, Iterable, Iterator

from absl import logging

from jtx.errors import RESTART, Preempted

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
_ENDING = threading.Lock()


def end_at_once() -> None:
  """Lets signals end the process at once, as long as there is nothing to save.

  A thread ends it: the main one may be compiling for minutes, for which a handler would wait.
  """
  read, write = os.pipe()
  os.set_blocking(write, False)
  signal.set_wakeup_fd(write, warn_on_full_buffer=False)
  for number in heeded(SIGNALS):
    signal.signal(number, _at_once)
  threading.Thread(target=_end, args=(read,), daemon=True).start()


def heeded(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
  """Those of the signals that are not ignored, as SIGHUP is below nohup."""
  return [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]


def _end(read: int) -> None:
  """Ends the process at the first signal whose handler is `_at_once`, as a pipe tells them."""
  while numbers := os.read(read, 1):
    if signal.getsignal(numbers[0]) is _at_once:
      _at_once(numbers[0])


def _at_once(number: int, _: Any = None) -> None:
  """Ends the process with a sentence, in the first of the threads that come here."""
  if _ENDING.acquire(blocking=False):
    os.write(2, f"error: stopped by {signal.Signals(number).name}, with nothing new to save; the"
                " same command goes on\n".encode())
    os._exit(_status(number))


def _status(number: int) -> int:
  """The exit status of a run that a signal has stopped."""
  return 128 + number if number == signal.SIGINT else RESTART


def _let_jax_catch_sigterm() -> None:
  """What JAX does when processes meet, which `processes.initialize` puts off until there are steps.

  From now on SIGTERM is a notice, of which `reached_preemption_sync_point` tells all processes.
  """
  import jax
  from jax._src import distributed  # there is no other way to do it later
  if distributed.global_state.preemption_sync_manager is None:
    jax.config.update("jax_enable_preemption_service", True)
    distributed.global_state.initialize_preemption_sync_manager()


class _Given(BaseException):
  """A notice, where it ends what is done."""


class Notice:
  """Whether the run should stop after this step; every process gets the same answer.

  As a context it catches SIGNALS from the first step on; before, there is nothing to save. The
  first one is a notice, the second ends the process at once. With several processes JAX's
  coordination service catches SIGTERM instead, as which the others are passed on, and chooses the
  step after which all of them stop.

  Args:
    max_seconds: from now on, after which the run stops as if it were told to; 0 is no limit.
  """

  def __init__(self, max_seconds: float = 0.0):
    self.reason = ""  # why to stop; "" as long as there is none
    self._deadline = time.monotonic() + max_seconds if max_seconds else float("inf")
    self._max_seconds = max_seconds
    self._at_once = self._several = self._waits = False
    self._before: dict[signal.Signals, Any] | None = None

  def __enter__(self) -> "Notice":
    return self

  def __exit__(self, *_: Any) -> None:
    for number, handler in (self._before or {}).items():
      signal.signal(number, handler)

  def _catch(self) -> None:
    import jax
    self._before, self._several = {}, jax.process_count() > 1
    if self._several:
      _let_jax_catch_sigterm()
    # Only the main thread may set handlers; a run in another one is not told.
    if threading.current_thread() is threading.main_thread():
      for number in heeded(SIGNALS[1:] if self._several else SIGNALS):
        self._before[number] = signal.signal(number, self._on_signal)

  def _on_signal(self, number: int, _: Any) -> None:
    for caught in self._before:  # for the second one
      signal.signal(caught, signal.SIG_DFL)
    name = signal.Signals(number).name
    if self._several:
      os.kill(os.getpid(), signal.SIGTERM)  # tells the coordination service
      return
    self.reason = name
    if self._at_once:
      raise self._stopped()
    logging.warning("%s: stopping after this step; once more ends the process at once", name)
    if self._waits:
      raise _Given

  def _stopped(self) -> Preempted:
    error = Preempted(f"stopped by {self.reason}; the same command goes on")
    error.status = _status(signal.SIGINT) if self.reason == "SIGINT" else RESTART
    return error

  def due(self, step: int) -> bool:
    """Whether the run should stop, having made `step` updates."""
    if self._before is None:
      self._catch()
    if not self.reason and time.monotonic() > self._deadline:
      self.reason = f"the limit of {self._max_seconds:g} seconds"
      if self._several:
        self._deadline, self.reason = float("inf"), ""
        os.kill(os.getpid(), signal.SIGTERM)  # tells the coordination service
    if self._several:
      from jax.experimental import multihost_utils
      if multihost_utils.reached_preemption_sync_point(step):
        self.reason = "SIGTERM or the limit of seconds, in one of the processes"
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return bool(self.reason)

  @contextlib.contextmanager
  def abandons(self) -> Iterator[None]:
    """What is done inside can wait for the restart: a signal ends it; not of several processes."""
    self._waits = True
    try:
      yield
    except _Given:
      pass
    finally:
      self._waits = False

  def reading(self, batches: Iterable[Any]) -> Iterator[Any]:
    """The batches, up to one that could not be read because its readers were told to stop too."""
    iterator = iter(batches)
    while True:
      try:
        batch = next(iterator)
      except StopIteration:
        return
      except Exception:
        if not self.reason:
          raise
        logging.warning("no further batch can be read", exc_info=True)
        return
      yield batch

  def at_once(self) -> None:
    """From here on nothing is left to save: a signal raises Preempted wherever the run is.

    One of several processes ends instead, which the others notice.

    Raises:
      Preempted: it came before.
    """
    if self.reason:
      raise self._stopped()
    self._at_once = True
    if self._several:
      for number in (signal.SIGTERM, *self._before):
        signal.signal(number, _at_once)
