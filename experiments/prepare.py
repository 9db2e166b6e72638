"""Tokenises the training sources of a config once, into files that training then reads.

  python -m experiments.prepare --config=configs/X.py[:args] --output=D [--workers=N]
      [--shard_size=N] [--beam="--runner=..."] [--config.a.b=value]

Then `experiments.train` with --config.data.train=prepared:D trains on the same batches, from D.
Ended at any moment, the same command goes on where it stopped; on a finished D it checks every file
and makes damaged ones again. What D holds is told in jtx/data/corpus/reader.py.
"""

import shlex

from absl import flags
from ml_collections import config_flags

from experiments import cli

CONFIG = config_flags.DEFINE_config_file("config", None, "File of the experiment, with arguments.")
OUTPUT = flags.DEFINE_string("output", None, "Folder to make.")
WORKERS = flags.DEFINE_integer(
    "workers", 0, "Processes that make shards; 0 is this one alone.", lower_bound=0)
SHARD_SIZE = flags.DEFINE_integer(
    "shard_size", 10_000, "Examples of a source, or documents, in a shard.", lower_bound=1)
BEAM = flags.DEFINE_string(
    "beam", None, "Arguments of an Apache Beam pipeline that makes the shards instead.")


def main() -> None:
  if BEAM.value is not None:
    if WORKERS.value:
      raise cli.UsageError("--workers has no effect beside --beam, whose own arguments say how many"
                           " there are")
    try:
      import apache_beam  # pylint: disable=unused-import
    except ImportError as error:
      raise cli.UsageError('--beam needs Apache Beam: pip install -e ".[beam]"') from error
  from jtx.data.corpus import writer
  config = CONFIG.value
  writer.prepare(
      config.data, config.tokenizer, OUTPUT.value, shard_size=SHARD_SIZE.value,
      workers=WORKERS.value, beam=None if BEAM.value is None else shlex.split(BEAM.value))


if __name__ == "__main__":
  cli.run(main, required=("config", "output"))
