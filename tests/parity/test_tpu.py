"""What XLA's compiler for TPUs makes of train steps. No TPU is needed."""

import os
import subprocess
import sys

import pytest

from tests.helpers import ROOT, compiled

pytest.importorskip("libtpu")


FEW_TOKENS = "--config.tokenizer.kind.vocab_size=1000"  # a third of the time is the output's
SMALL = ("--config.model.stack.num_layers=4", "--config.model.stack.width=256",
         "--config.model.stack.block.attention.num_heads=4",
         "--config.model.stack.block.ffn.dim=512")


def report(*args):
  done, result = compiled(*args)
  assert done.returncode == 0, done.stderr
  return done, result


def test_what_is_sent_and_kept():
  # The rows of a batch are few, so that what is sent is parameters, not the activations of tokens
  # that are looked up.
  _, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2",
                     "--config.phases=((1.0, 512, 16),)", "--config.batch_size=16",
                     "--config.mesh.fsdp=4", "--config.mesh.data=1")
  assert result["fits"] and result["device_kind"] == "TPU v5 lite"
  assert 0 < result["estimate"]["utilisation"] < 1
  assert result["sent_bytes"] < 1.2 * result["least_sent_bytes"]
  # Of a product by parts of its kernel, two thirds of it would go from chip to chip so.
  assert result["collectives"].get("collective-permute", {"sent": 0})["sent"] < (
      0.1 * result["sent_bytes"])


@pytest.mark.long
def test_two_slices():
  _, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2", "--slices=2",
                     "--config.phases=((1.0, 128, 16),)", "--config.batch_size=16", FEW_TOKENS,
                     "--config.mesh.fsdp=4", "--config.mesh.data=2")
  assert result["topology"] == "v5e:2x2 x 2" and result["devices"] == 8 and result["fits"]


def test_what_does_not_fit_is_a_result():
  done, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2",
                        "--config.phases=((1.0, 512, 16384),)", "--config.batch_size=16384",
                        "--config.mesh.fsdp=4", "--config.mesh.data=1")
  assert not result["fits"] and "memory" in result["why"]
  assert "does not fit" in done.stdout


@pytest.mark.long
@pytest.mark.exhaustive
def test_a_row_over_eight_chips_leaves_each_a_fifth_of_its_activations_or_less():
  """A small ModernBERT at its full length, with the kernel that its masks are for."""
  smallest = ("--config.model.stack.num_layers=3", "--config.model.stack.width=128",
              "--config.model.stack.block.attention.num_heads=2",
              "--config.model.stack.block.ffn.dim=256")
  kept = {}
  for rows, context in ((8, 1), (1, 8)):
    done, result = report(
        "--config=configs/modernbert.py", *smallest, "--topology=v5e:2x4",
        f"--config.batch_size={rows}", f"--config.phases=((1.0, 8192, {rows}),)",
        f"--config.mesh.data={rows}", f"--config.mesh.context={context}",
        "--config.optim.accumulate=1")
    for mask in ("Window(left=None, right=None)", "Window(left=64, right=64)"):
      assert f"attention kernel fused for mask {mask}, segments" in done.stderr
    # Gradients are as large as parameters, and not activations.
    kept[context] = result["bytes"]["activations"] - result["bytes"]["parameters"]
  assert kept[8] < kept[1] / 5


def test_a_mask_and_a_bias_of_an_own_repository_are_in_the_fused_kernel():
  done, result = report(
      "--config=examples/own_repo/my_config.py", "--topology=v5e:1x1", "--outputs=2",
      "--config.phases=((1.0, 256, 8),)", "--config.batch_size=8",
      "--config.data.ops[0].max_length=256")
  assert "attention kernel fused for mask And(" in done.stderr and "Strided" in done.stderr
  for name in ("forward_program", "keys_program"):  # of each kind of layer
    assert result["kernels"][f"{name} (Pallas, Mosaic)"]["count"] == 2


