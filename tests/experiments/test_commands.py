"""Mistakes at the command line of the real commands: a sentence, a status, nothing written."""

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT, refused


def test_a_mistake_of_a_process(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "experiments.train", "--config=configs/nmt_numbers.py:tiny",
       f"--workdir={tmp_path}/run", "--config.optim.lrr=3"], cwd=ROOT, text=True,
      capture_output=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == ("error: unknown config key --config.optim.lrr; did you mean"
                         " --config.optim.lr?\n")


@pytest.mark.parametrize("module,argv,status,sentence", [
    ("train", ["--config=configs/nmt_numbers.py:tinny"], 2, "tinny"),
    ("train", ["--config=configs/nmt_numbers.py:tiny", "over"], 2, "unexpected argument 'over'"),
    ("train", ["--config=configs/nmt_text.py", "--config.data.path=nowhere"], 1,
     "nowhere/train.en: No such file or directory"),
    ("train", ["--config=configs/nmt_text.py", "--config.data.train.path=x"], 2,
     "unknown config key --config.data.train.path; a source has its folder in its name, as"
     " --config.data.train=KIND:/FOLDER/FILE; those without one are in --config.data.path"),
    ("train", ["--config=configs/nmt_text.py", '--config.tokenizer.kind={"name": "unigram"}',
               "--config.tokenizer.kind.vocab_size=700"], 2, "--config.tokenizer.kind.vocab_size is"
     " a key of --config.tokenizer.kind, which is given whole: put it there"),
    ("train", ["--config=configs/nmt_text.py", "--config.tokenizer.kind.name=unigram"], 1,
     "config.tokenizer.kind.min_frequency: unknown key of config.tokenizer.kind.name='unigram', but"
     " of bpe, byte_bpe, wordpiece; valid are: vocab_size,"),
    ("train", ["--config=configs/nmt_text.py", "--config.evals.val.path=x"], 2,
     "as --config.evals.val.source=KIND:/FOLDER/FILE; those without one"),
    ("train", ["--config=configs/nmt_numbers.py:tiny", "--config.mesh.data=3"], 1,
     ": data=3 takes 3 devices, and there"),
    ("evaluate", [], 1, "config.json does not exist: no run was started there"),
    ("translate", ["--beam=0"], 2, "beam"),
    ("translate", ["--output=tests"], 2, "--output=tests: it is a folder; name a file to write"),
    ("predict", ["--output=nowhere/a"], 2, "/nowhere is no folder"),
    ("evaluate", ["--output=README.md/a"], 2, "--output=README.md/a: no file can be written there"),
])
def test_mistakes(tmp_path, module, argv, status, sentence):
  workdir = tmp_path / "run"
  found, told = refused(module, f"--workdir={workdir}", *argv)
  assert found == status and sentence in told
  assert not list(workdir.rglob("*.json")) if workdir.exists() else True


def test_unequal_parallel_files(tmp_path):
  for name, lines in (("train.en", 3), ("train.de", 2), ("val.en", 1), ("val.de", 1)):
    (tmp_path / name).write_text("a\n" * lines)
  status, told = refused("train", "--config=configs/nmt_text.py", f"--config.data.path={tmp_path}",
                         f"--workdir={tmp_path}/run")
  assert status == 1
  assert "train.en has 3" in told and "train.de has 2" in told
