"""Several processes as one run: the losses and examples of one process, and how failures end."""

import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest

from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError
from jtx.parallel import processes
from tests.helpers import losses, one_fast_row, run_command

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def launched(workdir, config, processes, devices, *args):
  command = [sys.executable, "-m", "experiments.launch.local", f"--processes={processes}",
             f"--cpu_devices={devices}", "--", f"--config={config}",
             "--config.log_every=1", f"--workdir={workdir}", *args]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def alone(workdir, config, *args):
  """The same in this process, which has eight devices."""
  run_command("train", f"--config={config}", "--config.log_every=1", f"--workdir={workdir}", *args)


def results(workdir):
  with open(os.path.join(workdir, "results.json"), encoding="utf-8") as f:
    return {key: value for key, value in json.load(f).items() if not isinstance(value, str)}


@pytest.mark.parametrize("coordinator,number,index,message", [
    ("host:1", 2, -1, "give all of them"),
    ("", 0, 0, "give all of them"),
    ("host", 2, 0, "the coordinator is HOST:PORT"),
    ("host:1", 2, 2, "numbered from 0"),
])
def test_wrong_flags(coordinator, number, index, message):
  with pytest.raises(ConfigError, match=message):
    processes.initialize(coordinator, number, index)


def test_alone_nothing_is_shared_or_moved():
  assert processes.is_main() and processes.share({"a": [1]}) == {"a": [1]}
  with processes.alone({"w": 1}) as params:
    assert params == {"w": 1}


def test_the_watchdog_barks_once_and_not_where_no_step_is_expected():
  codes = []
  with processes.Watchdog(0.1, codes.append) as dog:
    time.sleep(0.3)  # nothing is expected before the start
    dog.start()
    with dog.pause():
      time.sleep(0.4)
    assert codes == []
    time.sleep(0.4)
    assert codes == [1]
  with processes.Watchdog(0.2, codes.append) as dog:
    dog.start()
    for _ in range(10):
      time.sleep(0.05)
      dog.beat()
    dog.stop()
    time.sleep(0.5)
  assert codes == [1]
  dog = processes.Watchdog(0.0)
  with dog.pause():
    inside = time.monotonic()
  assert dog._last >= inside  # the time of a pause does not count


@pytest.mark.parametrize("asked, kept", [({}, "0.1"), (
    {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "3"}, "3.0")])
def test_short_programs_are_kept_unless_the_user_says_otherwise(asked, kept):
  script = ("import jax; from jtx.parallel import processes; processes.initialize();"
            " print(jax.config.jax_persistent_cache_min_compile_time_secs)")
  env = {k: v for k, v in os.environ.items() if k not in (
      "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "JAX_COMPILATION_CACHE_DIR")}
  result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=env | asked, text=True,
                          capture_output=True, check=True)
  assert result.stdout.strip() == kept


@pytest.mark.parametrize("error,status,number", one_fast_row(
    ("cli.UsageError", 2, 2), ("RuntimeError", 1, 2), ("cli.UsageError", 2, 1),
    ("RuntimeError", 1, 1)))
def test_a_process_leaves_though_nothing_can_be_written(error, status, number):
  """It must not wait at its exit for the others, which wait for it, nor for a thread that hangs."""
  script = f"""
import threading, time
import jax
from experiments import cli
from jtx.parallel import processes
processes.EXIT_SECONDS = 0.2
jax.distributed.is_initialized, jax.process_count = lambda: True, lambda: {number}
threading.Thread(target=time.sleep, args=(600,)).start()
def main(): raise {error}("of one process")
cli.run(main)
"""
  with open("/dev/full", "w", encoding="utf-8") as full:
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stderr=full, timeout=60)
  assert done.returncode == status


