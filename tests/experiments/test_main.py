"""The command `jtx`: all entry points by their names, and answers that need no JAX."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

from experiments import __main__ as main
from experiments import config_files

ROOT = pathlib.Path(__file__).parent.parent.parent


def run(tmp_path, *args, package="experiments"):
  """`python -m PACKAGE`, where JAX can't be imported."""
  (tmp_path / "jax.py").write_text("raise RuntimeError('JAX was imported')\n")
  return subprocess.run([sys.executable, "-m", package, *args], cwd=tmp_path, text=True,
                        capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


def test_every_entry_point_is_a_command():
  folder = ROOT / "experiments"
  files = {str(p.relative_to(folder)) for p in folder.rglob("*.py")
           if re.search(r"^  (cli|common)\.run\(main, required=\(", p.read_text(), re.MULTILINE)}
  known = main.commands()
  assert {name.replace(" ", "/") + ".py" for name in known} == files
  assert {"train", "evaluate", "predict", "translate", "convert", "prepare", "compile", "sweep",
          "report", "inspect", "launch local", "launch slurm"} <= known.keys()
  assert all(text.endswith((".", ":")) or len(text) > 20 for text in known.values())


def test_help_needs_no_jax(tmp_path):
  done = run(tmp_path, "--help")
  assert done.returncode == 0
  assert re.search(r"^  train +Trains a config\.", done.stdout, re.MULTILINE)
  assert run(tmp_path).returncode == 2


def test_help_of_a_command_is_in_the_words_of_the_command_line(tmp_path):
  ours = run(tmp_path, "train", "--help", package="jtx.experiments")
  assert "  jtx train --config=configs/X.py[:args] --workdir=W" in ours.stdout
  assert "--max_seconds" in ours.stdout  # those of the file, not absl's alone
  theirs = run(tmp_path, "--help", package="experiments.train")
  assert "  python -m experiments.train --config=configs/X.py[:args] --workdir=W" in theirs.stdout


@pytest.mark.parametrize("args,sentence", [
    (("trian",), "error: unknown command 'trian'; did you mean 'train'?\n"),
    (("launch",), "error: unknown command 'launch'; valid are: gke, local, slurm, tpu behind it\n"),
    (("launch", "lokal"), "error: unknown command 'launch lokal'; did you mean 'launch local'?\n"),
    (("train", "--confg=x"), "error: unknown flag --confg; did you mean --config?\n"),
    (("train", "--workdir=w"), "error: --config must be given: File of the experiment"),
    (("train", "--config=none.py"), "error: there is no config file none.py\n"),
])
def test_mistakes_need_no_jax(tmp_path, args, sentence):
  done = run(tmp_path, *args)
  assert done.returncode == 2
  assert done.stderr.startswith(sentence)


def test_output_that_nobody_reads_is_no_error(tmp_path):
  (tmp_path / "long.py").write_text(
      "import sys\nfrom experiments import cli\n"
      "cli.run(lambda: print('line\\n' * 100_000))\n")
  for command in ("-m experiments --help", f"{tmp_path}/long.py"):
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {sys.executable} {command} | true"],
                          cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True,
                          capture_output=True)
    assert (done.returncode, done.stderr) in ((0, ""), (141, ""))
  assert done.returncode == 141


def test_shipped_configs_by_the_name_of_their_module(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  config = config_files.load_config("jtx.configs.nmt_numbers:tiny")
  assert config == config_files.load_config(f"{ROOT}/configs/nmt_numbers.py:tiny")
  with pytest.raises(config_files.UsageError, match=re.escape(
      "there is no config file configs/bert.py; did you mean jtx.configs.bert, which comes with jtx"
      "?")):
    config_files.load_config("configs/bert.py")
  with pytest.raises(config_files.UsageError, match="there is no config file jtx.configs.brt$"):
    config_files.load_config("jtx.configs.brt")


def test_a_config_file_imports_what_lies_beside_it(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", list(sys.path))
  (tmp_path / "sizes_beside_it.py").write_text("WIDTH = 24\n")
  (tmp_path / "my_config.py").write_text("""
from ml_collections import ConfigDict
from sizes_beside_it import WIDTH


def get_config():
  return ConfigDict({"width": WIDTH})
""")
  assert config_files.load_config(f"{tmp_path}/my_config.py").width == 24


def test_a_config_file_named_as_a_package_does_not_hide_it(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", list(sys.path))
  monkeypatch.delitem(sys.modules, "six", raising=False)  # which dateutil, pandas and more import
  (tmp_path / "six.py").write_text(
      "import six\nfrom ml_collections import ConfigDict\n"
      "get_config = lambda: ConfigDict({'file': six.__file__})\n")
  assert "site-packages" in config_files.load_config(f"{tmp_path}/six.py").file


def test_a_file_in_the_working_directory_hides_no_package(tmp_path):
  (tmp_path / "calendar.py").write_text("raise SystemExit('hidden')\n")
  (tmp_path / "absl.py").write_text("raise SystemExit('hidden')\n")
  result = subprocess.run(
      [sys.executable, "-P", "-c", "import sys; from experiments.__main__ import main;"
       " sys.argv = ['jtx', 'inspect', '--workdir=none']; sys.exit(main())"],
      cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
  assert "hidden" not in result.stderr and "none" in result.stderr


def test_a_config_file_of_a_package_imports_its_neighbours(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "path", list(sys.path))
  package = tmp_path / "package_of_configs"
  package.mkdir()
  (package / "__init__.py").write_text("")
  (package / "sizes.py").write_text("WIDTH = 25\n")
  (package / "mine.py").write_text("""
from ml_collections import ConfigDict
from .sizes import WIDTH


def get_config():
  return ConfigDict({"width": WIDTH})
""")
  assert config_files.load_config(f"{package}/mine.py").width == 25
