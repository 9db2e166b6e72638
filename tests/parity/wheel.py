"""Commands in an environment that knows nothing of the clone."""

import pathlib
import shutil
import subprocess
import sys

from tests.helpers import ROOT, one_device


def sources(folder: pathlib.Path) -> pathlib.Path:
  """A copy of what the package is made of, in which no earlier build has left anything."""
  for name in ("jtx", "configs", "experiments"):
    shutil.copytree(ROOT / name, folder / name, symlinks=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("setup.py", "pyproject.toml"):
    shutil.copy(ROOT / name, folder)
  return folder


def pip(*args: str) -> None:
  done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *args],
                        text=True, capture_output=True)
  assert done.returncode == 0, done.stderr[-3000:]


def run(*args, cwd: pathlib.Path, status: int = 0, text: str = "") -> str:
  """What a command prints; where it is to fail, what it prints of that."""
  env = {key: value for key, value in one_device().items() if key != "PYTHONPATH"}
  done = subprocess.run([*map(str, args)], cwd=cwd, env=env, text=True, capture_output=True,
                        input=text)
  assert done.returncode == status, done.stderr[-3000:]
  return done.stdout if status == 0 else done.stderr
