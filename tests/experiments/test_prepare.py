"""The command `experiments.prepare`: what it makes is trained on, survives kills, and mistakes."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import jax
import pytest

from jtx.train import loop
from tests.data.corpus.corpora import contents
from tests.helpers import losses, refused, tiny_config

ROOT = pathlib.Path(__file__).parent.parent.parent
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu"}
CONFIG = "--config=configs/nmt_numbers.py:tiny"


def start(*argv):
  return subprocess.Popen([sys.executable, "-m", "experiments.prepare", *argv], cwd=ROOT, text=True,
                          stderr=subprocess.PIPE, env=ENVIRONMENT)


def command(*argv):
  process = start(*argv)
  return process.communicate()[1], process.returncode


@pytest.mark.slow
def test_training_from_what_the_command_made(tmp_path):
  told, status = command(CONFIG, f"--output={tmp_path}/D", "--shard_size=500", "--workers=2")
  assert status == 0, told
  assert "shard 3 of 3 made" in told
  assert "1292 examples in 3 shards; tokens of src: 10,829, tgt: 6,460" in told
  for workdir, edits in (("raw", {}), ("prepared", {"data.train": (f"prepared:{tmp_path}/D",)})):
    loop.run(tiny_config(steps=3, **edits), str(tmp_path / workdir), jax.devices()[:1])
  assert losses(tmp_path / "prepared") == losses(tmp_path / "raw")
  tokenizers = [(tmp_path / name / "tokenizer.json").read_text()
                for name in ("raw", "prepared", "D")]
  assert len(set(tokenizers)) == 1 and json.loads(tokenizers[0]).keys() == {"src", "tgt"}


@pytest.mark.parametrize("case", [
    (["--output=D", "--shard_size=0"], 2, "shard_size"),
    (["--output=D", "--wrokers=2"], 2, "unknown flag --wrokers; did you mean --workers?"),
    (["--output=D", "--beam=--runner=FnApiRunner", "--workers=2"], 2,
     "--workers has no effect beside --beam"),
    (["--output=D", "--config.data.train=text:none.txt"], 1, "none.txt: No such file or directory"),
    (["--output=D", "--config.data.train=prepared:E"], 1, "'prepared:E' holds tokens and no texts"),
    (["--output=D", "--config.data.train=()"], 1, "data.train: no source is named"),
])
def test_mistakes(tmp_path, case):
  argv, status, sentence = case
  argv = [f"--output={tmp_path}/D" if a == "--output=D" else a for a in argv]
  found, told = refused("prepare", CONFIG, *argv)
  assert found == status and sentence in told
  assert not list(tmp_path.rglob("*.*"))


def children(pid):
  """Processes that a process has started and that still run (Linux)."""
  tasks = pathlib.Path(f"/proc/{pid}/task")
  return [int(child) for task in tasks.iterdir()
          for child in (task / "children").read_text().split()]


def runs(pid):
  try:
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
  except OSError:
    return False


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
  """Arguments, and the files that they give in one run without workers."""
  whole = tmp_path_factory.mktemp("prepared") / "whole"
  arguments = (CONFIG, "--shard_size=7")
  told, status = command(*arguments, f"--output={whole}")
  assert status == 0, told
  return arguments, contents(whole)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(not os.path.exists(f"/proc/{os.getpid()}/task/{os.getpid()}/children"),
                    reason="needs /proc to see which processes are left")
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_at_any_moment(tmp_path, undisturbed, workers):
  """The files are those of one run without workers, and no process outlives the one killed."""
  output = tmp_path / "D"
  arguments, expected = undisturbed
  rng = random.Random(workers)
  kills = followed = 0
  for _ in range(20):
    if kills == 4:
      break
    before = len(list(output.glob("*")))
    target = before + rng.randrange(60)
    process = start(*arguments, f"--output={output}", f"--workers={workers}")
    while process.poll() is None and len(list(output.glob("*"))) < target:
      time.sleep(0.001)
    time.sleep(rng.random() * 0.02)
    if process.poll() is not None:  # it was faster than we are
      assert process.returncode == 0, process.stderr.read()
      assert contents(output) == expected
      process.stderr.close()
      shutil.rmtree(output)
      continue
    kills += 1
    left = children(process.pid)
    followed += len(left)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()
    for _ in range(6000):  # workers of their own accord; a minute is plenty
      if not any(map(runs, left)):
        break
      time.sleep(0.01)
    assert not any(map(runs, left))
    for name, data in contents(output).items() if output.exists() else ():
      assert name in ("unfinished.json", "unfinished.json.tmp") or name.endswith(".tmp") or (
          data == expected[name])
  assert kills == 4
  assert followed >= workers  # once at least it had workers when it was killed
  told, status = command(*arguments, f"--output={output}", f"--workers={workers}")
  assert status == 0, told
  assert contents(output) == expected
