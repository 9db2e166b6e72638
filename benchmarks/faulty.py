"""A training job that faults are to meet: started, watched, and ended with all its processes."""

from collections.abc import Callable, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, NamedTuple

from benchmarks.fault_disk import Disk

PATIENCE = 300.0  # seconds for a run to start, or to go on
HANGS = 15.0  # seconds after which a run that has met a fault must have ended
EVERY = 10  # steps from a checkpoint to the next

# A test's programs: compiling costs more than it gains. See tests/conftest.py.
FLAGS = ("--xla_llvm_disable_expensive_passes=true --xla_backend_optimization_level=0"
         " --xla_cpu_use_fusion_emitters=false")


class Lost(Exception):
  """The change that a fault has made."""


class Setting(NamedTuple):
  """How a job logs, and how long its steps are."""
  log_every: int
  step_seconds: float = 0.0

  @property
  def most_seconds(self) -> float:
    """From a signal to the end of the run: five steps' time, where steps are long."""
    return 5 * self.step_seconds or HANGS


SETTINGS = {"logged": Setting(1), "rare": Setting(1000), "slow": Setting(1000, 2.5)}


class Ended(NamedTuple):
  """How a run ended after a fault."""
  status: int
  seconds: float


@dataclasses.dataclass(kw_only=True)
class Job:
  """What a campaign runs, again and again.

  Attributes:
    place: folder of its logs.
    folder: its workdir.
    processes: number of them.
    steps: of the run.
    setting: of SETTINGS.
    cache: folder of compiled programs.
    disk: the file system that the workdir is on, where it has one of its own.
    destroyed: logged steps whose lines a fault has destroyed.
    damaged: checkpoints that faults have damaged so far, at most.
  """
  place: pathlib.Path
  folder: pathlib.Path
  processes: int
  steps: int
  setting: Setting
  cache: pathlib.Path
  disk: Disk | None = None
  destroyed: set[int] = dataclasses.field(default_factory=set)
  damaged: float = 0

  def start(self, *arguments: str, name: str = "run", env=None, step_seconds=None) -> "Run":
    if step_seconds is None:
      step_seconds = self.setting.step_seconds
    return Run(self, arguments, name=name, env=env or {}, step_seconds=step_seconds)

  def newest(self) -> int:
    """The step of the newest checkpoint, or 0."""
    return max((int(p.name) for p in (self.folder / "checkpoints").glob("*") if p.name.isdigit()),
               default=0)

  def logged(self) -> dict[int, str]:
    """The lines of the metrics that have a loss, by step, without times or half of a last one.

    Raises:
      Lost: a step is there twice.
    """
    path, found = self.folder / "metrics.jsonl", {}
    text = path.read_text(errors="replace") if path.exists() else ""
    for line in text.split("\n")[:-1]:
      with contextlib.suppress(ValueError):
        values = json.loads(line)
        if "loss" in values:
          if values["step"] in found:
            raise Lost(f"step {values['step']} is logged twice")
          found[values["step"]] = json.dumps(
              {k: v for k, v in values.items() if not k.startswith("perf/")})
    return found

  def at(self) -> int:
    """The step that is logged, or else saved, last."""
    return max([self.newest(), *self.logged()])

  def under_way(self) -> int:
    """The number of the step that slow steps say is being made, or 0."""
    with contextlib.suppress(FileNotFoundError, ValueError):
      return int((self.place / "step").read_text())
    return 0

  def digests(self) -> dict[str, object]:
    """The checksums of the arrays of each checkpoint that a run saves anyway."""
    found = {}
    for path in (self.folder / "checkpoints").glob("*/manifest/metadata"):
      step = path.parent.parent.name
      with contextlib.suppress(ValueError, OSError):
        content = json.loads(path.read_text())["content"]
        if step.isdigit() and (int(step) % EVERY == 0 or int(step) == self.steps):
          found[step] = content["arrays"]
    return found


def check(job: Job, truth: dict[str, Any]) -> None:
  """Raises Lost where lines, or arrays of checkpoints, are not those of the undisturbed run."""
  found, theirs = job.logged(), truth["lines"]
  if list(found) != sorted(found):
    raise Lost(f"lines are of the steps {list(found)}")
  for step, line in found.items():
    if line != theirs.get(step):
      raise Lost(f"step {step} is {line}, undisturbed {theirs.get(step)}")
  missing = {s for s in theirs if s < max(found, default=0)} - found.keys() - job.destroyed
  if missing:
    raise Lost(f"lines of the steps {sorted(missing)} are missing")
  for step, arrays in job.digests().items():
    if arrays != truth["digests"].get(step, arrays):
      raise Lost(f"the checkpoint of step {step} has other arrays")
  aside = len(list((job.folder / "corrupt").glob("*")))
  if aside > job.damaged:
    raise Lost(f"{aside} checkpoints were set aside, and {job.damaged} damaged")


