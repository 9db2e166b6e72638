"""What XLA's compiler for TPUs makes of train steps. No TPU is needed."""

import pytest

from tests.helpers import compiled

pytest.importorskip("libtpu")


def report(*args):
  done, result = compiled(*args)
  assert done.returncode == 0, done.stderr
  return done, result


def test_what_is_sent_and_kept():
  # The rows of a batch are few, so that what is sent is parameters, not the activations of tokens
  # that are looked up.
  _, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2",
                     "--config.phases=((1.0, 512, 16),)", "--config.batch_size=16",
                     "--config.mesh.fsdp=4", "--config.mesh.data=1")
  assert result["fits"] and result["device_kind"] == "TPU v5 lite"
  assert 0 < result["estimate"]["utilisation"] < 1
  assert result["sent_bytes"] < 1.2 * result["least_sent_bytes"]


def test_two_slices():
  _, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2", "--slices=2",
                     "--config.mesh.fsdp=4", "--config.mesh.data=2")
  assert result["topology"] == "v5e:2x2 x 2" and result["devices"] == 8 and result["fits"]


def test_what_does_not_fit_is_a_result():
  done, result = report("--config=configs/bert.py:mini", "--topology=v5e:2x2",
                        "--config.phases=((1.0, 512, 16384),)", "--config.batch_size=16384",
                        "--config.mesh.fsdp=4", "--config.mesh.data=1")
  assert not result["fits"] and "memory" in result["why"]
  assert "does not fit" in done.stdout


def test_a_row_over_eight_chips_leaves_each_a_fifth_of_its_activations_or_less():
  """ModernBERT Base at its full length, with the kernel that its masks are for."""
  kept = {}
  for rows, context in ((8, 1), (1, 8)):
    done, result = report(
        "--config=configs/modernbert.py", "--topology=v5e:2x4", "--vocab_size=50368",
        f"--config.batch_size={rows}", f"--config.phases=((1.0, 8192, {rows}),)",
        f"--config.mesh.data={rows}", f"--config.mesh.context={context}",
        "--config.optim.accumulate=1")
    for mask in ("Window(left=None, right=None)", "Window(left=64, right=64)"):
      assert f"attention kernel splash for mask {mask}, segments" in done.stderr
    # Gradients are as large as parameters, and not activations.
    kept[context] = result["bytes"]["activations"] - result["bytes"]["parameters"]
  assert kept[8] < kept[1] / 5
