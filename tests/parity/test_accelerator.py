"""The accelerator suite at tiny size, on CPU in bf16."""

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: make test-parity installs it")
pytest.importorskip("transformers", reason="transformers is not installed: see make test-parity")

ROOT = pathlib.Path(__file__).parent.parent.parent


@pytest.mark.parametrize("row, part, unit", [
    ("bert_base", "full", "tokens_per_s"), ("vit_b16", "step", "images_per_s"),
    ("finetune", "train", "sentences_per_s"), ("nmt", "translate", "sentences_per_s")])
def test_a_row_at_tiny_size(tmp_path, row, part, unit):
  done = subprocess.run(
      [sys.executable, "-m", "benchmarks.run", "--suite=accelerator", "--size=tiny", "--rounds=1",
       "--steps=1", "--peer=transformers", f"--part={row}", f"--workdir={tmp_path}"],
      cwd=ROOT, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr + done.stdout
  found = json.loads(done.stdout.splitlines()[-1])["rows"][row]
  assert found["failed"] == [] and found["batch"]["dtype"] == "bfloat16"
  measured = found[part] if unit in found[part] else found[part]["transformers"]
  for values in (measured[unit], measured["peak_memory_bytes"], measured["warm_up_s"],
                 measured["share_of_matmul_peak"]):
    assert set(values) == {"jtx", "transformers"} and min(values.values()) > 0
  lines = (tmp_path / "accelerator.md").read_text().splitlines()
  assert len([line for line in lines if " times as fast" in line]) == 1 + (row == "nmt")
