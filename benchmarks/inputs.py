"""Bad input of every kind, given to the commands: each must be told in one sentence, at once.

  python -m benchmarks.inputs [--only=REGEX] [--each=6] [--workdir=runs/inputs]

Every case (benchmarks/bad_inputs) is a command line in a folder of its own with the files that it
names. The command must end with an error's status within 30 seconds, with less than 2 GB of memory,
with the one sentence that the case expects and no traceback, and, where it would train, before the
first step. Commands are run in processes forked from one that has imported JAX, so that a case
takes about a second. The last line is one JSON object; the exit status is 1 where a case fails.
"""

import contextlib
import importlib
import json
import os
import pathlib
import re
import runpy
import shlex
import signal
import sys
import tempfile
import threading
import time
from typing import NamedTuple

SECONDS, BYTES = 30.0, 2 << 30
ROOT = pathlib.Path(__file__).resolve().parent.parent
# Compiling is most of what a command does that trains for two steps.
XLA_FLAGS = ("--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
             " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")


class Ended(NamedTuple):
  """A command that has ended."""
  status: int  # as a shell has it
  output: str  # standard output
  errors: str  # standard error
  seconds: float
  peak: int  # bytes


def run(words: list[str], folder: pathlib.Path, limit: float = SECONDS) -> Ended:
  """Runs `jtx WORDS` in `folder`; it is killed after `limit` seconds, or far above BYTES."""
  start = time.monotonic()
  pid = os.fork()
  if not pid:
    with contextlib.suppress(BaseException):
      os.setsid()
      os.chdir(folder)
      for number, name, how in ((0, os.devnull, os.O_RDONLY),
                                (1, ".stdout", os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
                                (2, ".stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)):
        os.dup2(os.open(name, how), number)
      _leave(words)
    os._exit(70)
  watch = threading.Thread(target=_watch, args=(pid, start + limit), daemon=True)
  watch.start()
  _, status, used = os.wait4(pid, 0)
  with contextlib.suppress(ProcessLookupError):
    os.killpg(pid, signal.SIGKILL)  # what it has started
  watch.join()
  code = os.waitstatus_to_exitcode(status)
  text = lambda name: (folder / name).read_text(encoding="utf-8", errors="replace")
  return Ended(status=code if code >= 0 else 128 - code, output=text(".stdout"),
               errors=text(".stderr"), seconds=time.monotonic() - start,
               peak=used.ru_maxrss * 1024)


def _leave(words: list[str]) -> None:
  """Becomes the command; never returns."""
  sys.argv[:] = ["jtx", *words]
  code = 0
  try:
    runpy.run_module("experiments", run_name="__main__", alter_sys=True)
  except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
  except BaseException:  # pylint: disable=broad-except
    import traceback
    traceback.print_exc()
    code = 1
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)


def _watch(pid: int, end: float) -> None:
  while time.monotonic() < end:
    try:
      with open(f"/proc/{pid}/statm", encoding="ascii") as f:
        resident = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
      return
    if resident > BYTES * 1.5:
      break
    time.sleep(0.05)
  with contextlib.suppress(ProcessLookupError):
    os.killpg(pid, signal.SIGKILL)


def fault(case, ended: Ended, folder: pathlib.Path, before: dict[pathlib.Path, int]) -> str:
  """What is wrong with how a command answered a case; "" where nothing is.

  Args:
    case: a bad input.
    ended: its command.
    folder: of the case.
    before: `metrics_of` it, before the command.
  """
  lines = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
  if ended.seconds > SECONDS:
    return f"took {ended.seconds:.0f} s"
  if ended.peak > BYTES:
    return f"took {ended.peak / 1e9:.1f} GB"
  if "Traceback (most recent call last)" in ended.errors:
    return "a traceback: " + ended.errors.strip().splitlines()[-1]
  if ended.status not in (1, 2):
    return f"status {ended.status}"
  if len(lines) != 1:
    return f"{len(lines)} sentences: {ended.errors[-300:]}"
  if not re.search(case.sentence, lines[0], re.IGNORECASE):
    return f"said {lines[0]!r}, expected {case.sentence!r}"
  return f"only after training: {lines[0]!r}" if metrics_of(folder) != before else ""


def metrics_of(folder: pathlib.Path) -> dict[pathlib.Path, int]:
  """The bytes of all metrics in a folder, which a run that has begun adds to."""
  return {path: size for path in folder.rglob("metrics.jsonl") if (size := path.stat().st_size)}


def prepare_process() -> None:
  """Imports what commands import, but no entry point, whose flags are its own."""
  os.environ.update(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
  os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)
  sys.path.insert(0, str(ROOT))
  os.environ["PYTHONPATH"] = os.pathsep.join(
      filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
  for module in ("configs.common", "jtx.api", "jtx.compile.aot", "jtx.sweeps.jobs",
                 "jtx.train.loop"):
    importlib.import_module(module)


def main() -> int:
  import argparse
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--only", default="", help="regular expression of FAMILY/NAME")
  parser.add_argument("--each", type=int, default=0, help="cases of a family; 0 is all")
  parser.add_argument("--workdir", default="", help="folder for the files; else one that goes")
  parser.add_argument("--show", action="store_true", help="print every sentence")
  options = parser.parse_args()
  prepare_process()
  from benchmarks import bad_inputs
  with contextlib.ExitStack() as stack:
    work = pathlib.Path(options.workdir or stack.enter_context(tempfile.TemporaryDirectory()))
    work.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(work.resolve() / "compiled"))
    made = bad_inputs.make(work.resolve() / "made", run)
    results, start = [], time.monotonic()
    for family, cases in bad_inputs.FAMILIES.items():
      chosen = [c for c in cases if re.search(options.only, f"{family}/{c.name}")]
      for case in chosen[:options.each or None]:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="case-", dir=work))
        case.write(folder, made)
        before = metrics_of(folder)
        words = shlex.split(case.command.replace("{made}", str(made)))
        ended = run(words, folder)
        wrong = fault(case, ended, folder, before)
        results.append((family, case.name, wrong, ended))
        if wrong or options.show:
          said = [line for line in ended.errors.splitlines() if line.startswith("error: ")]
          print(f"{'FAULT' if wrong else 'ok'}  {family}/{case.name}: {wrong or said[0]}",
                flush=True)
        if not wrong:
          bad_inputs.remove(folder)
  print("\n| family | inputs | faults | longest s | most GB |\n|---|---|---|---|---|")
  for family in bad_inputs.FAMILIES:
    of = [r for r in results if r[0] == family]
    if of:
      print(f"| {family} | {len(of)} | {sum(bool(r[2]) for r in of)}"
            f" | {max(r[3].seconds for r in of):.1f} | {max(r[3].peak for r in of) / 1e9:.2f} |")
  faults = [f"{family}/{name}" for family, name, wrong, _ in results if wrong]
  print(json.dumps({"inputs": len(results), "faults": faults,
                    "longest_s": round(max((r[3].seconds for r in results), default=0), 1),
                    "most_gb": round(max((r[3].peak for r in results), default=0) / 1e9, 2),
                    "seconds": round(time.monotonic() - start)}))
  return 1 if faults or not results else 0


if __name__ == "__main__":
  sys.exit(main())
