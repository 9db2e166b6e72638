"""The list of mutants is of this source tree, and a campaign tells what lived and what did not."""

import ast
import functools
import pathlib
import re
import types

import pytest

from benchmarks import mutants, mutated
from benchmarks.mutated import Mutant

ROOT = pathlib.Path(__file__).parent.parent
FOUND = mutated.read(mutants.MUTATIONS)


@functools.cache
def text_of(file: str) -> str:
  return (ROOT / file).read_text(encoding="utf-8")


@functools.cache
def named_in(file: str) -> dict[str, bool]:
  """By name as pytest has it, such as "TestA::test_b": whether it is marked as slow."""
  is_slow = lambda node: any(ast.unparse(mark).startswith("pytest.mark.slow")
                             for mark in node.decorator_list)
  found = {}

  def visit(nodes, before, slow):
    for node in nodes:
      if isinstance(node, ast.ClassDef):
        visit(node.body, f"{before}{node.name}::", slow or is_slow(node))
      elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        found[before + node.name] = slow or is_slow(node)

  visit(ast.parse(text_of(file)).body, "", False)
  return found


def problems(mutant: Mutant) -> list[str]:
  """What is wrong with a mutant, in sentences."""
  found = []
  try:
    ast.parse(mutated.mutated(mutant, text_of(mutant.file)))
  except (OSError, SyntaxError, mutated.Stale) as e:
    found.append(str(e))
  for test in mutant.tests:
    file, _, name = test.partition("::")
    slow = named_in(file).get(name.partition("[")[0]) if (ROOT / file).is_file() else None
    if slow is not False:
      found.append(f"{test} is {'slow' if slow else 'no test'}")
  return found if mutant.tests else [*found, "there is no test"]


def test_mutants_are_of_this_source_tree():
  assert {f"{m.room}/{m.name}": p for m in FOUND if (p := problems(m))} == {}
  assert len(FOUND) >= 150
  assert all(m.file.startswith(f"jtx/{m.room}/") for m in FOUND)
  lines = [len(path.read_text(encoding="utf-8").splitlines())
           for path in mutants.MUTATIONS.glob("*.toml")]
  assert max(lines) <= 350


@pytest.mark.parametrize("edits, problem", [
    (dict(old="return xs"), "jtx/nn/masks.py has the old text 0 times"),
    (dict(old="allowed"), r"jtx/nn/masks.py has the old text \d+ times"),
    (dict(new="k >="), "invalid syntax"),
    (dict(file="jtx/nn/mask.py"), "No such file"),
    (dict(tests=("tests/nn/test_mask.py::test_a",)), "tests/nn/test_mask.py::test_a is no test"),
    (dict(tests=("tests/nn/test_masks.py::test_a",)), "tests/nn/test_masks.py::test_a is no test"),
    (dict(tests=("tests/train/test_optim.py::test_a_stack_as_one_parameter_differs",)), "is slow"),
    (dict(tests=()), "there is no test"),
])
def test_a_mutant_that_has_rotted(edits, problem):
  good = Mutant("nn", "m", "jtx/nn/masks.py", "distance >= -self.left", "distance >= 0",
                ("tests/nn/test_masks.py::test_matrices_by_hand",))
  assert problems(good) == []
  assert re.search(problem, " ".join(problems(good._replace(**edits))))


# -------------------------------------------------------------------------------- the campaign

CODE = """
def mean(numbers):
  total = sum(numbers)
  while total < 0:
    total += 1
  return total / len(numbers)
"""
TESTS = """
import pytest
from code_of_ours import mean

def test_mean():
  assert mean([1, 1]) == 1

def test_nothing():
  pass

@pytest.mark.slow
def test_slow():
  assert mean([1, 3]) == 2
"""


@pytest.fixture
def tree(tmp_path):
  """A source tree with a module, tests, and the mutants of it."""
  root = tmp_path / "root"
  (root / "tests").mkdir(parents=True)
  (root / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n'
                                       'markers = ["slow: takes long"]\n')
  (root / "code_of_ours.py").write_text(CODE)
  (root / "tests" / "test_mean.py").write_text(TESTS)
  return root


def mutant(name, old, new, test="test_mean", **fields):
  return Mutant("ours", name, "code_of_ours.py", old, new, (f"tests/test_mean.py::{test}",),
                **fields)


def test_a_campaign_tells_what_lived(tree):
  results = mutants.campaign([
      mutant("killed", "/ len(numbers)", "* len(numbers)"),
      mutant("survived", "/ len(numbers)", "* len(numbers)", "test_nothing"),
      mutant("equivalent", "total < 0", "total < -1", equivalent="no sum here is below 0"),
      mutant("stale", "/ length", "* length"),
      mutant("slow", "/ len(numbers)", "* len(numbers)", "test_slow"),
  ], tree, preloaded=())
  assert [(r.mutant.name, r.kind) for r in results] == [
      ("killed", "killed"), ("survived", "survived"), ("equivalent", "equivalent"),
      ("stale", "stale"), ("slow", "broken")]
  assert results[0].told == "tests/test_mean.py::test_mean"
  assert [r.good for r in results] == [True, False, True, False, False]
  assert (tree / "code_of_ours.py").read_text() == CODE
  lines = mutants.table(results)
  assert lines[1].split()[:8] == ["ours", "5", "1", "1", "1", "0", "1", "1"]
  assert lines[3:5] == ["survived: ours/survived (code_of_ours.py): ",
                        "equivalent: ours/equivalent (code_of_ours.py): no sum here is below 0"]


def test_a_mutant_that_never_ends_is_not_killed(tree, tmp_path):
  worker = mutated.Worker(tree, tmp_path / "copy", preloaded=())
  worker.limit = 0.5
  outcome = worker.run(("tests/test_mean.py::test_mean",), mutant("m", "total < 0", "total > 0"))
  assert outcome.status is None and 0.5 <= outcome.seconds < 10
  worker.close()


@pytest.mark.parametrize("clean, status, equivalent, kind", [
    (0, 1, "", "killed"), (0, 0, "", "survived"), (0, None, "", "timeout"),
    (0, 2, "", "broken"),  # its module can't be imported
    (0, 0, "so it is", "equivalent"), (0, 1, "so it is said", "broken"),
    (1, 1, "", "broken"), (None, 1, "", "broken"), (5, 1, "", "broken"),
])
def test_what_counts_as_killed(clean, status, equivalent, kind):
  ended = mutated.Outcome(status, 0.1, "FAILED tests/a.py::test_b[x - y] - no\n")
  worker = types.SimpleNamespace(run=lambda tests, mutant: ended)
  result = mutants.judge(mutant("m", "a", "b", equivalent=equivalent),
                         mutated.Outcome(clean, 0.1, ""), worker)
  assert result.kind == kind and result.good == (kind in ("killed", "equivalent"))
