"""The faults: what each does to a run that is under way, and how that has to end."""

from collections.abc import Callable, Iterable
import contextlib
import os
import pathlib
import random
import re
import resource
import signal
import time

from benchmarks.faulty import HANGS, Ended, Job, Lost, PATIENCE, Run, children

DAY = 86_400.0
Fault = Callable[[Run, random.Random], Ended]
FAULTS: dict[str, Fault] = {}
SIGNALS = ("sigterm", "sigint", "sighup", "limit")  # tried on slow steps, too
# What can't be done everywhere: with one process, and without a file system of one's own.
ONE_OF_SEVERAL = ("kill_one",)
OF_DISK = ("full_disk", "full_in_save", "read_only", "read_only_start", "power_cut")

# A clock that is wrong by as many seconds as CLOCK_OFFSET says, for Python at least.
CLOCK = """\
import os, time
_time, _offset = time.time, float(os.environ["CLOCK_OFFSET"])
time.time = lambda: _time() + _offset
time.time_ns = lambda: int((_time() + _offset) * 1e9)
"""


def fault(function: Fault) -> Fault:
  FAULTS[function.__name__] = function
  return function


def started(kind: str, job: Job, draw: random.Random) -> Run:
  """A run that is ready for a fault."""
  if kind == "kill_reader":
    return job.start("--config.data.workers=1")
  if kind == "moved_clock":
    (job.place / "sitecustomize.py").write_text(CLOCK)
    return job.start(env={"PYTHONPATH": f"{job.place}:{os.environ.get('PYTHONPATH', '')}",
                          "CLOCK_OFFSET": str(draw.choice((-DAY, DAY)))})
  return job.start()


# ------------------------------------------------------------------------ ends of processes


def killed(run: Run) -> Ended:
  result = run.ended()
  if result.status != 128 + signal.SIGKILL:
    raise Lost(f"the exit status after SIGKILL is {result.status}")
  return result


