"""Trains with several processes on this machine, and starts them again when they were stopped.

  python -m experiments.launch.local --processes=2 [--cpu_devices=4] [--restarts=3]
      [--cache=DIR] [--dry_run] -- --config=configs/X.py[:args] --workdir=W
      [--config.a.b=value]

What follows `--` is for experiments.train. The GPUs or cores of the machine are divided among the
processes; with --cpu_devices each process simulates as many devices instead.

Processes that were told to stop (exit status 75) start again, and so do all where one was killed,
--restarts times. On SIGTERM the processes save, and this exits with 75 too.
"""

import shlex

from absl import flags

from . import common

PROCESSES = flags.DEFINE_integer("processes", None, "To start.", lower_bound=1)
CPU_DEVICES = flags.DEFINE_integer("cpu_devices", 0, "To simulate in each process; 0 is to use what"
                                   " the machine has.", lower_bound=0)
RESTARTS = flags.DEFINE_integer("restarts", 3, "After a process was killed.", lower_bound=0)


def main() -> int:
  from jtx.launch import local
  commands = local.local_commands(common.training(common.PYTHON), PROCESSES.value,
                                   CPU_DEVICES.value, common.environment())
  if common.DRY_RUN.value:
    for command in commands:
      print(" ".join([*(f"{k}={shlex.quote(v)}" for k, v in command.env.items()),
                      shlex.join(command.arguments("127.0.0.1:PORT"))]))
    return 0
  return local.run(commands, RESTARTS.value)


if __name__ == "__main__":
  common.run(main, required=("processes",), resumes=True)
