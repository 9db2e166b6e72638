"""Speed and memory beside a peer's, measured in one run.

  python -m benchmarks.run --suite=nmt --data=FOLDER --workdir=runs/bench_nmt

The systems take turns on an otherwise idle machine. The last line is one JSON object. Needs
the extra `parity` (PyTorch and transformers): pip install -e ".[parity]".
"""

import json

from absl import flags

from experiments import cli

SUITES = ("nmt",)

SUITE = flags.DEFINE_enum("suite", None, SUITES, "What to measure.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the model that is trained first.")
DATA = flags.DEFINE_string("data", "", "Folder of train.en, train.de, val.en and val.de;"
                           " without it generated number words are used.")
PARTS = flags.DEFINE_multi_enum("part", ["train", "translate"], ["train", "translate"],
                                "What of the suite; may be repeated.")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Turns of each system.", lower_bound=1)
PRETRAIN_STEPS = flags.DEFINE_integer(
    "pretrain_steps", 600, "Updates before translating, so that sentences end.", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 3, "Updates of a turn.", lower_bound=1)
SENTENCES = flags.DEFINE_integer("sentences", 1000, "To translate in a turn.", lower_bound=1)
SIZE = flags.DEFINE_enum("size", "base", ("base", "tiny"), "Of the model; tiny tries things out.")


def main() -> None:
  from benchmarks import nmt
  result = nmt.run(WORKDIR.value, DATA.value, SIZE.value, PARTS.value, ROUNDS.value,
                   PRETRAIN_STEPS.value, STEPS.value, SENTENCES.value)
  print(json.dumps(result))


if __name__ == "__main__":
  cli.run(main, required=("suite", "workdir"))
