"""What is drawn of a masked autoencoder is what it predicts, also where those are normalised."""

import jax
import numpy as np
import pytest

from jtx.build import init_params
from jtx.errors import ConfigError
from jtx.evals import pictures
from jtx.models.coatnet import CoAtNet
from jtx.models.detr import Detr
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.patches import ImageConfig
from jtx.objectives.classify import Classify
from jtx.objectives.mae import Mae
from jtx.parallel.sharding import unbox
from tests import helpers

IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 1), np.uint8)


@pytest.mark.parametrize("normalize", helpers.one_fast(True, False))
def test_a_normalisation_is_undone_where_the_model_has_one(normalize, monkeypatch):
  drawn = {}
  monkeypatch.setattr(pictures, "reconstructions", lambda images, hidden, predicted: drawn.update(
      hidden=hidden, predicted=predicted))
  model = helpers.vit(
      image=ImageConfig(size=4, channels=1, mean=(0.5,), std=(0.25,)), patch_size=2, width=8,
      num_layers=1, block=helpers.block(num_heads=2, ffn_dim=8, norm_position="pre"),
      decoder=DecoderConfig(num_layers=1, width=8, num_heads=2, ffn_dim=8, normalize=normalize))
  batch = {"image": IMAGES}
  params = unbox(init_params(model, Mae(), batch, jax.random.key(0)))
  figures = pictures.Pictures(source=()).draw(model, Mae(), params, IMAGES)
  assert [name for name, _ in figures] == ["attention", "positions", "reconstruction"]

  noise = jax.random.uniform(jax.random.key(0), (2, 4))
  expected, _ = model.apply({"params": params}, batch, noise, method="reconstruct")
  expected = np.asarray(expected, np.float64)
  if normalize:
    patches = np.asarray(model.apply({"params": params}, batch, method="pixels"), np.float64)
    mean, variance = patches.mean(-1, keepdims=True), patches.var(-1, keepdims=True, ddof=1)
    expected = expected * np.sqrt(variance + 1e-6) + mean
  rows = expected.reshape(2, 2, 2, 2, 2).transpose(0, 1, 3, 2, 4).reshape(2, 4, 4, 1)
  np.testing.assert_allclose(drawn["predicted"], rows * 0.25 + 0.5, atol=1e-5)


def test_a_model_that_learns_classes_has_no_reconstruction():
  model = helpers.vit(
      image=ImageConfig(size=4, channels=1, mean=(0.5,), std=(0.5,)), patch_size=2, width=8,
      num_layers=1, block=helpers.block(num_heads=2, ffn_dim=8, norm_position="pre"))
  params = unbox(init_params(model, Classify(), {"image": IMAGES}, jax.random.key(0)))
  figures = pictures.Pictures(source=()).draw(model, Classify(), params, IMAGES)
  assert [name for name, _ in figures] == ["attention", "positions"]


@pytest.mark.parametrize("model, told", [
    (CoAtNet(), "is a CoAtNet$"),
    (Detr(), "is a Detr; what its queries attend to is drawn by the evaluator 'detection' with")])
def test_attention_is_rolled_out_of_a_vision_transformer_only(model, told):
  with pytest.raises(ConfigError, match=f"over the layers of a Vit, and this model {told}"):
    pictures.attention(model, {}, IMAGES)
