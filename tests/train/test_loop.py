"""The train loop: meshes, accumulation, averages, resuming, and what it refuses."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from configs import common, modernbert
from jtx import build
from jtx.errors import ConfigError, DataError, TrainError
from jtx.saved import checkpoint
from jtx.saved.workdir import load_run
from jtx.train import loop, states
from jtx.train.program import Program
from tests.helpers import ROOT, logged, losses, one_device, one_fast, tiny_config


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
  """Ten steps on one device, dropout on."""
  workdir = tmp_path_factory.mktemp("reference")
  loop.run(tiny_config(), str(workdir), jax.devices()[:1])
  return workdir


def test_every_step_is_logged_once_and_the_loss_falls(reference):
  steps, values = zip(*losses(reference))
  assert steps == tuple(range(1, 11))
  assert values[-1] < values[0]
  line = logged(reference)[-1]
  assert {"loss", "nll", "accuracy", "grad_norm", "lr"} <= line.keys()
  for file in ("config.json", "environment.json", "tokenizer.json", "results.json"):
    assert json.loads((reference / file).read_text())


MESHES = {
    "data 8": {"data": 8},
    "fsdp 8": {"data": 1, "fsdp": 8},
    "tensor 2 x data 4": {"data": 4, "tensor": 2},
    "fsdp 2 x tensor 2 x data 2": {"data": 2, "fsdp": 2, "tensor": 2},
    "context 2 x data 4": {"data": 4, "context": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    name if " x " in name else pytest.param(name, marks=pytest.mark.exhaustive) for name in MESHES])
def test_a_mesh_of_eight_gives_the_losses_of_one_device(reference, tmp_path, name):
  config = tiny_config(mesh=MESHES[name])
  loop.run(config, str(tmp_path), jax.devices())
  np.testing.assert_allclose(*([v for _, v in losses(w)] for w in (tmp_path, reference)), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.long
def test_rows_of_8192_tokens_over_eight_devices(tmp_path):
  config = modernbert.get_config("tiny")
  config.evals = {}
  common.apply(config, {"steps": 1, "log_every": 1, "phases": ((1.0, 8192, 1),),
                        "batch_size": 1, "data.train": ("embedded:pydocs:val",),
                        "model.stack.width": 16, "model.stack.block.attention.num_heads": 1})
  for context in (1, 8):
    shape = config.copy_and_resolve_references()
    shape.mesh.update(data=1, context=context)
    loop.run(shape.lock(), str(tmp_path / str(context)), jax.devices()[:context])
  ours, theirs = (logged(tmp_path / str(context)) for context in (8, 1))
  assert [line["step"] for line in ours] == [1]
  for a, b in zip(ours, theirs, strict=True):
    for name in ("loss", "grad_norm"):
      assert a[name] == pytest.approx(b[name], rel=1e-5)


@pytest.mark.parametrize("mesh", one_fast(
    ({"data": 2, "fsdp": 2, "tensor": 2}, ("fsdp", "tensor")),
    ({"data": 1, "fsdp": 8}, ("fsdp",)),
    ({"data": 2, "fsdp": 2, "context": 2}, ("fsdp", "context")),
    ({"data": 4, "tensor": 2}, ("tensor",))))
def test_parameters_and_optimiser_state_are_really_sharded(mesh):
  shape, axes = mesh
  config = tiny_config(mesh=shape)
  program = make_program(config, jax.devices())
  state = program.init()
  ways = math.prod(shape[a] for a in axes)
  kernel = lambda tree: tree["encoder"]["layers"]["ffn"]["in"]["kernel"]
  moments = [x for path, x in jax.tree_util.tree_leaves_with_path(state.opt_state)
             if "'encoder'" in str(path) and "'ffn'" in str(path) and "'in'" in str(path)
             and "'kernel'" in str(path)]
  assert len(moments) >= 2  # Adam's two
  for x in (kernel(state.params), *moments):
    assert {s.data.size for s in x.addressable_shards} == {x.size // ways}
    assert len({str(s.index) for s in x.addressable_shards}) == ways
  total = sum(x.size for x in jax.tree.leaves(state.params))
  local = sum(x.addressable_shards[0].data.size for x in jax.tree.leaves(state.params))
  assert local < 0.75 * total


def make_program(config, devices):
  from jtx.data.dataset import Dataset
  from jtx.parallel import sharding
  mesh = sharding.make_mesh(config.mesh, devices)
  data = Dataset(config.data, config.tokenizer)
  model, objective = build.make_model(config, data.info)
  return Program(config, model, objective,
                 example=data.example_batch(config.batch_size), mesh=mesh)


def one_step(config, devices=None):
  from jtx.data.dataset import Dataset
  from jtx.parallel import sharding
  program = make_program(config, devices or jax.devices()[:1])
  data = Dataset(config.data, config.tokenizer)
  stream = data.train_stream(0, config.batch_size, range(config.batch_size))
  batch = loop.without_ids(stream.batch(0))
  placed = sharding.to_device(batch, config.batch_size, sharding.batch_sharding(program.mesh))
  return program, program.step(program.init(), placed)


@pytest.mark.slow
def test_a_checkpoint_goes_to_any_mesh(tmp_path):
  program, state = one_step(tiny_config(mesh={"data": 1, "fsdp": 4, "tensor": 2}), jax.devices())
  checkpoints = checkpoint.Checkpointer(tmp_path)
  checkpoints.save(1, states.to_dict(state), {})
  checkpoints.wait()
  for devices, mesh in ((1, {}), (2, {"data": 1, "tensor": 2}), (4, {"data": 2, "fsdp": 2}),
                        (8, {"data": 1, "fsdp": 8}), (8, {"data": 2, "tensor": 2, "context": 2})):
    other = make_program(tiny_config(mesh=mesh), jax.devices()[:devices])
    restored, _, _ = states.restore(other, checkpoints)
    assert jax.tree.map(lambda x: x.sharding, restored) == other.shardings
    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
      np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
  checkpoints.close()


@pytest.mark.slow
def test_accumulation_gives_the_gradient_of_the_whole_batch():
  """With sgd the update is the gradient; rows hold different numbers of tokens."""
  edits = {"model.encoder.block.dropout": 0.0, "optim.optimizer": sgd(), "optim.schedule.warmup": 0}
  _, whole = one_step(tiny_config(**edits))
  _, parts = one_step(tiny_config(**edits, **{"optim.accumulate": 4}))
  for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params)):
    np.testing.assert_allclose(a, b, atol=1e-6)
  for name in whole.sums:
    np.testing.assert_allclose(whole.sums[name], parts.sums[name], rtol=1e-5)


def sgd():
  from configs import common
  return common.optimizer("sgd", momentum=0.0)


@pytest.mark.slow
def test_ema_is_the_average_it_says():
  program, state = one_step(tiny_config(**{"optim.ema": 0.75}))
  before = program.init()
  for e, p, p0 in zip(*map(jax.tree.leaves, (state.ema, state.params, before.params))):
    np.testing.assert_allclose(e, 0.75 * np.asarray(p0) + 0.25 * np.asarray(p), atol=1e-6)


@pytest.mark.slow
def test_frozen_parameters_stay():
  program, state = one_step(tiny_config(**{"optim.lr_mults": (("encoder/layers/0/", 0.0),)}))
  before = program.init().params["encoder"]["layers"]
  after = state.params["encoder"]["layers"]
  for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after)):
    np.testing.assert_array_equal(a[0], b[0])
  moved = [not np.array_equal(a[1], b[1])
           for a, b in zip(jax.tree.leaves(before), jax.tree.leaves(after))]
  assert any(moved)


@pytest.mark.slow
def test_the_final_parameters_are_the_mean_of_the_last_checkpoints(tmp_path):
  config = tiny_config(**{"checkpoint.average": 2})
  loop.run(config, str(tmp_path), jax.devices()[:1])
  load = lambda **kw: load_run(str(tmp_path), **kw)[1]
  mean, five, ten = load(), load(step=5, average=1), load(step=10, average=1)
  for m, a, b in zip(*map(jax.tree.leaves, (mean, five, ten))):
    np.testing.assert_allclose(m, (np.asarray(a) + np.asarray(b)) / 2, rtol=1e-6)


# ------------------------------------------------------------------------------ resuming


@pytest.mark.slow
def test_a_longer_log_interval_survives_a_restart_between_two_lines(reference, tmp_path):
  """Sums since the last line are part of the checkpoint."""
  config = tiny_config(log_every=4, **{"checkpoint.every": 3})

  def stop(step, *_):
    if step == 6:
      raise KeyboardInterrupt

  interrupt(config, tmp_path, stop)
  loop.run(config, str(tmp_path), jax.devices()[:1])
  whole = dict(losses(reference))
  weights = {line["step"]: line for line in logged(tmp_path)}
  assert list(weights) == [4, 8, 10]
  straight = tmp_path / "straight"
  loop.run(config, str(straight), jax.devices()[:1])
  assert losses(straight) == losses(tmp_path)
  assert min(whole.values()) <= weights[8]["loss"] <= max(whole.values())


def interrupt(config, workdir, hook):
  """Runs until `hook` raises, after a save."""
  original = checkpoint.Checkpointer.save

  def save(self, step, *args, **kwargs):
    original(self, step, *args, **kwargs)
    self.wait()
    hook(step)

  checkpoint.Checkpointer.save = save
  try:
    with pytest.raises(KeyboardInterrupt):
      loop.run(config, str(workdir), jax.devices()[:1])
  finally:
    checkpoint.Checkpointer.save = original


SCRIPT = """
import sys
from jtx.train import loop
from {module} import {function} as make
loop.run(make(**{{"steps": 60, "checkpoint.every": 7, "log_every": 2}}), sys.argv[1])
print("done", flush=True)
"""
# At start-up, and where the log has grown to some length: in the loop, often in a save.
KILLED = [("tests.helpers", "tiny_config", (1, 20)),
          pytest.param(("tests.train.test_vision", "augmented_config", (9,)),
                       marks=pytest.mark.exhaustive)]


def start(workdir, module, function):
  script = SCRIPT.format(module=module, function=function)
  return subprocess.Popen([sys.executable, "-c", script, str(workdir)], cwd=ROOT,
                          env=one_device(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("case", KILLED, ids=lambda case: case[1])
def test_killed_at_arbitrary_moments_the_losses_are_bit_equal(tmp_path, case):
  *make, kills = case
  process = start(tmp_path / "straight", *make)
  out, err = process.communicate(timeout=300)
  assert "done" in out, err
  workdir = tmp_path / "killed"
  log = workdir / "metrics.jsonl"
  count = 0
  for lines in kills:
    process = start(workdir, *make)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
      if log.exists() and log.read_text().count("\n") >= lines:
        break
      time.sleep(0.01)
    if process.poll() is None:
      count += 1
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
  assert count >= len(kills) // 2
  process = start(workdir, *make)
  out, err = process.communicate(timeout=300)
  assert "done" in out, err
  assert losses(workdir) == losses(tmp_path / "straight")
  assert [step for step, _ in losses(workdir)] == list(range(2, 61, 2))


@pytest.mark.slow
def test_a_flipped_byte_is_noticed_and_the_checkpoint_before_is_used(tmp_path, caplog):
  config = tiny_config()
  interrupt(config, tmp_path,
            lambda step: (_ for _ in ()).throw(KeyboardInterrupt()) if step == 10 else None)
  files = [p for p in (tmp_path / "checkpoints" / "10").rglob("*")
           if p.is_file() and "d" in p.parts[-2]]
  data = max(files, key=lambda p: p.stat().st_size)
  content = bytearray(data.read_bytes())
  content[len(content) // 2] ^= 1
  data.write_bytes(content)
  with caplog.at_level("WARNING"):
    loop.run(config, str(tmp_path), jax.devices()[:1])
  assert "10" in caplog.text and "damaged" in caplog.text
  assert (tmp_path / "corrupt" / "10").exists()
  assert [step for step, _ in losses(tmp_path)] == list(range(1, 11))


def test_a_finished_run_is_not_run_again(reference):
  before = (reference / "metrics.jsonl").read_text()
  result = loop.run(tiny_config(), str(reference), jax.devices()[:1])
  assert (reference / "metrics.jsonl").read_text() == before
  assert result["step"] == 10


# --------------------------------------------------------------------------- bad input


def test_a_workdir_of_another_config_is_refused_and_unharmed(reference):
  before = {p: p.read_bytes() for p in reference.rglob("*") if p.is_file()}
  with pytest.raises(ConfigError, match=r"another config: optim.lr is 0.005 there and 0.1 here"):
    loop.run(tiny_config(**{"optim.lr": 0.1}), str(reference), jax.devices()[:1])
  assert {p: p.read_bytes() for p in reference.rglob("*") if p.is_file()} == before


def test_another_tokenizer_does_not_fit_the_checkpoint(reference, tmp_path):
  import shutil
  copy = tmp_path / "copy"
  shutil.copytree(reference, copy)
  path = copy / "tokenizer.json"
  path.write_text(path.read_text().replace("<unk>", "<unc>"))
  with pytest.raises(ConfigError, match="does not fit its checkpoints"):
    loop.run(tiny_config(), str(copy), jax.devices()[:1])
  with pytest.raises(ConfigError, match="does not fit its checkpoints"):
    load_run(str(copy))


@pytest.mark.slow
def test_nan_stops_before_any_save(tmp_path):
  config = tiny_config(**{"optim.lr": 1e30, "optim.clip_norm": 0.0, "optim.schedule.warmup": 0,
                          "checkpoint.every": 1, "log_every": 100})
  with pytest.raises(TrainError, match=r"NaN or infinite at step [23]"):
    loop.run(config, str(tmp_path), jax.devices()[:1])
  steps = sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit())
  assert steps and max(steps) <= 2
  _, params, _ = load_run(str(tmp_path))
  assert all(np.isfinite(x).all() for x in jax.tree.leaves(params))


@pytest.mark.parametrize("edits,error,message", [
    ({"mesh.data": 3}, ConfigError, "data=3 takes 3 devices, and there are 8"),
    ({"batch_size": 12}, ConfigError,
     r"config.batch_size=12 \(rows of up to config.data.ops\[2\].max_segments=64 examples\) must be"
     " a positive multiple of the 8 ways"),
    ({"model.vocab_size": 7}, ConfigError, "config.model.vocab_size=7 does not fit the data"),
    ({"data.train": ("text:no.en,no.de",)}, DataError, "no.en"),
    ({"data.train": ()}, ConfigError, "data.train"),
    ({"data.ops": ()}, ConfigError, "needs one layout, 'pack' or 'pad'"),
    ({"model.encoder.block.attention.num_kv_heads": 3}, ConfigError, "does not divide"),
    ({"model.encoder.remat": "ful"}, ConfigError, "did you mean 'full'"),
    ({"optim.accumulate": 8}, ConfigError, "accumulate"),
    ({"optim.accumulate": 3}, ConfigError, "accumulate=3 does not divide config.batch_size=8"),
    ({"optim.accumulate": 0}, ConfigError, "config.optim.accumulate=0: must be 1 to"),
    ({"steps": 0}, ConfigError, "config.steps=0"),
    ({"model.encoder.window": 4}, ConfigError, "pattern has none"),
    ({"model.encoder.pattern": ("local",)}, ConfigError, "set window"),
])
def test_bad_configs(tmp_path, edits, error, message):
  with pytest.raises(error, match=message):
    loop.run(tiny_config(**edits), str(tmp_path), jax.devices())


def test_a_workdir_without_a_run(tmp_path):
  with pytest.raises(ConfigError, match="config.json does not exist"):
    load_run(str(tmp_path))
