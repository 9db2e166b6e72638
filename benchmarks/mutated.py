"""Tests of a copy of the source tree in which one text is replaced by another.

A worker is a process that has imported what tests need (JAX, Flax, pytest), but nothing of ours.
For each mutant it forks a child, which runs pytest on the copy: that costs the tests' own time.

  python -m benchmarks.mutated TREE [MODULE ...]    a line of JSON in, a line out; see `Worker`
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import gc
import importlib
import importlib.metadata
import json
import os
import pathlib
import runpy
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from typing import NamedTuple

LIMIT = 30.0  # seconds that a mutant's tests may take
PRELOADED = ("jax", "jax.experimental.pallas.tpu", "flax.linen", "optax",
             "orbax.checkpoint", "ml_collections.config_flags", "tokenizers", "safetensors.numpy",
             "PIL.Image")
# What a copy leaves out: no test that is run on it needs them.
LEFT_OUT = (".*", "__pycache__", "runs", "shared", "build", "dist", "*.egg-info")
OPTIONS = ("-x", "-q", "--tb=short", "-m", "not slow", "-p", "no:cacheprovider", "-n", "0")


class Mutant(NamedTuple):
  """A mistake that someone could make, and the tests that find it."""
  room: str
  name: str
  file: str
  old: str  # is once in the file
  new: str
  tests: tuple[str, ...]  # files, or ids as pytest has them
  equivalent: str = ""  # why no test can find it


class Stale(Exception):
  """A mutant that is not of this source tree."""


def read(folder: pathlib.Path) -> list[Mutant]:
  """The mutants of a folder, in which a TOML file is a room, or a part of it: ROOM_PART.toml.

  Raises:
    Stale: an entry lacks a key or has an unknown one, or a name is there twice.
  """
  found: dict[tuple[str, str], Mutant] = {}
  for path in sorted(folder.glob("*.toml")):
    for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutants"]:
      try:
        mutant = Mutant(path.stem.partition("_")[0], **entry | {"tests": tuple(entry["tests"])})
      except (KeyError, TypeError) as e:
        raise Stale(f"{path.name}: {entry.get('name', entry)}: {e}") from None
      if found.setdefault(mutant[:2], mutant) is not mutant:
        raise Stale(f"{path.name}: {mutant.name!r} is there twice")
  return list(found.values())


def mutated(mutant: Mutant, text: str) -> str:
  """The text of the mutant's file with the mutation.

  Raises:
    Stale: the old text is not there, or more than once.
  """
  if (number := text.count(mutant.old)) != 1:
    raise Stale(f"{mutant.file} has the old text {number} times")
  return text.replace(mutant.old, mutant.new)


def copy(root: pathlib.Path, tree: pathlib.Path) -> None:
  """The files of a source tree, without hidden ones, caches and runs."""
  shutil.copytree(root, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))


@contextlib.contextmanager
def applied(mutant: Mutant | None, tree: pathlib.Path) -> Iterator[None]:
  """Mutates a copy, and mends it at the end; None changes nothing.

  Raises:
    Stale: see `mutated`.
  """
  if mutant is None:
    yield
    return
  path = tree / mutant.file
  if not path.is_file():
    raise Stale(f"there is no file {mutant.file}")
  text, stat = path.read_text(encoding="utf-8"), path.stat()
  path.write_text(mutated(mutant, text), encoding="utf-8")
  os.utime(path, (0, 0))  # not that of the original's compiled code, whatever the clock says
  try:
    yield
  finally:
    path.write_text(text, encoding="utf-8")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


class Outcome(NamedTuple):
  """How tests ended."""
  status: int | None  # of pytest, below 0 is a signal, None is out of time
  seconds: float
  text: str  # what pytest printed

  @property
  def failed(self) -> str:
    """The first test that failed."""
    names = (line.partition(" ")[2].partition(" - ")[0] for line in self.text.splitlines()
             if line.startswith(("FAILED ", "ERROR ")))
    return next(names, "")


class Worker:
  """A process that runs tests on a copy of the source tree, one set of tests after another.

  Args:
    root: the source tree.
    tree: where to put the copy.
    preloaded: modules that the process imports at its start.
    env: its environment; None is this one's.
  """
  limit = LIMIT

  def __init__(self, root: pathlib.Path, tree: pathlib.Path,
               preloaded: Sequence[str] = PRELOADED, env: Mapping[str, str] | None = None):
    self.tree = tree
    copy(root, tree)
    self._process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.mutated", str(tree), *preloaded], text=True, env=env,
        cwd=pathlib.Path(__file__).parent.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

  def run(self, tests: Sequence[str], mutant: Mutant | None = None) -> Outcome:
    """Runs tests, with a mutation or, for None, without.

    Raises:
      Stale: see `mutated`.
    """
    with applied(mutant, self.tree):
      task = {"tests": list(tests), "limit": self.limit, "keep": mutant is None}
      self._process.stdin.write(json.dumps(task) + "\n")
      self._process.stdin.flush()
      status, seconds = json.loads(self._process.stdout.readline())
    log = log_of(self.tree)
    text = log.read_text(encoding="utf-8", errors="replace")
    log.unlink()
    return Outcome(status, seconds, text)

  def close(self) -> None:
    self._process.stdin.close()
    self._process.wait()


def log_of(tree: pathlib.Path) -> pathlib.Path:
  return tree.with_suffix(".log")


# -------------------------------------------------------------------------- in a process of its own


def serve(tree: pathlib.Path, preloaded: Sequence[str]) -> None:
  """Answers each line of stdin, until it ends, with the status and the seconds of its tests."""
  conftest = tree / "tests" / "conftest.py"
  if conftest.is_file():
    runpy.run_path(str(conftest))  # it sets what JAX reads when it is imported
  for module in ("pytest", *preloaded):
    importlib.import_module(module)
  for plugin in importlib.metadata.entry_points(group="pytest11"):
    plugin.load()
  gc.freeze()
  for line in sys.stdin:
    task, start = json.loads(line), time.monotonic()
    child = os.fork()
    if not child:
      _child(tree, task)
    status = _wait(child, start + task["limit"])
    print(json.dumps([status, time.monotonic() - start]), flush=True)


def _child(tree: pathlib.Path, task) -> None:
  """Runs pytest and ends the process."""
  status = 70
  try:
    os.setsid()
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
      path = log_of(tree) if number else os.devnull
      os.dup2(os.open(path, flags | (os.O_CREAT | os.O_APPEND if number else 0)), number)
    os.chdir(tree)
    sys.path[0] = str(tree)
    for name in [n for n in sys.modules if n.split(".")[0] == "benchmarks"]:
      del sys.modules[name]
    sys.dont_write_bytecode = not task["keep"]
    import pytest
    status = int(pytest.main([*OPTIONS, *task["tests"]]))
  finally:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _wait(child: int, until: float) -> int | None:
  """The status of a child; None where it had to be killed, with all that it started."""
  while not os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
    if time.monotonic() > until:
      os.killpg(child, signal.SIGKILL)
      os.waitpid(child, 0)
      return None
    time.sleep(0.01)
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(child, signal.SIGKILL)  # what it left running
  return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
  serve(pathlib.Path(sys.argv[1]), sys.argv[2:])