class Run:
  """A start of a job.

  Args:
    job: it is of.
    arguments: more of the training command's.
    name: of its log.
    env: more variables.
    step_seconds: how long a step takes, where steps are slow.
  """

  def __init__(self, job: Job, arguments: Sequence[str], name: str, env: dict[str, str],
               step_seconds: float):
    self.job, self._begin = job, time.monotonic()
    self.start_seconds = 0.0  # until it had made its first steps
    with contextlib.suppress(FileNotFoundError):
      (job.place / "step").unlink()
    if job.setting.step_seconds:
      arguments = ("--config.imports=('benchmarks.slow_steps',)", *arguments)
      env = {**env, "STEP_SECONDS": str(step_seconds), "STEP_FILE": str(job.place / "step")}
    # The host waits for the devices of a process where they are several, even simulated ones.
    devices = 1 if job.setting.step_seconds else 2 // job.processes or 1
    launcher = ["experiments.launch.local", f"--processes={job.processes}",
                f"--cpu_devices={devices}", "--restarts=0", "--"]
    command = [
        sys.executable, "-m", *(["experiments.train"] if job.processes == 1 else launcher),
        "--config=configs/nmt_numbers.py:tiny", f"--config.steps={job.steps}",
        f"--config.log_every={job.setting.log_every}", f"--config.checkpoint.every={EVERY}",
        "--config.model.encoder.num_layers=1", "--config.model.decoder.num_layers=1",
        "--config.evals.val.every=0", "--config.evals.val.limit=8", "--config.evals.test.limit=8",
        "--config.checkpoint.average=1", "--config.trackers=()", f"--workdir={job.folder}",
        *arguments]
    if os.geteuid() == 0 and shutil.which("setpriv"):  # an owner whom permissions bind
      rights = "-dac_override,-dac_read_search"
      command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *command]
    path = job.place / f"{name}.log"
    self._log = open(path, "ab")
    self._offset = path.stat().st_size
    self.process = subprocess.Popen(
        command, stdout=self._log, stderr=self._log, preexec_fn=_heed_signals,
        env={"XLA_FLAGS": FLAGS, **os.environ, "JAX_PLATFORMS": "cpu",
             "JAX_NUM_CPU_DEVICES": str(devices), "JAX_COMPILATION_CACHE_DIR": str(job.cache),
             "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
             "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", **env})

  def text(self) -> str:
    """What it has said."""
    with open(self._log.name, "rb") as f:
      f.seek(self._offset)
      return f.read().decode(errors="replace")

  def reached(self, step: int) -> None:
    """Returns when the run has come so far.

    Raises:
      Lost: it ended before.
    """
    slow = self.job.setting.step_seconds
    self.until(lambda: (self.job.under_way() if slow else self.job.at()) >= step, f"step {step}")
    self.start_seconds = time.monotonic() - self._begin

  def until(self, happened: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
      if self.process.poll() is not None:
        raise Lost(f"the run ended with {self.process.returncode} before {what}")
      if time.monotonic() > deadline:
        raise Lost(f"no {what} in {PATIENCE:.0f} seconds")
      time.sleep(0.01)

  def trainers(self) -> list[int]:
    """The processes that train: this one alone, or those of the launcher."""
    return [self.process.pid] if self.job.processes == 1 else children(self.process.pid)

  def kill(self) -> None:
    """SIGKILL to all that train."""
    _kill(self.trainers())

  def ended(self, limit: float = HANGS) -> Ended:
    """Waits for the end.

    Raises:
      Lost: it takes longer than `limit` seconds.
    """
    start = time.monotonic()
    try:
      status = self.process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
      raise Lost(f"the run did not end in {PATIENCE:.0f} seconds") from None
    finally:
      self.close()
    seconds = time.monotonic() - start
    if seconds > limit:
      raise Lost(f"the run ended after {seconds:.1f} seconds, later than {limit:.1f}")
    return Ended(status if status >= 0 else 128 - status, seconds)

  def refused(self, limit: float = HANGS) -> Ended:
    """Waits for the end of a run that can't go on, and has to say why.

    Raises:
      Lost: it has said nothing, or shown a traceback.
    """
    result, text = self.ended(limit), self.text()
    if result.status in (0, 75):
      raise Lost(f"the run ended with {result.status} as if nothing were")
    if "\nerror: " not in f"\n{text}" or "Traceback (" in text:
      raise Lost(f"the run ended with {result.status} without a sentence:\n{text[-4000:]}")
    return result

  def close(self) -> None:
    """Ends what is left."""
    _kill([*children(self.process.pid), self.process.pid])
    self.process.wait()
    self._log.close()


def _heed_signals() -> None:
  """What a shell ignores in the background is not ignored by the job."""
  for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)


def children(pid: int) -> list[int]:
  """The processes that a process has started."""
  found = []
  for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
      found += map(int, task.read_text().split())
  return sorted(found)


def _kill(pids: Sequence[int]) -> None:
  for pid in pids:
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
