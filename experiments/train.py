"""Trains a config. The logic is in `jtx/train.py`; here are its flags.

  python -m experiments.train --config=configs/X.py[:args] --workdir=W [--config.a.b=value]
"""

from absl import flags
from ml_collections import config_flags

from experiments import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, metrics and pictures.")
MAX_SECONDS = flags.DEFINE_float(
    "max_seconds", 0.0, "Save and stop after these seconds, to be started again (exit status 75, as"
    " after SIGTERM); 0 is no limit.", lower_bound=0.0)


def main() -> None:
  from jtx import train
  train.run(CONFIG.value, WORKDIR.value, max_seconds=MAX_SECONDS.value)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
