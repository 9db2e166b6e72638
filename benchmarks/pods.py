"""Tables of docs/scale.md and docs/speed.md: what XLA's compilers say of configs on TPUs and GPUs.

  python -m benchmarks.pods --workdir=runs/pods [--tables=pods,cycles] [--only=nmt_base] [--made]

Each line is a run of `experiments.compile` (some take minutes), or of `benchmarks.plain_step` for
the plain Flax model beside it; the reports are kept in the workdir: called again, the command makes
what is missing, and writes the tables anew: pods, gpus, cycles, plain, meshes. `gpus` needs the
extra `aot-gpu`, `meshes` that and `aot`, the others `aot`.
"""

import functools
import json
import pathlib
import re
import subprocess
import sys
from typing import Any, Callable, NamedTuple

from absl import flags, logging

from experiments import cli
from jtx.train import progress

ROOT = pathlib.Path(__file__).absolute().parent.parent
DOCS = ROOT / "docs"


class Pod(NamedTuple):
  """A config where it would be trained: a pod, or GPUs."""
  config: str  # file of configs/ and its arguments
  topology: str
  mesh: dict[str, int]  # sizes that are not 1
  more: tuple[str, ...] = ()  # flags of experiments.compile
  plain: bool = False  # its step is that of a plain Flax model of the same sizes

  def arguments(self) -> list[str]:
    name, _, arguments = self.config.partition(":")
    sizes = {"data": 1} | self.mesh
    return [f"--config=configs/{name}.py" + (f":{arguments}" if arguments else ""),
            f"--topology={self.topology}",
            *(f"--config.mesh.{axis}={n}" for axis, n in sizes.items()), *self.more]


Found = dict[str, Any]  # a report
Reports = Callable[[Pod], Found]

DOTS = "--config.model.stack.remat=dots"
PODS = (
    Pod("bert_base", "v5e:4x4", {"fsdp": 16}),
    Pod("bert_base", "v5e:16x16", {"data": 16, "fsdp": 16}),
    Pod("bert_large", "v5e:4x4", {"fsdp": 16}),
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
    Pod("detr", "v5e:4x4", {"fsdp": 16}, ("--outputs=80",)),
    Pod("coatnet:3", "v5e:4x4", {"fsdp": 16}, ("--outputs=1000", "--config.optim.accumulate=4")),
    Pod("clip:clip_b16", "v5e:4x4", {"fsdp": 16}, (
        "--config.tokenizer.kind.vocab_size=49408", "--config.batch_size=4096")),
    Pod("t5:mt5_base", "v5e:4x4", {"fsdp": 16}, ("--config.tokenizer.kind.vocab_size=250112",)),
    Pod("t5:t5_3b", "v5p:4x4x4", {"data": 4, "fsdp": 16},
        ("--config.tokenizer.kind.vocab_size=32128",)),
)
GPUS = (
    Pod("bert_base", "h100:1", {}, ("--config.batch_size=32", "--config.phases=((1.0,512,32),)")),
    Pod("bert_base", "h100:8", {"data": 8}),
    Pod("bert_base", "h100:8", {"fsdp": 8}),
    Pod("bert_large", "h100:8", {"fsdp": 8}),
    Pod("bert_large", "a100:8", {"fsdp": 8}),
    Pod("bert_large", "b200:8", {"fsdp": 8}),
    Pod("nmt_base", "h100:1", {}, ("--vocab_size=37000",)),
    Pod("nmt_base", "h100:8", {"data": 8}, ("--vocab_size=37000",)),
    Pod("vit_b16", "h100:1", {}, ("--config.batch_size=128", "--outputs=1000")),
    Pod("vit_b16", "h100:8", {"fsdp": 8}, ("--outputs=1000",)),
)
ONE_CHIP = {
    "bert_base": ("--vocab_size=30522", "--config.phases=((1.0,512,16),)",
                  "--config.batch_size=16"),
    "vit_b16": ("--outputs=1000", "--config.batch_size=64"),
    "nmt_base": ("--vocab_size=37000", "--config.phases=((1.0,256,12),)",
                 "--config.batch_size=12"),
    "mae:b": ("--config.batch_size=64",),
    "modernbert": ("--vocab_size=50368", "--config.phases=((1.0,8192,1),)",
                   "--config.batch_size=1", "--config.optim.accumulate=1"),
}
CYCLES = tuple(Pod(name, "v5e:1x1", {}, (*more, "--ops=5")) for name, more in ONE_CHIP.items())
# The same steps on four chips or GPUs: every config on every kind, and both on every mesh.
SHAPES = ("v4:2x2x1", "v5p:2x2x1", "v6e:2x2", "v5e:2x2", "h100:4")
AXES = ("fsdp", "tensor", "context")
FOUR = ONE_CHIP | {"modernbert": ("--vocab_size=50368", "--config.phases=((1.0,8192,4),)",
                                  "--config.batch_size=4", "--config.optim.accumulate=1")}
