"""Tokenises the training sources of a config once, into files that training then reads.

  python -m experiments.prepare --config=configs/X.py[:args] --output=D [--workers=N]
      [--shard_size=N] [--beam="--runner=..."] [--config.a.b=value]

Then `experiments.train` with --config.data.train=prepared:D trains on the same batches, from D.
If it is interrupted, run the same command again and it continues; on a finished D it checks every
file and makes damaged ones again. jtx/data/corpus/files.py describes the files.
"""

import functools
import shlex

from absl import flags
from ml_collections import config_flags

from . import cli

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
      from jtx.data.corpus import beam
    except ImportError as error:
      raise cli.UsageError('--beam needs Apache Beam: pip install -e ".[beam]"') from error
    run = functools.partial(beam.make_shards, arguments=shlex.split(BEAM.value))
  else:
    from jtx.data.corpus import writer
    run = functools.partial(writer.make_shards, workers=WORKERS.value)
  from jtx.data.make_corpus import prepare
  from jtx.train.keys import check_config
  config = CONFIG.value
  check_config(config)
  prepare(config.data, config.tokenizer, OUTPUT.value, shard_size=SHARD_SIZE.value, run=run)


if __name__ == "__main__":
  cli.run(main, required=("config", "output"))
