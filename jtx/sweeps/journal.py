"""Optuna's record of the trials of a search, `search.journal` in the sweep's folder."""

from collections.abc import Mapping
import fcntl
import os
from typing import Any, BinaryIO

import optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from jtx.errors import ConfigError

JOURNAL_FILE = "search.journal"
STUDY = "search"  # its name there
OBJECTIVE = "objective"  # attribute of the study


class _Alone:
  """The lock that Optuna asks for before it writes: we hold that of the whole search."""

  def acquire(self) -> bool:
    return True

  def release(self) -> None:
    pass


def locked(path: str) -> BinaryIO:
  """The journal's file, locked until it is closed, or until this process ends, however it does."""
  file = open(path, "ab+")
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    file.close()
    raise ConfigError(f"--workdir={os.path.dirname(path)}: another process searches there; wait for"
                      " its end, or choose another workdir") from None
  file.seek(0)
  text = file.read()
  file.truncate(text.rfind(b"\n") + 1)  # a line that a power cut left half written
  return file


def opened(workdir: str, objective: Mapping[str, Any],
           pruner: optuna.pruners.BasePruner) -> optuna.Study:
  """The study of a search, whose journal is locked.

  One of another objective gets this one as long as no trial has ended by that: a mistyped metric,
  which only the first evaluation tells, does not hold the workdir.

  Args:
    workdir: of the search.
    objective: `metric`, and `lower`, whether its lowest value is the best.
    pruner: of the trials.
  """
  optuna.logging.set_verbosity(optuna.logging.WARNING)
  backend = JournalFileBackend(os.path.join(workdir, JOURNAL_FILE), lock_obj=_Alone())
  storage = JournalStorage(backend)
  make = lambda: optuna.create_study(
      storage=storage, study_name=STUDY, pruner=pruner, load_if_exists=True,
      direction="minimize" if objective["lower"] else "maximize")
  study = make()
  trials = study.get_trials(deepcopy=False)
  if study.user_attrs.get(OBJECTIVE, objective) == objective or any(
      trial.state.is_finished() for trial in trials):
    return study
  kept = study.user_attrs | {OBJECTIVE: dict(objective)}
  optuna.delete_study(study_name=STUDY, storage=storage)
  study = make()
  for key, value in kept.items():
    study.set_user_attr(key, value)
  for trial in trials:
    study.add_trial(optuna.trial.create_trial(
        state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions))
  return study
