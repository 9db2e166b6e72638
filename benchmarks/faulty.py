"""A training job that faults are to meet: started, watched, and ended with all its processes."""

from collections.abc import Callable
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import NamedTuple

PATIENCE = 300.0  # seconds for a run to start, or to end


class Lost(Exception):
  """The change that a fault has made."""


class Ended(NamedTuple):
  """How a run ended after a fault."""
  status: int
  seconds: float


class Run:
  """A job that is under way.

  Args:
    folder: its workdir.
    processes: number of them.
    steps: of the run.
    arguments: more of the training command's.
    env: more variables.
  """

  def __init__(self, folder: pathlib.Path, processes: int, steps: int, arguments=(), env=None):
    self.folder = folder
    devices = 2 // processes or 1
    command = [
        sys.executable, "-m", "experiments.launch.local", f"--processes={processes}",
        f"--cpu_devices={devices}", "--restarts=0", "--", "--config=configs/nmt_numbers.py:tiny",
        f"--config.steps={steps}", "--config.log_every=1", "--config.checkpoint.every=10",
        "--config.evals.val.every=0", f"--workdir={folder}", *arguments]
    self.log = open(folder.parent / f"{folder.name}.log", "ab")
    self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log,
                                    env={**os.environ, **(env or {})})

  def reached(self, steps: int) -> None:
    """Returns when as many steps are logged.

    Raises:
      Lost: the run ended before.
    """
    self.until(lambda: len(lines(self.folder)) >= steps, f"step {steps}")

  def until(self, happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
      if self.process.poll() is not None:
        raise Lost(f"the run ended with {self.process.returncode} before {what}")
      if time.monotonic() > deadline:
        raise Lost(f"no {what} in {PATIENCE:.0f} seconds")
      time.sleep(0.005)

  def workers(self, of: int | None = None) -> list[int]:
    """Processes that a process has started; of the launcher these are those that train."""
    children = []
    for task in pathlib.Path(f"/proc/{of or self.process.pid}/task").glob("*/children"):
      with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        children += map(int, task.read_text().split())
    return sorted(children)

  def ended(self) -> Ended:
    """Waits for the end."""
    start = time.monotonic()
    try:
      status = self.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
      raise Lost(f"the run did not end in {PATIENCE:.0f} seconds") from None
    finally:
      self.close()
    return Ended(status, time.monotonic() - start)

  def close(self) -> None:
    """Ends what is left."""
    for pid in [*self.workers(), self.process.pid]:
      with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    self.process.wait()
    self.log.close()


def lines(folder: pathlib.Path) -> list[str]:
  """The lines of the metrics that have a loss, without times or a half-written last."""
  path = folder / "metrics.jsonl"
  if not path.exists():
    return []
  found = map(json.loads, path.read_text().split("\n")[:-1])
  return [json.dumps({k: v for k, v in line.items() if not k.startswith("perf/")})
          for line in found if "loss" in line]
