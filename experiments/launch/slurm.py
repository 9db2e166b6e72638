"""Trains on a Slurm cluster: submits a batch job that is requeued when it was told to stop.

  python -m experiments.launch.slurm --nodes=2 [--tasks_per_node=8] [--sbatch=--partition=gpu]
      [--notice=120] [--cache=DIR] [--log=FILE] [--dry_run]
      -- --config=configs/X.py[:args] --workdir=W [--config.a.b=value]

What follows `--` is for experiments.train; W is a folder that all nodes see. Slurm sends SIGTERM
--notice seconds before the time limit, and when it preempts the job; the run saves and goes on when
the job starts again. --sbatch may be repeated.
"""

import os

from absl import flags

from . import common

NODES = flags.DEFINE_integer("nodes", None, "Of the job.", lower_bound=1)
TASKS = flags.DEFINE_integer("tasks_per_node", 1, "Processes on each node.", lower_bound=1)
NAME = flags.DEFINE_string("name", "jtx", "Of the job.")
NOTICE = flags.DEFINE_integer("notice", 120, "Seconds before the time limit.", lower_bound=1)
LOG = flags.DEFINE_string("log", "jtx-%j.log", "File of the output; %j is the job's number.")
SBATCH = flags.DEFINE_multi_string("sbatch", [], "Option of sbatch; may be repeated.")


def main() -> int:
  from jtx.launch import clusters
  script = clusters.slurm_script(
      common.training(common.PYTHON), name=NAME.value, nodes=NODES.value,
      tasks_per_node=TASKS.value, log=LOG.value, folder=os.getcwd(), env=common.environment(),
      notice=NOTICE.value, options=SBATCH.value)
  return common.submit(["sbatch"], script)


if __name__ == "__main__":
  common.run(main, required=("nodes",))
