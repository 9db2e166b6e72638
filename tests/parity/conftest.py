"""The package as its users have it: a wheel in an environment of its own."""

import fcntl
import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT
from tests.parity.wheel import pip, sources


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
  """The folder of commands of an environment with the wheel and what that requires, only."""
  shared = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:
    shared = shared.parent  # which the worker processes have in common
  commands = shared / "installed" / "bin"
  with open(shared / "installed.lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not (shared / "installed.done").exists():
      build = shared / "wheel"
      pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(build), str(sources(build / "clone")))
      subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(commands.parent)],
                     check=True)
      wheel, = build.glob("jtx-*.whl")
      # pytest, for the tests of the template of an own repository.
      pip("--python", str(commands / "python"), "install", "--quiet", "--no-compile",
          "--constraint", str(ROOT / "requirements.lock"), str(wheel), "pytest")
      (shared / "installed.done").touch()
  return commands
