"""The worked examples of CONTRIBUTING.md: their diffs apply, do what is said, and are as small."""

import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest

from tests.helpers import ROOT, one_device, one_fast

DIFFS = {path.stem: path.read_text() for path in sorted((ROOT / "examples").glob("*.diff"))}
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
# | what | [name](examples/name.diff) | `file`, `file` | lines |
ROW = re.compile(r"^\|[^|]+\| \[\w+\]\(examples/(\w+)\.diff\) \|([^|]+)\| (\d+) \|$", re.MULTILINE)
# How many files each takes, those that are new among them.
FILES = {"strided_mask": (1, 0), "sink_mask": (2, 0), "distance_score": (1, 0),
         "relative_position": (1, 0), "z_loss": (2, 1), "rating_head": (2, 0),
         "bag_of_words": (3, 2)}


def added(diff: str) -> list[str]:
  return [line[1:] for line in diff.splitlines() if re.match(r"\+(?!\+\+ )", line)]


def patched(name: str, folder: pathlib.Path) -> pathlib.Path:
  """A copy of what examples need of the tree, with the diff."""
  for part in ("jtx", "configs", "experiments"):
    shutil.copytree(ROOT / part, folder / part)
  (folder / "examples").mkdir()
  shutil.copy(ROOT / "examples" / f"{name}.py", folder / "examples")
  (folder / "tests").mkdir()
  shutil.copy(ROOT / "tests" / "helpers.py", folder / "tests")
  apply(name, folder)
  return folder


def files_of(tree: pathlib.Path) -> set[pathlib.Path]:
  return {path for path in tree.rglob("*") if "__pycache__" not in path.parts}


def apply(name: str, folder: pathlib.Path) -> None:
  # Outside of any repository, whose files git would look for.
  subprocess.run(["git", "apply", str(ROOT / "examples" / f"{name}.diff")], cwd=folder, check=True,
                 env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)})


@pytest.mark.parametrize("name", one_fast(
    "strided_mask", "sink_mask", "distance_score", "relative_position", "z_loss", "rating_head",
    "bag_of_words"))
def test_a_diff_does_what_its_check_says(tmp_path, name):
  tree = patched(name, tmp_path / "tree")
  before = files_of(tree)
  env = one_device()
  env.pop("PYTHONPATH", None)
  done = subprocess.run([sys.executable, "-m", f"examples.{name}"], cwd=tree, env=env, text=True,
                        capture_output=True)
  assert done.returncode == 0, done.stderr[-3000:]
  assert files_of(tree) == before


def test_every_example_has_its_row_and_its_check():
  names = [row[1] for row in ROW.finditer(TEXT)]
  assert names == list(FILES)
  assert sorted(names) == list(DIFFS)
  assert sorted(path.stem for path in (ROOT / "examples").glob("*.py")) == list(DIFFS)


@pytest.mark.parametrize("name", FILES)
def test_a_diff_applies(tmp_path, name):
  for file in re.findall(r"^--- a/(.+)$", DIFFS[name], re.MULTILINE):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / file, tmp_path / file)
  apply(name, tmp_path)


@pytest.mark.parametrize("names", [list(FILES), list(FILES)[::-1]], ids=["down", "up"])
def test_all_apply_together(tmp_path, names):
  for file in {file for diff in DIFFS.values() for file in re.findall(r"^--- a/(.+)$", diff, re.M)}:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / file, tmp_path / file)
  for name in names:
    apply(name, tmp_path)
  masks = (tmp_path / "jtx" / "nn" / "masks.py").read_text()
  found = runpy.run_path(str(tmp_path / "jtx" / "nn" / "masks.py"))["KINDS"]
  assert {"strided", "sinks"} <= found.keys() and masks.count("\n\n\n@dataclasses") > 4


@pytest.mark.parametrize("name", FILES)
def test_files_and_lines_are_those_of_the_table(name):
  diff = DIFFS[name]
  files, lines = next(row.group(2, 3) for row in ROW.finditer(TEXT) if row[1] == name)
  touched = re.findall(r"^\+\+\+ b/(.+)$", diff, re.MULTILINE)
  assert sorted(re.findall(r"`([^`]+)`", files)) == sorted(touched)
  assert (len(touched), diff.count("\n--- /dev/null\n")) == FILES[name]
  assert int(lines) == len(added(diff))
  assert not re.search(r"^-(?!-- )", diff, re.MULTILINE), "an example adds and changes nothing"
  assert all(len(line) <= 100 for line in added(diff))


def test_code_in_the_text_is_that_of_the_diffs():
  section = TEXT[TEXT.index("## Worked examples"):]
  section = section[:section.index("\n## ", 1)]
  blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
  assert len(blocks) == len(DIFFS)
  for (name, diff), block in zip(((n, DIFFS[n]) for n in FILES), blocks):
    known = {line.strip() for line in added(diff)}
    for line in block.splitlines():
      assert line.strip() in known, (name, line)
