"""Workers of a benchmark: one process a system, which work in turn, never at once.

A process of its own keeps the peak memory of each system apart, and their threads and
allocators out of each other's way.
"""

import multiprocessing
import multiprocessing.connection
import os
import platform
import re
import statistics
import time
import traceback
from typing import Any, Callable


class WorkerError(RuntimeError):
  """A system failed; the message holds its traceback."""


class Worker:
  """An object that lives in a process of its own.

  Args:
    make: makes the object there; importable, since the process is a fresh one.
    kwargs: of `make`.
  """

  def __init__(self, make: Callable[..., Any], **kwargs: Any):
    # Huge pages for large arrays: without them a good part of the time on CPU goes into pages.
    # It takes effect at the start of a process.
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    context = multiprocessing.get_context("spawn")
    self.pipe, other = context.Pipe()
    self.process = context.Process(target=serve, args=(other, make, kwargs), daemon=True)
    self.process.start()
    self.answer()

  def call(self, method: str, *args: Any) -> Any:
    """Calls a method there and waits for its result."""
    self.pipe.send((method, args))
    return self.answer()

  def answer(self) -> Any:
    try:
      error, result = self.pipe.recv()
    except EOFError:
      self.process.join()
      raise WorkerError(f"a worker ended with status {self.process.exitcode}") from None
    if error:
      raise WorkerError(error)
    return result

  def close(self) -> None:
    self.pipe.close()
    self.process.join()


def serve(pipe: multiprocessing.connection.Connection, make: Callable[..., Any],
          kwargs: dict[str, Any]) -> None:
  try:
    system = make(**kwargs)
    pipe.send((None, None))
    while True:
      try:
        method, args = pipe.recv()
      except EOFError:
        return
      pipe.send((None, getattr(system, method)(*args)))
  except Exception:
    pipe.send((traceback.format_exc(), None))


def alternate(rounds: int, turns: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
  """Each turn's values over the rounds. The order is turned round every other time."""
  values: dict[str, list[float]] = {name: [] for name in turns}
  for i in range(rounds):
    for name in (list(turns), list(reversed(turns)))[i % 2]:
      values[name].append(turns[name]())
      print(f"round {i + 1}/{rounds}  {name}: {values[name][-1]:.4g}", flush=True)
  return values


def median(values: list[float]) -> float:
  return statistics.median(values)


def ratio(values: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
  """Median of ours over median of theirs, and the extremes of the ratios round by round."""
  pairs = [a / b for a, b in zip(values[ours], values[theirs])]
  return {"median": median(values[ours]) / median(values[theirs]), "min": min(pairs),
          "max": max(pairs)}


def fastest(call: Callable[[], Any]) -> float:
  """Seconds of the fastest of ten calls, after one to warm up."""
  times = []
  for _ in range(11):
    start = time.perf_counter()
    call()
    times.append(time.perf_counter() - start)
  return min(times[1:])


def reset_peak_memory() -> None:
  """Starts the process's high-water mark again from what it holds now (Linux)."""
  with open("/proc/self/clear_refs", "w") as f:
    f.write("5")


def peak_memory() -> int:
  """Most bytes of main memory that this process held (Linux)."""
  with open("/proc/self/status") as f:
    return 1024 * int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1])


def machine() -> dict[str, Any]:
  """The versions and devices that figures depend on."""
  model = platform.processor()
  if os.path.exists("/proc/cpuinfo"):
    with open("/proc/cpuinfo") as f:
      names = re.findall(r"model name\s*: (.*)", f.read())
    model = names[0] if names else model
  return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


class JaxSide:
  """The base of workers that run JAX; they have `jax`."""

  def about(self) -> dict[str, str]:
    return {"jax": self.jax.__version__, "device": self.jax.devices()[0].device_kind}

  def reset_peak_memory(self) -> None:
    reset_peak_memory()

  def peak_memory(self) -> int:
    device = self.jax.devices()[0]
    if device.platform == "cpu":
      return peak_memory()
    return device.memory_stats()["peak_bytes_in_use"]

  def matmul_peak(self) -> float:
    """FLOP/s of a large plain product in the dtype of the model."""
    import jax.numpy as jnp
    n, dtype = (2048, jnp.float32) if self.jax.default_backend() == "cpu" else (8192, jnp.bfloat16)
    x = jnp.ones((n, n), dtype)
    product = self.jax.jit(lambda x: x @ x)
    return 2 * n**3 / fastest(lambda: product(x).block_until_ready())


class JtxSide(JaxSide):
  """Our own side, which has `program`, a `jtx.train.program.Program`, and `state` beside that."""

  def step(self, batch: Any) -> None:
    self.state = self.program.step(self.state, batch)

  def synchronize(self) -> None:
    self.jax.block_until_ready(self.state)

  def weights(self, family: str) -> dict[str, Any]:
    """The parameters by the names of `transformers`, to start the peers from."""
    from jtx.interop import export
    from jtx.interop.families import FAMILIES
    params = self.jax.device_get(self.state.params)
    return export.tensors_of(FAMILIES[family], self.model, params)


class TorchSide:
  """The base of workers that run PyTorch; they have `torch`, `device` and `model`."""

  def about(self) -> dict[str, str]:
    import transformers
    return {"torch": self.torch.__version__, "transformers": transformers.__version__,
            "attention": self.model.config._attn_implementation}

  def synchronize(self) -> None:
    if self.device.type == "cuda":
      self.torch.cuda.synchronize()

  def adamw(self, **options: Any):
    """The optimiser of `model`; biases and norms do not decay."""
    plain = lambda p: p.ndim == 1
    groups = [{"params": [p for p in self.model.parameters() if plain(p) == is_plain],
               "weight_decay": 0.0 if is_plain else 0.01} for is_plain in (False, True)]
    return self.torch.optim.AdamW(groups, fused=True, **options)

  def update(self, loss, clip: float) -> None:
    loss.backward()
    self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), clip)
    self.optimizer.step()
    self.optimizer.zero_grad(set_to_none=True)

  def reset_peak_memory(self) -> None:
    reset_peak_memory()
    if self.device.type == "cuda":
      self.torch.cuda.reset_peak_memory_stats()

  def peak_memory(self) -> int:
    if self.device.type == "cuda":
      return self.torch.cuda.max_memory_allocated()
    return peak_memory()
