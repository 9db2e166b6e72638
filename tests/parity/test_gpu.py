"""What XLA's compiler for NVIDIA GPUs makes of train steps. No GPU is needed."""

import pytest

from tests.helpers import compiled

pytest.importorskip("jax_plugins.xla_cuda13", reason="the extra `aot-gpu` is not installed")


def report(*args):
  done, result = compiled("--config=configs/bert.py:mini", *args)
  assert done.returncode == 0, done.stderr
  return done, result


def test_what_is_sent_and_kept_and_by_which_kernels():
  done, result = report("--topology=h100:8", "--config.phases=((1.0, 512, 32),)",
                        "--config.batch_size=32", "--config.mesh.fsdp=8", "--config.mesh.data=1")
  assert result["fits"] and result["device_kind"] == "NVIDIA H100 80GB HBM3"
  assert 0 < result["estimate"]["utilisation"] < 1
  # XLA keeps the vocabulary's table for the backward pass, which it need not gather again.
  assert 0.7 < result["sent_bytes"] / result["least_sent_bytes"] < 1.2
  layers, products = 4, result["kernels"]["cuBLAS lt matmul"]
  assert products["runs"] > layers * 3 * 8 and products["count"] < products["runs"]
  assert f"{products['count']} cuBLAS lt matmul" in done.stdout
  assert "ops" not in result


def test_what_does_not_fit_is_a_result():
  done, result = report("--topology=a100:1", "--config.phases=((1.0, 512, 16384),)",
                        "--config.batch_size=16384")
  assert not result["fits"] and result["bytes"]["peak"] > result["bytes"]["chip"]
  assert "does not fit" in done.stdout



def test_a_mixture_of_experts_has_kernels_of_groups():
  """XLA's own products of groups would be of all rows with all experts."""
  done, result = compiled(
      "--config=configs/shakespeare.py:tiny", "--topology=h100:1", "--vocab_size=65",
      "--config.model.stack.block.ffn.experts.number=4",
      "--config.model.stack.block.ffn.bias=False")
  assert done.returncode == 0, done.stderr
  layers, kernels = 2, result["kernels"]
  # in and out, both ways
  assert kernels["grouped_program (Pallas, Triton)"]["runs"] == layers * 2 * 2
  assert kernels["grouped_gradient_program (Pallas, Triton)"]["runs"] == layers * 2
