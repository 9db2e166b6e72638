"""Mistakes on a command line are told in one sentence, with the right exit status."""

import asyncio
import logging
from pathlib import Path
import re
import subprocess
import sys
import textwrap
import threading
import types

from absl import flags
from ml_collections import ConfigDict
from ml_collections.config_flags import config_flags
import pytest

from experiments import cli, config_files, no_accelerator

ROOT = Path(__file__).resolve().parent.parent.parent

CONFIG = """
from ml_collections import ConfigDict, config_dict
from jtx.config import ConfigError

def get_config(arg=""):
  if arg == "fault":
    {}["absent"]
  if arg not in ("", "locked", "missing_file"):
    raise ConfigError(f"unknown config argument {arg!r}; valid are: locked")
  config = ConfigDict({
      "seed": 0,
      "model": {"name": "encoder", "width": 64, "dropout": 0.1, "tied": True,
                "pattern": ("global", "local"), "scale": config_dict.placeholder(float)},
      "optim": {"name": "adamw", "lr": 1e-3, "betas": (0.9, 0.98)},
      "data": {"ops": [("clean", {"ratio": 2.0}), ("pack", {"lengths": (1, 2)})],
               "layers": (ConfigDict({"name": "clean", "ratio": 2.0}),)},
      "train": {"steps": 10},
  })
  if arg == "locked":
    config.lock()
    config.modle = 3
  if arg == "missing_file":
    open("no/such/vocabulary")
  return config

def sweep_rates():
  for lr in (1e-3, 1e-4):
    yield {"optim.lr": lr}

def sweep_fault():
  yield {"seed": 1 / 0}

def sweep_words():
  yield "seed"

def sweep_halves(config):
  yield {"model.width": config.model.width // 2}
"""


@pytest.fixture
def config_file(tmp_path):
  path = tmp_path / "base.py"
  path.write_text(CONFIG)
  return str(path)


def parse(*args):
  """The flag values of a command line, in an entry point with four flags."""
  argv = ["program", *args]
  values = flags.FlagValues()
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
  flags.DEFINE_string("workdir", None, "folder of the run", flag_values=values)
  flags.DEFINE_integer("beam", 4, "beams", flag_values=values)
  flags.DEFINE_float("seconds", 0.0, "until it stops", lower_bound=0.0, flag_values=values)
  flags.DEFINE_enum("launcher", "local", ["local", "slurm"], "where", flag_values=values)
  cli.parse(argv, required=("config", "workdir"), flag_values=values)
  return values


def sentence(*args):
  with pytest.raises(cli.UsageError) as error:
    parse(*args)
  return str(error.value)


def test_overrides(config_file):
  values = parse(
      f"--config={config_file}", "--workdir=w", "--config.model.width", "128",
      "--noconfig.model.tied", "--config.model.scale=1", "--config.optim.betas=0.8,1",
      "--config.model.pattern=global,local,local", "--config.data.ops[1][1].lengths=(5,6)")
  config = values.config
  assert (config.model.width, config.model.tied, config.model.scale) == (128, False, 1.0)
  assert config.optim.betas == (0.8, 1)
  assert config.model.pattern == ("global", "local", "local")
  assert config.data.ops[1][1]["lengths"] == (5, 6)
  assert config.is_locked and config.model.is_locked


def test_a_config_file_may_follow_its_keys(config_file):
  for file in ([f"--config={config_file}"], ["-config", config_file]):
    values = parse("--config.seed=3", "--workdir=w", "--noconfig.model.tied", *file, "--beam", "2")
    assert (values.config.seed, values.config.model.tied, values.beam) == (3, False, 2)


@pytest.mark.parametrize("text, value", [
    ("local", ("local",)), ("('local',)", ("local",)), ("a,b,", ("a", "b")), ("[]", ()),
    ("", ()), ("'a,b'", ("a,b",)), ("path/x-1.py", ("path/x-1.py",)),
])
def test_tuples(config_file, text, value):
  values = parse(f"--config={config_file}", "--workdir=w", f"--config.model.pattern={text}")
  assert values.config.model.pattern == value


def test_another_constructor_replaces_a_section(config_file):
  values = parse(f"--config={config_file}", "--workdir=w", '--config.optim={"name": "lion"}')
  assert values.config.optim.to_dict() == {"name": "lion"}


