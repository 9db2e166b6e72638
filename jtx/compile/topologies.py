"""Chips that are not here: their published figures, and topologies of them for XLA's compilers."""

from collections.abc import Mapping, Sequence
import functools
import importlib.resources
import math
import os
import re
from typing import Any, NamedTuple

import jax
from jax.experimental import topologies

from jtx.errors import ConfigError, nearest

# Of the machine that compiles: it has no TPU, and is not asked whether it is part of a pod.
ENVIRONMENT = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
               "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


class Chip(NamedTuple):
  """Published figures of one chip."""
  memory: float  # bytes that a program may use
  bandwidth: float  # bytes/s of that memory
  links: float  # bytes/s sent to other chips, all links together
  options: Mapping[str, Any] = {}  # of the topology


# From the vendor's "System architecture" pages. The peaks of the arithmetic are in progress.py, by
# the name of the device.
TPUS = {
    "v4": Chip(32 * 2**30, 1228e9, 300e9, {"chip_config_name": "megacore"}),
    "v5e": Chip(16 * 2**30, 819e9, 200e9),
    "v5p": Chip(95 * 2**30, 2765e9, 600e9),
    "v6e": Chip(32 * 2**30, 1640e9, 448e9),
}

# NVLink's bytes/s in one direction, from the vendor's data sheets, which tell the sum of both. All
# else is in the GPU's description for XLA, targets/NAME.txtpb.
GPUS = {"a100": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9}
GPUS_OF_HOST = 8

KINDS = (*TPUS, *GPUS, "cpu")


def set_up(topology: str) -> None:
  """Prepares this process, in which JAX has not been used, to compile for a topology.

  Args:
    topology: as for `devices`.
  """
  os.environ.update(ENVIRONMENT)
  jax.config.update("jax_platforms", "cpu")
  if match := re.fullmatch(r"cpu:([1-9]\d*)", topology):
    jax.config.update("jax_num_cpu_devices", int(match[1]))


def kind_of(topology: str) -> str:
  """The name of the chips of a topology."""
  return topology.partition(":")[0]


def devices(topology: str, slices: int = 1) -> Sequence[Any]:
  """Descriptions of the devices of a topology.

  Args:
    topology: "v5e:4x4" and the like, by the key of TPUS and the shape of the pod or slice of it;
      "h100:8", by the key of GPUS and how many of them a host has; or "cpu:8", simulated devices.
    slices: of that shape, joined by the data centre's network. Of GPUs one is a host.

  Raises:
    ConfigError: there is no such topology, or no compiler for it.
  """
  kind, _, shape = topology.partition(":")
  if re.fullmatch(r"cpu:[1-9]\d*", topology):
    return jax.devices("cpu")[:int(shape)]
  if kind in TPUS and re.fullmatch(r"\d+(x\d+){1,2}", shape):
    return _tpus(topology, slices)
  if kind in GPUS and re.fullmatch(r"[1-9]\d*", shape):
    return _gpus(topology, slices)
  raise ConfigError(f"--topology={topology}: a chip and its shape such as v5e:4x4 or v5p:4x4x4, a"
                    " GPU and how many a host has such as h100:8, or cpu:8 for simulated devices;"
                    f" {nearest(kind, KINDS)}")


def _tpus(topology: str, slices: int) -> Sequence[Any]:
  kind, _, shape = topology.partition(":")
  options = dict(TPUS[kind].options) | ({"num_slices": slices} if slices > 1 else {})
  sides = [*map(int, shape.split("x")), 1][:3]
  if math.prod(sides) < 4:  # fewer chips than the smallest host of a pod has
    options["chips_per_host_bounds"] = sides
  try:
    import libtpu  # noqa: F401
  except ImportError:
    raise ConfigError(f"--topology={topology}: needs the TPU compiler; install the extra `aot`:"
                      ' pip install -e ".[aot]"') from None
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices
  except Exception as e:  # whatever the compiler's runtime raises
    raise ConfigError(f"--topology={topology}: the TPU compiler knows no such topology"
                      f" ({' '.join(str(e).split())[:200]})") from e


def _gpus(topology: str, slices: int) -> Sequence[Any]:
  kind, _, number = topology.partition(":")
  if int(number) > GPUS_OF_HOST:
    raise ConfigError(f"--topology={topology}: a host has at most {GPUS_OF_HOST} GPUs; --slices=2"
                      f" --topology={kind}:{GPUS_OF_HOST} are two hosts of as many")
  try:
    return topologies.get_topology_desc(
        platform="cuda", target_config=target(kind), topology=f"1x{slices}x{number}").devices
  except NotImplementedError:  # of platforms that no plug-in has brought
    raise ConfigError(f"--topology={topology}: needs XLA's compiler for NVIDIA GPUs; install the"
                      ' extra `aot-gpu`: pip install -e ".[aot-gpu]"') from None
  except Exception as e:  # whatever the compiler's runtime raises
    raise ConfigError(f"--topology={topology}: the compiler for NVIDIA GPUs takes no such topology"
                      f" ({' '.join(str(e).split())[:200]})") from e


def compiler_options(topology: str) -> dict[str, Any]:
  """What XLA is told for a topology, beside its flags in the environment.

  On a GPU it times Triton's and cuBLAS's kernels for each matrix product. Without one it would take
  Triton's first, untried, which it can't always compile: here cuBLAS gets all of them.
  """
  flag = "xla_gpu_enable_triton_gemm"
  return {flag: False} if kind_of(topology) in GPUS and flag not in os.environ.get(
      "XLA_FLAGS", "") else {}


@functools.cache
def target(gpu: str) -> str:
  """The description of a GPU for XLA, a GpuTargetConfigProto as text."""
  files = importlib.resources.files("jtx.compile")
  return (files / "targets" / f"{gpu}.txtpb").read_text(encoding="utf-8")


def chip(topology: str) -> Chip | None:
  """The figures of a topology's chips, or None of simulated devices.

  Of a GPU's memory JAX takes the share that the environment's XLA_CLIENT_MEM_FRACTION tells, or
  three quarters, and a program gets no more.
  """
  kind = kind_of(topology)
  if kind not in GPUS:
    return TPUS.get(kind)
  number = lambda key: float(re.search(rf"^ *{key}: ([\d.]+)$", target(kind), re.MULTILINE)[1])
  share = float(os.environ.get("XLA_CLIENT_MEM_FRACTION")  # and its older name
                or os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION") or 0.75)
  return Chip(share * number("device_memory_size"), number("memory_bandwidth"), GPUS[kind])
