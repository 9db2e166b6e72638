"""A profile of some steps of a run, for Perfetto and xprof."""

import contextlib
import os
from typing import Iterator, Sequence

from absl import logging
import jax

from jtx import storage
from jtx.errors import ConfigError


class Profile:
  """Traces steps `first` to `last`, and gives every step its number in a trace.

  The trace goes to the folder `profile` of the workdir: `perfetto_trace.json.gz` in the innermost
  folder is for https://ui.perfetto.dev, and `xprof --logdir=WORKDIR/profile` shows all of it.

  Args:
    steps: (first, last), or () for no trace.
    workdir: of the run.

  Raises:
    ConfigError: the steps are no such pair, or the workdir is in a bucket.
  """

  def __init__(self, steps: Sequence[int], workdir: str):
    whole = all(isinstance(step, int) for step in steps)
    if steps and not (len(steps) == 2 and whole and 1 <= steps[0] <= steps[1]):
      raise ConfigError(f"config.profile={tuple(steps)}: the first and the last step of a trace,"
                        " such as (10, 15), or () for none")
    if steps and storage.is_remote(workdir):
      raise ConfigError(f"config.profile: --workdir={workdir} is in a bucket; a trace is written"
                        " to a folder of this machine")
    self._steps = range(steps[0], steps[1] + 1) if steps else range(0)
    self._folder = os.path.join(workdir, "profile")
    self._on = self._begun = False

  @contextlib.contextmanager
  def step(self, step: int) -> Iterator[None]:
    """Step number `step` is made inside."""
    if step in self._steps and not self._on:
      jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
      self._on = self._begun = True
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
      yield
    if self._on and step + 1 not in self._steps:
      self.stop()

  def finish(self) -> None:
    """Ends a run: writes the trace, or says that there is none, since no step of it was made."""
    self.stop()
    if self._steps and not self._begun:
      logging.warning("profile  there is no trace: none of steps %d to %d was made",
                      self._steps[0], self._steps[-1])

  def stop(self) -> None:
    """Writes the trace of the steps so far, where there is one."""
    if self._on:
      jax.block_until_ready(jax.live_arrays())  # steps are made while the host goes on
      jax.profiler.stop_trace()
      self._on = False
      logging.info("profile  of steps %d to %d, or up to here: %s", self._steps[0],
                   self._steps[-1], self._folder)