def test_sections_in_a_tuple(config_file):
  values = parse(f"--config={config_file}", "--workdir=w",
                 '--config.data.layers={"name": "pack", "lengths": (1, 2)}, {"name": "clean"}')
  first, second = values.config.data.layers
  assert isinstance(first, ConfigDict) and first.lengths == (1, 2)
  assert second.name == "clean"


def test_the_config_of_arguments(config_file):
  config = cli.config_of([f"--config={config_file}", "--config.seed=3", "--noconfig.model.tied"])
  assert (config.seed, config.model.tied, config.model.width) == (3, False, 64)
  assert cli.config_of([f"--config={config_file}"]).seed == 0
  with pytest.raises(cli.UsageError, match="unknown config key --config.sed; did you mean"):
    cli.config_of([f"--config={config_file}", "--config.sed=3"])


def test_sweeps(config_file):
  config = config_files.load_config(str(config_file))
  assert config_files.load_sweep(f"{config_file}:locked", "rates", config) == [
      {"optim.lr": 1e-3}, {"optim.lr": 1e-4}]
  assert config_files.load_sweep(config_file, "halves", config) == [{"model.width": 32}]
  for name, expected in (
      ("rtes", "has no function sweep_rtes; did you mean 'rates'?"),
      ("xyz", "has no function sweep_xyz; valid are: rates, fault, words, halves"),
      ("fault", "line 31: ZeroDivisionError: division by zero"),
      ("words", "item 1 of sweep_words is 'seed', not a dict of edits")):
    with pytest.raises(cli.UsageError) as error:
      config_files.load_sweep(config_file, name, config)
    assert expected in str(error.value)


def test_steps_of_a_flag_take_the_place_of_epochs_of_a_recipe(tmp_path):
  """Else a run of 97 epochs would start where three steps were asked for."""
  path = tmp_path / "recipe.py"
  path.write_text("from ml_collections import ConfigDict, config_dict\n"
                  "def get_config(epochs='97.5'):\n"
                  "  c = ConfigDict({'steps': 1000, 'epochs': config_dict.placeholder(float)})\n"
                  "  c.epochs = float(epochs) or None\n"
                  "  return c.lock()\n")
  length = lambda *args: parse(f"--config={path}", "--workdir=w", *args).config.to_dict()
  assert length() == {"steps": 1000, "epochs": 97.5}
  assert length("--config.steps=3") == {"steps": 3, "epochs": None}
  assert length("--config.epochs=2") == {"steps": 1000, "epochs": 2.0}
  both = sentence(f"--config={path}:0", "--workdir=w", "--config.steps=3", "--config.epochs=2")
  assert both == ("--config.steps and --config.epochs exclude each other: both say how long a run"
                  " is; give one of them")


@pytest.mark.parametrize("override, expected", [
    ("modle.width=3", "unknown config key --config.modle.width; "
                      "did you mean --config.model.width?"),
    ("model.wdith=3", "unknown config key --config.model.wdith; "
                      "did you mean --config.model.width?"),
    ("width=3", "unknown config key --config.width; did you mean --config.model.width?"),
    ("optim.momentum=3", "unknown config key --config.optim.momentum; "
                         "--config.optim has: betas, lr, name"),
    ("seed.x=3", "unknown config key --config.seed.x; did you mean --config.seed?"),
    ("a-b=3", "unknown config key --config.a-b; "
              "--config has: data, model, optim, seed, train"),
    ("lock=3", "unknown config key --config.lock; "
               "--config has: data, model, optim, seed, train"),
    ("data.ops[5]=3", "unknown config key --config.data.ops[5]; "
                      "--config.data.ops has 2 entries"),
    ("data.ops[0][1].rato=3.", "unknown config key --config.data.ops[0][1].rato; "
                               "did you mean --config.data.ops[0][1].ratio?"),
    ("seed=1e3", "--config.seed: '1e3' is not an int"),
    ("model.dropout=much", "--config.model.dropout: 'much' is not a float"),
    ("model.scale=a: b", "--config.model.scale: 'a: b' is not a float"),
    ("model.tied=maybe", "--config.model.tied: 'maybe' is not true or false"),
    ("optim.betas=a,b", "--config.optim.betas: 'a' is not a number"),
    ("model.pattern=local,3", "--config.model.pattern: 3 is not a string"),
    ("data.layers=clean", "--config.data.layers: 'clean' is not a section"),
    ("optim.betas=(1,", "flag --config.optim.betas=(1,: the brackets do not hold a tuple"),
    ("data.ops=[]", "--config.data.ops is a list; set an entry of it, as --config.data.ops[0]"),
    ("train=fast: 3", "--config.train is a section, and 'fast: 3' is none; set its keys one by "
                      "one, as --config.train.KEY=VALUE; it has steps"),
    ("train=('steps',)", "--config.train is a section, and \"('steps',)\" is none; set its keys "
                         "one by one, as --config.train.KEY=VALUE; it has steps"),
    ("optim=sgd", "--config.optim is a section, and 'sgd' is none; set its keys one by one, as "
                  "--config.optim.KEY=VALUE, or all of it, as "
                  "--config.optim='{\"name\": \"adamw\"}'"),
    ("train={'stps': 3}", "--config.train is a section; set its keys one by one, "
                          "as --config.train.KEY=VALUE"),
])
def test_config_mistakes(config_file, override, expected):
  assert sentence(f"--config={config_file}", "--workdir=w", f"--config.{override}") == expected


