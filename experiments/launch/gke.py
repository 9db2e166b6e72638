"""Trains on TPU slices of Google Kubernetes Engine, as a JobSet that restarts when told to stop.

  python -m experiments.launch.gke --name=run --image=IMAGE --topology=v5e:4x4 [--slices=2]
      [--restarts=3] [--cache=gs://...] [--dry_run]
      -- --config=configs/X.py[:args] --workdir=gs://.../W [--config.a.b=value]

What follows `--` is for experiments.train. IMAGE has jtx installed with the extra `tpu`, and the
repository as its working directory. The manifest goes to `kubectl apply`; --dry_run prints it.
"""

from absl import flags

from . import common

NAME = flags.DEFINE_string("name", None, "Of the JobSet.")
IMAGE = flags.DEFINE_string("image", None, "Of the container.")
TOPOLOGY = flags.DEFINE_string("topology", None, "Chip and shape, such as v5e:4x4.")
SLICES = flags.DEFINE_integer("slices", 1, "Of that shape.", lower_bound=1)
RESTARTS = flags.DEFINE_integer("restarts", 3, "After failures.", lower_bound=0)


def main() -> int:
  from jtx.launch import clusters
  value = clusters.jobset(
      common.training("python"), name=NAME.value, image=IMAGE.value, topology=TOPOLOGY.value,
      slices=SLICES.value, env=common.environment(), restarts=RESTARTS.value)
  return common.submit(["kubectl", "apply", "-f", "-"], clusters.manifest(value))


if __name__ == "__main__":
  common.run(main, required=("name", "image", "topology"))
