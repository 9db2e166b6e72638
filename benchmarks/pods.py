"""The table of docs/scale.md: what XLA's compiler says of each config on a pod that suits it.

  python -m benchmarks.pods --workdir=runs/pods [--only=bert_large]

Each line is a run of `experiments.compile` (some take minutes), whose report is kept in the
workdir: called again, the command makes what is missing, and writes the table anew. Needs the
extra `aot`.
"""

import json
import pathlib
import re
import subprocess
import sys
from typing import Any, NamedTuple

from absl import flags, logging

from experiments import cli

WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the reports.")
ONLY = flags.DEFINE_string("only", "", "Of PODS, those whose command has this in it.")

ROOT = pathlib.Path(__file__).absolute().parent.parent
PAGE = ROOT / "docs" / "scale.md"
TABLE = re.compile(r"(?<=<!-- pods -->\n).*?(?=<!-- /pods -->)", re.DOTALL)


class Pod(NamedTuple):
  """A config where it would be trained."""
  config: str  # file of configs/ and its arguments
  topology: str
  mesh: dict[str, int]  # sizes that are not 1
  more: tuple[str, ...] = ()  # flags of experiments.compile

  def arguments(self) -> list[str]:
    name, _, arguments = self.config.partition(":")
    sizes = {"data": 1} | self.mesh
    return [f"--config=configs/{name}.py" + (f":{arguments}" if arguments else ""),
            f"--topology={self.topology}",
            *(f"--config.mesh.{axis}={n}" for axis, n in sizes.items()), *self.more]


DOTS = "--config.model.stack.remat=dots"
PODS = (
    Pod("bert_base", "v5e:4x4", {"fsdp": 16}),
    Pod("bert_base", "v5e:16x16", {"data": 16, "fsdp": 16}),
    Pod("bert_large", "v5e:4x4", {"fsdp": 16}, (DOTS,)),
    Pod("bert_large", "v5p:4x4x4", {"data": 4, "fsdp": 16}),
    Pod("bert_multilingual", "v5e:4x4", {"fsdp": 16}),
    Pod("roberta", "v5e:16x16", {"data": 16, "fsdp": 16}, (DOTS,)),
    Pod("albert", "v5e:16x16", {"data": 256}, (DOTS,)),
    Pod("modernbert", "v5e:16x16", {"fsdp": 64, "context": 4}),
    Pod("nmt_base", "v5e:2x4", {"data": 8}, ("--vocab_size=37000",)),
    Pod("nmt_big", "v5e:4x4", {"fsdp": 16}, ("--vocab_size=37000",)),
    Pod("vit_b16", "v6e:4x4", {"fsdp": 16}, ("--outputs=1000",)),
    Pod("vit_b16:l", "v6e:4x4", {"fsdp": 16}, ("--outputs=1000",)),
    Pod("deit", "v5e:4x4", {"fsdp": 16}, ("--outputs=1000",)),
    Pod("deit3", "v5e:8x8", {"data": 4, "fsdp": 16}, ("--outputs=1000",)),
    Pod("mae", "v5e:8x8", {"data": 4, "fsdp": 16}),
)


def report(pod: Pod, folder: pathlib.Path) -> dict[str, Any]:
  """The report of a pod: that of the folder, or a new one."""
  path = folder / (re.sub(r"[^\w.=-]+", "_", " ".join(pod.arguments())) + ".json")
  if not path.exists():
    command = [sys.executable, "-m", "experiments.compile", *pod.arguments()]
    logging.info("%s", " ".join(command))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
      raise cli.UsageError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    path.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
  return json.loads(path.read_text(encoding="utf-8"))


def row(pod: Pod, found: dict[str, Any]) -> str:
  """A line of the table."""
  sizes, gib = found["bytes"], 2**30
  mesh = " ".join(f"{axis}={n}" for axis, n in found["mesh"].items())
  flags_of = " ".join(f"`{flag}`" for flag in pod.more)
  cells = [f"`{pod.config}` {flags_of}".strip(), f"{pod.topology}, {mesh}",
           f"{found['batch']:,}" + (f" x {found['length']}" if found["length"] else ""),
           f"{found['parameters'] / 1e6:.0f} M"]
  if "peak" in sizes:
    kept = (sizes["parameters"] + sizes["optimizer"] + sizes["average"]) / gib
    cells += [f"{kept:.2f} + {sizes['activations'] / gib:.2f}",
              f"{sizes['peak'] / gib:.1f} of {sizes['chip'] / gib:.0f}",
              "fits" if found["fits"] else "does not fit",
              f"{found['sent_bytes'] / max(found['least_sent_bytes'], 1):.2f}"]
    estimate = found["estimate"]
    cells += [f"{estimate['step_s'] * 1e3:.3g} ms, {estimate['bound_by']}",
              f"{estimate['utilisation']:.0%}"]
  else:
    cells += ["", "", "does not fit", "", "", ""]
  return f"| {' | '.join(cells)} |"


def main() -> None:
  folder = pathlib.Path(WORKDIR.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  lines = ["| config | chips, mesh | batch | parameters | state + rest, GiB a chip | peak, GiB |  |"
           " sent / least | estimated step, bound by | estimated utilisation |",
           "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
  for pod in PODS:
    if ONLY.value in " ".join(pod.arguments()):
      lines.append(row(pod, report(pod, folder)))
      print(lines[-1], flush=True)
  if not ONLY.value:
    PAGE.write_text(TABLE.sub("\n".join(lines) + "\n", PAGE.read_text(encoding="utf-8")),
                    encoding="utf-8")


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
