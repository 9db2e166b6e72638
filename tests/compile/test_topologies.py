"""Names of topologies, what compilers are asked for, and the descriptions of GPUs."""

import importlib.util
import pathlib
import re
import sys
import types

import jax
import jax.numpy as jnp
import pytest

from jtx.compile import hlo, kernels, topologies
from jtx.errors import ConfigError
from jtx.train import progress

TARGETS = pathlib.Path(topologies.__file__).parent / "targets"
needs_plugin = pytest.mark.skipif(
    importlib.util.find_spec("jax_plugins") is None or not importlib.util.find_spec(
        "jax_plugins.xla_cuda13"), reason="the extra `aot-gpu` is not installed")


@pytest.fixture
def asked(monkeypatch):
  """What a compiler was asked for; it answers with one chip."""
  monkeypatch.setitem(sys.modules, "libtpu", types.ModuleType("libtpu"))
  found = {}
  description = types.SimpleNamespace(devices=("a chip",))
  monkeypatch.setattr(topologies.topologies, "get_topology_desc",
                      lambda **options: found.update(options) or description)
  return found


@pytest.mark.parametrize("shape, bounds", [
    ("1x1", [1, 1, 1]), ("2x1", [2, 1, 1]), ("1x1x1", [1, 1, 1]), ("2x2", None), ("4x4", None)])
def test_a_shape_of_less_than_a_host_is_told_to_the_compiler(shape, bounds, asked):
  assert topologies.devices(f"v5e:{shape}") == ("a chip",)
  assert asked.get("chips_per_host_bounds") == bounds


@pytest.mark.parametrize("topology, slices, shape, major", [
    ("h100:1", 1, "1x1x1", 9), ("b200:8", 1, "1x1x8", 10), ("a100:4", 3, "1x3x4", 8)])
def test_gpus_are_of_hosts(topology, slices, shape, major, asked):
  assert topologies.devices(topology, slices) == ("a chip",)
  assert asked["topology"] == shape and asked["platform"] == "cuda"
  assert f"\n    major: {major}\n" in asked["target_config"]


@pytest.mark.parametrize("topology,message", [
    ("v5e", "a chip and its shape such as v5e:4x4"),
    ("v5x:4x4", "did you mean 'v5"),
    ("v5e:4", "a chip and its shape"),
    ("cpu:0", "cpu:8 for simulated devices"),
    ("h100", "a GPU and how many a host has such as h100:8"),
    ("h100:0", "a GPU and how many"),
    ("h100:2x4", "a GPU and how many"),
    ("h10:8", "did you mean 'h100'"),
    ("h100:16", "at most 8 GPUs; --slices=2 --topology=h100:8 are two hosts"),
])
def test_wrong_topologies(topology, message):
  with pytest.raises(ConfigError, match=message):
    topologies.devices(topology)


@pytest.mark.parametrize("error, message", [
    (NotImplementedError("topology not implemented for cuda"), r"install the extra `aot-gpu`"),
    (RuntimeError("no such\nthing"), r"takes no such topology \(no such thing\)"),
])
def test_a_compiler_for_gpus_that_is_not_there_or_refuses(error, message, monkeypatch):
  def refuse(**options):
    raise error
  monkeypatch.setattr(topologies.topologies, "get_topology_desc", refuse)
  with pytest.raises(ConfigError, match="--topology=h100:8: .*" + message):
    topologies.devices("h100:8")


def test_each_gpu_is_described():
  assert {path.stem for path in TARGETS.iterdir()} == topologies.GPUS.keys()
  number = re.compile(r"^ *(\w+): [\d.]+$", re.MULTILINE)
  fields = {name: number.findall(topologies.target(name)) for name in topologies.GPUS}
  assert len(set(map(tuple, fields.values()))) == 1 and len(fields["h100"]) == 21
  # The vendor's round numbers: GB, GB/s, TFLOP/s in bf16.
  for name, memory, bandwidth, peak in (("a100", 80, 2039, 312), ("h100", 80, 3350, 989),
                                        ("h200", 141, 4800, 989), ("b200", 180, 7700, 2250)):
    kind = re.search(r'device_description_str: "(.*)"', topologies.target(name))[1]
    assert progress.peak_flops(kind) == peak * 1e12
    chip = topologies.chip(f"{name}:8")
    assert chip.memory / 0.75 == pytest.approx(memory * 1e9, rel=0.08)
    assert chip.bandwidth == pytest.approx(bandwidth * 1e9, rel=0.01)
    assert chip.links == {"a100": 300e9, "b200": 900e9}.get(name, 450e9)


def test_a_program_has_the_share_of_a_gpu_that_jax_takes(monkeypatch):
  memory = lambda: topologies.chip("h100:1").memory
  for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
    monkeypatch.delenv(name, raising=False)
    most = memory()
    monkeypatch.setenv(name, "0.9")
    assert memory() == pytest.approx(most / 0.75 * 0.9)
    monkeypatch.delenv(name)
  assert topologies.chip("v5e:4x4").memory == 16 * 2**30 and topologies.chip("cpu:8") is None


def test_products_of_gpus_are_cublas_s_unless_the_environment_tells(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
  assert topologies.compiler_options("h100:8") == {"xla_gpu_enable_triton_gemm": False}
  assert topologies.compiler_options("v5e:2x2") == topologies.compiler_options("cpu:8") == {}
  monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
  assert topologies.compiler_options("h100:8") == {}


def test_the_descriptions_are_part_of_the_package():
  setup = (pathlib.Path(__file__).parents[2] / "setup.py").read_text(encoding="utf-8")
  assert '"jtx.compile": ["targets/*.txtpb"]' in setup


@needs_plugin
@pytest.mark.parametrize("gpu", topologies.GPUS)
def test_a_real_compiler(gpu):
  """A sum over 8 GPUs of products: their traffic, memory and kernels are known."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,),
                       devices=topologies.devices(f"{gpu}:8"))
  place = lambda *spec: jax.NamedSharding(mesh, jax.P(*spec))
  array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
  run = jax.jit(lambda x, y: x @ y, in_shardings=(place(None, "data"), place("data", None)),
                out_shardings=place())
  compiled = run.lower(array(8192, 4096), array(4096, 4096)).compile(
      topologies.compiler_options(f"{gpu}:8"))
  text = compiled.as_text()
  out = 8192 * 4096 * 2
  assert hlo.traffic(text) == {"all-reduce": hlo.Traffic(1, out, out * 2 * 7 / 8)}
  assert kernels.kernels(text)["cuBLAS lt matmul"] == (1, 1.0)
  inputs = (8192 + 4096) * 4096 * 2 / 8
  assert hlo.moved(text) == inputs + out  # the collective is not counted
  assert inputs + out <= compiled.memory_analysis().peak_memory_in_bytes <= inputs + 2 * out