@pytest.mark.parametrize("args, expected", [
    (["--seconds=nan"], "--seconds=nan is not a number"),
    (["--wrkdir=w"], "unknown flag --wrkdir; did you mean --workdir?"),
    (["--beam=x"], "--beam: 'x' is not an int"),
    (["--launcher=moon"], "flag --launcher=moon: value should be one of <local|slurm>"),
    (["--beam"], "Missing value for flag --beam"),
    (["extra"], "unexpected argument 'extra'; flags are written --name=value"),
    (["--noconfig.seed"], "--noconfig.seed is not a yes-or-no key, "
                          "so it is written --config.seed=VALUE"),
    (["--workdir="], "--workdir must be given: folder of the run"),
])
def test_flag_mistakes(config_file, args, expected):
  assert sentence(f"--config={config_file}", "--workdir=w", *args) == expected


def test_keys_need_a_config_file():
  assert sentence("--workdir=w", "--config.seed=3") == "--config.seed needs --config=FILE"
  assert sentence("--workdir=w").startswith("--config must be given")


def test_config_file_mistakes(config_file, tmp_path):
  other = str(tmp_path / "other.py")
  assert sentence(f"--config={config_file[:-4]}.py") == (
      f"there is no config file {config_file[:-4]}.py; did you mean {config_file}?")
  assert sentence(f"--config={config_file}:large") == (
      "unknown config argument 'large'; valid are: locked")
  assert sentence(f"--config={config_file}:missing_file") == (
      "no/such/vocabulary: no such file or directory")
  assert sentence(f"--config={config_file}:fault") == (
      f"{config_file}, line 7: KeyError: 'absent' (--verbosity=1 shows the traceback)")
  assert "unknown config key 'modle'; did you mean 'model'?" in sentence(
      f"--config={config_file}:locked")
  Path(other).write_text("def get_config():\n  return 3\n")
  assert sentence(f"--config={other}:big") == f"{other} takes no arguments, so ':big' must go"
  assert sentence(f"--config={other}") == (
      f"{other}: get_config returned int, not a ConfigDict")
  broken = tmp_path / "broken.py"
  broken.write_text("x = 1\nx = = 2\n")
  assert sentence(f"--config={broken}").startswith(f"{broken}, line 2: SyntaxError: ")
  ending = tmp_path / "ending.py"
  ending.write_text("import sys\nsys.exit(0)\n")
  assert sentence(f"--config={ending}") == (
      f"{ending} ends the program (SystemExit: 0); a config file only returns its config")
  empty = tmp_path / "empty.py"
  empty.write_text("")
  assert sentence(f"--config={empty}") == f"{empty} has no function get_config"


SCRIPT = """
import sys
from absl import flags, logging
from ml_collections import config_flags
from experiments import cli, config_files
from jtx import config as config_lib

_CONFIG = config_flags.DEFINE_config_file("config")
_WORKDIR = flags.DEFINE_string("workdir", None, "folder of the run")

def main():
  logging.info("to %s", _WORKDIR.value)
  match _WORKDIR.value:
    case "ok":
      print(_CONFIG.value.seed, "jax" in sys.modules)
    case "config":
      raise config_lib.ConfigError("model.width: must be set")
    case "usage":
      raise cli.UsageError("--beam and --sample do not go together")
    case "file":
      open("no/such/file")
    case "fault":
      {}["absent"]

if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
"""


