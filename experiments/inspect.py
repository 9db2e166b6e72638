"""Prints a checkpoint's config, step, and names and shapes of all arrays, without loading it.

  python -m experiments.inspect --workdir=W [--step=N]

The last line is one JSON object.
"""

import json
import math
import os

from absl import flags

from . import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a training run.")
STEP = flags.DEFINE_integer("step", None, "Checkpoint; the newest if not given.", lower_bound=0)


def main() -> None:
  import jax.numpy as jnp

  from jtx.errors import CheckpointError
  from jtx.saved.checkpoint import Checkpointer
  folder = os.path.join(WORKDIR.value, "checkpoints")
  checkpoints = Checkpointer(folder)
  steps = checkpoints.all_steps()
  if not steps:
    raise CheckpointError(f"--workdir={WORKDIR.value} has no checkpoint yet")
  manifest = checkpoints.read_manifest(STEP.value)
  checkpoints.close()

  items = {}
  for item, arrays in manifest.arrays.items():
    sizes = {path: math.prod(x["shape"]) for path, x in arrays.items()}
    items[item] = {
        "arrays": {path: {"shape": x["shape"], "dtype": x["dtype"]} for path, x in arrays.items()},
        "numbers": sum(sizes.values()),
        "bytes": sum(n * jnp.dtype(arrays[path]["dtype"]).itemsize for path, n in sizes.items())}
    for path, x in arrays.items():
      print(f"{path:<72} {x['dtype']}{x['shape']}")
  for item, x in items.items():
    print(f"{item}: {len(x['arrays'])} arrays of {x['numbers']:,} numbers, {x['bytes']:,} bytes")
  print(f"checkpoints of {folder}: {', '.join(map(str, steps))}")
  for step, score in manifest.scores:
    print(f"step {step}: {manifest.meta['config']['checkpoint']['best']} {score:.6g}")
  print(json.dumps({"step": manifest.step, "steps": steps, "scores": dict(manifest.scores),
                    "config": manifest.meta.get("config"), "items": items}))


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
