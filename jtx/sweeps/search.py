"""A search by the tree-structured Parzen estimator (Bergstra et al. 2011), with Optuna's samplers.

`search.journal` in the sweep's folder is Optuna's record of the trials, and each is a run in a
folder of its own. A trial's parameters are a function of its number and of the results before it:
a search of one run at a time repeats, also where it was killed and started again.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import json
import math
import os
from typing import Any

from absl import logging
import optuna
from optuna.trial import FrozenTrial, TrialState

from jtx import config_files
from jtx.errors import ConfigError
from jtx.saved import workdir as workdirs
from jtx.sweeps import folders, journal, report, space
from jtx.sweeps.jobs import check_same, finished
from jtx.sweeps.journal import JOURNAL_FILE
from jtx.sweeps.space import Axis
from jtx.sweeps.sweep import Item, short_names, write

STARTUP = 8  # trials that are drawn at random
DRAWS = 16  # for a point that no trial has yet
RANDOM_DRAWS = 1000  # after these; where they find none either, the space is used up
SPARED = 1 / 3  # of a run's steps: what it shows before, in a long warmup, says little of its end
EPOCHS = "seen/epochs"  # of the metrics of a run
FAILED = "failed"  # attribute of a trial: how its run failed; it stays open, to be tried again
PRUNERS = {"median": lambda: optuna.pruners.MedianPruner(n_startup_trials=4, n_min_trials=3),
           "none": optuna.pruners.NopPruner}


@dataclasses.dataclass(frozen=True)
class Objective:
  """The metric of `results.json` that a search is for, and whether its lowest value is the best."""
  metric: str
  lower: bool


class Search:
  """The work of a search: it is asked for a run, and told how it ended.

  A run is pruned whose best value so far, after a third of its steps or later, is worse than the
  median of those that finished ones had at the same step. The values that evaluators log decide,
  also where the run has ended meanwhile, so that it does not matter when they are looked at.

  Args:
    axes: of the space.
    objective: of the search.
    trials: how many there are to be, with those that there are already.
    workdir: of the search.
    make_item: of a trial's number and texts by config key.
    pruner: a name in `PRUNERS`.

  Raises:
    ConfigError: the folder has another search, or one that is running.
  """

  def __init__(self, axes: Sequence[Axis], objective: Objective, trials: int, *, workdir: str,
               make_item: Callable[[int, Mapping[str, str]], Item], pruner: str = "median"):
    self._axes, self._objective, self._trials = axes, objective, trials
    self._workdir, self._make_item = workdir, make_item
    if not os.path.exists(os.path.join(workdir, JOURNAL_FILE)):
      check_same([], workdir)
    os.makedirs(workdir, exist_ok=True)
    self._lock = journal.locked(os.path.join(workdir, JOURNAL_FILE))
    self._study = journal.opened(workdir, dataclasses.asdict(objective), PRUNERS[pruner]())
    self._check_same()
    self.failed: dict[str, str] = {}
    self._items: dict[str, tuple[Item, int]] = {}  # with the number of the trial, by name
    self._seen: dict[str, int] = {}  # bytes of a run's metrics that were looked at
    self._waiting, self._used_up = collections.deque(), False
    for trial in self._study.get_trials(deepcopy=False):
      item = self._add(trial.number, trial.params)
      if trial.state == TrialState.COMPLETE and not self._is_finished(item):
        raise ConfigError(f"--workdir={workdir}: {item.name} there is no finished run of this"
                          " config; repeat the command of the search, or choose another workdir")
      if not trial.state.is_finished():
        self._trial(item).set_user_attr(FAILED, "")
        self._waiting.append(item)
    for item in [i for i in self._waiting if self._is_behind(i)]:
      self._waiting.remove(item)  # we were killed between its last value and what follows from it
      self._prune(item, "by its last value")
    self._write()
    if self._items:
      logging.info("%s trials before, of which %d go on", self._count(), len(self._waiting))

  def close(self) -> None:
    self._lock.close()

  def _check_same(self) -> None:
    """Keeps what the search is of, or compares it with what was kept."""
    mine = {"space": [dataclasses.asdict(a) for a in self._axes],
            "objective": dataclasses.asdict(self._objective)}
    mine = json.loads(json.dumps(mine))
    for key, value in mine.items():
      old = self._study.user_attrs.get(key)
      if old not in (None, value):
        raise ConfigError(f"--workdir={self._workdir}: the search there is of another {key},"
                          f" {json.dumps(old)}; choose another workdir, or repeat its command")
      self._study.set_user_attr(key, value)

  def _add(self, number: int, params: Mapping[str, Any]) -> Item:
    item = self._make_item(number, self._texts(params))
    self._items[item.name] = item, number
    return item

  def _is_finished(self, item: Item) -> bool:
    return finished(item.config, os.path.join(self._workdir, item.name))

  def _texts(self, params: Mapping[str, Any]) -> dict[str, str]:
    return {axis.key: axis.text(params[axis.key]) for axis in self._axes}

  def _trial(self, item: Item) -> optuna.trial.Trial:
    return optuna.trial.Trial(self._study, self._frozen(item)._trial_id)

  def _frozen(self, item: Item) -> FrozenTrial:
    return self._study.get_trials(deepcopy=False)[self._items[item.name][1]]

  def _count(self) -> str:
    return f"{len(self._items)}/{self._trials}"

  def _write(self) -> None:
    trials = self._study.get_trials(deepcopy=False)
    stopped = {name: (item, trials[number]) for name, (item, number) in self._items.items()
               if trials[number].state == TrialState.PRUNED}
    pruned = {name: self._told(item, trial) for name, (item, trial) in stopped.items()}
    short = short_names([axis.key for axis in self._axes])
    write([item for item, _ in self._items.values()], self.failed, self._workdir, pruned=pruned,
          search={**dataclasses.asdict(self._objective),
                  "axes": [space.as_json(a, short[a.key]) for a in self._axes]})

  def _told(self, item: Item, trial: FrozenTrial) -> str:
    """Where a run was pruned: at the step of its last value, or that which it ended with."""
    folder = os.path.join(self._workdir, item.name)
    logged = folders.read_metrics(folder)
    step = max((line["step"] for line in logged), default=0)
    if trial.last_step is not None:
      step = trial.last_step
    epochs = [line[EPOCHS] for line in logged if EPOCHS in line and line["step"] <= step]
    after = f", after {epochs[-1]:.3g} epochs" if item.config.epochs and epochs else ""
    return f"pruned at step {step}{after}"

  # As `jobs.Work`.

  def next(self) -> Item | None:
    while self._waiting:
      item = self._waiting.popleft()
      if not self._is_finished(item):
        return item
      self.ended(item, "", "an earlier start")
    if self.is_done():
      return None
    number = len(self._items)
    params = suggest(self._study, self._axes, number)
    if params is None:
      self._used_up = True
      logging.info("%s trials: there is no other point of the space", self._count())
      return None
    self._study.add_trial(optuna.trial.create_trial(
        state=TrialState.RUNNING, params=params, distributions=distributions(self._axes)))
    item = self._add(number, params)
    self._write()
    return item

  def is_done(self) -> bool:
    return not self._waiting and (self._used_up or len(self._items) >= self._trials)

  def started(self, item: Item) -> None:
    logging.info("%s start  %s", self._count(), item.name)

  def occupied(self, item: Item, folder: str) -> None:
    logging.log_every_n_seconds(
        logging.INFO, "waiting for another process, which runs in %s", 60, folder)
    self._waiting.append(item)

  def later(self, item: Item) -> None:
    if not self._frozen(item).state.is_finished():
      self._waiting.append(item)
      logging.info("%s later  %s, which was told to stop", self._count(), item.name)

  def unwanted(self, item: Item) -> bool:
    """Reports what the run has logged since, and says whether it is pruned."""
    trial, frozen = self._trial(item), self._frozen(item)
    metric, last = self._objective.metric, frozen.last_step
    for line in self._logged(item) if not frozen.state.is_finished() else ():
      self._check_known(item, line)
      if metric not in line or last is not None and line["step"] <= last:
        continue
      value, last = line[metric], line["step"]
      trial.report(math.nan if value is None else value, last)  # null is what is not finite
      if self._is_behind(item):
        self._prune(item, f"at step {last}, with {metric} {value}")
        break
    return self._frozen(item).state == TrialState.PRUNED

  def _check_known(self, item: Item, line: Mapping[str, Any]) -> None:
    """Raises ConfigError where the objective's evaluation has told others, but never tells it."""
    metric = self._objective.metric
    split, _, name = metric.partition("/")
    told = [other for other in line if other.startswith(f"{split}/")]
    if told and metric not in line and name not in (report.numbers_of(split, item.config) or ()):
      self._refuse(dict.fromkeys(told, 0.0))

  def _refuse(self, results: Mapping[str, Any]) -> None:
    """Raises ConfigError where results do not have the objective."""
    try:
      report.choose_metrics([results], [self._objective.metric])
    except ConfigError as error:
      raise ConfigError(f"{error}; the same command with one of these goes on") from error

  def _is_behind(self, item: Item) -> bool:
    """Whether the run is to be pruned by its last value."""
    last = self._frozen(item).last_step
    steps = 0 if item.config.epochs else item.config.steps  # of epochs they follow from the data
    return last is not None and last >= SPARED * steps and self._trial(item).should_prune()

  def _logged(self, item: Item) -> Sequence[Mapping[str, Any]]:
    """The lines of the run's metrics, where there are others than at the last look."""
    folder = os.path.join(self._workdir, item.name)
    path = os.path.join(folder, folders.METRICS_FILE)
    size = os.path.getsize(path) if os.path.exists(path) else 0
    if size == self._seen.get(item.name):
      return ()
    self._seen[item.name] = size
    return folders.read_metrics(folder)

  def _prune(self, item: Item, why: str) -> None:
    self._study.tell(self._items[item.name][1], state=TrialState.PRUNED)
    self._write()
    logging.info("%s pruned %s %s", self._count(), item.name, why)

  def ended(self, item: Item, failure: str, age: str) -> None:
    if self.unwanted(item):
      return
    if failure:
      self.failed[item.name] = failure
      self._trial(item).set_user_attr(FAILED, failure)
      self._write()
      logging.error("%s failed %s: %s", self._count(), item.name, failure)
      return
    metric = self._objective.metric
    path = os.path.join(self._workdir, item.name, workdirs.RESULTS_FILE)
    results = config_files.read_json(path, missing="the run has no results")
    self._refuse(results)
    if not math.isfinite(results[metric]):
      self._prune(item, f"at its end, with {metric} {results[metric]}")
      return
    self._study.tell(self._items[item.name][1], results[metric])
    logging.info("%s done   %s in %s: %s %.4g", self._count(), item.name, age, metric,
                 results[metric])


