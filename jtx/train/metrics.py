"""Metrics on disk, the line of progress, and a record of where a run ran."""

import contextlib
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from typing import Iterator, Mapping, Sequence

from absl import logging
import jax
import numpy as np

from jtx import config_files, storage

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


def write_environment(workdir: str) -> None:
  """Writes `environment.json`: the versions, devices and code of the newest start of a run."""
  if jax.process_index() != 0:
    return
  devices = jax.devices()
  storage.make_folder(workdir)
  config_files.write_json({
      "argv": sys.argv,
      "git_revision": _git_revision(),
      "python": platform.python_version(),
      "versions": {
          name: _version(name)
          for name in ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
      },
      "platform": devices[0].platform,
      "device_kind": devices[0].device_kind,
      "devices": len(devices),
      "processes": jax.process_count(),
      "cpu_cores": _cpu_cores(),
  }, os.path.join(workdir, "environment.json"))


def _version(package: str) -> str | None:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return None


def _cpu_cores() -> int:
  """The cores this process may use: the order of CPU reductions, so a loss's bits, depend on it."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _git_revision() -> str | None:
  """The commit of this code, "-dirty" when it was edited since; None outside a checkout."""
  git = ["git", "-C", os.path.dirname(os.path.abspath(__file__))]
  tracked = [*git, "ls-files", "--error-unmatch", os.path.basename(__file__)]
  describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
  try:
    # An installed copy can lie inside a checkout of something else.
    subprocess.run(tracked, check=True, capture_output=True)
    return subprocess.run(describe, check=True, capture_output=True, text=True).stdout.strip()
  except (OSError, subprocess.CalledProcessError):
    return None


class MetricWriter:
  """Writes metrics to `metrics.jsonl`, an object a call, and to TensorBoard's event files.

  A line is on disk when `write` returns. In a multi-host run process 0 writes.

  Args:
    workdir: the folder of both.
    resume_step: the step that the run goes on from. What an earlier start wrote for later
      steps is dropped from `metrics.jsonl` and hidden by TensorBoard, so that each step
      is there once.
    pending: evaluations of that step which are to come; what an earlier start wrote of them is
      dropped, too.
  """

  def __init__(self, workdir: str, resume_step: int = 0, pending: Sequence[str] = ()):
    self._lines = None
    if jax.process_index() != 0:
      return
    import tensorboardX  # only here, since most commands write no metrics

    storage.make_folder(workdir)
    path = os.path.join(workdir, "metrics.jsonl")
    self._lines = storage.Lines(path, _lines_until(path, resume_step, pending))
    # The suffix, since a file's name has whole seconds: a quick restart would overwrite it.
    self._events = tensorboardX.SummaryWriter(
        workdir, purge_step=resume_step + 1, filename_suffix=f".{time.time_ns()}")
    self._events.file_writer.flush()

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes numbers by name; JSON has no NaN and infinity, so they become null there."""
    if self._lines is None:
      return
    scalars = {name: float(value) for name, value in scalars.items()}
    line = {name: x if math.isfinite(x) else None for name, x in scalars.items()}
    self._lines.write(json.dumps({"step": int(step), **line}, allow_nan=False) + "\n")
    for name, x in scalars.items():
      self._events.add_scalar(name, x, step)
    self._events.flush()

  def write_text(self, step: int, name: str, text: str) -> None:
    """Writes Markdown to TensorBoard."""
    if self._lines is not None:
      self._events.add_text(name, text, step)

  def write_image(self, step: int, name: str, image: np.ndarray) -> None:
    """Writes an image `[H, W, 3]` uint8 to TensorBoard."""
    if self._lines is not None:
      self._events.add_image(name, image, step, dataformats="HWC")

  def close(self) -> None:
    if self._lines is not None:
      self._lines.close()
      self._events.close()


def _lines_until(path: str, step: int, pending: Sequence[str]) -> list[str]:
  """The lines without those of later steps, and without a last one that a killed run wrote half of.

  Args:
    path: of the lines.
    step: the last that stays.
    pending: evaluations of it whose lines do not.
  """
  if not storage.exists(path):
    return []
  lines = storage.read_text(path, errors="replace").splitlines(keepends=True)
  return [line for line in lines if line.endswith("\n") and _step_of(line) <= step
          and not (_step_of(line) == step and _is_of(line, pending))]


def _step_of(line: str) -> float:
  try:
    return json.loads(line)["step"]
  except (ValueError, KeyError, TypeError):
    return math.inf  # not a line of ours: dropped


def _is_of(line: str, evaluations: Sequence[str]) -> bool:
  return any(key.startswith(f"{name}/") for key in json.loads(line) for name in evaluations)


class Progress:
  """Logs how far a run is, how fast, and when it will be done.

  Rates are over the time since the last line; the first one includes compilation.

  Args:
    total_steps: of the run.
    start: the step that it goes on from.
    num_devices: that share them.
    unit: what the loss is a mean of.
  """

  def __init__(self, total_steps: int, start: int, num_devices: int, unit: str = "tokens"):
    self._total_steps, self._unit = total_steps, unit
    self._num_devices = num_devices
    self._step, self._time, self._paused = start, time.monotonic(), 0.0

  @contextlib.contextmanager
  def pause(self) -> Iterator[None]:
    """Time inside, such as an evaluation's, doesn't count as training time."""
    begin = time.monotonic()
    try:
      yield
    finally:
      self._paused += time.monotonic() - begin

  def log(self, step: int, scalars: Mapping[str, float], number: float, flops: float) -> None:
    """Logs a line; so many units were trained on since the last one, by `flops` on all devices."""
    now = time.monotonic()
    seconds = now - self._time - self._paused
    logging.info("%s", self.line(step, scalars, number, flops, seconds))
    self._step, self._time, self._paused = step, now, 0.0

  def line(self, step: int, scalars: Mapping[str, float], number: float, flops: float,
           seconds: float) -> str:
    """The line of `step` when training took `seconds` since the last one."""
    rate = (step - self._step) / max(seconds, 1e-9)
    device_flops = flops / max(seconds, 1e-9) / self._num_devices
    peak = peak_flops(jax.devices()[0].device_kind)
    speed = f"{_si(device_flops)}FLOP/s a device"
    if peak is not None:
      speed += f" ({device_flops / peak:.1%} MFU)"
    parts = [f"step {step}/{self._total_steps}"]
    if "loss" in scalars:
      parts.append(f"loss {scalars['loss']:.4f}")
    parts += [f"{rate:.3g} steps/s", f"{_si(number / max(seconds, 1e-9))}{self._unit}/s", speed]
    if rate > 0:
      left = datetime.timedelta(seconds=round((self._total_steps - step) / rate))
      parts.append(f"{left} left")
    return " | ".join(parts)


def _si(x: float) -> str:
  """Three digits and a prefix: 12.3e9 is "12.3 G"."""
  for prefix in ("", "k", "M", "G", "T"):
    if x < 999.5:
      return f"{x:.3g} {prefix}"
    x /= 1000
  return f"{x:.3g} P"
