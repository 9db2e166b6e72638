"""Trains a config. The logic is in `jtx/train/loop.py`; here are its flags.

  python -m experiments.train --config=configs/X.py[:args] --workdir=W [--config.a.b=value]

Where Slurm, Open MPI, Kubernetes or a Cloud TPU start it as one of several processes, they find
each other; elsewhere --coordinator, --num_processes and --process_id say it. See
experiments/launch.
"""

from absl import flags
from ml_collections import config_flags

from . import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, metrics and pictures.")
MAX_SECONDS = flags.DEFINE_float(
    "max_seconds", 0.0, "Save and stop after these seconds, to be started again (exit status 75, as"
    " after SIGTERM); 0 is no limit.", lower_bound=0.0)
STUCK_SECONDS = flags.DEFINE_float(
    "stuck_seconds", 1800.0, "End a process that is one of several after these seconds without a"
    " step, compilation included; 0 is no limit.", lower_bound=0.0)
COORDINATOR = flags.DEFINE_string("coordinator", "", "HOST:PORT of process 0, of several.")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "Of the job.", lower_bound=0)
PROCESS_ID = flags.DEFINE_integer("process_id", -1, "Of this process, from 0.")


def main() -> None:
  import jax

  from jtx.parallel import processes
  from jtx.train import loop
  processes.initialize(COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
  loop.run(CONFIG.value, WORKDIR.value, max_seconds=MAX_SECONDS.value,
           stuck_seconds=STUCK_SECONDS.value if jax.process_count() > 1 else 0.0,
           config_file=cli.config_path(CONFIG))


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"), resumes=True)
