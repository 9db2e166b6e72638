"""Trains variants of a config, several at a time, and makes the table of their results.

  python -m experiments.sweep --config=configs/X.py[:args] --workdir=W
      (--sweep=NAME | --grid=optim.lr=1e-4,3e-4 --grid=seed=0,1) [--jobs=2]
      [--metrics=val/bleu,test/bleu] [--dry_run] [--config.a.b=value]

--sweep=NAME takes the edits that `sweep_NAME()` of the config's file yields; each --grid
multiplies them by its values. A run has a folder of W named after what it changes, with its output
in log.txt. The same command again goes on with what was killed or failed; finished runs stay.
--dry_run prints the commands of the runs instead. The table goes to W/sweep.md and W/sweep.csv.

The exit status is 0 when all runs are finished.
"""

import shlex
import sys

from absl import flags
from ml_collections import config_flags

from . import cli, config_files

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the folders of the runs.")
SWEEP = flags.DEFINE_string("sweep", None, "NAME of the config file's sweep_NAME().")
GRID = flags.DEFINE_multi_string("grid", [], "KEY=VALUE,VALUE of the config; may be repeated.")
JOBS = flags.DEFINE_integer("jobs", 1, "Runs at a time; the devices are divided.", lower_bound=1)
METRICS = flags.DEFINE_list("metrics", [], "Of results.json, for the table; all if not given.")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the commands of the runs, and run nothing.")

TRAIN = (sys.executable, "-m", f"{__package__}.train")


def main() -> int:
  from jtx.errors import ConfigError
  from jtx.launch.shares import shares
  from jtx.sweeps import jobs, report
  from jtx.train.keys import check_config
  try:  # all that can be wrong with the command line, before anything is written
    items = make_items()
    for item in items:
      check_config(item.config)
    report.check_evaluators(METRICS.value, [item.config for item in items])
    parts = shares(JOBS.value) if not DRY_RUN.value else []
  except ConfigError as error:
    raise cli.UsageError(str(error)) from error
  if DRY_RUN.value:
    print("\n".join(shlex.join(item.command) for item in items))
    return 0
  failed, stopped = jobs.run(items, WORKDIR.value, parts)
  if stopped:
    return 128 + stopped  # as a shell has it
  for name, reason in failed.items():
    print(f"failed: {name}: {reason}", file=sys.stderr)
  print(report.report(WORKDIR.value, METRICS.value), end="")
  return 1 if failed else 0


def make_items():
  """The items of the flags; each one's arguments are parsed as its train command would."""
  from jtx.sweeps import sweep
  if SWEEP.value is None and not GRID.value:
    raise cli.UsageError("--sweep=NAME or --grid=KEY=VALUE,VALUE must be given")
  flag = flags.FLAGS[CONFIG.name]
  common = {k: sweep.override(v) for k, v in flag.override_values.items()}
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
  for key in common:
    if edits and all(key in e for e in edits):
      raise cli.UsageError(f"--config.{key} would have no effect, since every item sets {key}")
  shared = lambda edit: {key: text for key, text in common.items() if key not in edit}
  arguments = [
      [f"--config={flag.config_filename}",
       *(f"--config.{key}={text}" for key, text in (shared(edit) | edit).items())]
      for edit in edits]
  return sweep.plan(edits, [cli.config_of(a) for a in arguments], arguments, WORKDIR.value, TRAIN)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
