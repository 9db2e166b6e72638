"""The kernels of a compiled program: who made the code that its instructions run, from HLO text.

A kernel is of a library, of Triton, of Pallas, or of XLA's own code generators.
"""

import collections
import re
from typing import NamedTuple

from jtx.compile import runs

_OP = re.compile(r" (fusion|custom-call|copy|copy-start|sort)\(")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_LIBRARY = re.compile(r"__(cu[a-z]+)\$(.*)")  # __cublas$lt$matmul
_NAMES = {"cublas": "cuBLAS", "cudnn": "cuDNN"}
# By the target of a custom call, the compiler of a Pallas kernel.
_PALLAS = {"__gpu$xla.gpu.triton": "Triton", "mosaic_gpu_v2": "Mosaic GPU",
           "tpu_custom_call": "Mosaic"}
_PATH = re.compile(r'op_name="([^"]*?)(?:/pallas_call|/mpmd_map)?"')
# Of a fusion for GPUs, who makes its code; others are made by XLA's own generators.
_FUSION = re.compile(r'"fusion_backend_config":\{"kind":"([^"]*)"')
_MAKERS = {"__triton": "Triton fusion", "__triton_gemm": "Triton matrix product",
           "__triton_nested_gemm_fusion": "Triton matrix product"}
_CUSTOM = re.compile(r'"custom_fusion_config":\{"name":"([^"]*)"')
_BODY = re.compile(r"\bcalls=%?([\w.\-]+)")
_PRODUCT = re.compile(r" (dot|convolution)\(")
_NO_CODE = ("AllocateBuffer", "ConcatBitcast")  # custom calls of XLA that run none


class Kernel(NamedTuple):
  """The instructions that are of one kind."""
  count: int  # in the program's text
  runs: float  # in a run of the program, those inside loops as often as these run


def kernels(text: str) -> dict[str, Kernel]:
  """The kernels of a compiled module by what they are, those with most instructions first.

  Collectives are not among them (`hlo.traffic`).

  Args:
    text: of `jax.stages.Compiled.as_text()`.
  """
  program = runs.computations(text)
  times, inside = runs.times_of(program), runs.fused(program)
  found = collections.defaultdict(lambda: [0, 0.0])
  for computation, lines in program.items():
    for line in lines if times[computation] and computation not in inside else ():
      match = _OP.search(line)
      if match and not any(f'="{target}"' in line for target in _NO_CODE):
        entry = found[_name(match[1], line, program)]
        entry[0] += 1
        entry[1] += times[computation]
  return {name: Kernel(*entry) for name, entry in sorted(
      found.items(), key=lambda item: (-item[1][0], item[0]))}


def _name(op: str, line: str, program: dict[str, list[str]]) -> str:
  if op == "custom-call":
    target = _TARGET.search(line)[1]
    if target in _PALLAS:
      path = _PATH.search(line)  # a backward kernel may be "transpose(jvp(NAME))"
      name = re.findall(r"[\w.\-]+", path[1].split("/")[-1])[-1] if path else "kernel"
      return f"{name} (Pallas, {_PALLAS[target]})"
    return _of_library(target)
  if op != "fusion":
    return op.removesuffix("-start")
  if custom := _CUSTOM.search(line):
    return custom[1]
  if maker := _FUSION.search(line):
    return _MAKERS.get(maker[1]) or _of_library(maker[1])
  body = program.get(_BODY.search(line)[1], [])
  return "XLA matrix product" if any(map(_PRODUCT.search, body)) else "XLA fusion"


def _of_library(name: str) -> str:
  """"cuBLAS lt matmul" of "__cublas$lt$matmul"; other names stay."""
  if match := _LIBRARY.fullmatch(name):
    return " ".join([_NAMES.get(match[1], match[1]), *match[2].split("$")])
  return name
