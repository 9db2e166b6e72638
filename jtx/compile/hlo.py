"""Traffic of a compiled program, between devices and in their memory, read from its HLO text.

XLA's own cost analysis counts the body of a loop once and does not distinguish collectives; here an
instruction inside loops counts as often as these run.
"""

import collections
import math
import re
from typing import NamedTuple

from jtx.compile import runs
from jtx.compile.runs import Definitions, Instruction

# Of what a collective works on, the part that each device of a group of n sends, when it is passed
# around a ring (Thakur et al. 2005): an all-reduce is a reduce-scatter and then an all-gather.
SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}

_ARRAY = re.compile(r"\b(" + "|".join(runs.BYTES) + r")\[([\d,]*)\]")
_COLLECTIVE = re.compile(r"= (.*?) (" + "|".join(SENT) + r")(-start)?\((.*?)\)(?:, |$)")
# What moves no data by itself: names for it, control, and ends of what was counted at its start.
_FREE = frozenset((
    "parameter", "get-tuple-element", "tuple", "bitcast", "constant", "while", "conditional",
    "call", "after-all", "partition-id", "replica-id", "copy-done", "async-start", "async-update",
    "async-done", "slice-done", "opt-barrier",
    *(f"{kind}{end}" for kind in SENT for end in ("", "-start", "-done"))))
_SCATTER = "all-reduce-scatter"
_ROOM = re.compile(r", [su]8\[(\d+)\]\{0\}\)$")


class Traffic(NamedTuple):
  """The traffic of one device during one run of the program."""
  count: float  # how many collectives
  payload: float  # bytes of the whole arrays that they work on
  sent: float  # bytes that the device sends


def traffic(text: str) -> dict[str, Traffic]:
  """The collectives of a compiled module, by kind.

  Loops count with their trip counts, which must be constants: a loop of which the text does not
  tell any counts once. A collective that was split in pieces, which run beside other work and keep
  its channel, counts once.

  Args:
    text: of `jax.stages.Compiled.as_text()`.
  """
  program = runs.computations(text)
  times = runs.times_of(program)
  found: dict[tuple[str, str], tuple[float, float, int]] = {}
  for name, lines in program.items():
    for number, line in enumerate(lines):
      match = _COLLECTIVE.search(line)
      if match is None or not times[name]:
        continue
      kind, size, group = _describe(name, line, match)
      # A reduce-scatter, fused, is whole, and may have the channel of another.
      channel = None if _SCATTER in name else re.search(r"channel_id=(\d+)", line)
      key = (kind, channel[1] if channel else f"{name}:{number}")
      # A piece inside of a loop belongs to what was begun before it.
      count = min(times[name], found[key][0] if key in found else math.inf)
      found[key] = (count, size, group)
  totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0, 0.0])
  for (kind, _), (count, size, group) in found.items():
    if group > 1 and size:
      for i, value in enumerate((1.0, size, size * SENT[kind](group))):
        totals[kind][i] += count * value
  return {kind: Traffic(*values) for kind, values in sorted(totals.items())}


def _describe(computation: str, line: str, match: re.Match) -> tuple[str, int, int]:
  """Kind of the collective, bytes of what it works on, and devices of its group."""
  result, kind, start, operands = match.groups()
  group = _group_size(line)
  sizes = [runs.size_of(dtype, dims) for dtype, dims in _ARRAY.findall(result)]
  if start and kind != "all-reduce":  # whose type names what goes in, what comes out and flags
    number = operands.count("%")
    sizes = sizes[number:2 * number]
  size = sum(sizes) * (group if kind == "reduce-scatter" else 1)
  if kind == "all-reduce" and _SCATTER in computation:
    kind = "reduce-scatter"  # fused with the slice that each device keeps
  return kind, size, group


def _group_size(line: str) -> int:
  """Devices that a collective joins; 2 for a permutation, which has pairs."""
  if match := re.search(r"replica_groups=mesh\[(.*?)\].*? \{('.*?)\}", line):
    axes = dict(re.findall(r"'(\w+)'=(\d+)", match[1]))
    return math.prod(int(axes[axis]) for axis in re.findall(r"'(\w+)'", match[2]))
  if match := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
    return int(match[1])
  if match := re.search(r"replica_groups=\{\{([\d,]*)\}", line):
    return len(match[1].split(","))
  return 2 if "source_target_pairs={{" in line else 1


