"""Attention alone, of rows without padding: jtx's kernels beside cuDNN's and PyTorch's.

Queries, keys and values are random numbers. "forward" is the output, "gradients" that and the
gradients of all three. A time is the least of five means over several calls.
"""

import contextlib
import functools
import time
from typing import Any, Callable, Iterator, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks import harness
from jtx.nn.attend import attend
from jtx.nn.kernels.choose import KERNELS

RATES = (0.1, 0.0)  # of dropout
MEANS = 5


class Size(NamedTuple):
  rows: int  # B
  length: int  # T, of queries and of keys
  heads: int  # N
  width: int  # H


SIZES = {"base": Size(rows=32, length=512, heads=16, width=64),  # a batch of BERT Large
         "tiny": Size(rows=2, length=64, heads=2, width=16)}


class Jtx:
  """Our kernels and, on a GPU, cuDNN's by `jax.nn`, which has no dropout."""

  def __init__(self, size: Size):
    self.gpu = jax.default_backend() == "gpu"
    dtype = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    self.key, *keys = jax.random.split(jax.random.key(0), 4)
    self.operands = [jax.random.normal(key, (
        size.rows, size.length, size.heads, size.width), dtype) for key in keys]

  def names(self, rate: float) -> list[str]:
    here = [name for name, kernel in KERNELS.items()
            if jax.default_backend() in (kernel.platforms or (jax.default_backend(),))]
    return here + ["cudnn"] * (self.gpu and not rate)

  def calls(self, name: str, rate: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    def forward(q, k, v):
      if name == "cudnn":
        return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")
      return attend(q, k, v, kernel=name, dropout_rate=rate, dropout_key=self.key)

    def gradients(q, k, v):
      out, way_back = jax.vjp(forward, q, k, v)
      return way_back(out)

    for what, function in (("forward", forward), ("gradients", gradients)):
      yield what, functools.partial(jax.jit(function), *self.operands)

  def synchronize(self, result: Any) -> None:
    jax.block_until_ready(result)


class Torch:
  """`scaled_dot_product_attention`, which chooses a kernel by itself."""

  def __init__(self, size: Size):
    import torch
    self.torch, self.device = torch, "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
    self.operands = [torch.randn((size.rows, size.heads, size.length, size.width), dtype=dtype,
                                 device=self.device, requires_grad=True) for _ in range(3)]

  def names(self, rate: float) -> list[str]:
    return ["torch"]

  def calls(self, name: str, rate: float) -> Iterator[tuple[str, Callable[[], Any]]]:
    def forward():
      return self.torch.nn.functional.scaled_dot_product_attention(*self.operands, dropout_p=rate)

    def gradients():
      out = forward()
      return self.torch.autograd.grad(out, self.operands, out.detach())

    yield from (("forward", forward), ("gradients", gradients))

  def synchronize(self, result: Any) -> None:
    if self.device == "cuda":
      self.torch.cuda.synchronize()


def run(size: Size) -> dict[str, Any]:
  """Seconds of each call, by rate of dropout, name and "forward" or "gradients"."""
  systems: list[Any] = [Jtx(size)]
  with contextlib.suppress(ImportError):
    systems.append(Torch(size))
  found: dict[str, dict[str, dict[str, float]]] = {}
  for rate in RATES:
    for system in systems:
      for name in system.names(rate):
        times = {what: seconds(call, system.synchronize) for what, call in system.calls(name, rate)}
        print(f"dropout {rate}, {name}: forward {1e3 * times['forward']:.3g} ms, with gradients"
              f" {1e3 * times['gradients']:.3g} ms", flush=True)
        found.setdefault(str(rate), {})[name] = times
  return {"suite": "attention", "size": size._asdict(), "seconds": found,
          "device": jax.devices()[0].device_kind, "jax": jax.__version__,
          "machine": harness.machine()}


def seconds(call: Callable[[], Any], synchronize: Callable[[Any], None]) -> float:
  """The least of five means, after a call that compiles."""
  synchronize(call())
  number, means = (1 if jax.default_backend() == "cpu" else 5), []
  for _ in range(MEANS):
    start = time.perf_counter()
    for _ in range(number):
      result = call()
    synchronize(result)
    means.append((time.perf_counter() - start) / number)
  return min(means)
