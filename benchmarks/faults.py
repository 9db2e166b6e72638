"""Runs that are killed, told to stop, robbed of files and starved of disk, and what is lost by it.

  python -m benchmarks.faults --number=100 --workdir=runs/faults [--processes=1 --processes=2]
      [--setting=slow] [--seed=0] [--kind=KIND]

For each number of processes and each setting (every step logged; one of 1000; that, and steps of
2.5 seconds) a small translator is trained undisturbed, and a second time with one fault after the
other, started again after each. All its logged losses and the arrays of all its checkpoints must be
those of the undisturbed run bit for bit, and no step may be missing or be there twice. A run that a
fault ends has to end in 15 seconds, after a signal in five steps' time, and to say why in a
sentence. What to do and when is drawn from the seed. Where it is allowed to (Linux, as root), the
workdir is a small file system of its own, which can be filled and lose its power.

If it is interrupted, run the same command again and it continues. The last line is one JSON object;
the exit status is 0 when nothing was lost.
"""

import collections
from collections.abc import Sequence
import dataclasses
import json
import pathlib
import random
import shutil
import time
from typing import Any

from absl import flags, logging

from benchmarks.fault_disk import Disk
from benchmarks.fault_kinds import FAULTS, started, valid
from benchmarks.faulty import EVERY, SETTINGS, Job, Lost, check
from experiments import cli

NUMBER = flags.DEFINE_integer("number", 100, "Faults in all.", lower_bound=1)
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for what is written.")
PROCESSES = flags.DEFINE_multi_integer("processes", [1, 2, 4], "Of a run; may be repeated.",
                                       lower_bound=1)
SETTING = flags.DEFINE_multi_enum("setting", list(SETTINGS), list(SETTINGS), "May be repeated.")
SEED = flags.DEFINE_integer("seed", 0, "Of what is drawn.")
KINDS = flags.DEFINE_multi_enum("kind", list(FAULTS), list(FAULTS), "Of fault; may be repeated.")

# Between two faults; the first slow step has no other before it which a signal would save.
STEPS = {"logged": (1, 12), "rare": (1, 12), "slow": (2, 4)}
SHARES = {"logged": 0.35, "rare": 0.45, "slow": 0.2}  # of the faults


class Campaign:
  """The faults of one number of processes and one setting.

  Args:
    folder: of all campaigns.
    processes: of the run.
    setting: its name.
    kinds: of the faults, in their order.
  """

  def __init__(self, folder: pathlib.Path, processes: int, setting: str, kinds: Sequence[str]):
    self.name, self.kinds, self._setting = f"{processes}_{setting}", kinds, setting
    self.place = folder / self.name
    self.place.mkdir(parents=True, exist_ok=True)
    self.disk = Disk(self.place / "image", self.place / "disk")
    # A fault takes about as many steps as lie before it, and those until the next checkpoint.
    steps = (len(kinds) + 2) * (STEPS[setting][1] + EVERY)
    self.job = Job(place=self.place, folder=self.disk.folder / "run", processes=processes,
                   steps=steps, setting=SETTINGS[setting], cache=folder / "compiled")
    self._file = self.place / "done.json"
    known = json.loads(self._file.read_text()) if self._file.exists() else {}
    self.done: list[dict[str, Any]] = known.get("done", [])
    self.lost: list[str] = known.get("lost", [])
    self.job.destroyed = set(known.get("destroyed", ()))
    self.job.damaged = known.get("damaged", 0)

  def run(self) -> None:
    """Runs the faults that are left; stops at the first that has changed anything."""
    if self.lost or len(self.done) > len(self.kinds):
      return
    own = self.disk.make()
    self.disk.folder.mkdir(exist_ok=True)
    self.job.disk = self.disk if own else None
    try:
      truth = self._undisturbed()
      for number in range(len(self.done), len(self.kinds)):
        self._fault(number, truth)
      self._finish(truth)
    except Lost as e:
      logging.error("%s: %s", self.name, e)
      self.lost.append(str(e))
      self._save()
      return
    if own:
      self.disk.unmount()
      self.disk.image.unlink()

  def _undisturbed(self) -> dict[str, Any]:
    """The lines and checksums of a run without a fault."""
    path = self.place / "undisturbed.json"
    if not path.exists():
      folder = self.place / "undisturbed"
      shutil.rmtree(folder, ignore_errors=True)
      job = dataclasses.replace(self.job, folder=folder, disk=None)
      # Where every step's loss is known, checksums would tell nothing more.
      every = EVERY if job.setting.log_every > 1 else job.steps
      run = job.start(f"--config.checkpoint.every={every}", "--config.checkpoint.keep=10000",
                      name="undisturbed", step_seconds=0.0)
      try:
        run.until(lambda: (folder / "results.json").exists(), "end")
        run.process.wait(60)
      finally:
        run.close()
      results = json.loads((folder / "results.json").read_text())
      path.write_text(json.dumps(
          {"lines": job.logged(), "digests": job.digests(), "results": results}))
      shutil.rmtree(folder)
    truth = json.loads(path.read_text())
    return truth | {"lines": {int(step): line for step, line in truth["lines"].items()}}

  def _fault(self, number: int, truth: dict[str, Any]) -> None:
    kind, job = self.kinds[number], self.job
    draw = random.Random(f"{SEED.value} {self.name} {number}")
    before = job.at()
    run = started(kind, job, draw)
    try:
      # From its newest checkpoint it must have come further than it ever was.
      run.reached(before + draw.randint(*STEPS[self._setting]))
      ended = FAULTS[kind](run, draw)
      check(job, truth)
    except Lost as e:
      raise Lost(f"{kind}, fault {number + 1} of {self.name}: {e}") from None
    finally:
      run.close()
    logging.info("%s %d/%d %s: status %d after %.1f s", self.name, number + 1, len(self.kinds),
                 kind, ended.status, ended.seconds)
    self.done.append({"kind": kind, "seconds": round(ended.seconds, 2)})
    self._save()

  def _finish(self, truth: dict[str, Any]) -> None:
    """Lets the run come to its end, and looks at its results."""
    run = self.job.start("--config.checkpoint.every=100000", step_seconds=0.0)
    try:
      run.until(lambda: run.process.poll() == 0, "end")
      self.job.destroyed -= {self.job.steps}
      check(self.job, truth)
      results = json.loads((self.job.folder / "results.json").read_text())
      if results != truth["results"]:
        raise Lost(f"the results are {results}, undisturbed {truth['results']}")
    except Lost as e:
      raise Lost(f"the end of {self.name}: {e}") from None
    finally:
      run.close()
    self.done.append({"kind": "end", "seconds": 0.0})
    self._save()

  def _save(self) -> None:
    self._file.write_text(json.dumps({
        "done": self.done, "lost": self.lost, "destroyed": sorted(self.job.destroyed),
        "damaged": self.job.damaged}))