# ------------------------------------------------------------------------------- memory


def moved(text: str, shares: runs.Shares = {}) -> float:
  """Bytes that one run of a compiled module reads from and writes to a device's memory.

  An estimate: every instruction reads its operands and writes its result, but of what it takes a
  slice from, or writes a slice into, only the slice. What the compiler keeps in a cache on the chip
  does not count.

  Args:
    text: of `jax.stages.Compiled.as_text()`.
    shares: of branches.
  """
  program = runs.computations(text)
  times, inner = runs.times_of(program, shares), runs.fused(program)
  defined = {name: Definitions(lines) for name, lines in program.items()}
  return sum(times[name] * _moved(instruction, defined[name], defined)
             for name in program if times[name] and name not in inner
             for instruction in defined[name].values())


def _moved(instruction: Instruction, around: Definitions,
           defined: dict[str, Definitions]) -> int:
  op, operands, _, _ = instruction
  if op in _FREE:
    return 0
  if op == "copy-start":  # its type names both places, of which one may be the cache
    return instruction.bytes
  if op == "slice-start":  # its type names the whole and the slice
    return min(runs.size_of(dtype, dims)
               for dtype, dims, _ in runs.PLACED.findall(instruction.type) if dims)
  if op == "dynamic-slice":
    return 2 * instruction.bytes
  if op == "dynamic-update-slice":
    return 2 * around[operands[1]].bytes
  sizes = [around[x].bytes for x in operands]
  if op != "fusion":  # cuBLAS and cuDNN get room to work in, as the last result
    room = _ROOM.search(instruction.type) if op == "custom-call" else None
    return instruction.bytes + sum(sizes) - (int(room[1]) if room else 0)
  for i, part in enumerate(_parts_read(instruction, defined)):
    sizes[i] = sizes[i] if part is None else min(sizes[i], part)
  return _written(instruction, defined) + sum(sizes)


def _body(fusion: Instruction, defined: dict[str, Definitions]) -> Definitions:
  return defined[re.search(r"\bcalls=%?([\w.\-]+)", fusion.line)[1]]


def _parts_read(fusion: Instruction, defined: dict[str, Definitions]) -> list[int | None]:
  """Of each operand the bytes that a fusion reads, where it takes slices of it; None is all."""
  body, parts = _body(fusion, defined), [None] * len(fusion.operands)
  for name, inside in body.items():
    if inside.op == "parameter":
      parts[int(re.search(r"parameter\((\d+)\)", inside.line)[1])] = _part_read(name, body, defined)
  return parts


def _part_read(name: str, body: Definitions, defined: dict[str, Definitions]) -> int | None:
  total = 0
  for own, user in body.items():
    for at, operand in enumerate(user.operands):
      if operand != name:
        continue
      if user.op == "dynamic-slice":
        part = _unplaced(user)
      elif user.op == "bitcast":
        part = _part_read(own, body, defined)
      elif user.op == "fusion":
        part = _parts_read(user, defined)[at]
      else:  # an update in place reads nothing of what it writes into
        part = 0 if user.op == "dynamic-update-slice" and at == 0 else None
      if part is None:
        return None
      total += part
  return total


def _written(fusion: Instruction, defined: dict[str, Definitions]) -> int:
  """Bytes that a fusion writes: of what it updates in place, the slices."""
  body = _body(fusion, defined)
  root = body[body.root]
  results = root.operands if root.op == "tuple" else (body.root,)
  places = runs.PLACED.findall(fusion.type)
  if len(results) != len(places):
    return fusion.bytes
  return sum(min(runs.size_of(dtype, dims), _slice_written(name, body, defined))
             for name, (dtype, dims, layout) in zip(results, places) if "S(1)" not in layout)


def _slice_written(name: str, body: Definitions, defined: dict[str, Definitions]) -> float:
  match body[name].op:
    case "bitcast":
      return _slice_written(body[name].operands[0], body, defined)
    case "fusion":
      inner = _body(body[name], defined)
      return _slice_written(inner.root, inner, defined)
    case "dynamic-update-slice":
      return _unplaced(body[body[name].operands[1]])
  return math.inf


def _unplaced(instruction: Instruction) -> int:
  return sum(runs.size_of(dtype, dims) for dtype, dims, _ in runs.PLACED.findall(instruction.type))
