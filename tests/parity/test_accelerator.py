"""The accelerator suite at tiny size, on CPU in bf16, beside peers that compile nothing."""

import json
import pathlib
import subprocess
import sys

import pytest

from tests.helpers import one_device

pytest.importorskip("torch", reason="PyTorch is not installed: make test-parity installs it")
pytest.importorskip("transformers", reason="transformers is not installed: see make test-parity")

ROOT = pathlib.Path(__file__).parent.parent.parent
# The rows bert_base and nmt are suites, which tests/parity/test_benchmark.py runs.
MEASURED = {"finetune": {"train": "sentences_per_s"}}


@pytest.mark.slow
def test_rows_are_measured_and_written(tmp_path):
  done = subprocess.run(
      [sys.executable, "-m", "benchmarks.run", "--suite=accelerator", "--size=tiny", "--rounds=1",
       "--steps=1", "--minutes=60", "--peer=transformers", *(f"--part={row}" for row in MEASURED),
       f"--workdir={tmp_path}"], cwd=ROOT, capture_output=True, text=True,
      env=one_device())
  assert done.returncode == 0, done.stderr + done.stdout
  rows = json.loads(done.stdout.splitlines()[-1])["rows"]
  for row, parts in MEASURED.items():
    assert rows[row]["failed"] == [] and rows[row]["batch"]["dtype"] == "bfloat16"
    for part, unit in parts.items():
      found = rows[row][part] if unit in rows[row][part] else rows[row][part]["transformers"]
      for name in (unit, "peak_memory_bytes", "warm_up_s", "share_of_matmul_peak"):
        assert set(found[name]) == {"jtx", "transformers"} and min(found[name].values()) > 0
  text = (tmp_path / "accelerator.md").read_text()
  assert text.count(" times as fast (") == 1 and "failed" not in text
