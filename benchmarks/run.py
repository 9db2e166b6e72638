"""Speed, memory and scores beside a peer's, measured in one run.

  python -m benchmarks.run --suite=nmt --data=FOLDER --workdir=runs/bench_nmt
  python -m benchmarks.run --suite=finetune --init=MODEL --data=FOLDER --workdir=runs/finetune

The systems take turns on an otherwise idle machine. The last line is one JSON object. Needs
the extra `parity` (PyTorch and transformers): pip install -e ".[parity]".
"""

import json

from absl import flags

from benchmarks import finetune, nmt
from experiments import cli

SUITES = ("nmt", "finetune")

SUITE = flags.DEFINE_enum("suite", None, SUITES, "What to measure.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the model that is trained first.")
DATA = flags.DEFINE_string("data", "", "nmt: folder of train.en, train.de, val.en and val.de;"
                           " without it generated number words are used. finetune: folder of"
                           " the tasks' folders.")
INIT = flags.DEFINE_string("init", "", "finetune: Hugging Face folder of the encoder.")
TASKS = flags.DEFINE_multi_enum("task", list(finetune.TASKS), list(finetune.TASKS),
                                "finetune: of the suite; may be repeated.")
SEEDS = flags.DEFINE_integer("seeds", 3, "finetune: how many, from 0.", lower_bound=1)
PARTS = flags.DEFINE_multi_enum("part", ["train", "translate"], ["train", "translate"],
                                "nmt: of the suite; may be repeated.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "nmt: turns of each system.", lower_bound=1)
PRETRAIN_STEPS = flags.DEFINE_integer(
    "pretrain_steps", 600, "nmt: updates before translating, so that sentences end.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 3, "nmt: updates of a turn.", lower_bound=1)
SENTENCES = flags.DEFINE_integer("sentences", 1000, "nmt: to translate in a turn.", lower_bound=1)
SIZE = flags.DEFINE_enum("size", "base", ("base", "tiny"), "nmt: of the model; tiny tries things out.")


def main() -> None:
  if SUITE.value == "finetune":
    for flag in (INIT, DATA):
      if not flag.value:
        raise cli.UsageError(f"--suite=finetune needs --{flag.name}")
    result = finetune.run(WORKDIR.value, DATA.value, INIT.value, TASKS.value, SEEDS.value)
  else:
    result = nmt.run(WORKDIR.value, DATA.value, SIZE.value, PARTS.value, ROUNDS.value,
                     PRETRAIN_STEPS.value, STEPS.value, SENTENCES.value)
  print(json.dumps(result))


if __name__ == "__main__":
  cli.run(main, required=("suite", "workdir"))