def test_a_lost_peer_is_told_in_a_sentence(monkeypatch, capfd, caplog):
  monkeypatch.setattr(processes.jax.distributed, "is_initialized", lambda: True)
  monkeypatch.setattr(processes.jax, "process_count", lambda: 2)
  monkeypatch.setattr(os, "_exit", lambda status: None)
  gloo = "UNKNOWN: Gloo all-reduce failed: Read error [127.0.0.1]:932: Connection reset by peer"
  processes.leave(1, ValueError(gloo))
  assert f"another process has ended, or can't be reached: {gloo}" in caplog.text
  processes.leave(1, ValueError("of its own"))
  assert "ValueError: of its own" in capfd.readouterr().err and "its own" not in caplog.text


# Every process compiles all programs, and they wait for one another at every step: there are no
# more numbers of processes, steps and examples than it needs.
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("config", [
    "bert", pytest.param("vit_digits", marks=pytest.mark.exhaustive)])
def test_two_processes_give_the_losses_of_one(config, tmp_path):
  (tmp_path / "few.txt").write_text("It runs.\nAnd then it ends.\n\n" * 11)
  digits = open_source("embedded:digits:test")
  np.savez(tmp_path / "few.npz", images=[digits[i]["image"] for i in range(11)],
           labels=[digits[i]["label"] for i in range(11)])
  few = {"bert": (f"val.source=('blank_lines:{tmp_path}/few.txt',)",),
         "vit_digits": (f"val.source=('npz:{tmp_path}/few.npz',)",)}
  args = ("--config.steps=6", "--config.mesh.fsdp=2", "--config.mesh.tensor=2",
          "--config.mesh.data=2", *(f"--config.evals.{edit}" for edit in few[config]))
  alone(tmp_path / "1", f"configs/{config}.py:tiny", *args)
  done = launched(tmp_path / "2", f"configs/{config}.py:tiny", 2, 4, *args)
  assert done.returncode == 0, done.stderr
  whole = dict(losses(tmp_path / "1"))
  assert len(whole) == 6
  assert dict(losses(tmp_path / "2")) == pytest.approx(whole, rel=1e-5)
  assert results(tmp_path / "2") == pytest.approx(results(tmp_path / "1"), rel=1e-5)


TRANSLATOR = """
from configs.common import evaluator
from tests.helpers import tiny_config

def get_config():
  c = tiny_config(**{"steps": 5, "checkpoint.every": 3})
  with c.unlocked():
    c.evals.test = evaluator("translation", source=("embedded:number_words:test",), limit=11)
  return c
"""


@pytest.mark.slow
@pytest.mark.long
def test_a_run_goes_on_in_other_shapes(tmp_path):
  """What is restored has the checksums of what was saved, in every process, or is refused.

  Losses and scores are those of one process, also where rows are no multiple of processes.
  """
  config, whole = tmp_path / "translator.py", tmp_path / "whole"
  config.write_text(TRANSLATOR)
  shape = lambda data, fsdp, tensor: [f"--config.mesh.{axis}={n}" for axis, n in zip(
      ("data", "fsdp", "tensor"), (data, fsdp, tensor))]
  alone(whole, config, *shape(1, 4, 2))
  part = tmp_path / "part"
  shutil.copytree(whole, part)
  shutil.rmtree(part / "checkpoints" / "5")
  (part / "results.json").unlink()
  done = launched(part, config, 4, 2, *shape(4, 1, 2))
  assert done.returncode == 0, done.stderr
  assert "step 3 of" in done.stderr
  assert dict(losses(part)) == pytest.approx(dict(losses(whole)), rel=1e-5)
  assert results(part) == pytest.approx(results(whole), rel=1e-5)


@pytest.mark.slow
def test_a_process_that_fails_ends_the_job_with_its_sentence(tmp_path):
  done = launched(tmp_path / "run", "configs/nmt_numbers.py:tiny", 2, 1, "--config.mesh.fsdp=3")
  assert done.returncode == 1
  assert "error: config.mesh (data=-1, fsdp=3" in done.stderr
  assert not (tmp_path / "run" / "config.json").exists()
