"""The campaign of bad inputs: what it calls a fault, and an input of each family."""

import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import bad_inputs, inputs
from benchmarks.bad_inputs.case import Case
from tests.helpers import one_device

ROOT = pathlib.Path(__file__).parent.parent
CASE = Case("a name", "train", "optim.lr")


def fault(folder, before=None, **changes) -> str:
  ended = inputs.Ended(status=1, output="", seconds=0.5, peak=10 ** 8,
                       errors="error: config.optim.lr=-1.0: must be 0 or more\n")
  return inputs.fault(CASE, ended._replace(**changes), folder, before or {})


@pytest.mark.parametrize("changes, what", [
    ({}, ""), ({"status": 0}, "status 0"), ({"status": 139}, "status 139"),
    ({"seconds": 31.0}, "took 31 s"), ({"peak": 3 * 10 ** 9}, "took 3.0 GB"),
    ({"errors": "error: config.optim.lr\nTraceback (most recent call last):\nKeyError: 3\n"},
     "a traceback: KeyError: 3"),
    ({"errors": "error: something\n"}, "said 'error: something', expected 'optim.lr'"),
    ({"errors": "error: config.optim.lr\nerror: config.optim.lr\n"}, "2 sentences"),
    ({"errors": ""}, "0 sentences"),
])
def test_what_is_a_fault(tmp_path, changes, what):
  found = fault(tmp_path, **changes)
  assert found.startswith(what) and bool(found) == bool(what)


def test_what_is_told_after_the_first_step_is_a_fault(tmp_path):
  (tmp_path / "w").mkdir()
  (tmp_path / "w" / "metrics.jsonl").write_text("{}\n")
  assert fault(tmp_path).startswith("only after training")
  assert not fault(tmp_path, inputs.metrics_of(tmp_path))


def test_there_are_enough_and_no_two_of_one_name():
  assert sum(map(len, bad_inputs.FAMILIES.values())) >= 250
  for family, cases in bad_inputs.FAMILIES.items():
    assert len(cases) >= 6 and len({case.name for case in cases}) == len(cases), family
    assert all(case.sentence for case in cases)


@pytest.mark.slow
def test_one_of_each_family_is_answered():
  done = subprocess.run([sys.executable, "-m", "benchmarks.inputs", "--each=1"], cwd=ROOT,
                        env=one_device(), capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr
  result = json.loads(done.stdout.splitlines()[-1])
  assert result["inputs"] == len(bad_inputs.FAMILIES) and result["longest_s"] > 0
