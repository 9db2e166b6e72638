"""Runs that are killed, told to stop, robbed of files and starved of disk, and what is lost by it.

  python -m benchmarks.faults --number=60 --workdir=runs/faults [--processes=1 --processes=2]
      [--seed=0] [--kind=KIND]

For each number of processes a small translator is trained undisturbed, and a second time with one
fault after the other, started again after each. All its losses, a line a step, must be those of the
undisturbed run bit for bit, and no step may be missing or be there twice. What to do and when is
drawn from the seed. Where it is allowed to (Linux, as root), the workdir is a small file system of
its own, which can be filled. The last line is one JSON object; the exit status is 0 when nothing
was lost.
"""

import collections
from collections.abc import Callable, Iterator
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time

from absl import flags, logging

from benchmarks.faulty import Ended, Lost, Run, lines
from experiments import cli

NUMBER = flags.DEFINE_integer("number", 60, "Faults, over all numbers of processes.", lower_bound=1)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for what is written.")
PROCESSES = flags.DEFINE_multi_integer("processes", [1, 2], "Of a run; may be repeated.",
                                       lower_bound=1)
SEED = flags.DEFINE_integer("seed", 0, "Of what is drawn.")

MOST_STEPS = 40  # between two faults
DISK = 64 << 20  # bytes of the file system
DAY = 86_400.0

# A clock that is wrong by as many seconds as CLOCK_OFFSET says, for Python at least.
CLOCK = """\
import os, time
_time, _offset = time.time, float(os.environ["CLOCK_OFFSET"])
time.time = lambda: _time() + _offset
time.time_ns = lambda: int((_time() + _offset) * 1e9)
"""


def check(folder: pathlib.Path, truth: list[str]) -> None:
  """Raises Lost where the metrics are not the beginning of the undisturbed ones."""
  found = lines(folder)
  for number, (ours, theirs) in enumerate(zip(found, truth), 1):
    if ours != theirs:
      raise Lost(f"line {number} is {ours}, undisturbed {theirs}")
  if len(found) > len(truth):
    raise Lost(f"{len(found)} lines, undisturbed {len(truth)}")


# -------------------------------------------------------------------------------- faults


