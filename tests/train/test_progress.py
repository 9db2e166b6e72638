"""Lines of progress: rates, times, compilation told apart, and when they come."""

import json
import re
import time

import jax
import numpy as np
import pytest

from jtx.parallel import processes
from jtx.train import loop, progress
from jtx.train.progress import Progress
from tests.helpers import steady, tiny_config


@pytest.mark.parametrize("kind, peak", [
    ("TPU v4", 275e12), ("TPU v5 lite", 197e12), ("TPU v5", 459e12), ("TPU v5p", 459e12),
    ("TPU v6 lite", 918e12), ("NVIDIA A100-SXM4-80GB", 312e12),
    ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA H200", 989e12),
    ("NVIDIA B200", 2250e12), ("TPU v4 lite", None), ("NVIDIA GB200", None), ("cpu", None),
])
def test_peak_flops(kind, peak):
  assert progress.peak_flops(kind) == peak


class Clock:
  """Time that passes when it is told to."""

  def __init__(self, monkeypatch):
    self.now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: self.now)

  def __call__(self, seconds: float) -> None:
    self.now += seconds


@pytest.fixture
def clock(monkeypatch):
  return Clock(monkeypatch)


@pytest.fixture
def lines(caplog):
  """The lines so far."""
  caplog.set_level("INFO", logger="absl")
  return lambda: [r.getMessage() for r in caplog.records if r.getMessage().startswith("step ")]


BATCH = {"tokens": np.zeros((4, 8))}


def test_lines_of_a_run(clock, lines, monkeypatch):
  monkeypatch.setattr(progress, "peak_flops", lambda kind: 40e12)
  report = Progress(1000, start=99, num_devices=4, flops=lambda batch: 8e12)
  clock(2)  # reading
  with report.step(BATCH):
    clock(100)
  assert report.due()
  report.log(100, {"loss": 3.0}, number=5000, logged=False)
  for _ in range(50):
    with report.step(BATCH):
      clock(0.19)
  assert not report.due()  # 9.5 s
  with report.pause():  # an evaluation
    clock(500)
  assert report.due()
  clock(0.5)
  # 50 steps in 10 s: 5 a second, 4e14 / 10 / 4 = 10e12 FLOP/s a device; 850 / 5 = 170 s left.
  assert report.totals() == {"seconds": pytest.approx(612), "units": 0.0}
  found = report.log(150, {"loss": 2.0}, number=5000 + 123456, logged=True)
  assert found.pop("perf/host_memory_gib") > 0.01
  assert found == {
      name: pytest.approx(x) for name, x in {
          "seen/tokens": 128456, "perf/seconds": 612, "perf/steps_per_second": 5,
          "perf/tokens_per_second": 12345.6, "perf/device_flops_per_second": 1e13,
          "perf/mfu": 0.25}.items()}
  assert report.totals() == {"seconds": pytest.approx(612), "units": 128456.0}
  with report.step(BATCH):
    clock(2)
  report.log(151, {}, number=10, logged=True)  # from the last logged step on
  assert lines() == [
      "step 100/1000 | loss 3.0000 | compiled in 100.0 s | 0:01:42 elapsed",
      "step 150/1000 | loss 2.0000 | 5 steps/s | 12.3 ktokens/s"
      " | 10 TFLOP/s a device (25.0% MFU) | 0:02:50 left | 0:10:12 elapsed",
      "step 151/1000 | 0.5 steps/s | 5 tokens/s | 1 TFLOP/s a device (2.5% MFU)"
      " | 0:28:18 left | 0:10:14 elapsed"]


def test_lines_by_time_are_of_all_steps_since_the_logged_one(clock, lines, monkeypatch):
  monkeypatch.setattr(progress, "peak_flops", lambda kind: None)
  report = Progress(100, start=0, num_devices=1)
  for step in range(1, 4):
    with report.step(BATCH):
      clock(20)
    assert report.due()
    report.log(step, {}, number=7.0 * step, logged=False)
    assert not report.due()
  assert lines()[1:] == [
      "step 2/100 | 0.05 steps/s | 0.35 tokens/s | 0 FLOP/s a device | 0:32:40 left"
      " | 0:00:40 elapsed",
      "step 3/100 | 0.05 steps/s | 0.35 tokens/s | 0 FLOP/s a device | 0:32:20 left"
      " | 0:01:00 elapsed"]


def test_totals_go_on_with_the_checkpoint(clock, lines):
  report = Progress(100, start=50, num_devices=1, unit="masked tokens",
                    before={"seconds": 3600.0, "units": 1000.0})
  with report.step(BATCH):
    clock(30)
  found = report.log(51, {}, number=20.0, logged=True)
  assert (found["seen/masked_tokens"], found["perf/seconds"]) == (1020, pytest.approx(3630))
  assert lines() == ["step 51/100 | compiled in 30.0 s | 1:00:30 elapsed"]


def test_another_shape_is_compiled_again(clock, lines, caplog):
  report = Progress(100, start=0, num_devices=1)
  for step, length in enumerate((8, 8, 16, 8, 16), 1):
    with report.step({"tokens": np.zeros((4, length))}):
      clock(30 if step in (1, 3) else 1)
  report.log(5, {}, number=1.0, logged=True)
  assert "compiled in 60.0 s" in lines()[0]
  assert [m for m in caplog.messages if "compiling" in m] == [
      f"compiling the train step for arrays of [4, {length}]" for length in (8, 16)]


def run_shown(workdir, monkeypatch, interval):
  """The metrics of four steps, logged at the last, and how often something was fetched."""
  fetched = []
  to_host = processes.to_host
  with monkeypatch.context() as patch:
    patch.setattr(processes, "to_host", lambda tree: fetched.append(1) or to_host(tree))
    patch.setattr(progress, "INTERVAL", interval)
    config = tiny_config(steps=4, log_every=4, **{"checkpoint.every": 2})
    loop.run(config, str(workdir), jax.devices()[:1])
  line, = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
  return line, len(fetched)


@pytest.mark.slow
def test_lines_of_a_real_run(tmp_path, monkeypatch, lines, caplog):
  metrics, fetched = run_shown(tmp_path, monkeypatch, interval=0.0)
  assert [int(re.match(r"step (\d+)/4 ", line)[1]) for line in lines()] == [1, 2, 3, 4]
  assert re.search(r"loss \d.* \| compiled in [\d.]+ s \| 0:\d\d:\d\d elapsed$", lines()[0])
  assert f"loss {metrics['loss']:.4f} |" in lines()[-1]
  assert fetched == 4  # nothing else comes from the device
  assert [m for m in caplog.messages if m.startswith("checkpoint of")] == [
      f"checkpoint of step {step}: writing {tmp_path}/checkpoints/{step}" for step in (2, 4)]


@pytest.mark.slow
def test_what_is_shown_changes_nothing_that_is_logged(tmp_path, monkeypatch):
  always, _ = run_shown(tmp_path / "always", monkeypatch, interval=0.0)
  rarely, fetched = run_shown(tmp_path / "rarely", monkeypatch, interval=1e9)
  assert steady([rarely]) == steady([always])
  assert fetched == 2  # after the first step and at the logged one
