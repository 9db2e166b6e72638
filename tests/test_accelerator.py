"""The accelerator suite without its workloads: time, what follows a failure, and its Markdown."""

import json
import pathlib
import time

import pytest

from benchmarks import accelerator, harness

ROOT = pathlib.Path(__file__).parent.parent
FOUND = {"unit": "tokens_per_s", "tokens_per_s": {"jtx": 250_000.0, "transformers_compiled": 2e5},
         "ratio": {"transformers_compiled": {"median": 1.25, "min": 1.2, "max": 1.3}},
         "share_of_matmul_peak": {"jtx": 0.55, "transformers_compiled": 0.44},
         "peak_memory_bytes": {"jtx": 40e9, "transformers_compiled": 45e9},
         "warm_up_s": {"jtx": 60.0, "transformers_compiled": 75.25}, "matmul_peak_flops": 7e14}
ABOUT = {"device": "NVIDIA H100", "jax": "1", "torch": "2", "transformers": "5",
         "attention": "sdpa"}


class Sleeper:
  """What a worker holds here."""

  def sleep(self, seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def context(tmp_path) -> accelerator.Context:
  return accelerator.Context(str(tmp_path), "", tiny=False, rounds=2, steps=1)


def use_rows(monkeypatch, **runs):
  """Rows whose `run` is the function given."""
  row = accelerator.ROWS["bert_base"]
  monkeypatch.setattr(accelerator, "ROWS",
                      {name: row._replace(run=run, share=1) for name, run in runs.items()})


def test_a_worker_ends_with_its_time():
  worker = harness.Worker(Sleeper)
  worker.begin("sleep", 0.01)
  worker.begin("sleep", 0.02)
  assert (worker.answer(), worker.answer()) == (0.01, 0.02)
  start = time.monotonic()
  with harness.limited(0.1), pytest.raises(harness.WorkerError, match="time for it was over"):
    worker.call("sleep", 60.0)
  worker.close()
  assert time.monotonic() - start < 20 and harness.time_left() is None
  with pytest.raises(harness.WorkerError):
    worker.call("sleep", 0.0)


def test_rounds_end_with_the_time():
  with harness.limited(0.5):
    values = harness.alternate(100, {"a": lambda: time.sleep(0.1) or 1.0})
  assert 1 <= len(values["a"]) < 5


def test_a_row_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
  tried = []

  def memory(context, size, peers, result):
    tried.append((size.rows, peers))
    if size.rows > 32:
      raise harness.WorkerError("Traceback\n  File\njaxlib.JaxRuntimeError: RESOURCE_EXHAUSTED: |")
    result |= {"full": {peers[0]: FOUND}, "machine": ABOUT}

  def broken(context, size, peers, result):
    tried.append((size.rows, peers))
    raise ValueError("no wheels")

  def slow(context, size, peers, result):
    tried.append(harness.time_left())
    raise harness.WorkerError("the time for it was over")

  for name in ("JAX_COMPILATION_CACHE_DIR", "XLA_PYTHON_CLIENT_PREALLOCATE"):
    monkeypatch.setenv(name, "")  # which the run leaves alone
  use_rows(monkeypatch, memory=memory, broken=broken, slow=slow)
  peers = ["transformers_compiled"]
  result = accelerator.run(context(tmp_path), ["memory", "broken", "slow"], peers, minutes=0.5)
  eager = ["transformers"]
  assert tried[:4] == [(64, peers), (32, peers), (64, peers), (64, eager)]
  assert 25 < tried[4] <= 30  # the others' time is the last one's
  text = (tmp_path / "accelerator.md").read_text()
  assert json.loads((tmp_path / "accelerator.json").read_text()) == result["rows"]
  rows = [line for line in text.splitlines() if line.startswith("| BERT")]
  assert rows == [
      "| BERT-Base, 32 rows of 512, tokens/s | `torch.compile` 200,000 | 250,000 | 1.25 times as"
      " fast (1.2 to 1.3) | 44 %, 55 % | 45, 40 GB | 75.2, 60 s |",
      "| BERT-Base, 32 rows of 512, tokens/s | failed: 64 rows beside transformers_compiled:"
      " jaxlib.JaxRuntimeError: RESOURCE_EXHAUSTED: / | | | | | |",
      "| BERT-Base, 64 rows of 512, tokens/s | failed: 64 rows beside transformers_compiled: no"
      " wheels; 64 rows beside transformers: no wheels | | | | | |",
      "| BERT-Base, 64 rows of 512, tokens/s | failed: 64 rows beside transformers_compiled: the"
      " time for it was over; 64 rows beside transformers: the time for it was over | | | | | |"]
  assert "\n".join(rows[:2]) in capsys.readouterr().out
  assert "NVIDIA H100; JAX 1, PyTorch 2" in text and "700 to 700 TFLOP/s" in text


def test_rows_that_are_not_measured_are_in_the_results():
  table = accelerator.table([*accelerator.ROWS], {})
  assert table.count(accelerator.NOT_MEASURED) == 6
  for line in table.splitlines():
    assert line.split(",")[0] in (ROOT / "RESULTS.md").read_text()
