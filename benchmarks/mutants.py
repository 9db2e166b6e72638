"""Mistakes planted in the code of jtx, one at a time, and whether the fast tests find them.

  python -m benchmarks.mutants [--only=REGEX] [--processes=1] [--list]

`benchmarks/mutations/` has the mutants by room: a text of a file, what it is replaced by, and the
tests that should fail then. Copies of the source tree are mutated, never the tree itself. The named
tests must pass without the mutation, and take at most 30 s with it. A mutant is killed where a test
fails; a test that hangs, or a module that can't be imported, does not count. The last line is one
JSON object; the exit status is 0 when all were killed but those marked as equivalent.
"""

import collections
from collections.abc import Sequence
import concurrent.futures
import json
import os
import pathlib
import queue
import re
import statistics
import tempfile
import time
from typing import NamedTuple

from absl import flags, logging

from benchmarks import mutated
from benchmarks.mutated import Mutant, Worker
from experiments import cli

ONLY = flags.DEFINE_string("only", "", "Regex that is in ROOM/NAME or in the file's path.")
PROCESSES = flags.DEFINE_integer("processes", 1, "Mutants at a time.", lower_bound=1)
LIST = flags.DEFINE_bool("list", False, "Print the mutants and their tests, and run nothing.")

ROOT = pathlib.Path(__file__).parent.parent
MUTATIONS = pathlib.Path(__file__).parent / "mutations"
ROWS = ("killed", "equivalent", "survived", "timeout", "broken", "stale")


class Result(NamedTuple):
  """What became of a mutant."""
  mutant: Mutant
  kind: str  # of ROWS
  seconds: float
  told: str  # the test that failed, or what is wrong

  @property
  def good(self) -> bool:
    return self.kind in ("killed", "equivalent")


def judge(mutant: Mutant, clean: mutated.Outcome, worker: Worker) -> Result:
  """Runs a mutant's tests.

  Args:
    mutant: the mutant.
    clean: how the same tests ended without it.
    worker: to run them.
  """
  if clean.status != 0:
    how = "do not end" if clean.status is None else f"fail, with status {clean.status},"
    return Result(mutant, "broken", clean.seconds,
                  f"its tests {how} without it: {clean.failed or clean.text[-500:]}")
  try:
    outcome = worker.run(mutant.tests, mutant)
  except mutated.Stale as e:
    return Result(mutant, "stale", 0.0, str(e))
  found = {None: "timeout", 0: "survived", 1: "killed"}.get(outcome.status, "broken")
  told = outcome.failed
  if found == "broken":
    told = f"pytest ended with status {outcome.status}: {outcome.text[-500:]}"
  if mutant.equivalent and found == "killed":
    found, told = "broken", f"it is marked as equivalent, and {told} fails"
  elif mutant.equivalent and found == "survived":
    found, told = "equivalent", mutant.equivalent
  return Result(mutant, found, outcome.seconds, told)


def campaign(mutants: Sequence[Mutant], root: pathlib.Path, processes: int = 1,
             preloaded: Sequence[str] = mutated.PRELOADED) -> list[Result]:
  """What becomes of mutants of a source tree, `processes` at a time."""
  with tempfile.TemporaryDirectory(prefix="jtx-mutants-") as folder:
    # Programs that a mutation does not change are compiled once.
    env = {"JAX_COMPILATION_CACHE_DIR": os.path.join(folder, "programs"),
           "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
           "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", **os.environ}
    workers: queue.SimpleQueue[Worker] = queue.SimpleQueue()
    for i in range(processes):
      workers.put(Worker(root, pathlib.Path(folder, f"tree_{i}"), preloaded, env))

    def lent(function, *args):
      worker = workers.get()
      try:
        return function(*args, worker)
      finally:
        workers.put(worker)

    def clean(tests, worker):
      outcome = worker.run(tests)
      logging.info("status %s after %.1f s without a mutant: %s", outcome.status, outcome.seconds,
                   " ".join(tests))
      return outcome

    def of(mutant, worker):
      result = judge(mutant, outcomes[mutant.tests], worker)
      logging.info("%s after %.1f s: %s/%s: %s", result.kind, result.seconds, mutant.room,
                   mutant.name, result.told)
      return result

    with concurrent.futures.ThreadPoolExecutor(processes) as pool:
      sets = list(dict.fromkeys(m.tests for m in mutants))
      outcomes = dict(zip(sets, pool.map(lambda tests: lent(clean, tests), sets)))
      results = list(pool.map(lambda mutant: lent(of, mutant), mutants))
    for _ in range(processes):
      workers.get().close()
  return results


def table(results: Sequence[Result]) -> list[str]:
  """Lines: the numbers by room, then all that were not killed."""
  rooms = collections.defaultdict(list)
  for result in results:
    rooms[result.mutant.room].append(result)
  lines = [f"{'room':<12}{'mutants':>10}" + "".join(f"{kind:>12}" for kind in ROWS)
           + f"{'median s':>12}{'most s':>12}"]
  for room, part in [*rooms.items(), ("all", list(results))]:
    counts = collections.Counter(r.kind for r in part)
    seconds = [r.seconds for r in part]
    lines.append(f"{room:<12}{len(part):>10}" + "".join(f"{counts[kind]:>12}" for kind in ROWS)
                 + f"{statistics.median(seconds):>12.1f}{max(seconds):>12.1f}")
  return lines + [f"{r.kind}: {r.mutant.room}/{r.mutant.name} ({r.mutant.file}): {r.told}"
                  for r in results if r.kind != "killed"]


def main() -> int:
  try:
    only = re.compile(ONLY.value)
  except re.error as e:
    raise cli.UsageError(f"--only={ONLY.value} is no regular expression: {e}") from None
  mutants = [m for m in mutated.read(MUTATIONS)
             if only.search(f"{m.room}/{m.name}") or only.search(m.file)]
  if not mutants:
    raise cli.UsageError(f"--only={ONLY.value} is in no mutant; --list tells them")
  if LIST.value:
    for m in mutants:
      print(f"{m.room}/{m.name}: {m.file}: {' '.join(m.tests)}")
    return 0
  start = time.monotonic()
  results = campaign(mutants, ROOT, PROCESSES.value)
  print("\n".join(table(results)))
  counts = collections.Counter(r.kind for r in results)
  print(json.dumps({"mutants": len(results), **{kind: counts[kind] for kind in ROWS},
                    "seconds": round(time.monotonic() - start)}))
  return 0 if all(r.good for r in results) else 1


if __name__ == "__main__":
  cli.run(main)
