"""Preemption (signals, time limits): a run saves, and ends with a status for "start me again".

Machines of a cloud are taken back, and jobs of a cluster run out of time; both say so by SIGTERM.
Who closes a terminal sends SIGHUP, and who types ctrl-C SIGINT.
JAX is imported only where a run is under way, since launchers use this module without it.
"""

import os
import signal
import threading
import time
from typing import Any, Iterable, Iterator

from absl import logging

from jtx.errors import RESTART, Preempted

SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def end_at_once() -> None:
  """Lets signals end the process at once, as long as there is nothing to save."""
  for number in SIGNALS:
    signal.signal(number, lambda number, _: os._exit(_status(number)))


def _status(number: int) -> int:
  """The exit status of a run that a signal has stopped."""
  return 128 + number if number == signal.SIGINT else RESTART


class Notice:
  """Whether the run should stop after this step; every process gets the same answer.

  As a context it catches SIGNALS. The first one is a notice, the second ends the process at once.
  With several processes JAX's coordination service catches SIGTERM instead, as which the others are
  passed on, and chooses the step after which all of them stop.

  Args:
    max_seconds: from now on, after which the run stops as if it were told to; 0 is no limit.
  """

  def __init__(self, max_seconds: float = 0.0):
    self.reason = ""  # why to stop; "" as long as there is none
    self._deadline = time.monotonic() + max_seconds if max_seconds else float("inf")
    self._max_seconds = max_seconds
    self._at_once = False

  def __enter__(self) -> "Notice":
    import jax
    self._several = jax.process_count() > 1
    self._before: dict[signal.Signals, Any] = {}
    # Only the main thread may set handlers; a run in another one is not told.
    if threading.current_thread() is threading.main_thread():
      for number in SIGNALS[1:] if self._several else SIGNALS:
        self._before[number] = signal.signal(number, self._on_signal)
    return self

  def __exit__(self, *_: Any) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

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

  def _stopped(self) -> Preempted:
    error = Preempted(f"stopped by {self.reason}; the same command goes on")
    error.status = _status(signal.SIGINT) if self.reason == "SIGINT" else RESTART
    return error

  def due(self, step: int) -> bool:
    """Whether the run should stop, having made `step` updates."""
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

    Raises:
      Preempted: it came before.
    """
    if self.reason:
      raise self._stopped()
    self._at_once = True
