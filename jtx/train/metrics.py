"""Metrics on disk, and a record of where a run ran."""

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from typing import Mapping, Sequence

from absl import logging
import jax
import numpy as np

from jtx import config_files, storage
from jtx.config import ConfigDict
from jtx.train.trackers import Run, open_trackers

METRICS_FILE = "metrics.jsonl"


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
  """Writes metrics to `metrics.jsonl`, an object a call, and to trackers.

  A line is on disk when `write` returns. In a multi-host run process 0 writes.

  Args:
    workdir: the folder of both.
    resume_step: the step that the run goes on from. What an earlier start wrote for later
      steps is dropped from `metrics.jsonl` and hidden by TensorBoard, so that each step
      is there once.
    pending: evaluations of that step which are to come; what an earlier start wrote of them is
      dropped, too.
    trackers: names of `jtx.train.trackers`.
    config: of the run, for them.
  """

  def __init__(self, workdir: str, resume_step: int = 0, pending: Sequence[str] = (), *,
               trackers: Sequence[str] = ("tensorboard",), config: ConfigDict = ConfigDict()):
    self._lines, self._trackers = None, []
    if jax.process_index() != 0:
      return
    storage.make_folder(workdir)
    path = os.path.join(workdir, METRICS_FILE)
    if not resume_step:
      _warn_of_lost(workdir, path)
    self._trackers = open_trackers(trackers, Run(workdir, config, resume_step))
    self._lines = storage.Lines(path, _lines_until(path, resume_step, pending))

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes numbers by name; JSON has no NaN and infinity, so they become null there."""
    if self._lines is None:
      return
    scalars = {name: float(value) for name, value in scalars.items()}
    line = {name: x if math.isfinite(x) else None for name, x in scalars.items()}
    self._lines.write(json.dumps({"step": int(step), **line}, allow_nan=False) + "\n")
    for tracker in self._trackers:
      tracker.scalars(step, scalars)

  def write_text(self, step: int, name: str, text: str) -> None:
    """Hands Markdown to the trackers."""
    for tracker in self._trackers:
      tracker.text(step, name, text)

  def write_image(self, step: int, name: str, image: np.ndarray) -> None:
    """Hands an image `[H, W, 3]` uint8 to the trackers."""
    for tracker in self._trackers:
      tracker.image(step, name, image)

  def close(self) -> None:
    if self._lines is not None:
      self._lines.close()
    for tracker in self._trackers:
      tracker.close()


def _warn_of_lost(workdir: str, path: str) -> None:
  """Tells that a run begins at step 0 where another has left metrics, which are dropped then."""
  if not storage.exists(path):
    return
  steps = [_step_of(line) for line in storage.read_text(path, errors="replace").splitlines()]
  if last := max((step for step in steps if step < math.inf), default=0):
    logging.warning("%s has metrics up to step %d and no checkpoint, since none was written or"
                    " %s/checkpoints is gone: the run begins at step 0, and its metrics anew",
                    workdir, last, workdir)


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
