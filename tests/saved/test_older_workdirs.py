"""Runs and folders that an earlier version wrote go on, bit for bit, and give what they gave.

tests/fixtures/older_workdirs holds four runs of the time when a block's config was one flat
section, as a kill after step 4 left them with the checkpoint of step 3, and a folder converted
from Hugging Face. That version went on with them, and expected.json has what came of it.
"""

import json
import os
import pathlib
import subprocess
import sys
import tarfile
from unittest.mock import ANY

import pytest

from tests.fixtures.older_workdirs.go_on import machine
from tests.helpers import ROOT

FIXTURES = ROOT / "tests" / "fixtures" / "older_workdirs"
EXPECTED = json.loads((FIXTURES / "expected.json").read_text())


def gone_on(kind: str, folder: pathlib.Path) -> dict:
  """What comes of a workdir today, in a process of its own."""
  with tarfile.open(FIXTURES / f"{kind}.tar.xz") as packed:
    packed.extractall(folder / kind, filter="data")
  env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
  flags = env.pop("XLA_FLAGS")
  if {**machine(), "xla_flags": ""} != EXPECTED[kind]["machine"]:  # no bits to compare: see near
    env["XLA_FLAGS"] = " ".join(flag for flag in flags.split() if "device_count" not in flag)
  argv = [FIXTURES / "go_on.py", folder / kind, folder / "out.json"]
  done = subprocess.run([sys.executable, *map(str, argv)], cwd=ROOT, env=env, text=True,
                        stderr=subprocess.PIPE)
  assert done.returncode == 0, done.stderr[-3000:]
  return json.loads((folder / "out.json").read_text())


def near(value):
  """`value` for a comparison on another machine: numbers to 1e-5, and no checksums."""
  if isinstance(value, dict):
    return {key: near(item) for key, item in value.items()}
  if isinstance(value, list):
    return [near(item) for item in value]
  if isinstance(value, float):
    return pytest.approx(value, rel=1e-5, abs=1e-6)
  return ANY if isinstance(value, str) and len(value) == 64 else value


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPECTED)
def test_goes_on_as_before(kind, tmp_path):
  ours, theirs = gone_on(kind, tmp_path), dict(EXPECTED[kind])
  if ours.pop("machine") != theirs.pop("machine"):
    theirs = near(theirs)
  assert ours.keys() == theirs.keys()
  for key in theirs:  # one by one: a difference is then readable
    assert ours[key] == theirs[key], key
