"""Traffic of a compiled program, between devices and in their memory, read from its HLO text.

XLA's own cost analysis counts the body of a loop once and does not distinguish collectives; here an
instruction inside loops counts as often as these run.
"""

import collections
import math
import re
from typing import NamedTuple

# Of what a collective works on, the part that each device of a group of n sends, when it is passed
# around a ring (Thakur et al. 2005): an all-reduce is a reduce-scatter and then an all-gather.
SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1.0,
}

_BYTES = {"pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "s16": 2, "u16": 2, "bf16": 2,
          "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_ARRAY = re.compile(r"\b(" + "|".join(_BYTES) + r")\[([\d,]*)\]")
_COLLECTIVE = re.compile(r"= (.*?) (" + "|".join(SENT) + r")(-start)?\((.*?)\)(?:, |$)")
_CALL = re.compile(r"\b(body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")
_INSTRUCTION = re.compile(
    r"\s+(ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
_PLACED = re.compile(r"\b(" + "|".join(_BYTES) + r")\[([\d,]*)\](\{[^}]*\})?")
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
  program = computations(text)
  times = times_of(program)
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
  sizes = [_size(dtype, dims) for dtype, dims in _ARRAY.findall(result)]
  if start and kind != "all-reduce":  # whose type names what goes in, what comes out and flags
    number = operands.count("%")
    sizes = sizes[number:2 * number]
  size = sum(sizes) * (group if kind == "reduce-scatter" else 1)
  if kind == "all-reduce" and _SCATTER in computation:
    kind = "reduce-scatter"  # fused with the slice that each device keeps
  return kind, size, group


def _size(dtype: str, dims: str) -> int:
  return _BYTES[dtype] * math.prod(int(d) for d in dims.split(",") if d)


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


def computations(text: str) -> dict[str, list[str]]:
  """The lines of each computation; the entry comes first."""
  result: dict[str, list[str]] = {}
  name = entry = None
  for line in text.splitlines():
    if match := _COMPUTATION.match(line):
      name = match[2]
      entry = name if match[1] else entry
      result[name] = []
    elif line == "}":  # lines of an instruction may start with one, too
      name = None
    elif name is not None:
      result[name].append(line)
  if entry is None:
    raise ValueError("the text of the program has no entry computation")
  return {entry: result.pop(entry), **result}


def times_of(program: dict[str, list[str]]) -> dict[str, float]:
  """How often each computation runs, the branches of a conditional counted as their mean."""
  calls: dict[str, list[tuple[str, float]]] = {name: [] for name in program}
  for name, lines in program.items():
    for line in lines:
      for role, callee in _CALL.findall(line):
        weight = 0.5 if role.endswith("_computation") else 1.0
        calls[name].append((callee, _trips(program, line) if role == "body" else weight))
      if match := _BRANCHES.search(line):
        branches = [b.strip().lstrip("%") for b in match[1].split(",")]
        calls[name] += [(branch, 1 / len(branches)) for branch in branches]
  times = dict.fromkeys(program, 0.0)
  times[next(iter(program))] = 1.0
  for name in _callers_first(calls):
    for callee, weight in calls[name]:
      times[callee] += times[name] * weight
  return times


def _callers_first(calls: dict[str, list[tuple[str, float]]]) -> list[str]:
  order, seen = [], set()

  def visit(name: str) -> None:
    if name not in seen:
      seen.add(name)
      for callee, _ in calls[name]:
        visit(callee)
      order.append(name)

  for name in calls:
    visit(name)
  return order[::-1]


def _trips(program: dict[str, list[str]], line: str) -> float:
  """How often the loop of a `while` line runs: what XLA notes, or what its counter tells."""
  if match := _KNOWN_TRIPS.search(line):
    return float(match[1])
  condition = _Definitions(program.get(_CONDITION.search(line)[1], []))
  body = _Definitions(program.get(re.search(r"\bbody=%?([\w.\-]+)", line)[1], []))
  for test in condition.values():
    if test.op != "compare" or "direction=LT" not in test.line:
      continue
    index, bound = condition.element(test.operands[0]), condition.constant(test.operands[1])
    if index is None or bound is None:
      continue
    step = body.step(index)
    return math.ceil(bound / step) if step else 1.0
  return 1.0


class _Instruction(NamedTuple):
  op: str = ""
  operands: tuple[str, ...] = ()
  type: str = ""
  line: str = ""

  @property
  def bytes(self) -> int:
    """Of its result, as far as that is in the device's memory and not in a cache on the chip."""
    return sum(_size(dtype, dims) for dtype, dims, layout in _PLACED.findall(self.type)
               if "S(1)" not in layout)


class _Definitions(dict):
  """The instructions of a computation by name."""

  def __init__(self, lines: list[str]):
    self.root = None
    for line in lines:
      if match := _INSTRUCTION.match(line):
        root, name, type_, op, rest = match.groups()
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        self[name] = _Instruction(op, tuple(operands), type_, line)
        self.root = name if root else self.root

  def __missing__(self, name: str) -> _Instruction:
    return _Instruction()

  def constant(self, name: str) -> int | None:
    match = _CONSTANT.search(self[name].line)
    return int(match[1]) if match else None

  def element(self, name: str) -> int | None:
    """Which part of the parameter it is."""
    match = re.search(r"get-tuple-element\(.*index=(\d+)", self[name].line)
    return int(match[1]) if match else None

  def step(self, index: int) -> int | None:
    """By how much a body adds to this part of what goes around."""
    root = self[self.root]
    if root.op != "tuple" or index >= len(root.operands):
      return None
    added = self[root.operands[index]]
    if added.op != "add":
      return None
    return next((n for x in added.operands if (n := self.constant(x)) is not None), None)


# ------------------------------------------------------------------------------- memory


def moved(text: str) -> float:
  """Bytes that one run of a compiled module reads from and writes to a device's memory.

  An estimate: every instruction reads its operands and writes its result, but of what it takes a
  slice from, or writes a slice into, only the slice. What the compiler keeps in a cache on the chip
  does not count.

  Args:
    text: of `jax.stages.Compiled.as_text()`.
  """
  program = computations(text)
  times, inner = times_of(program), fused(program)
  defined = {name: _Definitions(lines) for name, lines in program.items()}
  return sum(times[name] * _moved(instruction, defined[name], defined)
             for name in program if times[name] and name not in inner
             for instruction in defined[name].values())


def fused(program: dict[str, list[str]]) -> set[str]:
  """Computations that are part of an instruction, which moves the data, as those of fusions."""
  return {callee for lines in program.values() for line in lines if " call(" not in line
          for role, callee in _CALL.findall(line) if role in ("calls", "to_apply")}


def _moved(instruction: _Instruction, around: _Definitions,
           defined: dict[str, _Definitions]) -> int:
  op, operands, _, _ = instruction
  if op in _FREE:
    return 0
  if op == "copy-start":  # its type names both places, of which one may be the cache
    return instruction.bytes
  if op == "slice-start":  # its type names the whole and the slice
    return min(_size(dtype, dims) for dtype, dims, _ in _PLACED.findall(instruction.type) if dims)
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


def _body(fusion: _Instruction, defined: dict[str, _Definitions]) -> _Definitions:
  return defined[re.search(r"\bcalls=%?([\w.\-]+)", fusion.line)[1]]


def _parts_read(fusion: _Instruction, defined: dict[str, _Definitions]) -> list[int | None]:
  """Of each operand the bytes that a fusion reads, where it takes slices of it; None is all."""
  body, parts = _body(fusion, defined), [None] * len(fusion.operands)
  for name, inside in body.items():
    if inside.op == "parameter":
      parts[int(re.search(r"parameter\((\d+)\)", inside.line)[1])] = _part_read(name, body, defined)
  return parts


def _part_read(name: str, body: _Definitions, defined: dict[str, _Definitions]) -> int | None:
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


def _written(fusion: _Instruction, defined: dict[str, _Definitions]) -> int:
  """Bytes that a fusion writes: of what it updates in place, the slices."""
  body = _body(fusion, defined)
  root = body[body.root]
  results = root.operands if root.op == "tuple" else (body.root,)
  places = _PLACED.findall(fusion.type)
  if len(results) != len(places):
    return fusion.bytes
  return sum(min(_size(dtype, dims), _slice_written(name, body, defined))
             for name, (dtype, dims, layout) in zip(results, places) if "S(1)" not in layout)


def _slice_written(name: str, body: _Definitions, defined: dict[str, _Definitions]) -> float:
  match body[name].op:
    case "bitcast":
      return _slice_written(body[name].operands[0], body, defined)
    case "fusion":
      inner = _body(body[name], defined)
      return _slice_written(inner.root, inner, defined)
    case "dynamic-update-slice":
      return _unplaced(body[body[name].operands[1]])
  return math.inf


def _unplaced(instruction: _Instruction) -> int:
  return sum(_size(dtype, dims) for dtype, dims, _ in _PLACED.findall(instruction.type))
