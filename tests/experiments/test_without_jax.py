"""Unknown config keys are told before JAX is imported, and no key that a config has is refused."""

import json
import os
import subprocess
import sys

import pytest

from experiments import without_jax
from experiments.config_values import _keys
from tests.helpers import ROOT
from tests.test_configs import PRESETS, module

TEMPLATE = ROOT / "examples" / "own_repo"


def python(*words, cwd=ROOT, first=""):
  """A process of Python, whose path begins with the folder `first`."""
  return subprocess.run(
      [sys.executable, *words], cwd=cwd, text=True, capture_output=True, env={
          **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(first), str(ROOT)]))})


@pytest.mark.parametrize("folder, config, key, meant", [
    (ROOT, "configs/nmt_numbers.py", "optim.lrr", "did you mean --config.optim.lr?"),
    (ROOT, "configs/nmt_numbers.py", "lr", "did you mean --config.optim.lr?"),
    (ROOT, "configs/nmt_numbers.py", "evals.val.evry", "did you mean --config.evals.val.every?"),
    (ROOT, "configs/glue.py:sst2", "model.num_layers",
     "did you mean --config.model.stack.num_layers?"),
    (ROOT, "jtx.configs.vit_digits", "data.ops[0].namess",
     "did you mean --config.data.ops[0].names?"),
    (TEMPLATE, "my_config.py", "model.stack.position.slop",
     "did you mean --config.model.stack.position.slope?"),
])
def test_the_answer_comes_without_jax(tmp_path, folder, config, key, meant):
  (tmp_path / "jax.py").write_text("raise SystemExit('JAX was imported')\n")
  done = python("-m", "experiments.train", f"--config={config}", f"--config.{key}=3",
                f"--workdir={tmp_path}/run", cwd=folder, first=tmp_path)
  assert (done.returncode, done.stdout) == (2, "")
  assert done.stderr == f"error: unknown config key --config.{key}; {meant}\n"


@pytest.mark.slow
def test_configs_have_the_same_keys_without_jax():
  done = python("-c", f"""
import importlib, json, sys
from experiments import without_jax
from experiments.config_values import _keys
sys.meta_path.insert(0, without_jax._Finder())
configs = {{n: importlib.import_module("configs." + n) for n in {sorted({n for n, _ in PRESETS})}}}
print(json.dumps([list(_keys(configs[n].get_config(p))) for n, p in {PRESETS}]))
assert not without_jax.asked and sys.modules["jax"].Anything is without_jax.Anything
""")
  assert not done.stderr
  for (name, preset), keys in zip(PRESETS, json.loads(done.stdout), strict=True):
    assert keys == list(_keys(module(name).get_config(preset))), (name, preset)


OWN = """
import jax
from jtx.configs import common
from jtx.train.optimizers import OPTIMIZERS
try:
  import flax.parts_that_are_not_there as parts
except ImportError:
  parts = None
OPTIMIZERS["mine"] = jax.jit(lambda _, *, rate=0.5: None)

def get_config(arg):
  c = common.get_config()
  if arg == "backend" and jax.default_backend() == "cpu":
    c.evals["".join(("on_", "cpu"))] = common.evaluator("loss")
  if arg == "devices":
    try:
      count = len(jax.devices())
    except TypeError:
      count = 0
    if count:
      c.evals[f"on_{'cpu'}"] = common.evaluator("loss")
  if arg == "number":
    try:
      c.mine = int(jax.device_count())
    except TypeError:
      pass
  if arg == "module" and parts is None:
    c.mine = 1
  if arg == "function":
    c.optim.optimizer = common.optimizer("mine")
  return c
"""


@pytest.mark.slow
def test_a_key_that_depends_on_jax_is_not_refused(tmp_path):
  cases = [("backend", "evals.on_cpu.source", False), ("devices", "evals.on_cpu.source", False),
           ("function", "optim.optimizer.rate", False), ("number", "mine", True),
           ("module", "mine", True)]
  (tmp_path / "mine.py").write_text(OWN)
  done = python("-c", f"""
import json
from experiments import config_files, config_values, without_jax
check = lambda argument, key: lambda: config_values._value_at(
    config_files.load_config("mine.py:" + argument), key, "config")
print(json.dumps([[without_jax.unknown_key(check(argument, key)) for key in (key, "othre")]
                  for argument, key, _ in {cases}]))
for argument, key, _ in {cases}:
  check(argument, key)()  # with JAX it is there
""", cwd=tmp_path)
  assert done.returncode == 0, done.stderr
  for (argument, _, is_sure), (told, another) in zip(cases, json.loads(done.stdout), strict=True):
    refused = another.startswith("unknown config key --config.othre; ")
    assert told == "" and (refused if is_sure else another == ""), argument


@pytest.mark.parametrize("key", ["seed", "evals.mine.every", "data.ops[1].lengths", "phases[0][1]",
                                 "model.stack.position.scaling.factor", "optim.schedule.name"])
def test_declared(key):
  assert without_jax.is_declared(key)
  for wrong in (f"{key}.x", f"x.{key}", f"x{key}", f"{key}..x", ""):
    assert not without_jax.is_declared(wrong)