def distributions(axes: Sequence[Axis]) -> dict[str, optuna.distributions.BaseDistribution]:
  """Optuna's of each axis, by its key."""
  def of(axis: Axis) -> optuna.distributions.BaseDistribution:
    if axis.choices:
      return optuna.distributions.CategoricalDistribution(axis.choices)
    if axis.whole:
      return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
  return {axis.key: of(axis) for axis in axes}


def suggest(study: optuna.Study, axes: Sequence[Axis], number: int) -> dict[str, Any] | None:
  """The parameters of trial `number`, which no trial has yet; None where none was found.

  They follow from the number and from what is known of the study's trials. Where one failed, as a
  run that diverged does, is taken for a bad place.
  """
  known = {json.dumps(t.params, sort_keys=True) for t in study.get_trials(deepcopy=False)}
  for drawn in _draws(study, distributions(axes), number):
    params = {axis.key: axis.rounded(drawn[axis.key]) for axis in axes}
    if json.dumps(params, sort_keys=True) not in known:
      return params
  return None


def _draws(study: optuna.Study, of: Mapping[str, optuna.distributions.BaseDistribution],
           number: int) -> Iterator[dict[str, Any]]:
  """Parameters by the estimator, and then by chance, for where it insists on those it knows."""
  told = [_as_worst(t) if t.user_attrs.get(FAILED) else t for t in study.get_trials(deepcopy=False)]
  for draw in range(DRAWS):
    sampler = optuna.samplers.TPESampler(seed=number * DRAWS + draw, n_startup_trials=STARTUP)
    copy = optuna.create_study(direction=study.direction, sampler=sampler)
    copy.add_trials(told)
    yield copy.ask(of).params
  anything = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=number))
  for _ in range(RANDOM_DRAWS):
    yield anything.ask(of).params


def _as_worst(trial: FrozenTrial) -> FrozenTrial:
  """A trial of the same point that is behind all others, as pruned ones without a value are."""
  return optuna.trial.create_trial(state=TrialState.PRUNED, params=trial.params,
                                   distributions=trial.distributions)
