"""Trains on a Cloud TPU slice: the command runs on all of its hosts, and again when told to stop.

  python -m experiments.launch.tpu --name=my-pod --zone=us-central2-b [--project=P] [--folder=jtx]
      [--cache=gs://...] [--dry_run]
      -- --config=configs/X.py[:args] --workdir=gs://.../W [--config.a.b=value]

What follows `--` is for experiments.train; W is a path that all hosts see. The hosts have the
repository in --folder, with `.venv` made by `make test` and the extra `tpu`.
"""

from absl import flags

from . import common

NAME = flags.DEFINE_string("name", None, "Of the TPU.")
ZONE = flags.DEFINE_string("zone", None, "Of the TPU.")
PROJECT = flags.DEFINE_string("project", "", "Of the TPU; gcloud's own if not given.")
FOLDER = flags.DEFINE_string("folder", "jtx", "Of the repository on the hosts, from the home.")


def main() -> int:
  from jtx.launch import clusters
  line = clusters.until_done(common.training(".venv/bin/python"), folder=FOLDER.value,
                             env=common.environment())
  return common.submit(clusters.tpu_command(line, name=NAME.value, zone=ZONE.value,
                                            project=PROJECT.value))


if __name__ == "__main__":
  common.run(main, required=("name", "zone"))
