"""The wheel in an environment and a folder of its own: command, configs, Python interface."""

import json
import pathlib
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.helpers import ROOT, one_device

pytestmark = pytest.mark.slow


def sources(folder: pathlib.Path) -> pathlib.Path:
  """A copy of what the package is made of, in which no earlier build has left anything."""
  for name in ("jtx", "configs", "experiments"):
    shutil.copytree(ROOT / name, folder / name, symlinks=True,
                    ignore=shutil.ignore_patterns("__pycache__"))
  for name in ("setup.py", "pyproject.toml"):
    shutil.copy(ROOT / name, folder)
  return folder


def environment(folder: pathlib.Path) -> pathlib.Path:
  """An environment that has what jtx requires, but not jtx; its folder of commands."""
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
  own, = folder.glob("lib/python*/site-packages")
  # Read without the .pth files in it, by which an editable jtx is found.
  (own / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
  return folder / "bin"


def pip(*args: str) -> None:
  done = subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *args],
                        text=True, capture_output=True)
  assert done.returncode == 0, done.stderr[-3000:]


def run(*args, cwd: pathlib.Path, status: int = 0, text: str = "") -> str:
  """What a command prints, in a process that knows nothing of the clone."""
  env = {key: value for key, value in one_device().items() if key != "PYTHONPATH"}
  done = subprocess.run([*map(str, args)], cwd=cwd, env=env, text=True, capture_output=True,
                        input=text)
  assert done.returncode == status, done.stderr[-3000:]
  return done.stdout if status == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """The folder of commands of an environment with the wheel."""
  folder = tmp_path_factory.mktemp("wheel")
  pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(sources(folder / "clone")))
  bin_folder = environment(folder / "env")
  wheel, = folder.glob("jtx-*.whl")
  pip("--python", str(bin_folder / "python"), "install", "--quiet", "--no-deps", "--no-compile",
      str(wheel))
  return bin_folder


THREE_LINES = """\
from jtx.configs import classify
def get_config():
  return classify.get_config("tiny")
"""


def test_a_config_of_three_lines_in_an_empty_folder(installed, tmp_path):
  (tmp_path / "my_config.py").write_text(THREE_LINES)
  jtx = installed / "jtx"
  run(jtx, "train", "--config=my_config.py", "--workdir=w", cwd=tmp_path)
  assert (tmp_path / "w" / "config.py").read_text() == THREE_LINES
  line = json.loads(run(jtx, "predict", "--workdir=w", cwd=tmp_path, text="a good one\n"))
  assert line["label"] in line["scores"]
  run(jtx, "convert", "--workdir=w", "--to_hf=hf", cwd=tmp_path)
  again = json.loads(run(jtx, "predict", "--workdir=hf", cwd=tmp_path, text="a good one\n"))
  assert again["scores"] == pytest.approx(line["scores"], abs=1e-6)
  # py.typed, by which type checkers read the annotations.
  run(installed / "python", "-c", "import os, jtx; os.stat(jtx.__path__[0] + '/py.typed')",
      cwd=tmp_path)


OPENED = """
import jtx
model, params = jtx.load_pretrained("{workdir}")
print(type(model.stack.position).__module__, model.stack.position.slope, model.stack.pattern)
jtx.save_pretrained("copy", model, params, jtx.load_tokenizer("{workdir}"), "jtx")
print(jtx.Embedder("copy")(["a good one"]).shape)
"""


def test_the_template_of_an_own_repository(installed, tmp_path):
  repo = tmp_path / "repo"
  shutil.copytree(ROOT / "examples" / "own_repo", repo,
                  ignore=shutil.ignore_patterns("__pycache__"))
  python, jtx = installed / "python", installed / "jtx"
  assert "5 passed" in run(python, "-m", "pytest", "-q", "tests", cwd=repo)
  run(jtx, "train", "--config=my_config.py", "--workdir=w", cwd=repo)
  trained = json.loads((repo / "w" / "results.json").read_text())

  # From another folder, in new processes, where the package is on no path.
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  workdir = repo / "w"
  result = json.loads(run(jtx, "evaluate", f"--workdir={workdir}", cwd=elsewhere).splitlines()[-1])
  for name in ("accuracy", "worst_recall"):
    assert 0 <= result[f"dev/{name}"] == trained[f"dev/{name}"] <= 1
  line = json.loads(run(jtx, "predict", f"--workdir={workdir}", cwd=elsewhere, text="a good one\n"))
  assert line["label"] in line["scores"]
  lines = run(python, "-c", OPENED.format(workdir=workdir), cwd=elsewhere).splitlines()
  assert lines[-2:] == ["my_parts.position 0.5 ('strided', 'global')", "(1, 32)"]
  refusal = run(jtx, "convert", f"--workdir={workdir}", "--to_hf=hf", cwd=elsewhere, status=1)
  assert refusal.splitlines()[-1].startswith("error: ")
  assert "bert has learned positions, not Kerple" in refusal

  # Where the package is gone, that is said.
  (repo / "my_parts").rename(repo / "other_parts")
  error = run(jtx, "predict", f"--workdir={workdir}", cwd=elsewhere, status=1)
  assert "error: config.imports: there is no module 'my_parts' beside the config file, in" in error
  assert "Traceback" not in error


def test_python_beside_a_clone_that_is_installed_editably(tmp_path):
  """The clone is then a folder called jtx in the working directory, which is no package."""
  clone = sources(tmp_path / "jtx")
  bin_folder = environment(tmp_path / "env")
  pip("--python", str(bin_folder / "python"), "install", "--quiet", "--no-deps", "--no-compile",
      "--editable", str(clone))
  printed = run(bin_folder / "python", "-c", "import jtx; print(jtx.__version__, jtx.__file__)",
                cwd=tmp_path)
  assert printed.split()[1] == str(clone / "jtx" / "__init__.py")
  assert "usage: jtx COMMAND" in run(bin_folder / "jtx", "--help", cwd=tmp_path)