@fault
def kill_all(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to all at an arbitrary moment of a step."""
  time.sleep(draw.uniform(0, 0.1))
  run.kill()
  return killed(run)


@fault
def kill_one(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to one of the processes; the others must not go on waiting for it."""
  time.sleep(draw.uniform(0, 0.1))
  os.kill(draw.choice(run.trainers()), signal.SIGKILL)
  return killed(run)


@fault
def kill_in_save(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to all while a checkpoint is written."""
  _until_save(run)
  time.sleep(draw.uniform(0, 0.02))
  run.kill()
  return killed(run)


@fault
def kill_reader(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to a process that reads ahead."""
  readers = [child for pid in run.trainers() for child in children(pid)
             if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]
  os.kill(draw.choice(readers), signal.SIGKILL)
  return run.refused()


def _until_save(run: Run) -> None:
  folder = run.job.folder / "checkpoints"
  run.until(lambda: any("tmp" in p.name for p in folder.glob("*")), "a save")


# -------------------------------------------------------------------------------- notices


def told(run: Run, draw: random.Random, number: int, status: int) -> Ended:
  """A signal at an arbitrary moment, after which the steps made so far must be saved."""
  time.sleep(draw.uniform(0, run.job.setting.step_seconds or 0.1))
  at = run.job.under_way() - 1 if run.job.setting.step_seconds else run.job.at()
  run.process.send_signal(number)
  result = run.ended(run.job.setting.most_seconds)
  if result.status != status:
    raise Lost(f"the exit status is {result.status} and not {status}")
  _check_saved(run.job, at)
  return result


def _check_saved(job: Job, at: int) -> None:
  if job.newest() < max([at, *job.logged()]):
    raise Lost(f"step {max([at, *job.logged()])} was made, and step {job.newest()} saved last")


@fault
def sigterm(run: Run, draw: random.Random) -> Ended:
  """SIGTERM."""
  return told(run, draw, signal.SIGTERM, 75)


@fault
def sighup(run: Run, draw: random.Random) -> Ended:
  """SIGHUP."""
  return told(run, draw, signal.SIGHUP, 75)


@fault
def sigint(run: Run, draw: random.Random) -> Ended:
  """SIGINT."""
  return told(run, draw, signal.SIGINT, 130 if run.job.processes == 1 else 75)


@fault
def early_sigterm(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and SIGTERM while the next start is not yet at its first step."""
  run.kill()
  killed(run)
  late = run.job.start()
  time.sleep(draw.uniform(1.0, max(2.0, 0.8 * run.start_seconds)))
  late.process.send_signal(signal.SIGTERM)
  result = late.ended()
  if result.status != 75:
    raise Lost(f"the exit status is {result.status}")
  return result


@fault
def limit(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a start with --max_seconds, which a launcher starts again."""
  run.kill()
  killed(run)
  seconds = draw.uniform(1.0, run.start_seconds)
  timed = run.job.start(f"--max_seconds={seconds}")
  try:
    timed.until(lambda: " I mesh " in timed.text(), "mesh")
    due, pids = time.monotonic() + seconds, set(timed.trainers())
    timed.until(lambda: re.search(r" I step \d+/", timed.text()), "first step")
    due = max(due, time.monotonic())
    if run.job.processes == 1:
      status = timed.ended(due + PATIENCE - time.monotonic()).status
    else:
      timed.until(lambda: not pids & set(timed.trainers()), "end of all processes")
      status = 75 if "were told to stop, and start again" in timed.text() else 1
    result = Ended(status, time.monotonic() - due)
  finally:
    timed.close()
  if result.status != 75 or result.seconds > run.job.setting.most_seconds:
    raise Lost(f"the run ended {result.seconds:.1f} seconds after its limit with {status}")
  return result


# -------------------------------------------------------------------------- files and folders


def a_file(folder: pathlib.Path, draw: random.Random) -> pathlib.Path:
  """A file of the newest checkpoint that is there whole."""
  newest = max((p for p in (folder / "checkpoints").iterdir() if p.name.isdigit()),
               key=lambda p: int(p.name))
  return draw.choice(sorted(p for p in newest.rglob("*") if p.is_file() and p.stat().st_size > 1))


def cut(path: pathlib.Path, draw: random.Random) -> None:
  """Leaves half of a file, or all of it as zeros."""
  size = path.stat().st_size
  with open(path, "r+b") as f:
    if draw.random() < 0.5:
      f.truncate(size // 2)
    else:
      f.write(bytes(size))


@fault
def cut_checkpoint(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a file of the newest checkpoint that ends in its middle, or is zeros."""
  result = kill_all(run, draw)
  cut(a_file(run.job.folder, draw), draw)
  run.job.damaged += 1
  return result


@fault
def deleted_file(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a file of the newest checkpoint that is gone."""
  result = kill_all(run, draw)
  a_file(run.job.folder, draw).unlink()
  run.job.damaged += 1
  return result


@fault
def cut_files(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and all files beside the checkpoints that end in their middle, or are zeros."""
  result, job = kill_all(run, draw), run.job
  (job.folder / "results.json").write_text('{"step": 1, "test/bleu": 10}')  # to be cut, too
  before = set(job.logged())
  for path in sorted(p for p in job.folder.iterdir() if p.is_file()):
    cut(path, draw)
  job.destroyed |= before - set(job.logged())
  return result


@fault
def unreadable(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a newest checkpoint that may not be read at the next start."""
  kill_all(run, draw)
  folder = run.job.folder / "checkpoints" / str(run.job.newest())
  with mode(folder, 0):
    return run.job.start().refused(run.start_seconds + HANGS)


@fault
def forbidden(run: Run, draw: random.Random) -> Ended:
  """A folder of checkpoints that may not be written to, until the run has failed for it."""
  with mode(run.job.folder / "checkpoints", 0o500):
    return run.refused()


@contextlib.contextmanager
def mode(path: pathlib.Path, bits: int):
  before = path.stat().st_mode
  path.chmod(bits)
  try:
    yield
  finally:
    path.chmod(before)


@fault
def no_more_files(run: Run, draw: random.Random) -> Ended:
  """No file may be opened any more by one of the processes."""
  pid = draw.choice(run.trainers())
  resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, resource.prlimit(
      pid, resource.RLIMIT_NOFILE)[1]))
  return run.refused()


@fault
def second_start(run: Run, draw: random.Random) -> Ended:
  """The same command while the run is under way, which must leave, and not harm the first."""
  second = run.job.start(name="second")
  result = second.refused(run.start_seconds + HANGS)
  at = run.job.at()
  run.until(lambda: run.job.at() > at, "further step beside a second process")
  kill_all(run, draw)
  return result


# ----------------------------------------------------------------------------------- disks


@fault
def full_disk(run: Run, draw: random.Random) -> Ended:
  """No space left, until the run has failed for it."""
  with run.job.disk.filled():
    return run.refused()


@fault
def full_in_save(run: Run, draw: random.Random) -> Ended:
  """No space left from the middle of a save on."""
  _until_save(run)
  with run.job.disk.filled():
    return run.refused()


@fault
def read_only(run: Run, draw: random.Random) -> Ended:
  """A file system that becomes read-only, as after an error."""
  run.job.disk.abort()
  try:
    return run.refused()
  finally:
    run.job.disk.again()


@fault
def read_only_start(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a file system that is read-only at the next start."""
  kill_all(run, draw)
  run.job.disk.unmount()
  run.job.disk.mount("ro")
  try:
    return run.job.start().refused(run.start_seconds + HANGS)
  finally:
    run.job.disk.again()


@fault
def power_cut(run: Run, draw: random.Random) -> Ended:
  """A file system that loses what was not synced, and SIGKILL."""
  time.sleep(draw.uniform(0, 1.0))
  before = set(run.job.logged())
  run.job.disk.cut_power()
  run.kill()
  result = run.ended()
  run.job.disk.again()
  if missing := before - set(run.job.logged()):
    raise Lost(f"the power cut took the lines of steps {sorted(missing)}")
  return result


# ---------------------------------------------------------------------------------- clocks


@fault
def moved_times(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and all files a day older or younger."""
  result = kill_all(run, draw)
  when = time.time() + draw.choice((-DAY, DAY))
  for path in run.job.folder.rglob("*"):
    os.utime(path, (when, when))
  return result


@fault
def moved_clock(run: Run, draw: random.Random) -> Ended:
  """SIGKILL of a run whose clock is a day off."""
  return kill_all(run, draw)


def valid(kinds: Iterable[str], setting: str, processes: int, disk: bool) -> list[str]:
  """The kinds that can be tried."""
  return [kind for kind in kinds
          if (processes > 1 or kind not in ONE_OF_SEVERAL) and (disk or kind not in OF_DISK)
          and (setting != "slow" or kind in SIGNALS)]
