"""Compiles a config's train step for chips that are not here, and says whether it fits on them.

  python -m experiments.compile --config=configs/X.py[:args] --topology=v5e:4x4 [--slices=2]
      [--search] [--ops=N] [--vocab_size=N] [--outputs=N] [--config.mesh.fsdp=16]

Topologies are of v4, v5e, v5p and v6e, and need the extra `aot`; or of a100, h100, h200 and b200,
as h100:8, and need the extra `aot-gpu`. cpu:8 simulates eight devices.
--search tries all shapes of the mesh and ranks them. --ops shows where the time goes: the
operations, layers and source lines with most of the cycles that XLA's TPU compiler estimates.
Nothing is read of the data: what the config leaves to it, the size of the vocabulary and the number
of classes, is given by flags.

The last line is one JSON object, or for --search a list of them. Times are estimates: the longest
of what arithmetic, memory and network would take alone, at their published peaks.
"""

import json

from absl import flags
from ml_collections import config_flags

from . import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
TOPOLOGY = flags.DEFINE_string("topology", None, "Chip and shape, such as v5e:4x4; GPU and"
                               " how many, such as h100:8; or cpu:8.")
SLICES = flags.DEFINE_integer("slices", 1, "Of that topology.", lower_bound=1)
SEARCH = flags.DEFINE_bool("search", False, "Try all shapes of the mesh.")
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", None, "Where the config leaves it to the data.",
                                  lower_bound=1)
OUTPUTS = flags.DEFINE_integer("outputs", None, "Classes or tags, where the config leaves them to"
                               " the data.", lower_bound=1)

OPS = flags.DEFINE_integer(
    "ops", 0, "Rows of tables of the operations, layers and source lines that take most cycles by"
    " the compiler's cost model.", lower_bound=0)


def main() -> None:
  from jtx.compile import aot, cycles, topologies
  from jtx.train.keys import check_config
  check_config(CONFIG.value)
  topologies.set_up(TOPOLOGY.value)
  options = dict(slices=SLICES.value, vocab_size=VOCAB_SIZE.value, outputs=OUTPUTS.value,
                 ops=OPS.value)
  run = aot.search if SEARCH.value else aot.report
  result = run(CONFIG.value, TOPOLOGY.value, **options)
  for one in result if SEARCH.value else [result]:
    print(aot.line(one))
    if OPS.value and "ops" in one:
      print("\n" + cycles.tables(one["ops"]))
  print(json.dumps(result))


if __name__ == "__main__":
  cli.run(main, required=("config", "topology"))
