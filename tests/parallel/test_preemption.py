"""A run that is told to stop has saved its last step, and goes on as if nothing had been."""

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import pytest

from configs.common import evaluator
from jtx.errors import Preempted
from jtx.parallel import preemption, sharding
from jtx.parallel.preemption import Notice
from jtx.saved.checkpoint import Checkpointer
from jtx.train import loop
from jtx.train.program import Program
from jtx.train.step import TrainState
from tests.helpers import losses, refused, steady, tiny_config

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@pytest.fixture(autouse=True)
def default_handlers():
  """What this process does with the signals, whoever has started it."""
  before = {s: signal.signal(s, signal.SIG_DFL) for s in preemption.SIGNALS}
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def handlers():
  return [signal.getsignal(s) for s in preemption.SIGNALS]


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 75), (signal.SIGHUP, 75),
                                           (signal.SIGINT, 130)])
def test_the_first_signal_is_a_notice_and_the_second_is_not_caught(number, status):
  default = [signal.SIG_DFL] * 3
  with Notice() as notice:
    assert handlers() == default  # before the first step there is nothing to save
    assert not notice.due(1)
    signal.raise_signal(number)
    assert notice.due(2) and notice.reason == number.name
    assert handlers() == default
    with pytest.raises(Preempted, match=f"stopped by {number.name}; the same command goes on") as e:
      notice.at_once()
    assert e.value.status == status
  assert handlers() == default


def test_what_is_ignored_stays_so():
  """As SIGHUP is below nohup."""
  signal.signal(signal.SIGHUP, signal.SIG_IGN)
  with Notice() as notice:
    notice.due(1)
    signal.raise_signal(signal.SIGHUP)
    assert not notice.due(2)
  assert preemption.heeded(preemption.SIGNALS) == [signal.SIGTERM, signal.SIGINT]


# A config file that waits: in Python, or where no handler is called, as while a program compiles.
SLOW_CONFIG = """
import ctypes, pathlib, time
c, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
c.pthread_mutex_lock(mutex)
pathlib.Path(r"{ready}").touch()
{wait}
"""


@pytest.mark.parametrize("module,wait,number,status", [
    ("train", "c.pthread_mutex_lock(mutex)", "SIGTERM", 75),
    ("train", "time.sleep(60)", "SIGINT", 130),
    ("launch.local", "time.sleep(60)", "SIGTERM", 75),
])
def test_before_there_is_anything_to_save_a_signal_ends_the_process(
    tmp_path, module, wait, number, status):
  ready, config = tmp_path / "ready", tmp_path / "config.py"
  config.write_text(SLOW_CONFIG.format(ready=ready, wait=wait))
  launcher = ["--processes=2", "--"] if module == "launch.local" else []
  process = subprocess.Popen(
      [sys.executable, "-m", f"experiments.{module}", *launcher, f"--config={config}",
       f"--workdir={tmp_path}/w"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
  while not ready.exists() and process.poll() is None:
    time.sleep(0.01)
  process.send_signal(getattr(signal, number))
  try:
    out, _ = process.communicate(timeout=20)
  finally:
    process.kill()
  assert (process.returncode, out.decode()) == (
      status, f"error: stopped by {number}, with nothing new to save; the same command goes on\n")


def test_the_limit_of_seconds():
  with Notice(0.01) as notice:
    time.sleep(0.02)
    assert notice.due(1) and notice.reason == "the limit of 0.01 seconds"
  with Notice(1000.0) as notice:
    assert not notice.due(1)


def test_where_nothing_is_left_to_save_it_stops_at_once():
  with Notice() as notice:
    notice.due(1)
    notice.at_once()
    with pytest.raises(Preempted):
      signal.raise_signal(signal.SIGTERM)


def test_an_evaluation_is_abandoned():
  ends = []
  with Notice() as notice:
    notice.due(1)
    with notice.abandons():
      ends.append(1)
      signal.raise_signal(signal.SIGTERM)
      ends.append(2)
    assert ends == [1] and notice.reason == "SIGTERM"
  with Notice() as notice:
    notice.due(1)
    with notice.abandons():
      pass
    signal.raise_signal(signal.SIGTERM)  # after it a step is made as usual
    assert notice.due(2)


def test_in_another_thread_nothing_is_caught():
  before = signal.getsignal(signal.SIGTERM)

  def body():
    with Notice() as notice:
      notice.due(1)
      found.append(signal.getsignal(signal.SIGTERM))

  found = []
  thread = threading.Thread(target=body)
  thread.start()
  thread.join()
  assert found == [before]


def test_readers_that_end_with_the_notice():
  def batches():
    yield 1
    raise OSError("a reader ended")

  with Notice() as notice:
    notice.due(0)
    with pytest.raises(OSError):
      list(notice.reading(batches()))
    signal.raise_signal(signal.SIGTERM)
    assert list(notice.reading(batches())) == [1]


def test_the_host_is_few_steps_ahead(monkeypatch):
  """Between two logged steps nothing else waits for the devices."""
  program, waited = object.__new__(Program), []

  class Mark:
    def __init__(self, step):
      self.step = step

    def block_until_ready(self):
      waited.append(self.step)

  program.mesh = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), jax.devices()[:1])
  program.extra, program.seed, program._mark = {}, 0, Mark
  program._marks = collections.deque()
  program.jitted_step = lambda state, *inputs: state.replace(step=state.step + 1)
  state = TrainState(step=0, params={}, opt_state={}, ema={}, sums={}, bad_step=-1)
  for done in range(1, 6):
    state = program.step(state, {})
    assert waited == list(range(1, done - 1))


