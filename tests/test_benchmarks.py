"""The harness of the benchmarks: turns, ratios, and workers in processes of their own."""

import json
import os
import time

import numpy as np
import pytest

from benchmarks import faulty, finetune, harness, nmt, pods, saving, serving
from jtx.saved import checkpoint


class Counter:
  """What a worker holds here."""

  def __init__(self, start: int):
    self.value = start

  def add(self, n: int) -> tuple[int, int]:
    self.value += n
    return self.value, os.getpid()

  def fill(self, size: int) -> int:
    harness.reset_peak_memory()
    before = harness.peak_memory()
    np.ones(size, np.uint8).sum()
    return harness.peak_memory() - before

  def fail(self) -> None:
    raise ValueError("out of beans")


def test_a_worker_is_an_object_in_another_process():
  worker = harness.Worker(Counter, start=5)
  assert worker.call("add", 2)[0] == 7
  value, pid = worker.call("add", 3)
  assert value == 10 and pid != os.getpid()
  size = 300_000_000
  assert 0.9 * size < worker.call("fill", size) < 1.2 * size
  with pytest.raises(harness.WorkerError, match="out of beans"):
    worker.call("fail")


def test_a_worker_that_can_not_be_made():
  with pytest.raises(harness.WorkerError, match="unexpected keyword argument"):
    harness.Worker(Counter, begin=5)


def test_a_worker_that_dies_is_told():
  with pytest.raises(harness.WorkerError, match="a worker ended with status -6"):
    harness.Worker(os.abort)


def test_the_highest_memory_is_that_in_between():
  size = 100_000_000
  with saving.highest() as found:
    x = np.ones(size, np.uint8)
    time.sleep(20 * saving.PERIOD)
    del x
  assert 0.9 * size < found["bytes"] < 1.5 * size


@pytest.mark.slow
def test_saving_takes_less_memory_than_half_of_the_state(tmp_path, monkeypatch):
  monkeypatch.setattr(checkpoint, "_FILE_BYTES", 16 << 20)
  total = 256 << 20
  result = saving.run(str(tmp_path), rounds=2, total=total)
  assert 0.99 * total < result["state_bytes"] <= total
  assert len(result["idle"]) == len(result["training"]) == len(result["blocked_s"]) == 2
  assert max(result["idle"]) < 0.5
  assert all(a < b for a, b in zip(result["blocked_s"], result["written_s"]))


def test_turns_alternate_and_change_their_order(capsys):
  order = []

  def turn(name):
    order.append(name)
    return float(len(order))

  values = harness.alternate(3, {"a": lambda: turn("a"), "b": lambda: turn("b")})
  assert order == ["a", "b", "b", "a", "a", "b"]
  assert values == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}
  assert "round 3/3  b: 6" in capsys.readouterr().out


def test_ratios():
  values = {"ours": [2.0, 6.0, 10.0], "theirs": [1.0, 4.0, 2.0]}
  assert harness.ratio(values, "ours", "theirs") == {"median": 3.0, "min": 1.5, "max": 5.0}


def test_sides_train_as_many_parameters():
  harness.check_trained({"jtx": 7, "transformers": 7})
  with pytest.raises(harness.WorkerError, match="parameters that are trained: .*'jtx': 7.*: 5"):
    harness.check_trained({"jtx": 7, "transformers": 5})


def test_padding():
  np.testing.assert_array_equal(nmt.pad([[1, 2, 3], [4]], -1), [[1, 2, 3], [4, -1, -1]])


def test_scores_are_compared_as_pairs():
  row = finetune.compare({"jtx": [0.9, 0.8, 0.7], "transformers": [0.8, 0.8, 0.9],
                          "packed": [0.5, 0.7, 0.6]})
  assert row["jtx"] == (pytest.approx(0.8), pytest.approx(0.1))
  assert row["transformers"][0] == pytest.approx(2.5 / 3)
  assert row["packed"] == (pytest.approx(0.6), pytest.approx(0.1))
  # Differences 0.1, 0 and -0.2: mean -1/30, deviation sqrt(((4/30)^2 + (1/30)^2 + (5/30)^2) / 2).
  deviation = (42 / 900 / 2) ** 0.5
  assert row["difference"] == (pytest.approx(-1 / 30), pytest.approx(deviation / 3 ** 0.5))


