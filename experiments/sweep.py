"""Trains variants of a config, several at a time, and makes the table of their results.

  python -m experiments.sweep --config=configs/X.py[:args] --workdir=W
      (--sweep=NAME | --grid=optim.lr=1e-4,3e-4 --grid=seed=0,1 |
       --search=tpe --space=optim.lr=1e-4..1e-2:log --space=model.encoder.num_layers=2,4,6
       --trials=N --metrics=val/loss [--pruner=none]) [--jobs=2]
      [--launcher=slurm [--sbatch=--partition=gpu]] [--metrics=val/bleu,test/bleu] [--dry_run]
      [--config.a.b=value]

--sweep=NAME takes the edits that `sweep_NAME()` of the config's file yields; each --grid
multiplies them by its values. A run has a folder of W named after what it changes, with its output
in log.txt. The same command again goes on with what was killed or failed; finished runs stay.
--dry_run prints the commands of the runs instead. The table goes to W/sweep.md and W/sweep.csv.

--search=tpe chooses N points of the space, one after another from the results so far, for the first
of --metrics, and stops runs that are worse than the median of the others. It needs the extra
`search`. A number of --trials that has grown adds runs.

--launcher=slurm submits the runs as one array of tasks, of which --jobs run at a time. A task that
was told to stop is queued again. The same command again submits what is neither finished nor in the
queue, and tells what failed.

The exit status is 0 when all runs are finished, or submitted.
"""

import contextlib
import functools
import os
import shlex
import sys

from absl import flags
from ml_collections import config_flags

from . import cli, config_files

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the folders of the runs.")
SWEEP = flags.DEFINE_string("sweep", None, "NAME of the config file's sweep_NAME().")
GRID = flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE of the config; may be repeated.")
SEARCH = flags.DEFINE_enum("search", None, ["tpe"], "How points of --space are chosen.")
SPACE = flags.DEFINE_multi_string("space", [], "KEY=LOW..HIGH, with :log or :int behind it, or"
                                  " KEY=VALUE,VALUE of the config; may be repeated.")
TRIALS = flags.DEFINE_integer("trials", None, "Runs of a search.", lower_bound=1)
PRUNER = flags.DEFINE_enum("pruner", "median", ["median", "none"], "What ends runs of a search.")
JOBS = flags.DEFINE_integer("jobs", None, "Runs at a time; if not given 1, or all of an array. The"
                            " devices of this machine are divided.", lower_bound=1)
LAUNCHER = flags.DEFINE_enum("launcher", "local", ["local", "slurm"], "Where the runs are.")
SBATCH = flags.DEFINE_multi_string("sbatch", [], "Option of sbatch; may be repeated.")
METRICS = flags.DEFINE_list("metrics", [], "Of results.json, for the table; all if not given.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands of the runs, and run nothing.")

TRAIN = (sys.executable, "-m", f"{__package__}.train")


def main() -> int:
  from jtx.errors import ConfigError
  from jtx.sweeps import jobs
  try:  # all that can be wrong with the command line, before anything is written
    check_flags()
    items = make_items() if SEARCH.value is None else search_ends()
    check(items)
  except ConfigError as error:
    raise cli.UsageError(str(error)) from error
  if LAUNCHER.value == "slurm":
    return submit(items)
  if DRY_RUN.value:
    print("\n".join(shlex.join(item.command) for item in items))
    return 0
  failed, stopped = (jobs.run(items, WORKDIR.value, parts()) if SEARCH.value is None else
                     search(items[0].config))
  if stopped:
    return jobs.status_of(stopped)
  tell(failed)
  print_table()
  return 1 if failed else 0


def check_flags() -> None:
  """Raises UsageError for flags that do not go together."""
  if SBATCH.value and LAUNCHER.value != "slurm":
    raise cli.UsageError("--sbatch has no effect without --launcher=slurm")
  if SEARCH.value is None:
    if SPACE.value or TRIALS.value:
      raise cli.UsageError("--space and --trials have no effect without --search=tpe")
    return
  if SWEEP.value is not None or GRID.value or LAUNCHER.value == "slurm":
    raise cli.UsageError("--search goes without --sweep, --grid and --launcher=slurm")
  for flag in (SPACE, TRIALS, METRICS):
    if not flag.value:
      raise cli.UsageError(f"--{flag.name} must be given for a search")


def check(items) -> None:
  """Raises ConfigError where a run, the workdir, the metrics or the number of runs can't be."""
  from jtx.sweeps import jobs, report
  from jtx.train.keys import check_config
  for item in items:
    check_config(item.config)
  if SEARCH.value is None and not DRY_RUN.value:  # a search compares what it is of
    jobs.check_same(items, WORKDIR.value)
  report.check_evaluators(METRICS.value, [item.config for item in items])
  if LAUNCHER.value == "local" and not DRY_RUN.value:
    parts()


@functools.cache
def parts():
  """This machine's devices, in parts for the runs that go side by side."""
  from jtx.launch.shares import shares
  return shares(JOBS.value or 1)


