"""Modules of users: found where a run is trained and opened, and told of where they are not."""

import json
import os
import sys

import jax
import numpy as np
import pytest

from configs import common
from experiments import cli
from jtx import imports
from jtx.config import build
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.nn.positions import POSITIONS
from jtx.parallel import sharding
from jtx.saved import claims, workdir
from jtx.saved.pretrained import load_pretrained, save_pretrained
from jtx.train import loop

MODULE = """
import dataclasses
from jtx.nn.positions import POSITIONS, Learned


@dataclasses.dataclass(frozen=True)
class Mine(Learned):
  extra: int = 3


POSITIONS["mine"] = Mine
"""


@pytest.fixture
def forget(monkeypatch):
  """A function after which nothing is known of the module, as in a new process."""
  def run():
    for name in ("own_position", "own_package"):
      sys.modules.pop(name, None)
    POSITIONS.pop("mine", None)
    monkeypatch.setattr(imports, "found_in", {})
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "pytest" not in p])
  yield run
  run()


@pytest.fixture
def project(tmp_path, monkeypatch, forget):
  """The working directory, with a module."""
  folder = tmp_path / "project"
  folder.mkdir()
  (folder / "own_position.py").write_text(MODULE)
  monkeypatch.chdir(folder)
  forget()
  return folder


def config_of_model():
  config = common.get_config()
  config.imports = ("own_position",)
  config.model = common.model("encoder", vocab_size=9, mlm=True)
  common.apply(config, {"model.stack": common.TINY_STACK})
  config.model.stack.position = common.position("mine", max_length=8)
  return config


def test_a_workdir_keeps_its_modules_and_its_config_file(project, tmp_path, monkeypatch, forget):
  imports.load(("own_position",))
  config = config_of_model()
  source = project / "my_config.py"
  source.write_text("# a config of three lines\n")
  workdir.write_config(config, str(tmp_path), str(source))
  assert (tmp_path / "config.py").read_text() == "# a config of three lines\n"
  assert json.loads((tmp_path / "config.json").read_text())["imports"] == ["own_position"]
  assert json.loads((tmp_path / "imports.json").read_text()) == {"own_position": str(project)}

  # Also a process that starts elsewhere finds it.
  forget()
  elsewhere = tmp_path / "elsewhere"
  elsewhere.mkdir()
  monkeypatch.chdir(elsewhere)
  read = workdir.read_config(str(tmp_path))
  model = build(MODELS, read.model)
  assert type(model.stack.position).__name__ == "Mine"
  assert model.stack.position.extra == 3

  # The working directory comes first.
  (elsewhere / "own_position.py").write_text(MODULE.replace("= 3", "= 4"))
  forget()
  read = workdir.read_config(str(tmp_path))
  assert imports.found_in == {"own_position": str(elsewhere)}
  assert POSITIONS["mine"].extra == 4


def test_a_model_that_was_saved_keeps_its_modules(project, tmp_path, forget):
  imports.load(("own_position",))
  model = build(MODELS, config_of_model().model)
  batch = {"text": np.zeros((1, 8), np.int32), "text_positions": np.arange(8)[None],
           "text_segment_ids": np.ones((1, 8), np.int32)}
  params = jax.jit(model.init)(jax.random.key(0), batch)["params"]
  save_pretrained(str(tmp_path / "saved"), model, sharding.unbox(params), format="jtx")
  forget()
  again, theirs = load_pretrained(str(tmp_path / "saved"))
  assert type(again.stack.position) is POSITIONS["mine"]
  jax.tree.map(np.testing.assert_array_equal, theirs, sharding.unbox(params))


def test_a_module_that_is_gone_is_named(project, tmp_path, monkeypatch, forget):
  imports.load(("own_position",))
  workdir.write_config(config_of_model(), str(tmp_path))
  forget()
  (project / "own_position.py").unlink()
  with pytest.raises(ConfigError, match=r"^config\.imports: there is no module 'own_position'"
                     rf" beside the config file, in {project} or {project}, on PYTHONPATH or"):
    workdir.read_config(str(tmp_path))


@pytest.mark.parametrize("text,reason", [
    ("x = 1\nx = = 2\n", "line 2: SyntaxError: invalid syntax"),
    ("import os\nos.absent\n", "line 2: AttributeError: module 'os' has no attribute 'absent'"),
    ("import no_such_package\n", "line 1: ModuleNotFoundError: No module named 'no_such_package'"),
    ("import sys\n\nsys.exit(0)\n",
     "line 3: SystemExit: 0; a module that registers names must not end the program"),
])
def test_a_module_that_fails_is_told_with_its_line(project, text, reason):
  (project / "own_package").mkdir()
  path = project / "own_package" / "__init__.py"
  path.write_text(text)
  with pytest.raises(ConfigError) as error:
    imports.load(("own_package",))
  assert str(error.value) == f"config.imports: module 'own_package' can't be imported: {path}," \
      f" {reason}"


@pytest.mark.parametrize("name", ["own_position.py", "../own_position", "", 3])
def test_what_is_no_name(project, name):
  with pytest.raises(ConfigError, match=r"^config\.imports: .* is not the name of a module, as"):
    imports.load((name,))


def test_training_imports_before_it_asks_a_registry(project, tmp_path):
  config = common.get_config()
  config.imports = ("own_absent",)
  with pytest.raises(ConfigError, match="^config.imports: there is no module 'own_absent'"):
    loop.run(config, str(tmp_path / "run"))
  assert not os.path.exists(tmp_path / "run")


def test_the_command_line_imports_too(project):
  (project / "my_config.py").write_text("""
from ml_collections import ConfigDict


def get_config():
  return ConfigDict({"imports": ("own_position",)})
""")
  assert cli.config_of(["--config=my_config.py"]).imports == ("own_position",)
  assert "mine" in POSITIONS
  with pytest.raises(cli.UsageError, match="^config.imports: there is no module 'own_absent'"):
    cli.config_of(["--config=my_config.py", "--config.imports=own_absent"])


def test_a_run_goes_on_with_other_imports(project, tmp_path):
  config = common.get_config()
  workdir.write_config(config, str(tmp_path))
  (tmp_path / "checkpoints" / "5").mkdir(parents=True)
  config.imports = ("own_position",)
  claims.check(config, str(tmp_path))
  config.seed = 1
  with pytest.raises(ConfigError, match="seed is 0 there"):
    claims.check(config, str(tmp_path))
