"""Streams of training batches one after the other, of a run in several phases."""

import bisect
import functools
from typing import NamedTuple, Sequence

from jtx.data.pipeline import Batch, Stream


class Begun(NamedTuple):
  """Where a run goes on, as its checkpoint tells."""
  step: int
  epochs: float  # passes over the data by then, which may have been of another size


class Phases:
  """Streams one after the other, as one: the rows of a later phase may be longer and fewer.

  Args:
    streams: one a phase.
    starts: the first step of each, from 0 up.
    begun: where the run goes on; None is of a new one.
  """

  def __init__(self, streams: Sequence[Stream], starts: Sequence[int],
               begun: Begun | None = None):
    self.streams, self.starts, self.begun = list(streams), list(starts), begun

  def phase(self, step: int) -> int:
    return bisect.bisect_right(self.starts, step) - 1

  def batch_size(self, step: int) -> int:
    return self.streams[self.phase(step)].batch_size

  def batch(self, step: int) -> Batch:
    """This process's rows of batch number `step`."""
    phase = self.phase(step)
    return self.streams[phase].batch(step - self.starts[phase])

  def epochs(self, step: int) -> float:
    """Passes over the data in the batches before number `step`, within the phase of the last."""
    if self.begun and step == self.begun.step:
      return self.begun.epochs
    phase = self._of_last(step)
    more = self._more if self.begun and phase == self._of_last(self.begun.step) else 0.0
    return self._own(phase, step) + more

  @functools.cached_property
  def _more(self) -> float:
    """How many more the earlier starts have made than its step is of the data as they are now."""
    step, epochs = self.begun
    return epochs - self._own(self._of_last(step), step)

  def _of_last(self, step: int) -> int:
    """The phase of the last batch before number `step`."""
    return self.phase(max(step - 1, 0))

  def _own(self, phase: int, step: int) -> float:
    return self.streams[phase].epochs(step - self.starts[phase])

  def cursor(self, step: int) -> tuple[int, int]:
    """Where planning may start for batch number `step`, within its phase."""
    phase = self.phase(step)
    return self.streams[phase].cursor(step - self.starts[phase])
