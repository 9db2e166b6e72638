"""Counts what the tests assert, a line a folder: a refactoring of them must not lower the numbers.

  python tests/assertions.py [FOLDER]

Counted are `assert` statements, `pytest.raises` and `pytest.warns`, and calls of assert_allclose
and other functions whose name starts with assert_. A parametrised test counts once.
"""

import ast
import collections
import pathlib
import sys


def is_assertion(node: ast.AST) -> bool:
  if isinstance(node, ast.Assert):
    return True
  if not isinstance(node, ast.Call):
    return False
  name = ast.unparse(node.func)
  return name in ("pytest.raises", "pytest.warns") or name.split(".")[-1].startswith("assert_")


def count(path: pathlib.Path) -> tuple[int, int]:
  """The tests and the assertions of a file."""
  nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
  tests = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in nodes)
  return tests, sum(map(is_assertion, nodes))


def main(root: pathlib.Path) -> None:
  totals = collections.defaultdict(lambda: [0, 0, 0])
  for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root).parts
    for folder in (parts[0] if len(parts) > 1 else ".", "all"):
      for i, number in enumerate((1, *count(path))):
        totals[folder][i] += number
  print(f"{'':12}{'files':>8}{'tests':>8}{'assertions':>12}")
  for folder, (files, tests, assertions) in totals.items():
    if folder != "all":
      print(f"{folder:12}{files:8}{tests:8}{assertions:12}")
  print("{:12}{:8}{:8}{:12}".format("all", *totals["all"]))


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
