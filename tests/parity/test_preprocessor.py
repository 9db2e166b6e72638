"""Arrays of images and scores against the image processors of `transformers`, both ways."""

import json

import jax
import numpy as np
from PIL import Image
import pytest

from jtx.interop import preprocessor
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained
from tests.interop.families.test_vits import CLASSES
from tests.interop.test_preprocessor import RUNS, array, pictures, recipe, saved_both
from tests.models.test_vit import drawn

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

SHAPES = ((48, 144), (144, 48), (37, 61), (83, 64), (90, 64), (71, 64), (12, 12))


def normalised(image, ops, picture):
  return np.asarray(image.normalize(jax.numpy.asarray(array(ops, picture))))


def assert_pixels(ours, theirs, std):
  """Equal but for rounding: Pillow scales a part of an image to 2 of 255 of its whole."""
  assert ours.shape == theirs.shape
  assert (np.abs(ours - theirs) * 255 * np.asarray(std)).max() < 2.01


@pytest.mark.parametrize("name", RUNS)
def test_a_run_and_its_folder(name, tmp_path):
  params, ops = drawn(CLASSES), recipe(name)
  _, exported = saved_both(tmp_path, params, ops)
  processor = transformers.AutoImageProcessor.from_pretrained(exported)
  model = transformers.AutoModelForImageClassification.from_pretrained(exported).eval()
  for picture in pictures(*SHAPES):
    pixels = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    ours = normalised(CLASSES.image, ops, picture)
    assert_pixels(ours, pixels[0].numpy().transpose(1, 2, 0), CLASSES.image.std)
    with torch.no_grad():
      theirs = model(pixels).logits.numpy()
    scores = CLASSES.clone(dtype="float32").apply(
        {"params": params}, {"image": array(ops, picture)[None]}, method="predict")[:, 0]
    assert np.abs(np.asarray(scores) - theirs).max() < 0.05 * np.abs(theirs).max()
    assert scores.argmax() == theirs.argmax()


@pytest.mark.parametrize("plain", [False, True], ids=["", "plain"])
@pytest.mark.parametrize("kind, options", [
    ("ViT", dict(size={"height": 12, "width": 12})),
    ("DeiT", dict(size={"height": 16, "width": 16}, crop_size={"height": 12, "width": 12})),
    ("Bit", dict(size={"shortest_edge": 14}, crop_size={"height": 12, "width": 12})),
    ("CLIP", dict(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12}, resample=2)),
])
def test_a_folder_of_transformers(kind, options, plain, tmp_path):
  _, exported = saved_both(tmp_path, drawn(CLASSES), recipe("resize"))
  processor = getattr(transformers, f"{kind}ImageProcessor")(**options)
  processor.save_pretrained(exported)  # in place of ours
  if plain:
    path = tmp_path / exported / "preprocessor_config.json"
    path.write_text(json.dumps({"image_processor_type": f"{kind}ImageProcessor", **options}))
  model, _ = load_pretrained(exported)
  ops = open_saved(exported).image_ops(model)
  assert ops != preprocessor.resized(model.image) or kind == "ViT"
  for picture in pictures(*SHAPES):
    theirs = processor(Image.fromarray(picture), return_tensors="np")["pixel_values"][0]
    assert_pixels(normalised(model.image, ops, picture), theirs.transpose(1, 2, 0),
                  model.image.std)
