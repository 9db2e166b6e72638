"""Trackers of experiments: TensorBoard, Weights & Biases and MLflow, behind one protocol.

They get the numbers of `metrics.jsonl`. W&B and MLflow are set up as their own users know it, by
`wandb login`, WANDB_PROJECT, WANDB_MODE, MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. A run that
goes on is the same run there; its id is in `trackers.json` of the workdir. One that begins at step
0, as after a start that failed before its first checkpoint, is another.
"""

import importlib.util
import json
import os
import re
import time
from typing import Callable, Mapping, NamedTuple, Protocol, Sequence
import uuid

from absl import logging
import numpy as np

from jtx import config_files, storage
from jtx.config import ConfigDict
from jtx.errors import ConfigError, nearest

IDS_FILE = "trackers.json"
PROJECT = "jtx"  # where the user names none


class Run(NamedTuple):
  """The run that is tracked."""
  workdir: str
  config: ConfigDict
  start: int  # the step that it goes on from


class Tracker(Protocol):
  """Where the numbers of a run go, beside its workdir; it is made of a `Run`."""
  package: str  # that it imports

  def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
    """Numbers by name; a step may come in parts, and again where the run went on before it."""

  def text(self, step: int, name: str, text: str) -> None:
    """Markdown."""

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    """[H, W, 3] uint8."""

  def close(self) -> None:
    """Everything is written when this returns."""


class TensorBoard:
  """Event files in the workdir."""
  package = "tensorboardX"

  def __init__(self, run: Run):
    import tensorboardX
    # The suffix, since a file's name has whole seconds: a quick restart would overwrite it.
    self._events = tensorboardX.SummaryWriter(
        run.workdir, purge_step=run.start + 1, filename_suffix=f".{time.time_ns()}")
    self._events.file_writer.flush()

  def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
    for name, x in numbers.items():
      self._events.add_scalar(name, x, step)
    self._events.flush()

  def text(self, step: int, name: str, text: str) -> None:
    self._events.add_text(name, text, step)

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    self._events.add_image(name, image, step, dataformats="HWC")

  def close(self) -> None:
    self._events.close()


class Wandb:
  """A run of Weights & Biases; steps that it has already are left as they are."""
  package = "wandb"

  def __init__(self, run: Run):
    import wandb
    self._wandb = wandb
    made = _id_of(run, "wandb", lambda: uuid.uuid4().hex[:8])
    folder = None if storage.is_remote(run.workdir) else run.workdir
    try:
      self._run = wandb.init(
          id=made, resume="allow", dir=folder, config=json.loads(run.config.to_json()),
          project=os.environ.get("WANDB_PROJECT", PROJECT),
          name=os.environ.get("WANDB_NAME", _name(run)))
    except wandb.errors.Error as e:
      raise ConfigError(f"config.trackers: wandb can't start the run: {_line(e)}") from e

  def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
    if step < self._run.step:  # as the final evaluation of a best checkpoint
      self._run.summary.update(dict(numbers))
    else:
      self._run.log(dict(numbers), step=step)

  def text(self, step: int, name: str, text: str) -> None:
    self._run.log({name: self._wandb.Html(text)}, step=step)

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    self._run.log({name: self._wandb.Image(image)}, step=step)

  def close(self) -> None:
    self._run.finish()


class Mlflow:
  """A run of MLflow; steps that it has already are left as they are."""
  package = "mlflow"

  def __init__(self, run: Run):
    import mlflow
    self._entities, self._error = mlflow.entities, mlflow.exceptions.MlflowException
    try:
      self._client = mlflow.MlflowClient()
      self._id = _id_of(run, "mlflow", lambda: self._start(run))
      self._client.update_run(self._id, status="RUNNING")
      self._last = {name: max(point.step for point in self._client.get_metric_history(
          self._id, name)) for name in self._client.get_run(self._id).data.metrics}
    except self._error as e:
      raise ConfigError(f"config.trackers: mlflow can't start the run (MLFLOW_TRACKING_URI says"
                        f" where): {_line(e)}") from e

  def _start(self, run: Run) -> str:
    """The id of a new run, whose parameters are the keys of the config."""
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
    experiment = self._client.get_experiment_by_name(name)
    place = experiment.experiment_id if experiment else self._client.create_experiment(name)
    made = self._client.create_run(place, run_name=_name(run)).info.run_id
    # Its names have no brackets, and its values an end.
    params = [self._entities.Param(re.sub(r"\[(\d+)\]", r".\1", key), str(value)[:6000])
              for key, value in config_files.flatten(run.config).items()]
    for i in range(0, len(params), 100):  # the most at a time
      self._client.log_batch(made, params=params[i:i + 100])
    return made

  def scalars(self, step: int, numbers: Mapping[str, float]) -> None:
    now = round(1000 * time.time())
    new = [self._entities.Metric(name, x, now, step) for name, x in numbers.items()
           if step > self._last.get(name, -1)]
    try:
      self._client.log_batch(self._id, metrics=new)
    except self._error as e:  # a server that is away for a while must not end the run
      logging.warning("mlflow has not taken step %d: %s", step, _line(e))

  def text(self, step: int, name: str, text: str) -> None:
    self._client.log_text(self._id, text, f"{name}/{step}.md")

  def image(self, step: int, name: str, image: np.ndarray) -> None:
    self._client.log_image(self._id, image, f"{name}/{step}.png")

  def close(self) -> None:
    self._client.set_terminated(self._id)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard, "wandb": Wandb, "mlflow": Mlflow}


def check(names: Sequence[str]) -> None:
  """Raises ConfigError for a tracker that there is not, or whose package is not installed."""
  for name in names:
    if name not in TRACKERS:
      raise ConfigError(f"config.trackers: there is no {name!r}; {nearest(name, TRACKERS)}")
    package = TRACKERS[name].package
    if importlib.util.find_spec(package) is None:
      raise ConfigError(f"config.trackers: {name!r} takes the package {package}, which is"
                        f" not installed; pip install {package} does it")


def open_trackers(names: Sequence[str], run: Run) -> list[Tracker]:
  """The trackers of a run; one that begins has ids of its own, whatever a start before it left."""
  check(names)
  path = os.path.join(run.workdir, IDS_FILE)
  if not run.start and storage.exists(path):
    config_files.write_json({}, path)
  return [TRACKERS[name](run) for name in names]


def _id_of(run: Run, name: str, make: Callable[[], str]) -> str:
  """The id that the run has in a tracker, made once."""
  path = os.path.join(run.workdir, IDS_FILE)
  ids = json.loads(storage.read_text(path)) if storage.exists(path) else {}
  if name not in ids:
    ids[name] = make()
    config_files.write_json(ids, path)
  return ids[name]


def _name(run: Run) -> str:
  return os.path.basename(os.path.normpath(run.workdir))


def _line(error: Exception) -> str:
  return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