def test_finished_runs_are_not_run_again(tmp_path, monkeypatch, capsys):
  calls = []

  class Worker:
    def __init__(self, make, name):
      self.name = name

    def call(self, method, kwargs):
      calls.append((kwargs["task"], kwargs["seed"], self.name, os.path.basename(kwargs["init"])))
      assert kwargs.get("args", "group") == "group"
      if len(calls) == 6:
        raise harness.WorkerError("killed")
      return {"dev/accuracy": 0.5 + 0.1 * kwargs["seed"], "seconds": 2.0, "peak_memory_bytes": 7}

    def close(self):
      pass

  monkeypatch.setattr(harness, "Worker", Worker)
  run = lambda: finetune.run(str(tmp_path), "data", "init", ["sst2"], seeds=(0, 1))
  with pytest.raises(harness.WorkerError):
    run()
  result = run()
  # Both systems of a seed start from what its "start" wrote.
  assert calls == [("sst2", 0, "start", "init"), ("sst2", 0, "jtx", "sst2-0-start"),
                   ("sst2", 0, "transformers", "sst2-0-start"), ("sst2", 1, "start", "init"),
                   ("sst2", 1, "jtx", "sst2-1-start"),
                   *2 * [("sst2", 1, "transformers", "sst2-1-start")]]
  table = result["tasks"]["sst2"]
  assert table["dev/accuracy"]["jtx"][0] == pytest.approx(0.55)
  assert table["dev/accuracy"]["difference"] == (0.0, 0.0)
  assert table["seconds"] == {"jtx": [2.0, 2.0], "transformers": [2.0, 2.0]}
  assert "| sst2 | dev/accuracy | 0.5500 ± 0.0707 |" in capsys.readouterr().out


def test_every_task_is_a_config():
  for name in finetune.TASKS:
    config = finetune.make_config(name, "data", "", 3)
    assert config.seed == 3 and config.data.path.endswith(finetune.TASKS[name].folder)
    assert config.data.ops[-1].group


def test_batches_as_drawn_are_laid_into_rows(tmp_path, monkeypatch, capsys):
  configs, seconds = {}, {"start": 1.0, "jtx": 2.0, "transformers": 3.0}

  class Worker:
    def __init__(self, make, name):
      self.name = name

    def call(self, method, kwargs):
      if self.name != "start":
        configs[self.name] = finetune.make_config("sst2", "data", "", 0, kwargs["args"])
      return {"dev/accuracy": 0.5, "seconds": seconds[self.name], "peak_memory_bytes": 7}

    def close(self):
      pass

  monkeypatch.setattr(harness, "Worker", Worker)
  finetune.run(str(tmp_path), "data", "init", ["sst2"], seeds=[0], batches="drawn", epochs=0.25)
  ours, alone = configs["jtx"], configs["transformers"]
  assert ours.batch_size * 4 == alone.batch_size == 32
  with ours.unlocked():
    ours.batch_size, ours.data.ops[-1].max_segments = 32, 1
  assert ours == alone and not alone.data.ops[-1].group and alone.epochs == 0.25
  assert "| sst2 | seconds | 2 | 3 |" in capsys.readouterr().out
  # What is kept is not taken for runs of other batches, or of as many epochs as the task has.
  assert sorted(os.listdir(tmp_path)) == [
      "sst2-0-jtx-drawn-0.25.json", "sst2-0-start.json", "sst2-0-transformers-drawn-0.25.json"]