def tell(failed) -> None:
  for name, reason in failed.items():
    print(f"failed: {name}: {reason}", file=sys.stderr)


def print_table() -> None:
  """Prints the table of --metrics, or of all where one is in no result.

  Raises:
    ConfigError: one is in no result, which only results tell.
  """
  from jtx.errors import ConfigError
  from jtx.sweeps import report
  try:
    print(report.report(WORKDIR.value, METRICS.value), end="")
  except ConfigError as error:
    print(report.report(WORKDIR.value, ["all"]), end="", flush=True)
    raise ConfigError(f"{error}; all are in the table that was made, and experiments.report"
                      f" --workdir={WORKDIR.value} --metrics=NAME,NAME makes another") from error


def submit(items) -> int:
  """Submits what is neither finished nor in Slurm's queue; prints the table of what is finished."""
  from jtx.sweeps import arrays
  workdir, left = WORKDIR.value, arrays.unfinished(items, WORKDIR.value)
  queued = arrays.in_queue(workdir)
  names = [name for name in left if name not in queued]
  text = arrays.script(items, names, workdir, folder=os.getcwd(), at_once=JOBS.value,
                       options=SBATCH.value) if names else ""
  if DRY_RUN.value:
    print(text, end="")
    return 0
  if names:
    tell(arrays.failures(items, workdir))
    number = arrays.submit(items, names, workdir, text)
    print(f"submitted {len(names)} of {len(items)} runs as array {number}; the same command again"
          " tells how they are, and submits what is then neither finished nor in the queue")
  elif left:
    print(f"{len(items) - len(left)} of {len(items)} runs are finished, the others in the queue")
  else:
    print_table()
  return 0


def search_ends():
  """Items at the ends of the space of a search, by which it is checked."""
  from jtx.sweeps import space, sweep
  sweep.check_folder(WORKDIR.value)
  edits = space.checks(space.parse(SPACE.value, CONFIG.value))
  return [trial(number, edit) for number, edit in enumerate(edits)]


def trial(number: int, edit):
  """The item of a trial of a search."""
  from jtx.sweeps import sweep
  arguments, = arguments_of([edit])
  return sweep.trial(number, edit, arguments, config=cli.config_of(arguments),
                     workdir=WORKDIR.value, train=TRAIN)


def search(config) -> tuple[dict[str, str], int]:
  """Runs a search: how runs failed, and the signal that stopped it, or 0."""
  from jtx.errors import ConfigError
  from jtx.sweeps import jobs, report, space
  try:
    from jtx.sweeps import search as searches
  except ModuleNotFoundError as error:
    raise ConfigError(f"--search=tpe: {error.name} is not installed; it comes with the extra"
                      " `search` of jtx, or by `pip install optuna`") from error
  metric = METRICS.value[0]
  objective = searches.Objective(metric, report.lower_is_better(metric, [config.to_dict()]))
  with contextlib.closing(searches.Search(
      space.parse(SPACE.value, CONFIG.value), objective, TRIALS.value, workdir=WORKDIR.value,
      make_item=trial, pruner=PRUNER.value)) as work:
    stopped = jobs.work_off(work, WORKDIR.value, parts())
  return work.failed, stopped


def make_items():
  """The items of the flags; each one's arguments are parsed as its train command would."""
  from jtx.sweeps import sweep
  if SWEEP.value is None and not GRID.value:
    raise cli.UsageError("--sweep=NAME or --grid=KEY=VALUE,VALUE must be given, or --search=tpe")
  flag = flags.FLAGS[CONFIG.name]
  named = [{}]
  if SWEEP.value is not None:
    loaded = config_files.load_sweep(flag.config_filename, SWEEP.value, CONFIG.value)
    named = [sweep.overrides(edits, CONFIG.value, f"sweep_{SWEEP.value} item {i}")
             for i, edits in enumerate(loaded, 1)]
  grid = sweep.grid(GRID.value, CONFIG.value)
  for key in grid[0]:
    if any(key in edits for edits in named):
      raise cli.UsageError(f"--grid={key} and sweep_{SWEEP.value} set the same key; choose one")

  edits = [a | b for a in named for b in grid]
  arguments = arguments_of(edits)
  return sweep.plan(edits, [cli.config_of(a) for a in arguments], arguments, WORKDIR.value, TRAIN)


def arguments_of(edits) -> list[list[str]]:
  """The config arguments of the train command of each of some edits.

  Raises:
    UsageError: the command line sets a key that all edits set.
  """
  from jtx.sweeps import sweep
  flag = flags.FLAGS[CONFIG.name]
  common = {k: sweep.override(v) for k, v in flag.override_values.items()}
  for key in common:
    if edits and all(key in e for e in edits):
      raise cli.UsageError(f"--config.{key} would have no effect, since every item sets {key}")
  shared = lambda edit: {key: text for key, text in common.items() if key not in edit}
  return [[f"--config={flag.config_filename}",
           *(f"--config.{key}={text}" for key, text in (shared(edit) | edit).items())]
          for edit in edits]


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