@pytest.mark.slow
def test_a_run_out_of_time_goes_on_where_it_was(tmp_path):
  whole, parts = str(tmp_path / "whole"), str(tmp_path / "parts")
  loop.run(tiny_config(), whole, jax.devices()[:1])
  with pytest.raises(Preempted, match="limit of 1e-06 seconds"):
    loop.run(tiny_config(), parts, jax.devices()[:1], max_seconds=1e-6)
  assert Checkpointer(os.path.join(parts, "checkpoints")).all_steps() == [1]
  assert not os.path.exists(os.path.join(parts, "results.json"))
  loop.run(tiny_config(), parts, jax.devices()[:1])
  assert losses(parts) == losses(whole)


@pytest.mark.slow
def test_an_evaluation_that_was_due_waits_for_the_restart(tmp_path, monkeypatch):
  whole, parts = tmp_path / "whole", tmp_path / "parts"
  config = tiny_config(steps=3)
  with config.unlocked():
    config.evals.val = evaluator("loss", source=("embedded:number_words/time:val",), every=1)
    config.checkpoint.best, config.checkpoint.every = "min:val/loss", 1
  loop.run(config, str(whole), jax.devices()[:1])
  with pytest.raises(Preempted):
    loop.run(config, str(parts), jax.devices()[:1], max_seconds=1e-6)
  with monkeypatch.context() as m, pytest.raises(Preempted):  # while that of step 2 is made
    pending = []
    def told(*args):
      if pending:
        signal.raise_signal(signal.SIGTERM)
      pending.append(1)
      return evaluate(*args)
    evaluate = loop.evaluate
    m.setattr(loop, "evaluate", told)
    loop.run(config, str(parts), jax.devices()[:1])
  evaluated = lambda: [(line["step"], line["val/loss"]) for line in map(
      json.loads, (parts / "metrics.jsonl").read_text().splitlines()) if "val/loss" in line]
  assert [step for step, _ in evaluated()] == [1]  # that of step 2 is due
  with monkeypatch.context() as m:  # it is made up for, and the run killed before its next step
    m.setattr(Program, "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
      loop.run(config, str(parts), jax.devices()[:1])
  assert [step for step, _ in evaluated()] == [1, 2]
  loop.run(config, str(parts), jax.devices()[:1])
  assert [step for step, _ in evaluated()] == [1, 2, 3, 3]  # at last that of the best
  lines = lambda folder: sorted(json.dumps(line) for line in steady(list(map(
      json.loads, (folder / "metrics.jsonl").read_text().splitlines()))))
  assert lines(parts) == lines(whole)
  scores = Checkpointer(parts / "checkpoints").read_manifest().scores
  assert scores == tuple(evaluated()[:3])


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("workers", [0, 1])
def test_the_command_exits_with_75_and_goes_on(tmp_path, workers):
  """The signal goes to the whole group, as a cluster sends it: the readers end with it."""
  workdir = tmp_path / "run"
  command = [sys.executable, "-m", "experiments.train", "--config=configs/nmt_numbers.py:tiny",
             "--config.steps=20000", "--config.log_every=1", f"--config.data.workers={workers}",
             f"--workdir={workdir}"]
  run = subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.PIPE,
                         text=True)
  metrics = workdir / "metrics.jsonl"
  while run.poll() is None and not (metrics.exists() and len(losses(workdir)) >= 3):
    time.sleep(0.1)
  os.killpg(run.pid, signal.SIGTERM)
  _, err = run.communicate(timeout=120)
  assert run.returncode == 75, err
  assert "error: stopped by SIGTERM; the same command goes on" in err.splitlines()
  step = Checkpointer(workdir / "checkpoints").all_steps()[-1]
  assert step == len(losses(workdir)) < 20000

  status, told = refused("train", *command[3:], "--max_seconds=0.001")
  assert status == 75 and "limit of 0.001 seconds" in told
  assert [s for s, _ in losses(workdir)] == list(range(1, step + 2))