def test_a_step_beside_plain_flax():
  """In a loop, unrolled, and beside a plain one that does not fit."""
  seen = []

  def report(pod):
    seen.append(" ".join(pod.more))
    cycles, gib = (3e7, 2) if pod.plain else (1e7, 4) if "unroll" in seen[-1] else (2e7, 1)
    return {"ops": {"cycles": cycles}, "bytes": {"peak": gib * 2**30}, "compile_s": gib * 10,
            "fits": True}

  bert, _, nmt, *_ = pods.CYCLES
  assert pods.beside_plain(bert._replace(more=("--ops=5",)), report) == [
      "`bert_base`", "3e+07", "2.00", "20 s", "2e+07 (1.50)", "1.00 (2.00)", "10 s",
      "1e+07 (3.00)", "4.00 (0.50)", "40 s"]
  assert seen == ["--ops=5", "--ops=5", "--ops=5 --config.model.stack.unroll=-1"]
  pods.beside_plain(nmt._replace(more=()), report)
  assert seen[-1] == "--config.model.encoder.unroll=-1 --config.model.decoder.unroll=-1"

  for why in ("Used 20.5G of 15.75G hbm", "memory required for HLO temporaries (20.5G) exceeds"):
    too_large = {"fits": False, "why": why, "bytes": {}, "compile_s": 5}
    assert pods.beside_plain(bert, lambda pod: too_large if pod.plain else report(pod))[1:7] == [
        "does not fit", "20.50", "5 s", "2e+07", "1.00 (20.50)", "10 s"]


def test_what_a_fault_has_changed_is_found(tmp_path):
  """Lines and checkpoints are those of the undisturbed run, and none is missing or there twice."""
  job = faulty.Job(place=tmp_path, folder=tmp_path, processes=1, steps=30,
                   setting=faulty.SETTINGS["logged"], cache=tmp_path)
  line = lambda step, loss=0.5: json.dumps({"step": step, "loss": loss, "perf/mfu": time.time()})
  manifest = tmp_path / "checkpoints" / "10" / "manifest" / "metadata"
  manifest.parent.mkdir(parents=True)

  def lost(lines, digest=7):
    (tmp_path / "metrics.jsonl").write_text("".join(f"{x}\n" for x in lines) + '{"step": 9, "lo')
    manifest.write_text(json.dumps({"content": {"arrays": {"params": digest}}}))
    try:
      faulty.check(job, truth)
    except faulty.Lost as e:
      return str(e)
    return ""

  truth = {"lines": {step: '{"step": %d, "loss": 0.5}' % step for step in range(1, 5)},
           "digests": {"10": {"params": 7}}}
  assert lost([line(1), line(2), '{"step": 2, "val/loss": 0.1}', line(3)]) == ""
  assert job.at() == 10  # the newest of what is logged and what is saved
  assert "step 2 is" in lost([line(1), line(2, 0.6)])
  assert "step 2 is logged twice" in lost([line(1), line(2), line(2)])
  assert "lines are of the steps" in lost([line(2), line(1)])
  assert lost([line(1), line(3)]) == "lines of the steps [2] are missing"
  assert "step 10 has other arrays" in lost([line(1)], digest=8)
  (tmp_path / "corrupt" / "10").mkdir(parents=True)
  assert lost([line(1)]) == "1 checkpoints were set aside, and 0 damaged"
  job.destroyed, job.damaged = {2}, 1
  assert lost([line(1), line(3)]) == ""


def test_an_answer_is_right_but_for_the_last_digits_of_its_numbers():
  right = {"label": "a", "scores": {"a": 0.75, "b": 0.25}, "tags": ["x", "y"]}
  assert serving.same({**right, "scores": {"a": 0.75001, "b": 0.25}}, right)
  for wrong in ({"label": "b"}, {"scores": {"a": 0.7502, "b": 0.25}}, {"scores": {"a": 0.75}},
                {"scores": {"a": "0.75", "b": 0.25}}, {"tags": ["x"]}, {"tags": ["x", "z"]}):
    assert not serving.same({**right, **wrong}, right)
  assert not serving.same(None, right)
