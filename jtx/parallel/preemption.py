"""Preemption (SIGTERM, time limits): a run saves, and ends with a status for "start me again".

Machines of a cloud are taken back, and jobs of a cluster run out of time; both say so by SIGTERM.
JAX is imported only where a run is under way, since launchers use this module without it.
"""

import os
import signal
import threading
import time
from typing import Any, Iterable, Iterator

from absl import logging

from jtx.errors import Preempted


class Notice:
  """Whether the run should stop after this step; every process gets the same answer.

  As a context it catches SIGTERM. The first one is a notice, the second ends the process at once.
  With several processes JAX's coordination service catches it instead, and chooses the step after
  which all of them stop.

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
    # Only the main thread may set handlers; a run in another one is not told.
    self._catches = (not self._several
                     and threading.current_thread() is threading.main_thread())
    if self._catches:
      self._before = signal.signal(signal.SIGTERM, self._on_signal)
    return self

  def __exit__(self, *_: Any) -> None:
    if self._catches:
      signal.signal(signal.SIGTERM, self._before)

  def _on_signal(self, number: int, _: Any) -> None:
    self.reason = signal.Signals(number).name
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # for the second one
    if self._at_once:
      raise Preempted(f"stopped by {self.reason}; the same command goes on")
    logging.warning("%s: stopping after this step; once more ends the process at once",
                    self.reason)

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
    """From here on nothing is left to save: SIGTERM raises Preempted wherever the run is.

    Raises:
      Preempted: it came before.
    """
    if self.reason:
      raise Preempted(f"stopped by {self.reason}; the same command goes on")
    self._at_once = True
