"""Runs the evaluators of a trained config. The last line is one JSON object of metrics.

  python -m experiments.evaluate --workdir=W [--step=best|newest|N] [--average=N]
"""

import json

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run.")
STEP = cli.define_step()
AVERAGE = flags.DEFINE_integer(
    "average", None, "Checkpoints to average, the newest ones; as the config says if not given.",
    lower_bound=1)
DATA_PATH = flags.DEFINE_string("data_path", None, "Folder of the data, if it moved.")


def main() -> None:
  from jtx.evals.run import evaluate, make_evaluators
  from jtx.saved.workdir import load_run
  task, params, step = load_run(WORKDIR.value, STEP.value, AVERAGE.value, DATA_PATH.value)
  evaluators = make_evaluators(task.config, task.model)
  results = evaluate(task, params, evaluators, step, WORKDIR.value)
  print(json.dumps({"step": step, **results}))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
