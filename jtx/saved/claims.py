"""Whose run a workdir holds: the one of a config, which goes on, or another, which is kept."""

import os

from absl import logging

from jtx import config_files, storage
from jtx.config import ConfigDict
from jtx.errors import ConfigError
from jtx.saved import manifest, older
from jtx.saved import workdir as workdirs

# Keys that do not change what is computed: a workdir may be resumed with others.
FREE_KEYS = ("mesh", "log_every", "trackers", "profile", "checkpoint", "evals", "decode",
             "data.threads", "data.workers", "data.path", "init_from", "imports")


def _config_there(config: ConfigDict, workdir: str) -> ConfigDict:
  """The config of a workdir, or that of its newest checkpoint where the file is lost or broken."""
  path = os.path.join(workdir, workdirs.CONFIG_FILE)
  try:
    values = config_files.read_json(path, missing="it has the config of the run")
  except ConfigError as e:
    logging.warning("%s; it is written anew", e)
    checkpoints = workdirs.make_checkpoints(config, workdir)
    if checkpoints.latest_step() is None:
      return config
    values = checkpoints.read_meta()["config"]
    if values["epochs"] is not None:
      values["steps"] = config.steps  # a checkpoint's follow from the data
  return older.of_plain(values, path)


def holds_run(workdir: str) -> bool:
  """Whether a workdir is a run's, as it is from the first checkpoint on: nothing is lost before."""
  checkpoints = manifest.Manifests(os.path.join(workdir, "checkpoints"))
  return checkpoints.latest_step() is not None or any(
      storage.exists(os.path.join(workdir, name)) for name in (workdirs.RESULTS_FILE, "corrupt"))


def check(config: ConfigDict, workdir: str) -> None:
  """Raises ConfigError where the workdir holds a run of another config."""
  if holds_run(workdir):
    theirs = config_files.flatten(older.with_defaults(_config_there(config, workdir)))
    ours = config_files.flatten(config)
    for key in sorted(theirs.keys() | ours.keys()):
      free = any(key == k or key.startswith((k + ".", k + "[")) for k in FREE_KEYS)
      if not free and theirs.get(key) != ours.get(key):
        raise ConfigError(
            f"--workdir={workdir} holds a run of another config: {key} is {theirs.get(key)!r} there"
            f" and {ours.get(key)!r} here; choose another workdir, or the same config to go on")
