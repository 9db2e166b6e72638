"""The wheel in an environment and a folder of its own: command, configs, Python interface."""

import json
import shutil
import subprocess
import sys
import sysconfig

import pytest

from tests.helpers import ROOT
from tests.parity.wheel import pip, run, sources

transformers = pytest.importorskip("transformers", reason="make test-parity installs it")

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
  theirs = transformers.pipeline("text-classification", str(tmp_path / "hf"), top_k=None)
  assert {x["label"]: x["score"] for x in theirs(["a good one"])[0]} == pytest.approx(
      line["scores"], abs=1e-6)
  run(jtx, "report", "--workdir=w", "--output=w.html", cwd=tmp_path)
  assert "One run, finished." in (tmp_path / "w.html").read_text()
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
  assert "electra have learned positions, not Kerple" in refusal

  # Where the package is gone, that is said.
  (repo / "my_parts").rename(repo / "other_parts")
  error = run(jtx, "predict", f"--workdir={workdir}", cwd=elsewhere, status=1)
  assert "error: config.imports: there is no module 'my_parts' beside the config file, in" in error
  assert "Traceback" not in error


def test_python_beside_a_clone_that_is_installed_editably(tmp_path):
  """The clone is then a folder called jtx in the working directory, which is no package."""
  clone = sources(tmp_path / "jtx")
  subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")], check=True)
  own, = tmp_path.glob("env/lib/python*/site-packages")
  # The packages of this environment, without its .pth files, by which an editable jtx is found.
  (own / "required.pth").write_text(sysconfig.get_path("purelib") + "\n")
  bin_folder = tmp_path / "env" / "bin"
  pip("--python", str(bin_folder / "python"), "install", "--quiet", "--no-deps", "--no-compile",
      "--editable", str(clone))
  printed = run(bin_folder / "python", "-c", "import jtx; print(jtx.__version__, jtx.__file__)",
                cwd=tmp_path)
  assert printed.split()[1] == str(clone / "jtx" / "__init__.py")
  assert "usage: jtx COMMAND" in run(bin_folder / "jtx", "--help", cwd=tmp_path)