@pytest.mark.long
@pytest.mark.parametrize("topology, mesh, config", [
    pytest.param("v4:2x2x1", "tensor", (
        "modernbert.py", *SMALL, FEW_TOKENS, "--config.phases=((1.0, 2048, 1),)",
        "--config.batch_size=1", "--config.optim.accumulate=1"), marks=pytest.mark.exhaustive),
    ("v5p:2x2x1", "context", ("bert.py:mini", "--config.phases=((1.0, 512, 8),)",
                              "--config.batch_size=8", FEW_TOKENS)),
    pytest.param("v6e:2x2", "fsdp", ("mae.py:ti", "--config.batch_size=8"),
                 marks=pytest.mark.exhaustive)])
def test_attention_is_fused_on_other_chips_and_meshes(topology, mesh, config):
  """A part of the table `meshes` of benchmarks/pods.py, of smaller models."""
  done, result = report(f"--config=configs/{config[0]}", f"--topology={topology}", *config[1:],
                        "--config.mesh.data=1", f"--config.mesh.{mesh}=4")
  assert result["fits"] and result["mesh"] == {mesh: 4} and "ops" in result
  assert "attention kernel fused" in done.stderr
  for name in ("forward_program", "keys_program"):
    assert result["kernels"][f"{name} (Pallas, Mosaic)"]["count"] >= 1


def test_a_mixture_of_experts_has_kernels_of_groups():
  """XLA's own gradients of products of groups would be of all rows with all experts."""
  _, result = report(
      "--config=configs/shakespeare.py:tiny", "--topology=v5e:1x1", "--vocab_size=65",
      "--config.model.stack.block.ffn.experts.number=4",
      "--config.model.stack.block.ffn.bias=False")
  layers, kernels = 2, result["kernels"]
  assert kernels["gmm (Pallas, Mosaic)"]["runs"] >= layers * 2 * 2  # in and out, both ways
  assert kernels["tgmm (Pallas, Mosaic)"]["runs"] == layers * 2


# Attention between sides of which one is a block of a length that is no multiple of 8.
ACROSS = """
from jtx.compile import topologies
topologies.set_up("v5e:1x1")
import jax
import jax.numpy as jnp
from jtx.nn.attend import attend
from jtx.nn.masks import Rows
from jtx.parallel import sharding

mesh = sharding.make_mesh({"data": 1}, topologies.devices("v5e:1x1"))
one_place = jax.NamedSharding(mesh, jax.P())
array = lambda dtype, *shape: jax.ShapeDtypeStruct(shape, dtype, sharding=one_place)

def loss(q, k, v, *segments):
  return attend(q, k, v, rows=Rows(*segments), kernel="fused").astype(jnp.float32).sum()

for T, S in ((100, 1000), (1000, 100)):
  sides = [array(jnp.bfloat16, 2, n, 4, 32) for n in (T, S, S)]
  segments = [array(jnp.int32, 2, n) for n in (T, S)]
  with jax.set_mesh(mesh):
    step = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*sides, *segments).compile()
  print(step.as_text().count("tpu_custom_call"))
"""


def test_attention_between_sides_of_any_lengths():
  done = subprocess.run([sys.executable, "-c", ACROSS], cwd=ROOT, capture_output=True, text=True,
                        check=False)
  assert done.stdout.split() == ["2", "2"], done.stderr  # forward, and both gradients in one


@pytest.mark.parametrize("topology, devices", [("v5e:1x1", 1), ("v5e:2x1", 2)])
def test_less_than_a_host(topology, devices):
  done, result = report("--config=configs/nmt_numbers.py:tiny", f"--topology={topology}")
  assert result["devices"] == devices and result["device_kind"] == "TPU v5 lite"
  assert "TPU" not in done.stderr  # no complaint of the runtime


def test_commands_start_without_a_word_of_the_runtime():
  start = "from experiments import cli; cli.run(lambda: print(__import__('jax').devices()[0]))"
  environment = {key: value for key, value in os.environ.items() if key != "JAX_PLATFORMS"}
  done = subprocess.run([sys.executable, "-c", start], cwd=ROOT, env=environment,
                        capture_output=True, text=True, check=True)
  assert "cpu" in done.stdout.lower() and done.stderr == ""