MESHES = tuple(Pod(name, shape, {AXES[(row + column) % 3]: 4}, more)
               for row, (name, more) in enumerate(FOUR.items())
               for column, shape in enumerate(SHAPES))


def report(pod: Pod, folder: pathlib.Path, made: bool) -> Found:
  """The report of a pod: that of the folder, or a new one.

  Raises:
    FileNotFoundError: there is none in the folder, and only what is `made` is wanted.
  """
  name = ("plain_" if pod.plain else "") + re.sub(r"[^\w.=-]+", "_", " ".join(pod.arguments()))
  path = folder / f"{name}.json"
  if not path.exists() and made:
    raise FileNotFoundError(path)
  if not path.exists():
    module = "benchmarks.plain_step" if pod.plain else "experiments.compile"
    command = [sys.executable, "-m", module, *pod.arguments()]
    logging.info("%s", " ".join(command))
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
      raise cli.UsageError(f"{' '.join(command)}: {done.stderr.strip().splitlines()[-1]}")
    path.write_text(done.stdout.splitlines()[-1] + "\n", encoding="utf-8")
  return json.loads(path.read_text(encoding="utf-8"))


def head(pod: Pod, found: Found) -> list[str]:
  """The cells of a line that tell what was compiled and whether it fits."""
  sizes, gib = found["bytes"], 2**30
  mesh = " ".join(f"{axis}={n}" for axis, n in found["mesh"].items())
  flags_of = " ".join(f"`{flag}`" for flag in pod.more)
  cells = [f"`{pod.config}` {flags_of}".strip(), ", ".join(filter(None, (pod.topology, mesh))),
           f"{found['batch']:,}" + (f" x {found['length']}" if found["length"] else ""),
           f"{found['parameters'] / 1e6:.0f} M"]
  if "peak" not in sizes:
    return [*cells, "", "", "does not fit"]
  kept = (sizes["parameters"] + sizes["optimizer"] + sizes["average"]) / gib
  return [*cells, f"{kept:.2f} + {sizes['activations'] / gib:.2f}",
          f"{sizes['peak'] / gib:.1f} of {sizes['chip'] / gib:.0f}",
          "fits" if found["fits"] else "does not fit"]


HEAD = "config | chips, mesh | batch | parameters | state + rest, GiB a chip | peak, GiB | "


def pod_cells(found: Found) -> list[str]:
  """How much more is sent than must be, and the estimate of a step."""
  if "peak" not in found["bytes"]:
    return ["", "", ""]
  estimate = found["estimate"]
  return [f"{found['sent_bytes'] / max(found['least_sent_bytes'], 1):.2f}",
          f"{estimate['step_s'] * 1e3:.3g} ms, {estimate['bound_by']}",
          f"{estimate['utilisation']:.0%}"]


def gpu_cells(found: Found) -> list[str]:
  """What is sent, beside the least, and the kernels."""
  if "peak" not in found["bytes"]:
    return ["", ""]
  least = f"{found['least_sent_bytes'] / 1e6:,.0f}"
  return [f"{found['sent_bytes'] / 1e6:,.0f}, {least}" if found["sent_bytes"] else "",
          ", ".join(f"{kernel['count']} {name}" for name, kernel in found["kernels"].items())]


def cycle_cells(found: Found) -> list[str]:
  """The compiler's cycles, and the operations that have most of them."""
  ops = found["ops"]
  peak = progress.peak_flops(found["device_kind"])
  most = ", ".join(f"{name} {cycles / ops['cycles']:.0%}" for name, cycles, _ in ops["operation"])
  return [f"{ops['cycles']:.3g}", f"{ops['seconds'] * 1e3:.1f} ms",
          f"{found['flops_per_step'] / peak / ops['seconds']:.0%}", f"{found['compile_s']:.0f} s",
          most]


def of_one(cells: Callable[[Found], list[str]]) -> Callable[[Pod, Reports], list[str]]:
  """What makes the lines of a table of one report a line, of what makes its own cells."""
  def line(pod: Pod, reports: Reports) -> list[str]:
    found = reports(pod)
    return head(pod, found) + cells(found)
  return line


def beside_plain(pod: Pod, reports: Reports) -> list[str]:
  """The cycles and the memory of a step beside those of plain Flax, and how often it needs ours.

  Ours has its layers in a loop, and then unrolled.
  """
  plain, looped = reports(pod._replace(plain=True)), reports(pod)
  unrolled = reports(pod._replace(more=(*pod.more, *unroll(pod))))
  flags_of = " ".join(f"`{flag}`" for flag in pod.more if "ops" not in flag)
  cells = [f"`{pod.config}` {flags_of}".strip()]
  if plain["fits"]:
    cycles, size = plain["ops"]["cycles"], plain["bytes"]["peak"] / 2**30
  else:
    cycles, size = None, needed(plain)
  cells += [f"{cycles:.3g}" if cycles else "does not fit", f"{size:.2f}" if size else "",
            f"{plain['compile_s']:.0f} s"]
  for ours in (looped, unrolled):
    of_ours = ours["bytes"]["peak"] / 2**30
    cells += [f"{ours['ops']['cycles']:.3g}" + times(cycles, ours["ops"]["cycles"]),
              f"{of_ours:.2f}" + times(size, of_ours), f"{ours['compile_s']:.0f} s"]
  return cells


