"""Images from data to prediction: a vision transformer on the digits of scikit-learn."""

import json

from absl import flags
import jax
import numpy as np
from PIL import Image
import pytest

from configs import common, mae, vit, vit_digits
import jtx
from jtx import build
from jtx.errors import ConfigError, DataError
from jtx.inference.images import ImagePredictor, listed_images
from jtx.models.vit import Vit
from jtx.saved.folder import open_saved
from jtx.saved.workdir import load_run
from jtx.train import loop
from tests import helpers
from tests.helpers import command, losses

EDITS = {"steps": 6, "log_every": 1, "checkpoint.every": 2, "batch_size": 16,
         "objective.mixup": 0.3, "objective.cutmix": 1.0}


def config_of(**edits):
  config = vit_digits.get_config("tiny")
  common.apply(config, EDITS | edits)
  return config.lock()


def augmented_config(**edits):
  """One that draws crops, mixup and CutMix; see tests/test_train.py for what is done to it."""
  return config_of(**{"data.ops[1]": common.op("pad_crop", size=8, padding=1), **edits})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  workdir = str(tmp_path_factory.mktemp("digits"))
  results = loop.run(config_of(), workdir, jax.devices()[:1])
  return workdir, results


@pytest.mark.slow
def test_a_run_is_evaluated_on_all_of_an_uneven_split(trained):
  workdir, results = trained
  assert results["val/examples"] == 360  # no multiple of 16
  assert 0 <= results["val/accuracy"] <= results["val/top5_accuracy"] <= 1
  task, params, _ = load_run(workdir)
  assert task.data.labels == tuple("0123456789")
  assert isinstance(task.model, Vit) and task.model.head.outputs == 10


@pytest.mark.slow
def test_eight_devices_see_what_one_sees(trained, tmp_path):
  workdir, results = trained
  again = loop.run(config_of(), str(tmp_path), jax.devices()[:8])
  for (step, a), (_, b) in zip(losses(workdir), losses(tmp_path), strict=True):
    assert a == pytest.approx(b, rel=1e-4), step
  assert again["val/nll"] == pytest.approx(results["val/nll"], rel=1e-3)
  assert again["val/examples"] == 360


def test_predictions_are_those_of_the_evaluation(trained, tmp_path):
  workdir, _ = trained
  task, params, _ = load_run(workdir)
  examples = task.data.encoded(("embedded:digits:test",))[:5]
  batch = {"image": np.stack([e["image"] for e in examples])}
  expected = np.asarray(task.model.apply({"params": params}, batch, method="predict"))[:, 0]
  folder = tmp_path / "digits"
  folder.mkdir()
  for i, e in enumerate(examples):
    Image.fromarray(e["image"][..., 0]).save(folder / f"{i}.png")

  classify = jtx.Classifier(workdir)
  paths = listed_images(str(folder))
  for found in (classify(paths), classify([e["image"] for e in examples])):
    assert [p.label for p in found] == [str(i) for i in expected.argmax(1)]
    np.testing.assert_allclose(
        [list(p.scores.values()) for p in found],
        np.exp(expected) / np.exp(expected).sum(1, keepdims=True), atol=1e-5)

  out, patches = tmp_path / "out.jsonl", tmp_path / "patches.npy"
  with command("predict") as predict:
    flags.FLAGS(["predict", f"--workdir={workdir}", f"--input={folder}", f"--output={out}",
                 f"--patches={patches}"])
    predict.main()
  assert np.load(patches).shape[0] == 5
  lines = [json.loads(line) for line in out.read_text().splitlines()]
  assert [line["path"] for line in lines] == paths
  assert [line["label"] for line in lines] == [str(i) for i in expected.argmax(1)]
  assert all(len(line["scores"]) == 5 for line in lines)

  vectors = np.stack(list(ImagePredictor(
      task.model, params, task.data.recipe.augment, method="features")(paths)))
  assert vectors.shape == (5, task.model.stack.width)


@pytest.mark.slow
def test_images_that_can_not_be_predicted(trained, tmp_path):
  workdir, _ = trained
  broken = tmp_path / "broken.png"
  broken.write_bytes(b"no image")
  classify = jtx.Classifier(workdir)
  with pytest.raises(DataError, match="broken.png"):
    classify([str(broken)])
  with pytest.raises(DataError, match="missing.png"):
    classify([str(tmp_path / "missing.png")])
  empty = tmp_path / "empty"
  empty.mkdir()
  with pytest.raises(DataError, match="names no image"):
    listed_images(str(empty))
  listing = tmp_path / "list.txt"
  listing.write_text("broken.png\n\n")
  assert listed_images(str(listing)) == [str(broken)]


@pytest.mark.slow
def test_the_encoder_of_mae_is_fine_tuned_at_another_size(tmp_path):
  pretraining = mae.get_config("tiny")
  common.apply(pretraining, {"steps": 2, "log_every": 1})
  workdir = str(tmp_path / "mae")
  results = loop.run(pretraining.lock(), workdir, jax.devices()[:1])
  assert results["val/loss"] > 0
  task, params, _ = load_run(workdir)
  table = np.asarray(params["position_embedding"])
  np.testing.assert_allclose(table[0], 0, atol=0)  # sines, which are not trained
  np.testing.assert_allclose(np.abs(table[1]).sum(), 16, atol=1e-5)  # cosines of 0 are 1

  config = vit.get_config(f"tiny,crop=none,init={workdir}")
  common.apply(config, {"model.image.size": 12, "data.ops[1].size": 12, "data.ops[2].size": 12})
  assert config.model.stack.position.trained and config.model.head.task == "classes"
  model, _ = build.make_model(config, {"head.outputs": 10})
  loaded, missing = open_saved(workdir).params_for(model)
  assert loaded["position_embedding"].shape == (37, 32)
  assert all(path.startswith("task_head/") for path in missing) and missing
  np.testing.assert_array_equal(loaded["patches"]["kernel"], params["patches"]["kernel"])
  with pytest.raises(ConfigError, match="model.stack.width=16 does not fit the weights"):
    open_saved(workdir).params_for(helpers.vit(model, width=16))
