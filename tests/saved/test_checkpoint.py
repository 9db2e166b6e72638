"""Checkpoints come back bit for bit, or not at all."""

import gc
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import optax
import pytest

from jtx.errors import CheckpointError, ConfigError
from jtx.saved import checksums
from jtx.saved.checkpoint import Checkpointer

# Reading a damaged file, Orbax leaves failed coroutines behind, reported when collected.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def collect_here():
  gc.freeze()  # what earlier tests left alive need not be looked through
  yield
  gc.collect()
  gc.unfreeze()


def make_state(seed: int = 0):
  rng = np.random.default_rng(seed)
  params = {
      "embed": {"embedding": jnp.asarray(rng.normal(size=(40, 16)), jnp.float32)},
      "layers": {"kernel": jnp.asarray(rng.normal(size=(2, 16, 24)), jnp.float32),
                 "scale": jnp.asarray(rng.normal(size=(2, 16)), jnp.bfloat16)},
  }
  return {"step": jnp.int32(seed), "params": params, "opt_state": optax.adam(1e-3).init(params),
          "frozen": jnp.asarray([True, False]), "ema": {}}


def abstract(tree):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


def assert_same_bits(got, want):
  assert jax.tree.structure(got) == jax.tree.structure(want)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
    assert a.dtype == b.dtype
    assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def write(directory, steps, **options):
  checkpoints = Checkpointer(directory, **options)
  for step in steps:
    checkpoints.save(step, make_state(step), {"saved": step})
  checkpoints.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """A folder with the checkpoints 1 and 2, to be copied."""
  run = tmp_path_factory.mktemp("written")
  write(run / "checkpoints", (1, 2))
  return run


@pytest.fixture
def run(written, tmp_path):
  shutil.copytree(written, tmp_path / "run")
  return tmp_path / "run"


def restore(run, step=None):
  checkpoints = Checkpointer(run / "checkpoints")
  try:
    return checkpoints.restore(abstract(make_state()), step)
  finally:
    checkpoints.close()


def test_round_trip(run):
  state, meta, step = restore(run)
  assert (meta, step) == ({"saved": 2}, 2)
  assert_same_bits(state, make_state(2))
  state, meta, step = restore(run, step=1)
  assert (meta, step) == ({"saved": 1}, 1)
  assert_same_bits(state, make_state(1))


def test_special_values(tmp_path):
  bits = np.array([0, 0x80000000, 1, 0x7F800001, 0xFFC12345, 0x7F800000], np.uint32)
  state = {"params": {"w": jnp.asarray(bits.view(np.float32))}}
  checkpoints = Checkpointer(tmp_path)
  checkpoints.save(1, state, {})
  checkpoints.wait()
  restored, _, _ = checkpoints.restore(abstract(state))
  assert_same_bits(restored, state)
  checkpoints.close()


def test_empty(tmp_path):
  checkpoints = Checkpointer(tmp_path / "none")
  assert checkpoints.latest_step() is None
  with pytest.raises(CheckpointError, match="no good checkpoint"):
    checkpoints.restore(abstract(make_state()))
  with pytest.raises(CheckpointError, match="no checkpoint of step 7; it has: none"):
    checkpoints.read_meta(7)
  checkpoints.close()
  assert not (tmp_path / "none").exists()


def test_refuses_bad_policy(tmp_path):
  with pytest.raises(ConfigError, match="keep=0"):
    Checkpointer(tmp_path, keep=0)
  with pytest.raises(ConfigError, match="keep_every=-1"):
    Checkpointer(tmp_path, keep_every=-1)


def test_keeps_newest_and_every_kth(tmp_path):
  write(tmp_path / "c", (2, 4, 6, 8, 10, 12), keep=2, keep_every=4)
  assert Checkpointer(tmp_path / "c").all_steps() == [4, 8, 10, 12]


@pytest.mark.parametrize("best, kept", [("min", [4, 10, 12]), ("max", [2, 10, 12])])
def test_keeps_the_best_over_restarts(tmp_path, best, kept):
  scores = {2: 5.0, 4: 1.0, 6: 2.0, 8: 1.0, 10: 3.0}
  for steps in ((2, 4), (6, 8, 10), (12,)):  # a start of its own knows what its checkpoint knew
    checkpoints = Checkpointer(tmp_path, keep=2, best=best)
    if steps[0] > 2:
      checkpoints.restore(abstract(make_state()))
      assert checkpoints.scores == {s: x for s, x in scores.items() if s < steps[0]}
    for step in steps:
      if step in scores:
        checkpoints.rate(step, scores[step])
      checkpoints.save(step, make_state(step), {})
    checkpoints.close()
  assert Checkpointer(tmp_path).all_steps() == kept
  assert dict(Checkpointer(tmp_path).read_manifest().scores) == scores