def times(plain: float | None, ours: float) -> str:
  return f" ({plain / ours:.2f})" if plain else ""


def unroll(pod: Pod) -> tuple[str, ...]:
  """The flags that unroll all layers of a config of ONE_CHIP; MAE's decoder follows its stack."""
  stacks = ("encoder", "decoder") if pod.config == "nmt_base" else ("stack",)
  return tuple(f"--config.model.{stack}.unroll=-1" for stack in stacks)


def needed(found: Found) -> float | None:
  """GiB that a program needs which does not fit, where the compiler tells."""
  if "peak" in found.get("bytes", {}):
    return found["bytes"]["peak"] / 2**30
  match = re.search(r"(?:[Uu]sed |temporaries \()([\d.]+)G(?: of|\))", found["why"])
  return float(match[1]) if match else None


def mesh_cells(found: Found) -> list[str]:
  """The cycles of TPUs, and the kernels of attention, of both passes and all kinds of layers."""
  if "peak" not in found["bytes"]:
    return ["", ""]
  ops, pallas = found.get("ops"), {}
  for name, kernel in found["kernels"].items():
    if match := re.fullmatch(r"(\w+) \(Pallas, (\w+)\)", name):
      pallas[f"{kernel['count']} {match[1]}"] = match[2]
  made_by = ", ".join(sorted(set(pallas.values())))
  return [f"{ops['cycles']:.3g}, {ops['seconds'] * 1e3:.1f} ms" if ops else "",
          f"{', '.join(pallas)} ({made_by})" if pallas else "none of Pallas"]


# By the marks on the page: the page, the lines, the titles of their cells, and what makes them.
KINDS = {
    "pods": ("scale.md", PODS,
             f"{HEAD} | sent / least | estimated step, bound by | estimated utilisation",
             of_one(pod_cells)),
    "gpus": ("scale.md", GPUS, f"{HEAD} | sent, and the least, MB | kernels", of_one(gpu_cells)),
    "cycles": ("speed.md", CYCLES, f"{HEAD} | cycles | at the clock | share of the peak |"
               " compiled in | most of it", of_one(cycle_cells)),
    "meshes": ("speed.md", MESHES, f"{HEAD} | cycles | kernels of attention", of_one(mesh_cells)),
    "plain": ("speed.md", CYCLES, "config | plain Flax: cycles | peak, GiB | compiled in |"
              " jtx: cycles | peak, GiB | compiled in |"
              " jtx, unrolled: cycles | peak, GiB | compiled in", beside_plain),
}


def table(name: str, reports: Reports, only: str) -> str:
  """A table as Markdown, of lines with `only` in their command, which are printed as well."""
  _, pods, titles, cells_of = KINDS[name]
  lines = [f"| {titles} |", "| " + " | ".join(["---"] * len(titles.split("|"))) + " |"]
  for pod in pods:
    if only not in " ".join(pod.arguments()):
      continue
    try:
      lines.append(f"| {' | '.join(cells_of(pod, reports))} |")
    except FileNotFoundError:  # with --made
      continue
    print(lines[-1], flush=True)
  return "\n".join(lines) + "\n"


def main() -> None:
  folder = pathlib.Path(WORKDIR.value).absolute()
  folder.mkdir(parents=True, exist_ok=True)
  for name in TABLES.value:
    if name not in KINDS:
      raise cli.UsageError(f"--tables={name}: {' or '.join(KINDS)}")
    made = table(name, functools.partial(report, folder=folder, made=MADE.value), ONLY.value)
    if not ONLY.value:
      marked = re.compile(rf"(?<=<!-- {name} -->\n).*?(?=<!-- /{name} -->)", re.DOTALL)
      page = DOCS / KINDS[name][0]
      text = page.read_text(encoding="utf-8")
      page.write_text(marked.sub(lambda _: made, text), encoding="utf-8")


if __name__ == "__main__":
  # Not where functions are taken from here: another program has a --workdir of its own.
  WORKDIR = flags.DEFINE_string("workdir", None, "Folder for the reports.")
  TABLES = flags.DEFINE_list("tables", list(KINDS), "Which to make.")
  MADE = flags.DEFINE_bool("made", False, "Only the lines whose reports are in the workdir.")
  ONLY = flags.DEFINE_string("only", "", "Of their lines, those whose command has this in it; the"
                             " page stays as it is.")
  cli.run(main, required=("workdir",))