def execute(tmp_path, config_file, *args):
  script = tmp_path / "script.py"
  script.write_text(textwrap.dedent(SCRIPT))
  return subprocess.run(
      [sys.executable, script, f"--config={config_file}", *args], cwd=tmp_path,
      env={"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, capture_output=True, text=True)


def test_run_succeeds_without_jax(tmp_path, config_file):
  done = execute(tmp_path, config_file, "--workdir=ok", "--config.seed=7")
  assert (done.returncode, done.stdout) == (0, "7 False\n")
  assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d I to ok\n", done.stderr)


@pytest.mark.parametrize("args, status, expected", [
    (["--workdir=ok", "--config.sed=7"], 2,
     "error: unknown config key --config.sed; did you mean --config.seed?"),
    (["--workdir=config"], 1, "error: model.width: must be set"),
    (["--workdir=usage"], 2, "error: --beam and --sample do not go together"),
    (["--workdir=file"], 1, "error: no/such/file: no such file or directory"),
])
def test_users_errors_have_no_traceback(tmp_path, config_file, args, status, expected):
  done = execute(tmp_path, config_file, *args)
  assert (done.returncode, done.stdout) == (status, "")
  assert done.stderr.splitlines()[-1] == expected
  assert "Traceback" not in done.stderr


@pytest.mark.parametrize("args, last", [
    (["--workdir=config", "--verbosity=1"], "error: model.width: must be set"),
    (["--workdir=fault"], "KeyError: 'absent'"),
])
def test_tracebacks(tmp_path, config_file, args, last):
  done = execute(tmp_path, config_file, *args)
  assert done.returncode == 1
  assert "Traceback" in done.stderr
  assert done.stderr.splitlines()[-1] == last


@pytest.mark.parametrize("vendor, own, host, bounds, skip", [
    ("0x8086", None, "localhost", "1,1,1", "1"),
    ("0x8086", "a,b", "a,b", "1,1,1", "1"),
    ("0x1ae0", None, None, None, "1"),  # a TPU
    ("0x10de", None, "localhost", "1,1,1", None),  # a GPU
])
def test_runtimes_are_told_which_devices_are_not_there(vendor, own, host, bounds, skip, tmp_path,
                                                       monkeypatch):
  (tmp_path / "vendor").write_text(vendor + "\n")
  environment = {} if own is None else {"TPU_WORKER_HOSTNAMES": own}
  monkeypatch.setattr(no_accelerator.os, "environ", environment)
  no_accelerator.quiet(str(tmp_path / "*"))
  assert environment.get("TPU_WORKER_HOSTNAMES") == host
  assert environment.get("TPU_PROCESS_BOUNDS") == bounds
  assert environment.get("JAX_SKIP_CUDA_CONSTRAINTS_CHECK") == skip


def test_a_library_s_warning_has_no_traceback():
  def record(level, path, name="absl"):
    found = logging.LogRecord(name, level, path, 1, "it failed", (), (ValueError, None, None))
    return cli._is_for_all(found), bool(found.exc_info)

  library = "/venv/lib/python3/site-packages/orbax/checkpoint.py"
  assert record(logging.ERROR, library) == (True, False)
  assert not record(logging.INFO, library)[0]
  assert not record(logging.ERROR, "/lib/python3/asyncio/base_events.py", "asyncio")[0]
  assert record(logging.INFO, "/clone/jtx/train/loop.py") == (True, True)


def test_exceptions_that_follow_a_failed_save_are_not_shown(monkeypatch):
  shown = []
  monkeypatch.setattr(sys, "__unraisablehook__", lambda error: shown.append(error.object))
  for of in (None, "a generator"):
    thread = threading.Thread(target=cli._show, args=(types.SimpleNamespace(object=of),))
    thread.start()
    thread.join()
  assert shown == ["a generator"]
  cli._show(types.SimpleNamespace(object=None))
  cli._show(types.SimpleNamespace(object=asyncio.BaseEventLoop.__del__))
  assert shown == ["a generator", None]  # of the main thread
