"""Where the time of a compiled TPU program goes, by the cycles that XLA's cost model gives it.

XLA's TPU compiler notes `estimated_cycles` behind every instruction. Their sum, instructions inside
loops as often as these run, is what it takes the program for; no chip is needed.
"""

import collections
import re
from typing import Any, Mapping, NamedTuple

from jtx.compile import runs

# Cycles a second: the chip's published peak of bf16 over what its matrix units do in a cycle.
CLOCKS = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9}

# Of a kernel the compiler knows nothing but what the kernel says itself: it is taken to reach these
# shares of the peak and of the memory's bandwidth. XLA's own estimates assume the latter.
KERNEL_PEAK, KERNEL_BANDWIDTH = 0.6, 470 / 819

KEYS = ("operation", "layer", "line")  # of Work, that a summary is by

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL = re.compile(r'"cost_estimate":\{"flops":"(\d+)","transcendentals":"\d+",'
                     r'"bytes_accessed":"(\d+)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_OPCODE = re.compile(r" ([a-z][\w\-]*)\(%?")
_ENTRY = re.compile(r"^(\d+) (.*)$")
# Parts of an operation's name that are the tracing's and no module's.
_TRACING = re.compile(r"^(jit|jvp|transpose|vmap|while|body|cond|closed_call|checkpoint|remat\w*|"
                      r"rematted_computation|branch_\d+_fun|shard_map|custom_\w+)\b")


class Work(NamedTuple):
  """What one instruction costs in a run of the program."""
  cycles: float  # of all its runs
  runs: float
  operation: str  # of JAX, such as dot_general; else of XLA, such as copy-start
  layer: str  # path of modules, behind "forward", "backward" or "update"
  line: str  # FILE:LINE of the source, or ""


class Rates(NamedTuple):
  """The published peaks of a chip, in a cycle of its clock."""
  operations: float  # bf16
  bytes: float  # to and from memory


def work(text: str, rates: Rates, shares: runs.Shares = {}) -> list[Work]:
  """The instructions of a compiled module that cost something, the costliest first.

  Args:
    text: of `jax.stages.Compiled.as_text()`, for a TPU.
    rates: of the chip, for the kernels in it.
    shares: of branches, as for `runs.times_of`.
  """
  program = runs.computations(text)
  times, inside, frames = runs.times_of(program, shares), runs.fused(program), _frames(text)
  found = []
  for name, lines in program.items():
    for line in lines if times[name] and name not in inside else ():
      cycles = _cycles(line, rates)
      if not cycles:
        continue
      path = found_path[1] if (found_path := runs.OP_NAME.search(line)) else ""
      frame = _FRAME.search(line)
      found.append(Work(
          cycles=cycles * times[name], runs=times[name],
          operation=path.split("/")[-1] if path else _OPCODE.search(line)[1],
          layer=layer_of(path), line=frames.get(frame[1], "") if frame else ""))
  return sorted(found, key=lambda w: -w.cycles)


def _cycles(line: str, rates: Rates) -> float:
  if match := _KERNEL.search(line):
    operations, moved = map(int, match.groups())
    return max(operations / (KERNEL_PEAK * rates.operations),
               moved / (KERNEL_BANDWIDTH * rates.bytes))
  match = _CYCLES.search(line)
  return int(match[1]) if match else 0


def layer_of(path: str) -> str:
  """The pass and the modules in the name of an operation.

  "jit(train_step)/transpose(jvp(loss))/Encoder/encoder/while/body/layers/ffn/up/dot_general" is
  "backward Encoder/encoder/layers/ffn/up".
  """
  parts = path.split("/")[:-1]
  if not any(part.startswith(("jvp", "transpose")) for part in parts):
    when = "update"
  else:
    when = "backward" if any(part.startswith("transpose") for part in parts) else "forward"
  # A method of a module, "layers.residual", is its module's; "btkgh,bskh->bkgts" is an einsum.
  modules = [part.split(".")[0] for part in parts if not _TRACING.match(part) and "->" not in part]
  once = [m for i, m in enumerate(modules) if not i or m != modules[i - 1]]
  return " ".join([when, *(["/".join(once)] if once else [])])


def summary(text: str, rates: Rates, rows: int, shares: runs.Shares = {}) -> dict[str, Any]:
  """The cycles of a compiled module, and by operation, layer and line the `rows` costliest.

  Each of these is a list of (name, cycles, runs); the last row is that of all others, with 0 runs.
  """
  found = work(text, rates, shares)
  result: dict[str, Any] = {"cycles": sum(w.cycles for w in found)}
  for key in KEYS if rows else ():
    sums = collections.defaultdict(lambda: [0.0, 0.0])
    for w in found:
      sums[getattr(w, key)][0] += w.cycles
      sums[getattr(w, key)][1] += w.runs
    ordered = sorted(((name, *values) for name, values in sums.items()), key=lambda row: -row[1])
    result[key] = ordered[:rows]
    if others := ordered[rows:]:
      result[key].append((f"{len(others)} others", sum(row[1] for row in others), 0.0))
  return result


def tables(of: Mapping[str, Any]) -> str:
  """A `summary` as Markdown."""
  parts = [f"{of['cycles']:.4g} cycles\n"]
  for key in KEYS:
    parts.append(f"\n| {key} | cycles | share | runs |\n| --- | ---: | ---: | ---: |\n" + "".join(
        f"| {name or 'not known'} | {cycles:.3g} | {cycles / of['cycles']:.1%} |"
        f" {f'{runs:.0f}' if runs else ''} |\n" for name, cycles, runs in of[key]))
  return "".join(parts)


def _frames(text: str) -> dict[str, str]:
  """FILE:LINE of each stack frame, from the tables at the head of a module's text."""
  tables_of: dict[str, dict[str, str]] = collections.defaultdict(dict)
  current = ""
  for line in text.splitlines():
    if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
      current = line
    elif current and (match := _ENTRY.match(line)):
      tables_of[current][match[1]] = match[2]
    elif line.startswith(("%", "ENTRY")):
      break
  number = lambda key, entry: re.search(rf"\b{key}=(\d+)", entry)[1]
  result = {}
  for frame, entry in tables_of["StackFrames"].items():
    location = tables_of["FileLocations"][number("file_location_id", entry)]
    file = tables_of["FileNames"][number("file_name_id", location)].strip('"')
    result[frame] = f"{'/'.join(file.split('/')[-3:])}:{number('line', location)}"
  return result