def campaigns(folder: pathlib.Path) -> list[Campaign]:
  """All of them, each with its share of the faults; runs of several processes take longer."""
  weights = {(p, s): SHARES[s] / p**0.5 for p in PROCESSES.value for s in SETTING.value}
  exact = {key: NUMBER.value * w / sum(weights.values()) for key, w in weights.items()}
  counts = {key: int(x) for key, x in exact.items()}
  for key in sorted(exact, key=lambda key: counts[key] - exact[key])[
      :NUMBER.value - sum(counts.values())]:
    counts[key] += 1
  own = Disk(folder / "try", folder / "try_disk")
  has_disk = own.make()
  if has_disk:
    own.unmount()
  else:
    logging.warning("no file system of its own here, so no disk is filled")
  own.image.unlink(missing_ok=True)
  found = []
  for processes in PROCESSES.value:
    cycles: dict[tuple[str, ...], list[str]] = {}  # settings with the same kinds share one
    draw = random.Random(f"{SEED.value} {processes}")
    for setting in SETTING.value:
      kinds = tuple(valid(KINDS.value, setting, processes, has_disk))
      cycle = cycles.setdefault(kinds, [])
      chosen = []
      while kinds and len(chosen) < counts[processes, setting]:
        if not cycle:
          cycle.extend(draw.sample(kinds, len(kinds)))
        chosen.append(cycle.pop())
      if chosen:
        found.append(Campaign(folder, processes, setting, chosen))
  return found


def main() -> int:
  begin = time.monotonic()
  folder = pathlib.Path(WORKDIR.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  result = {"seed": SEED.value, "faults": 0, "lost": [], "seconds": {}}
  for campaign in campaigns(folder):
    campaign.run()
    done = [d for d in campaign.done if d["kind"] != "end"]
    result["faults"] += len(done)
    result["lost"] += campaign.lost
    seconds = collections.defaultdict(list)
    for d in done:
      seconds[d["kind"]].append(d["seconds"])
    result["seconds"][campaign.name] = seconds
  for name, seconds in result["seconds"].items():
    for kind, values in sorted(seconds.items()):
      print(f"{name:>8} {kind:>15}: {len(values)} times, ended after {max(values):.1f} s at most")
  result["wall_seconds"] = round(time.monotonic() - begin)
  print(json.dumps(result))
  return 1 if result["lost"] else 0


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
