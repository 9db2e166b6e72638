"""Limits that keep files readable: lines of files and functions, fields of constructors, words."""

import ast
from collections.abc import Iterator, Mapping
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
ROOMS = ("jtx", "experiments", "configs", "benchmarks")

FILE, FUNCTION, FIELDS, LINE, POSITIONAL = 350, 60, 12, 100, 4

# Breaches that are meant, and why.
EXCEPTIONS = {
    "jtx/train/loop.py: function _run": "the loop is read from top to bottom, in one piece",
    "jtx/train/keys.py: constructor RunKeys": "the keys of a run are listed in one place",
    "jtx/interop/generation.py: constructor Generation": "a field for each key of a peer's file",
    "configs/glue.py: gives Task": "a table, a task a row",
    "tests/compile/test_hlo.py: line": "text of a compiled program, as XLA prints it",
    "tests/compile/test_cycles.py: line": "the same",
    "tests/compile/test_kernels.py: line": "the same",
}


@functools.cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
  """A file's nodes, its module first."""
  return tuple(ast.walk(ast.parse(text)))


def long_lines(path: str, text: str) -> Iterator[str]:
  for number, line in enumerate(text.splitlines(), 1):
    if len(line) > LINE:
      yield f"{path}: line {number} has {len(line)} characters"


def long_file(path: str, text: str) -> Iterator[str]:
  if (lines := len(text.splitlines())) > FILE:
    yield f"{path}: {lines} lines"


def long_functions(path: str, text: str) -> Iterator[str]:
  for node in nodes_of(text):
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
      if (lines := node.end_lineno - node.lineno + 1) > FUNCTION:
        yield f"{path}: function {node.name} has {lines} lines"


def head(path: str, text: str) -> Iterator[str]:
  doc = ast.get_docstring(nodes_of(text)[0])
  if doc and doc.startswith("What"):
    yield f"{path}: the docstring begins with What"


def classes(sources: Mapping[str, str]) -> dict[str, tuple[str, ast.ClassDef]]:
  """The classes of all files by name, and the file of each."""
  return {node.name: (path, node) for path, text in sources.items()
          for node in nodes_of(text) if isinstance(node, ast.ClassDef)}


def fields(name: str, known: Mapping[str, tuple[str, ast.ClassDef]]) -> set[str]:
  """The arguments that a class takes: those of __init__, or its annotated fields and its bases'."""
  if name not in known:
    return set()
  node = known[name][1]
  for item in node.body:
    if isinstance(item, ast.FunctionDef) and item.name == "__init__":
      args = item.args
      return {arg.arg for arg in args.posonlyargs + args.args + args.kwonlyargs} - {"self"}
  own = {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)
         and "ClassVar" not in ast.unparse(item.annotation)}
  bases = {ast.unparse(base).split(".")[-1] for base in node.bases} - {name}
  return own.union(*(fields(base, known) for base in bases))


def long_constructors(sources: Mapping[str, str]) -> Iterator[str]:
  known = classes(sources)
  for name, (path, _) in known.items():
    if (number := len(fields(name, known))) > FIELDS:
      yield f"{path}: constructor {name} has {number} fields"


def long_calls(sources: Mapping[str, str]) -> Iterator[str]:
  """Calls of our own classes with more arguments by their place than a reader can tell apart."""
  known = classes(sources)
  for path, text in sources.items():
    ours = {node.name for node in nodes_of(text) if isinstance(node, ast.ClassDef)}
    for node in nodes_of(text):
      if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ROOMS:
        ours |= {alias.asname or alias.name for alias in node.names}
    for node in nodes_of(text):
      if isinstance(node, ast.Call) and len(node.args) > POSITIONAL:
        first, name = ["", *ast.unparse(node.func).split(".")][-2:]
        if name in known and (first or name) in ours:
          yield f"{path}: gives {name} {len(node.args)} arguments by place, line {node.lineno}"


def breaches(sources: Mapping[str, str]) -> list[str]:
  """Sentences on what files break.

  Args:
    sources: the text of each file by its path from the repository's root.
  """
  found = [breach for path, text in sources.items()
           for rule in (long_file, long_lines, long_functions, head) for breach in rule(path, text)]
  return found + [*long_constructors(sources), *long_calls(sources)]


# -------------------------------------------------------------------------------- tests


def sources_of(*folders: str) -> dict[str, str]:
  return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8")
          for folder in folders for p in sorted((ROOT / folder).rglob("*.py"))}


@pytest.fixture(scope="module")
def found() -> list[str]:
  """What our files break, and the lines of tests."""
  return breaches(sources_of(*ROOMS)) + [
      breach for path, text in sources_of("tests").items() for breach in long_lines(path, text)]


def test_files_keep_the_limits(found):
  assert [b for b in found if not b.startswith(tuple(EXCEPTIONS))] == []


def test_exceptions_are_needed(found):
  assert [e for e in EXCEPTIONS if not any(b.startswith(e) for b in found)] == []


def lines(number: int, indent: str = "") -> str:
  return "".join(f"{indent}x = {i}\n" for i in range(number))


def fields_of(number: int) -> str:
  return "".join(f"  field_{i}: int = 0\n" for i in range(number))


@pytest.mark.parametrize("text,breach", [
    (lines(FILE), None),
    (lines(FILE + 1), "a.py: 351 lines"),
    ("x" * LINE, None),
    ("x\n" + "x" * (LINE + 1), "a.py: line 2 has 101 characters"),
    ("def f():\n" + lines(FUNCTION - 1, "  "), None),
    ("class A:\n  def f(self):\n" + lines(FUNCTION, "    "), "a.py: function f has 61 lines"),
    ('"""Masks."""', None),
    ('"""What masks are."""', "a.py: the docstring begins with What"),
    ("class A:\n" + fields_of(FIELDS), None),
    ("class A:\n" + fields_of(FIELDS + 1), "a.py: constructor A has 13 fields"),
    ("class A:\n" + fields_of(8) + "class B(A):\n" + fields_of(FIELDS + 1),
     "a.py: constructor B has 13 fields"),
    ("class A(base.A):\n" + fields_of(FIELDS), None),
    ("class A:\n  def __init__(self, " + ", ".join(f"a{i}" for i in range(13)) + "): pass",
     "a.py: constructor A has 13 fields"),
    ("class A:\n" + fields_of(5) + "A(1, 2, 3, 4, field_4=5)\ndict(1, 2, 3, 4, 5)", None),
    ("from jtx import m\nclass A:\n" + fields_of(5) + "m.A(1, 2, 3, 4, 5)",
     "a.py: gives A 5 arguments by place, line 8"),
    ("import torch\nclass A:\n" + fields_of(5) + "torch.A(1, 2, 3, 4, 5)", None),
])
def test_a_planted_breach_is_found(text, breach):
  assert breaches({"a.py": text}) == ([breach] if breach else [])
