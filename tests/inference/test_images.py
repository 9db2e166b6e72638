"""Predictions of images of any shape, one a row."""

import io
import types

import numpy as np
import pytest

from jtx.data.ops.decode import DecodeImage
from jtx.data.ops.patch_layout import Patches
from jtx.errors import ConfigError, DataError
from jtx.inference.images import ImagePredictor, listed_images, save_patches
from jtx.models.packed_vit import INPUTS
from tests.models.test_packed_vit import MODEL, SIDE, batch_of, drawn, images


@pytest.mark.parametrize("method", ["predict", "features"])
def test_they_are_those_of_rows_that_images_share(method):
  pictures = images()
  batch = batch_of([pictures[:3], pictures[3:]], 21)
  params = drawn(MODEL, batch)
  first, layout = DecodeImage(names=("a",)), Patches(size=SIDE, most=12, length=30)
  predictor = ImagePredictor(MODEL, params, [*first.evaluated, *layout.evaluated], method=method,
                             batch_size=3)
  found = list(predictor(pictures))
  expected = MODEL.apply({"params": params}, {k: batch[k] for k in INPUTS}, method=method)
  expected = np.asarray(expected)[batch["real"] > 0]
  assert [x.shape for x in found] == 4 * [(1, 3) if method == "predict" else (8,)]
  np.testing.assert_allclose(np.reshape(found, (4, -1)), expected, atol=2e-5)


def test_what_needs_images_of_one_size(tmp_path):
  ops = [*DecodeImage(names=("a",)).evaluated, *Patches(size=SIDE).evaluated]
  with pytest.raises(ConfigError, match="needs a model of whole images"):
    ImagePredictor(MODEL, None, ops).array(images()[0])
  with pytest.raises(ConfigError, match="a PackedVit has no features of patches in one grid"):
    save_patches(str(tmp_path / "a.npy"), MODEL, None, ops, images())


def test_a_folder_s_images_are_those_that_it_does_not_hide(tmp_path):
  for name in ("b/2.PNG", "a.jpg", "notes.txt", "._a.jpg", ".cache/3.png", "__MACOSX/a.jpg"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
  assert listed_images(str(tmp_path)) == [str(tmp_path / name) for name in ("a.jpg", "b/2.PNG")]


def test_standard_input_lists_images(tmp_path, monkeypatch):
  (tmp_path / "a b.jpg").write_bytes(b"")
  lines = lambda *names: monkeypatch.setattr(
      "sys.stdin", types.SimpleNamespace(buffer=io.BytesIO("\n".join(names).encode())))
  monkeypatch.chdir(tmp_path)
  lines("a b.jpg", "", f"{tmp_path}/a b.jpg", "")
  assert listed_images("-") == ["a b.jpg", f"{tmp_path}/a b.jpg"]
  lines("a b.jpg", "c.jpg")
  with pytest.raises(DataError, match="^standard input:2: there is no image c.jpg$"):
    listed_images("-")
  lines("")
  with pytest.raises(DataError, match="^standard input: names no image"):
    listed_images("-")
