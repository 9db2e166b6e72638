"""Workers of a benchmark: one process a system, which take turns and are warm before that.

A process of its own keeps the peak memory of each system apart, and their threads and
allocators out of each other's way.
"""

import contextlib
import functools
import multiprocessing
import multiprocessing.connection
import os
import platform
import re
import statistics
import time
import traceback
from typing import Any, Callable, Collection, Iterator, Mapping

_until: float | None = None  # of time.monotonic(): where a limit is set, no worker goes on


class WorkerError(RuntimeError):
  """A system failed; the message holds its traceback."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
  """Workers that are still busy when the seconds are over are ended, with a WorkerError."""
  global _until
  before, _until = _until, time.monotonic() + seconds
  try:
    yield
  finally:
    _until = before


def time_left() -> float | None:
  """Seconds of `limited`; None is no limit."""
  return None if _until is None else max(_until - time.monotonic(), 0.0)


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
    # JAX would else take three quarters of a GPU's memory, which the others need.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    context = multiprocessing.get_context("spawn")
    self.pipe, other = context.Pipe()
    self.process = context.Process(target=serve, args=(other, make, kwargs), daemon=True)
    self.process.start()
    other.close()  # or an end of the process would leave the pipe open, and `answer` waiting
    self.waiting = 1  # answers that are due, the first when it is made
    try:
      self.answer()
    except WorkerError:
      self.close()
      raise

  def call(self, method: str, *args: Any) -> Any:
    """Calls a method there and waits for its result."""
    self.begin(method, *args)
    return self.answer()

  def begin(self, method: str, *args: Any) -> None:
    """Calls a method there. `answer` waits for the results of such calls, one after the other."""
    try:
      self.pipe.send((method, args))
    except OSError:
      raise WorkerError("a worker that has ended was asked for more") from None
    self.waiting += 1

  def answer(self) -> Any:
    if not self.pipe.poll(time_left()):
      raise WorkerError("the time for it was over")
    try:
      error, result = self.pipe.recv()
    except EOFError:
      self.process.join()
      raise WorkerError(f"a worker ended with status {self.process.exitcode}") from None
    self.waiting -= 1
    if error:
      raise WorkerError(error)
    return result

  def close(self) -> None:
    """Ends the process, at once if it may be busy."""
    if self.waiting:
      self.process.kill()
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


def alternate(rounds: int, turns: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
  """Each turn's values over the rounds, of which there are fewer where the time ends before.

  The order is turned round every other time.
  """
  values: dict[str, list[float]] = {name: [] for name in turns}
  for i in range(rounds):
    start = time.monotonic()
    for name in (list(turns), list(reversed(turns)))[i % 2]:
      values[name].append(turns[name]())
      print(f"round {i + 1}/{rounds}  {name}: {values[name][-1]:.4g}", flush=True)
    left = time_left()
    if left is not None and left < 1.5 * (time.monotonic() - start):
      break  # a further round might not end
  return values


def measure(workers: Mapping[str, Worker], turns: Mapping[str, Callable[[], float]], rounds: int,
            unit: str, flops: float) -> dict[str, Any]:
  """Takes turns, for which all are warm, and sums up.

  Args:
    workers: of all systems; ours is the first.
    turns: the rate of a turn of each system, ours first; several may be of one worker.
    rounds: turns of each.
    unit: of the rates.
    flops: of one of what the rates count.
  """
  peak = max(worker.call("matmul_peak") for worker in workers.values())
  print(f"matrix product peak {peak / 1e9:.4g} GFLOP/s", flush=True)
  for worker in workers.values():
    worker.call("reset_peak_memory")
  values = alternate(rounds, turns)
  medians = {name: median(rates) for name, rates in values.items()}
  ours, *others = turns
  return {
      unit: medians, "unit": unit, "all": values, "matmul_peak_flops": peak,
      "ratio": {name: ratio(values, ours, name) for name in others},
      "share_of_matmul_peak": {name: rate * flops / peak for name, rate in medians.items()},
      "peak_memory_bytes": {name: worker.call("peak_memory") for name, worker in workers.items()}}


def warm_up(workers: Collection[Worker]) -> list[float]:
  """Seconds that each took for it. They do it at the same time, most of it on the host."""
  for worker in workers:
    if not worker.waiting:
      worker.begin("warm_up")
  seconds = []
  for worker in workers:
    seconds.append(worker.answer())
    print(f"warm after {seconds[-1]:.1f} s", flush=True)  # where the time ends before the other is
  return seconds


def train_beside(ours: Callable[..., Any], theirs: Mapping[str, Callable[..., Any]], family: str,
                 unit: str, rounds: int, steps: int, machine: dict[str, Any],
                 apart: Mapping[str, Callable[..., Any]] = {}, **kwargs: Any) -> dict[str, Any]:
  """Measures the updates of ours and of all peers, which start from our weights.

  Args:
    ours: makes our side, a `sides.JtxSide` that has `hf_config`, `loss` and `flops` of a unit.
    theirs: make the peers, by name, of `state` and `hf_config` besides `kwargs`.
    family: of jtx/interop/families, that the weights are named for.
    unit: of the rates.
    rounds: turns of each system.
    steps: updates of a turn.
    machine: is filled with what the systems say about themselves.
    apart: make systems of other weights and FLOPs, by name, whose losses are not compared.
    **kwargs: of all systems; `size` has the dtype of products.
  """
  with contextlib.ExitStack() as stack:
    start = lambda make, **more: stack.enter_context(
        contextlib.closing(Worker(make, **kwargs, **more)))
    systems = {"jtx": start(ours)}
    call = systems["jtx"].call
    given = {"state": call("weights", family), "hf_config": call("hf_config")}
    flops, trained = call("flops"), {"jtx": call("trained")}
    for method in ("loss", "warm_up"):  # while the peers start
      systems["jtx"].begin(method)
    systems |= {name: start(make, **given) for name, make in theirs.items()}
    losses = {"jtx": systems["jtx"].answer()}
    losses |= {name: systems[name].call("loss") for name in theirs}
    check_equal(losses, kwargs["size"].dtype)
    check_trained(trained | {name: systems[name].call("trained") for name in theirs})
    systems |= {name: start(make) for name, make in apart.items()}
    warm = dict(zip(systems, warm_up(systems.values())))
    for worker in systems.values():
      machine |= worker.call("about")
    turns = {name: functools.partial(worker.call, "turn", steps)
             for name, worker in systems.items()}
    found = measure(systems, turns, rounds, unit, flops)
    for name in apart:
      del found["share_of_matmul_peak"][name]
    return {**found, "loss": losses, "warm_up_s": warm}


def check_trained(numbers: Mapping[str, int]) -> None:
  """Raises WorkerError where systems do not train as many parameters."""
  if len(set(numbers.values())) > 1:
    raise WorkerError(f"parameters that are trained: {numbers}")


def check_equal(losses: Mapping[str, float], dtype: str = "auto") -> None:
  """Raises WorkerError where losses differ by more than rounding does."""
  print(f"nats of the untrained weights: {losses}", flush=True)
  limit = (1e-2 if dtype == "bfloat16" else 1e-3) * max(losses.values())
  if max(losses.values()) - min(losses.values()) > limit:
    raise WorkerError(f"the systems do not compute the same function: {losses}")


def median(values: list[float]) -> float:
  return statistics.median(values)


def ratio(values: dict[str, list[float]], ours: str, theirs: str) -> dict[str, float]:
  """Median of ours over median of theirs, and the extremes of the ratios round by round."""
  pairs = [a / b for a, b in zip(values[ours], values[theirs])]
  return {"median": median(values[ours]) / median(values[theirs]), "min": min(pairs),
          "max": max(pairs)}


def fastest(call: Callable[[], Any], number: int = 10) -> float:
  """Seconds of the fastest of so many calls, after one to warm up."""
  times = []
  for _ in range(1 + number):
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
