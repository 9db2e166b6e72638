"""Progress of a run: how far it is, how fast, and when it will be done."""

import contextlib
import datetime
import re
import resource
import sys
import time
from typing import Any, Callable, Iterator, Mapping

from absl import logging
import jax

INTERVAL = 10.0  # seconds from a line to the next, where those of logged steps are rarer

# Dense bfloat16 FLOP/s of a device by its whole `device_kind`, from the vendors' data sheets.
_PEAKS = (
    (r"TPU v4", 275e12),
    (r"TPU v5 lite|TPU v5e", 197e12),
    (r"TPU v5p?", 459e12),
    (r"TPU v6 lite|TPU v6e", 918e12),
    (r"NVIDIA A100\b.*", 312e12),
    (r"NVIDIA H100 PCIe", 756e12),
    (r"NVIDIA H[12]00 NVL", 835e12),
    (r"NVIDIA H[12]00\b.*", 989e12),
    (r"NVIDIA B200\b.*", 2250e12),
)


def peak_flops(device_kind: str) -> float | None:
  """The most bfloat16 FLOP/s that a device can do, or None where we don't know."""
  return next((peak for kind, peak in _PEAKS if re.fullmatch(kind, device_kind)), None)


class Progress:
  """Lines of progress: after the first step, at every logged step, and between them by time.

  Rates are over the time since the last logged step, without evaluations and compilation.

  Args:
    total_steps: of the run.
    start: the step that it goes on from.
    num_devices: that share them.
    unit: what is counted, as `jtx.objectives.contract.units_of` does.
    flops: of a step on a batch, on all devices.
    before: `totals` of the checkpoint that it goes on from.
  """

  def __init__(self, total_steps: int, start: int, num_devices: int, *, unit: str = "tokens",
               flops: Callable[[Any], float] = lambda batch: 0.0,
               before: Mapping[str, float] | None = None):
    self._total_steps, self._num_devices, self._unit = total_steps, num_devices, unit
    self._count = flops
    before = before or {"seconds": 0.0, "units": 0.0}  # of older checkpoints, too
    self._shown = time.monotonic()
    self._begin = self._shown - before["seconds"]
    self._units = before["units"]  # up to the last logged step
    self._shapes: set[Any] = set()  # of batches, for which the step is compiled
    self._compiled = 0.0  # seconds since the last line
    self._first = True  # no line yet
    self._mark(start, self._shown, 0.0)

  def _mark(self, step: int, now: float, number: float) -> None:
    """Rates are from here on."""
    self._step, self._time, self._number = step, now, number
    self._flops, self._paused = 0.0, 0.0

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Time inside, such as an evaluation's, doesn't count as training time."""
    begin = time.monotonic()
    try:
      yield
    finally:
      self._paused += time.monotonic() - begin

  @contextlib.contextmanager
  def step(self, batch: Mapping[str, jax.Array]) -> Iterator[None]:
    """A step is made inside; one on a batch of other shapes than before is compiled first."""
    shapes = frozenset((name, x.shape) for name, x in batch.items())
    if shapes in self._shapes:
      yield
      self._flops += self._count(batch)
      return
    self._shapes.add(shapes)
    logging.info("compiling the train step for arrays of %s", " and ".join(
        sorted({str(list(shape)) for _, shape in shapes})))
    begin = time.monotonic()
    with self.pause():
      yield
      self._flops += self._count(batch)
    self._compiled += time.monotonic() - begin

  def due(self) -> bool:
    """Whether it is time for a line, after the first step and since the last line."""
    return self._first or time.monotonic() - self._shown >= INTERVAL

  def totals(self) -> dict[str, float]:
    """What a checkpoint keeps: seconds of the run, and units up to the last logged step."""
    return {"seconds": time.monotonic() - self._begin, "units": self._units}

  def log(self, step: int, scalars: Mapping[str, float], number: float,
          logged: bool) -> dict[str, float]:
    """Logs a line, and gives its numbers as metrics.

    Args:
      step: that was made.
      scalars: the metrics by now.
      number: of units that were trained on since the last logged step.
      logged: whether this is one.
    """
    now = time.monotonic()
    seconds = now - self._time - self._paused
    # The first step's time can't be told from that of its compilation.
    rates = {} if self._first else self.rates(step, number, seconds)
    logging.info("%s", self.line(step, scalars, rates, now - self._begin))
    if logged or self._first:
      self._mark(step, now, 0.0 if logged else number)
    self._first, self._shown, self._compiled = False, now, 0.0
    unit = self._unit.replace(" ", "_")
    seen = self._units + number
    self._units = seen if logged else self._units
    names = {"steps": "steps_per_second", "units": f"{unit}_per_second",
             "flops": "device_flops_per_second", "mfu": "mfu"}
    return {f"seen/{unit}": seen, "perf/seconds": now - self._begin,
            **{f"perf/{names[key]}": x for key, x in rates.items()}, **memory()}

  def rates(self, step: int, number: float, seconds: float) -> dict[str, float]:
    """What was done in a second, when training took so many since rates are counted."""
    seconds = max(seconds, 1e-9)
    flops = self._flops / seconds / self._num_devices
    rates = {"steps": (step - self._step) / seconds, "units": (number - self._number) / seconds,
             "flops": flops}
    peak = peak_flops(jax.devices()[0].device_kind)
    return rates if peak is None else {**rates, "mfu": flops / peak}

  def line(self, step: int, scalars: Mapping[str, float], rates: Mapping[str, float],
           elapsed: float) -> str:
    """The line of `step`, so many seconds after the start."""
    parts = [f"step {step}/{self._total_steps}"]
    if "loss" in scalars:
      parts.append(f"loss {scalars['loss']:.4f}")
    if self._compiled:
      parts.append(f"compiled in {self._compiled:.1f} s")
    if rates:
      mfu = f" ({rates['mfu']:.1%} MFU)" if "mfu" in rates else ""
      parts += [f"{rates['steps']:.3g} steps/s", f"{_si(rates['units'])}{self._unit}/s",
                f"{_si(rates['flops'])}FLOP/s a device{mfu}"]
    if rates.get("steps"):
      parts.append(f"{_clock((self._total_steps - step) / rates['steps'])} left")
    return " | ".join([*parts, f"{_clock(elapsed)} elapsed"])


def memory() -> dict[str, float]:
  """The most memory of this process so far in GiB, and of its first device where that is known."""
  host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  found = {"perf/host_memory_gib": host * (1 if sys.platform == "darwin" else 1024) / 2**30}
  device = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
  return found if device is None else {**found, "perf/device_memory_gib": device / 2**30}


def _clock(seconds: float) -> datetime.timedelta:
  return datetime.timedelta(seconds=round(seconds))


def _si(x: float) -> str:
  """Three digits and a prefix: 12.3e9 is "12.3 G"."""
  for prefix in ("", "k", "M", "G", "T"):
    if x < 999.5:
      return f"{x:.3g} {prefix}"
    x /= 1000
  return f"{x:.3g} P"