def kill_all(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to all at an arbitrary moment of a step."""
  time.sleep(draw.uniform(0, 0.1))
  for pid in run.workers():
    with contextlib.suppress(ProcessLookupError):
      os.kill(pid, signal.SIGKILL)
  return killed(run)


def kill_one(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to one of the processes; the others must not go on waiting for it."""
  time.sleep(draw.uniform(0, 0.1))
  os.kill(draw.choice(run.workers()), signal.SIGKILL)
  return killed(run)


def kill_in_save(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to all while a checkpoint is written."""
  folder = run.folder / "checkpoints"
  run.until(lambda: any("tmp" in p.name for p in folder.glob("*")), "a save")
  time.sleep(draw.uniform(0, 0.02))
  return kill_all(run, random.Random(0))


def kill_reader(run: Run, draw: random.Random) -> Ended:
  """SIGKILL to a process that reads ahead."""
  readers = [child for pid in run.workers() for child in run.workers(pid)
             if b"spawn_main" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes()]
  os.kill(draw.choice(readers), signal.SIGKILL)
  result = run.ended()
  if result.status == 0:
    raise Lost("the run was done without its reader")
  return result


def told_to_stop(run: Run, draw: random.Random) -> Ended:
  """SIGTERM."""
  time.sleep(draw.uniform(0, 0.1))
  run.process.send_signal(signal.SIGTERM)
  result = run.ended()
  if result.status != 75:
    raise Lost(f"the exit status after SIGTERM is {result.status}")
  return result


def truncated_file(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a file of the newest checkpoint that ends in its middle."""
  result = kill_all(run, draw)
  path = a_file(run.folder, draw)
  with open(path, "r+b") as f:
    f.truncate(path.stat().st_size // 2)
  return result


def deleted_file(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and a file of the newest checkpoint that is gone."""
  result = kill_all(run, draw)
  a_file(run.folder, draw).unlink()
  return result


def full_disk(run: Run, draw: random.Random) -> Ended:
  """No space left, until the run has failed for it."""
  filler = run.folder.parent / "filler"
  with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as f:
    while f.write(bytes(4096)):
      pass
  try:
    result = run.ended()
  finally:
    filler.unlink()
  if result.status == 0:
    raise Lost("the run was done on a full disk")
  return result


def moved_times(run: Run, draw: random.Random) -> Ended:
  """SIGKILL, and all files a day older or younger."""
  result = kill_all(run, draw)
  when = time.time() + draw.choice((-DAY, DAY))
  for path in run.folder.rglob("*"):
    os.utime(path, (when, when))
  return result


def moved_clock(run: Run, draw: random.Random) -> Ended:
  """SIGKILL of a run whose clock is a day off."""
  return kill_all(run, draw)


FAULTS: dict[str, Callable[[Run, random.Random], Ended]] = {
    f.__name__: f for f in (kill_all, kill_one, kill_in_save, kill_reader, told_to_stop,
                            truncated_file, deleted_file, full_disk, moved_times, moved_clock)}
KINDS = flags.DEFINE_multi_enum("kind", list(FAULTS), list(FAULTS), "Of fault; may be repeated.")


def killed(run: Run) -> Ended:
  result = run.ended()
  if result.status != 128 + signal.SIGKILL:
    raise Lost(f"the exit status after SIGKILL is {result.status}")
  return result


def a_file(folder: pathlib.Path, draw: random.Random) -> pathlib.Path:
  """A file of the newest checkpoint that is there whole."""
  newest = max((p for p in (folder / "checkpoints").iterdir() if p.name.isdigit()),
               key=lambda p: int(p.name))
  return draw.choice(sorted(p for p in newest.rglob("*") if p.is_file() and p.stat().st_size > 1))


# ------------------------------------------------------------------------------- running


@contextlib.contextmanager
def small_disk(folder: pathlib.Path) -> Iterator[bool]:
  """A file system of its own at `folder`; whether there is one."""
  done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)],
                        capture_output=True)
  try:
    yield done.returncode == 0
  finally:
    if done.returncode == 0:
      # Lazily, since what was killed may still be ending.
      subprocess.run(["umount", "--lazy", str(folder)], check=True)


def campaign(kinds: list[str], processes: int, place: pathlib.Path,
             draw: random.Random) -> dict[str, list[float]]:
  """Runs the faults, and returns seconds until the run had ended, by kind.

  Raises:
    Lost: something was.
  """
  steps = (len(kinds) + 2) * (MOST_STEPS + 10)
  truth, folder = place / "undisturbed", place / "run"
  run = Run(truth, processes, steps)
  seconds: dict[str, list[float]] = collections.defaultdict(list)
  try:
    run.reached(steps)
  finally:
    run.close()
  whole = lines(truth)
  shutil.rmtree(truth)
  for number, kind in enumerate(kinds, 1):
    arguments, env = [], {}
    if kind == "kill_reader":
      arguments = ["--config.data.workers=1"]
    if kind == "moved_clock":
      (place / "sitecustomize.py").write_text(CLOCK)
      env = {"PYTHONPATH": f"{place}:{os.environ.get('PYTHONPATH', '')}",
             "CLOCK_OFFSET": str(draw.choice((-DAY, DAY)))}
    before = len(lines(folder))
    run = Run(folder, processes, steps, arguments, env=env)
    try:
      # From its newest checkpoint it must have come further than it ever was.
      run.reached(before + draw.randint(1, MOST_STEPS))
      ended = FAULTS[kind](run, draw)
      check(folder, whole)
    except Lost as e:
      raise Lost(f"{kind}, fault {number} with {processes} processes: {e}") from None
    finally:
      run.close()
    logging.info("%d/%d %s with %d processes: status %d after %.1f s", number, len(kinds), kind,
                 processes, ended.status, ended.seconds)
    seconds[kind].append(ended.seconds)
  run = Run(folder, processes, steps)
  try:
    run.reached(len(lines(folder)) + 1)
    check(folder, whole)
  finally:
    run.close()
  return seconds


def main() -> int:
  draw = random.Random(SEED.value)
  folder = pathlib.Path(WORKDIR.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  counts = [len(range(i, NUMBER.value, len(PROCESSES.value))) for i in range(len(PROCESSES.value))]
  result = {"seed": SEED.value, "faults": NUMBER.value, "lost": [], "seconds": {}}
  for processes, count in zip(PROCESSES.value, counts):
    place = pathlib.Path(tempfile.mkdtemp(prefix=f"{processes}_", dir=folder))
    with small_disk(place) as own:
      valid = [k for k in KINDS.value if (own or k != "full_disk")
               and (processes > 1 or k != "kill_one")]
      if not own:
        logging.warning("no file system of its own here, so no disk is filled")
      kinds = [valid[i % len(valid)] for i in range(count)]
      draw.shuffle(kinds)
      try:
        result["seconds"][processes] = campaign(kinds, processes, place, draw)
      except Lost as e:
        logging.error("%s", e)
        result["lost"].append(str(e))
        for log in place.glob("*.log"):
          shutil.copy(log, folder / f"{processes}_{log.name}")
    shutil.rmtree(place, ignore_errors=True)
  for processes, seconds in result["seconds"].items():
    for kind, values in sorted(seconds.items()):
      print(f"{kind:>15}, {processes} processes: {len(values)} times,"
            f" ended after {max(values):.1f} s at most")
  print(json.dumps(result))
  return 1 if result["lost"] else 0


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
