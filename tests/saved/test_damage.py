"""Damaged checkpoints are never restored: they are noticed, named and set aside."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import CheckpointError
from jtx.saved.checkpoint import Checkpointer
from jtx.saved.manifest import Manifests
from tests.saved.states import abstract, assert_same_bits, make_state, restore

# Reading a damaged file, Orbax leaves failed coroutines behind, reported when collected.
pytestmark = [pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
              pytest.mark.usefixtures("collect_here")]


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


def test_manifests_are_read_without_what_is_damaged(run, caplog):
  """Which stays where it is, for those who restore to set it aside."""
  manifests, path = Manifests(str(run / "checkpoints")), run / "checkpoints" / "2"
  (run / "checkpoints" / "3.orbax-checkpoint-tmp").mkdir()  # of a run that was killed
  assert (manifests.all_steps(), manifests.latest_step()) == ([1, 2], 2)
  assert manifests.read_meta() == {"saved": 2} and manifests.read_meta(1) == {"saved": 1}
  flip(path / "manifest" / "metadata")
  assert manifests.read_meta() == {"saved": 1} and path.is_dir()
  assert f"checkpoint {path} is damaged: " in caplog.text
  shutil.move(run / "checkpoints" / "1", run / "checkpoints" / "7")
  with pytest.raises(CheckpointError, match=f"{run}/checkpoints has no good checkpoint"):
    manifests.read_meta()
  assert "it is of step 1" in caplog.text
  assert Manifests(str(run / "nothing")).latest_step() is None


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


def test_a_run_that_lost_all_does_not_begin_anew_without_a_word(run):
  for step in "12":
    (run / "checkpoints" / step / "manifest" / "metadata").unlink()
  with pytest.raises(CheckpointError):
    restore(run)
  checkpoints = Checkpointer(run / "checkpoints")
  with pytest.raises(CheckpointError, match="all were damaged: they are in .*corrupt; remove that"):
    checkpoints.check_none_lost()
  shutil.rmtree(run / "corrupt")
  checkpoints.check_none_lost()
  checkpoints.close()


def test_a_folder_of_another_step(run, caplog):
  shutil.copytree(run / "checkpoints" / "2", run / "checkpoints" / "7")
  assert restore(run)[2] == 2
  assert "checkpoints/7 is damaged" in caplog.text and "it is of step 2" in caplog.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_checkpoint_of_another_user_is_not_damage(run):
  for path in (run / "checkpoints").rglob("*"):
    path.chmod(0o700 if path.is_dir() else 0o600)
  for path in (run, *run.parents):
    if path != path.parent and path.owner() == "root":
      path.chmod(path.stat().st_mode | 0o055)
  os.seteuid(65534)
  try:
    with pytest.raises((CheckpointError, PermissionError)):
      restore(run)
  finally:
    os.seteuid(0)
  assert not (run / "corrupt").exists() and restore(run)[2] == 2


def test_where_nothing_can_be_written_it_is_told_at_once(tmp_path):
  checkpoints = Checkpointer(tmp_path / "w" / "checkpoints")
  (tmp_path / "w").write_text("")
  with pytest.raises(CheckpointError, match="no checkpoint can be written there: not a dir"):
    checkpoints.save(1, make_state(1), {})


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
