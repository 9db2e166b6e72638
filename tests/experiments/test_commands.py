"""Mistakes at the command line of the real commands: a sentence, a status, nothing written."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


def command(module, *argv):
  return subprocess.run([sys.executable, "-m", f"experiments.{module}", *argv], cwd=ROOT, text=True,
                        capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


@pytest.mark.parametrize("module,argv,status,sentence", [
    ("train", ["--config=configs/nmt_numbers.py:tiny", "--config.optim.lrr=3"], 2,
     "unknown config key --config.optim.lrr; did you mean --config.optim.lr?"),
    ("train", ["--config=configs/nmt_numbers.py:tinny"], 2, "tinny"),
    ("train", ["--config=configs/nmt_numbers.py:tiny", "over"], 2, "unexpected argument 'over'"),
    ("train", ["--config=configs/nmt_text.py", "--config.data.path=nowhere"], 1,
     "nowhere/train.en: No such file or directory"),
    ("train", ["--config=configs/nmt_numbers.py:tiny", "--config.mesh.data=3"], 1,
     "its sizes must multiply to"),
    ("evaluate", [], 1, "config.json does not exist: no run was started there"),
    ("translate", ["--beam=0"], 2, "beam"),
])
def test_mistakes(tmp_path, module, argv, status, sentence):
  workdir = tmp_path / "run"
  result = command(module, f"--workdir={workdir}", *argv)
  assert result.returncode == status, result.stderr
  assert sentence in result.stderr
  assert "Traceback" not in result.stderr
  assert not list(workdir.rglob("*.json")) if workdir.exists() else True


def test_unequal_parallel_files(tmp_path):
  for name, lines in (("train.en", 3), ("train.de", 2), ("val.en", 1), ("val.de", 1)):
    (tmp_path / name).write_text("a\n" * lines)
  result = command("train", "--config=configs/nmt_text.py", f"--config.data.path={tmp_path}",
                   f"--workdir={tmp_path}/run")
  assert result.returncode == 1
  assert "train.en has 3" in result.stderr and "train.de has 2" in result.stderr