def test_what_a_notice_saved_stays_while_it_is_the_newest(tmp_path):
  """And does not take the place of one that is saved anyway."""
  options = dict(keep=2, every=10)
  for steps, kept in (([10, 20, 25], [20, 25]), ([30], [20, 30]), ([34], [30, 34]),
                      ([37], [30, 37]), ([40], [30, 40])):
    write(tmp_path, steps, **options)
    assert Checkpointer(tmp_path, **options).all_steps() == kept


def test_what_a_notice_saved_is_not_the_best(tmp_path):
  """A run that was not told to stop does not have it."""
  checkpoints = Checkpointer(tmp_path, keep=1, every=10, best="min")
  for step, score in ((10, 2.0), (15, 1.0), (20, 3.0), (30, 4.0)):
    checkpoints.rate(step, score)
    checkpoints.save(step, make_state(step), {})
  checkpoints.close()
  assert Checkpointer(tmp_path).all_steps() == [10, 30]


def test_a_step_is_not_written_twice(tmp_path):
  checkpoints = Checkpointer(tmp_path)
  checkpoints.save(3, make_state(3), {"saved": 3})
  checkpoints.save(3, make_state(4), {"saved": 4})
  checkpoints.wait()
  checkpoints.save(3, make_state(4), {"saved": 4})
  assert checkpoints.read_meta() == {"saved": 3}
  checkpoints.save(1, make_state(1), {"saved": 1})  # older than the newest: written all the same
  checkpoints.wait()
  assert checkpoints.all_steps() == [1, 3]
  checkpoints.close()


def test_donated_while_being_written(tmp_path):
  checkpoints = Checkpointer(tmp_path)
  update = jax.jit(lambda x: x + 1, donate_argnums=0)
  x = jnp.zeros((512, 512))
  for step in range(3):
    checkpoints.save(step, {"params": {"w": x}}, {})
    x = update(x)
  for step in range(3):
    tree = {"params": {"w": jax.ShapeDtypeStruct((512, 512), jnp.float32)}}
    restored, _, _ = checkpoints.restore(tree, step)
    assert (np.asarray(restored["params"]["w"]) == step).all()
  checkpoints.close()


# ------------------------------------------------------------------------- damage


def flip(path: pathlib.Path):
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 0x10
  path.write_bytes(data)


def truncate(path: pathlib.Path):
  path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def data_files(run):
  """The files of checkpoint 2 that hold arrays or the manifest; Orbax merges the rest away."""
  files = [p for p in (run / "checkpoints" / "2").rglob("*") if p.is_file()]
  return sorted(p for p in files if p.parent.name == "d" or p.parent.name == "manifest")


@pytest.mark.parametrize("damage", [flip, truncate, pathlib.Path.unlink])
def test_damage_is_never_restored(run, damage, caplog):
  """Each data file in turn: the bits are right, or the checkpoint before is used."""
  files = [f.relative_to(run) for f in data_files(run)]
  pristine = run.parent / "pristine"
  shutil.copytree(run, pristine)
  noticed = 0
  for file in files:
    shutil.rmtree(run)
    shutil.copytree(pristine, run)
    damage(run / file)
    caplog.clear()
    state, meta, step = restore(run)
    assert_same_bits(state, make_state(step))
    assert meta == {"saved": step}
    if step == 1:
      noticed += 1
      assert f"checkpoint {run}/checkpoints/2 is damaged" in caplog.text
      assert (run / "corrupt" / "2").is_dir() and not (run / "checkpoints" / "2").exists()
  # Orbax leaves some of its files behind that nothing reads.
  assert noticed >= 5


def test_flipped_bit_names_the_array(run, caplog):
  files = [f for f in data_files(run) if "params" in f.parts and f.stat().st_size > 1024]
  assert files
  flip(max(files, key=lambda f: f.stat().st_size))
  assert restore(run)[2] == 1
  assert "the checksum of array params/" in caplog.text


