"""The computations of a compiled program's HLO text, and how often each of them runs."""

from collections.abc import Mapping
import math
import re
from typing import NamedTuple

BYTES = {"pred": 1, "s8": 1, "u8": 1, "f8e4m3fn": 1, "f8e5m2": 1, "s16": 2, "u16": 2, "bf16": 2,
          "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_CALL = re.compile(r"\b(body|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
OP_NAME = re.compile(r'op_name="([^"]*)"')
_CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
_KNOWN_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_CONSTANT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")
_INSTRUCTION = re.compile(
    r"\s+(ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$")
PLACED = re.compile(r"\b(" + "|".join(BYTES) + r")\[([\d,]*)\](\{[^}]*\})?")

# Of a choice among kinds of layers the share of each branch, by names of the modules around it, as
# ("encoder", "layers").
Shares = Mapping[tuple[str, ...], tuple[float, ...]]


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


def times_of(program: dict[str, list[str]], shares: Shares = {}) -> dict[str, float]:
  """How often each computation runs; branches that `shares` does not know run equally often."""
  calls: dict[str, list[tuple[str, float]]] = {name: [] for name in program}
  for name, lines in program.items():
    for line in lines:
      for role, callee in _CALL.findall(line):
        weight = 0.5 if role.endswith("_computation") else 1.0
        calls[name].append((callee, _trips(program, line) if role == "body" else weight))
      if match := _BRANCHES.search(line):
        branches = [b.strip().lstrip("%") for b in match[1].split(",")]
        calls[name] += zip(branches, _weights(line, len(branches), shares))
  times = dict.fromkeys(program, 0.0)
  times[next(iter(program))] = 1.0
  for name in _callers_first(calls):
    for callee, weight in calls[name]:
      times[callee] += times[name] * weight
  return times


def fused(program: dict[str, list[str]]) -> set[str]:
  """Computations that are part of an instruction, which moves the data, as those of fusions."""
  return {callee for lines in program.values() for line in lines if " call(" not in line
          for role, callee in _CALL.findall(line) if role in ("calls", "to_apply")}


def _weights(line: str, number: int, shares: Shares) -> tuple[float, ...]:
  path = OP_NAME.search(line)
  parts = path[1].split("/") if path else []
  for modules, values in shares.items():
    rest = iter(parts)
    if len(values) == number and all(module in rest for module in modules):  # in this order
      return values
  return (1 / number,) * number


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
  condition = Definitions(program.get(_CONDITION.search(line)[1], []))
  body = Definitions(program.get(re.search(r"\bbody=%?([\w.\-]+)", line)[1], []))
  for test in condition.values():
    if test.op != "compare" or "direction=LT" not in test.line:
      continue
    index, bound = condition.element(test.operands[0]), condition.constant(test.operands[1])
    if index is None or bound is None:
      continue
    step = body.step(index)
    return math.ceil(bound / step) if step else 1.0
  return 1.0


class Instruction(NamedTuple):
  op: str = ""
  operands: tuple[str, ...] = ()
  type: str = ""
  line: str = ""

  @property
  def bytes(self) -> int:
    """Of its result, as far as that is in the device's memory and not in a cache on the chip."""
    return sum(size_of(dtype, dims) for dtype, dims, layout in PLACED.findall(self.type)
               if "S(1)" not in layout)


class Definitions(dict):
  """The instructions of a computation by name."""

  def __init__(self, lines: list[str]):
    self.root = None
    for line in lines:
      if match := _INSTRUCTION.match(line):
        root, name, type_, op, rest = match.groups()
        operands = re.findall(r"%([\w.\-]+)", rest.split("), ")[0])
        self[name] = Instruction(op, tuple(operands), type_, line)
        self.root = name if root else self.root

  def __missing__(self, name: str) -> Instruction:
    return Instruction()

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


def size_of(dtype: str, dims: str) -> int:
  return BYTES[dtype] * math.prod(int(d) for d in dims.split(",") if d)
