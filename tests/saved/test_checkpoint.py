"""Checkpoints come back bit for bit, or not at all."""

import os
import shutil

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import pytest

from jtx.errors import CheckpointError, ConfigError
from jtx.saved import checksums
from jtx.saved.checkpoint import Checkpointer
from tests.saved.states import abstract, assert_same_bits, make_state, restore, write

# Reading a damaged file, Orbax leaves failed coroutines behind, reported when collected.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.usefixtures("collect_here")]


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


def test_a_step_is_on_disk_before_the_one_before_is_deleted(tmp_path, monkeypatch):
  """A power cut would leave files of it empty."""
  synced, fsync = {}, os.fsync

  def record(number):
    path = os.path.realpath(f"/proc/self/fd/{number}").replace(".orbax-checkpoint-tmp", "")
    synced[path] = {p.name for p in tmp_path.iterdir()}
    fsync(number)

  checkpoints = Checkpointer(tmp_path, keep=1)
  checkpoints.save(1, make_state(1), {})
  checkpoints.wait()
  monkeypatch.setattr(os, "fsync", record)
  checkpoints.save(2, make_state(2), {})
  checkpoints.close()
  assert [p.name for p in tmp_path.iterdir()] == ["2"]
  after = {f"{tmp_path}/2/commit_success.txt"}  # which nobody reads
  assert {str(p) for p in (tmp_path, *tmp_path.rglob("*"))} - after == synced.keys()
  assert all("1" in steps and "2" not in steps for steps in synced.values())


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


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_digest(is_here, dtype, monkeypatch):
  """The definition in Python, which is the same for every sharding, on the host and on devices."""
  monkeypatch.setattr(checksums, "_is_here", lambda x: is_here)
  monkeypatch.setattr(checksums, "PART", 100)
  x = jnp.round(3 * make_state(1)["params"]["layers"]["kernel"]).astype(dtype)
  assert x.size > 200
  words = np.asarray(x).view(f"uint{8 * x.dtype.itemsize}").ravel().astype(object)
  want = sum(int(w) * (2 * i + 1) for i, w in enumerate(words)) % 2**32
  eight = jax.device_put(x, sharded({"x": x}, 8)["x"].sharding)
  assert checksums.digests({"x": x}) == checksums.digests({"x": eight}) == {"x": want}
  assert checksums.digests({"x": x[::-1]}) != {"x": want}
  assert checksums.digests({"x": x[:0], "y": x.sum()}).keys() == {"x", "y"}


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
    # Sums and means are rounded in float32, and only what comes of it to the dtype.
    close = lambda x, y: np.abs(np.asarray(x, np.float64) - y).max() < 2e-6
    same = np.asarray(got) == mean.astype(got.dtype)
    assert close(got, mean) if got.dtype == jnp.float32 else same.all()
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