def test_truncated_names_the_array(run, caplog):
  files = [f for f in data_files(run) if "params" in f.parts]
  truncate(max(files, key=lambda f: f.stat().st_size))
  assert restore(run)[2] == 1
  assert "params/" in caplog.text.split("is damaged")[1]


def test_damaged_manifest(run, caplog):
  path = run / "checkpoints" / "2" / "manifest" / "metadata"
  manifest = json.loads(path.read_text())
  manifest["content"]["meta"]["saved"] = 3
  path.write_text(json.dumps(manifest))
  checkpoints = Checkpointer(run / "checkpoints")
  assert checkpoints.read_meta() == {"saved": 1}
  assert "the checksum of its manifest is wrong" in caplog.text
  checkpoints.close()


def test_damaged_step_asked_for_by_number(run):
  truncate(run / "checkpoints" / "2" / "manifest" / "metadata")
  with pytest.raises(CheckpointError, match="checkpoints/2 is damaged and now in .*corrupt/2"):
    restore(run, step=2)


def test_all_damaged_and_none_deleted(run):
  for step in "12":
    (run / "checkpoints" / step / "manifest" / "metadata").unlink()
  with pytest.raises(CheckpointError, match="no good checkpoint"):
    restore(run)
  assert sorted(p.name for p in (run / "corrupt").iterdir()) == ["1", "2"]


def test_written_again_and_damaged_again(run):
  for name in ("2", "2.1"):
    (run / "checkpoints" / "2" / "manifest" / "metadata").unlink()
    checkpoints = Checkpointer(run / "checkpoints")
    assert checkpoints.restore(abstract(make_state()))[2] == 1
    assert (run / "corrupt" / name).is_dir()
    checkpoints.save(2, make_state(2), {"saved": 2})
    checkpoints.close()
    assert restore(run)[2] == 2


def test_short_of_memory_is_not_damage(run, monkeypatch):
  def fail(*_):
    raise MemoryError("no memory")
  monkeypatch.setattr(Checkpointer, "_read_arrays", fail)
  with pytest.raises(MemoryError):
    restore(run)
  assert not (run / "corrupt").exists()


def test_half_written_folder_is_ignored(run):
  source = run / "checkpoints" / "2"
  source.rename(run / "checkpoints" / "2.orbax-checkpoint-tmp")
  assert restore(run)[1:] == ({"saved": 1}, 1)


_SAVE_FOREVER = """
import sys
import jax.numpy as jnp
from jtx.saved.checkpoint import Checkpointer
checkpoints = Checkpointer(sys.argv[1], keep=2)
for step in range(1, 1000):
  checkpoints.save(step, {"params": {"w": jnp.full((1000, 1000), step, jnp.float32)}}, {})
  print(step, flush=True)
"""


def test_killed_while_saving(tmp_path):
  process = subprocess.Popen(
      [sys.executable, "-c", _SAVE_FOREVER, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True,
      cwd=pathlib.Path(__file__).parents[2])
  for line in process.stdout:
    if int(line) == 4:
      time.sleep(0.02)  # into the write
      process.send_signal(signal.SIGKILL)
      break
  process.wait()
  process.stdout.close()
  checkpoints = Checkpointer(tmp_path / "c", keep=2)
  tree = {"params": {"w": jax.ShapeDtypeStruct((1000, 1000), jnp.float32)}}
  state, _, step = checkpoints.restore(tree)
  assert step >= 2 and (np.asarray(state["params"]["w"]) == step).all()
  checkpoints.save(step + 1, {"params": {"w": jnp.full((1000, 1000), step + 1.0)}}, {})
  checkpoints.wait()
  assert checkpoints.latest_step() == step + 1
  assert not (tmp_path / "corrupt").exists()
  checkpoints.close()


# ---------------------------------------------------------- other shapes and meshes


def test_other_model_is_not_damage(run):
  state = make_state()
  state["params"]["embed"]["embedding"] = jnp.zeros((41, 16))
  checkpoints = Checkpointer(run / "checkpoints")
  with pytest.raises(CheckpointError, match=(
      r"params/embed/embedding is float32\[40, 16\] in the checkpoint and float32\[41, 16\] in")):
    checkpoints.restore(abstract(state))
  del state["params"]["embed"]
  with pytest.raises(CheckpointError, match=r"params/embed/embedding .* and absent in the model"):
    checkpoints.restore(abstract(state))
  state = make_state() | {"more": {"x": jnp.zeros(2)}}
  with pytest.raises(CheckpointError, match=r"more/x is absent in the checkpoint"):
    checkpoints.restore(abstract(state))
  checkpoints.close()
  assert not (run / "corrupt").exists()


def sharded(tree, count):
  mesh = jax.make_mesh((count,), ("x",), axis_types=(jax.sharding.AxisType.Auto,),
                       devices=jax.devices()[:count])
  def sharding(x):
    axis = next((i for i, n in enumerate(x.shape) if n % count == 0), None)
    spec = [None] * x.ndim
    if axis is not None:
      spec[axis] = "x"
    return NamedSharding(mesh, PartitionSpec(*spec))
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding(x)), abstract(tree))


def test_other_mesh(tmp_path):
  state = make_state(5)
  shardings = jax.tree.map(lambda x: x.sharding, sharded(state, 8))
  write_to = Checkpointer(tmp_path / "c")
  write_to.save(5, jax.device_put(state, shardings), {})
  write_to.wait()
  one, _, _ = write_to.restore(abstract(state))
  assert_same_bits(one, state)
  assert all(len(x.sharding.device_set) == 1 for x in jax.tree.leaves(one))
  two, _, _ = write_to.restore(sharded(state, 2))
  assert_same_bits(two, state)
  assert len(two["params"]["layers"]["kernel"].sharding.device_set) == 2
  write_to.close()


def test_digest():
  """The definition in NumPy, and that it is the same for every sharding."""
  x = make_state(1)["params"]["layers"]["kernel"]
  words = np.asarray(x).view(np.uint32).ravel().astype(object)
  want = sum(int(w) * (2 * i + 1) for i, w in enumerate(words)) % 2**32
  eight = jax.device_put(x, sharded({"x": x}, 8)["x"].sharding)
  assert checksums.digests({"x": x}) == checksums.digests({"x": eight}) == {"x": want}
  assert checksums.digests({"x": x[::-1]}) != {"x": want}


# ------------------------------------------------------------------- parameters alone


def test_params_alone(run):
  shutil.rmtree(run / "checkpoints" / "2" / "opt_state")
  checkpoints = Checkpointer(run / "checkpoints")
  params, meta, step = checkpoints.restore_params(abstract(make_state()["params"]))
  assert (meta, step) == ({"saved": 2}, 2)
  assert_same_bits(params, make_state(2)["params"])
  opt_state, _, step = checkpoints.restore_params(
      abstract(make_state()["opt_state"]), step=1, key="opt_state")
  assert_same_bits(opt_state, make_state(1)["opt_state"])
  checkpoints.close()


def leaves(params, *steps):
  """Each leaf of `params` with those of the states of `steps`."""
  trees = [params, *(make_state(s)["params"] for s in steps)]
  return zip(*map(jax.tree.leaves, trees), strict=True)


def test_average(tmp_path, caplog):
  write(tmp_path / "checkpoints", (1, 2, 3, 4), keep=4)
  (tmp_path / "checkpoints" / "3" / "manifest" / "metadata").unlink()
  checkpoints = Checkpointer(tmp_path / "checkpoints")
  target = abstract(make_state()["params"])
  params, meta, step = checkpoints.restore_params(target, average=3)
  assert (meta, step) == ({"saved": 4}, 4)
  assert "checkpoints/3 is damaged" in caplog.text
  for got, *xs in leaves(params, 4, 2, 1):
    mean = np.mean([np.asarray(x, np.float64) for x in xs], 0)
    # A rounding of each sum and one of the result, relative to the largest term.
    assert np.abs(np.asarray(got, np.float64) - mean).max() < 4 * float(jnp.finfo(got.dtype).eps)
  params, _, step = checkpoints.restore_params(target, step=2, average=2)
  assert step == 2
  for got, a, b in leaves(params, 2, 1):  # halving is exact
    want = (np.asarray(a, np.float32) + np.asarray(b, np.float32)) / 2
    np.testing.assert_array_equal(got, want.astype(got.dtype))
  with pytest.raises(CheckpointError, match="average=4: .* has 3 good checkpoints up to step 4"):
    checkpoints.restore_params(target, average=4)
  with pytest.raises(CheckpointError, match="average=0"):
    checkpoints.restore_params(target, average=0)
  checkpoints.close()
