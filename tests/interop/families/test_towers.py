"""CLIP and SigLIP in files of Hugging Face: there and back, refusals, larger images."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.data.tokenizers.kinds import characters
from jtx.errors import ConfigError
from jtx.interop import configs, huggingface, trunks
from jtx.models.two_towers import ProjectionConfig, SimilarityConfig
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from jtx.saved.trained import caption_encoder
from tests.helpers import one_fast
from tests.interop.samples import equal, message, random_params


def tiny(name, **more):
  """A published kind at a tiny size."""
  tower = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=12)
  text = tower | dict(vocab_size=20, max_position_embeddings=6)
  config = {"model_type": name, "text_config": text,
            "vision_config": tower | dict(image_size=8, patch_size=4)}
  config |= {"projection_dim": 5} if name == "clip" else {}
  family = huggingface.identify(config, name).family
  return configs.make_model(family, huggingface.fields_for(config, {"image_text"}, name))


CLIP, SIGLIP = tiny("clip"), tiny("siglip")


@pytest.mark.slow
@pytest.mark.parametrize("model", [SIGLIP, CLIP], ids=["siglip", "clip"])
def test_a_saved_model_is_the_same(model, tmp_path):
  path, params = str(tmp_path / "saved"), random_params(model)
  save_pretrained(path, model, params)
  again, read = load_pretrained(path)
  assert not trunks.differences(again, model)
  equal(read, params)
  fields = open_saved(path).trunk_fields("two_towers")
  assert fields["text_stack"]["causal"] is (model is CLIP)


def test_a_tokenizer_that_transformers_would_misread(tmp_path):
  """Not of SigLIP, which takes the last token of a row, whatever it is."""
  tokenizer = characters(iter(["abc"]))
  assert "the tokenizer's end token has the id 2, by which transformers knows old files" in message(
      save_pretrained, str(tmp_path / "clip"), CLIP, random_params(CLIP), tokenizer)
  save_pretrained(str(tmp_path / "siglip"), SIGLIP.clone(pad_id=0), random_params(SIGLIP),
                  tokenizer)
  read = caption_encoder(open_saved(str(tmp_path / "siglip")), SIGLIP.clone(vocab_size=7))
  assert read("abcabcabc").tolist() == [1, *tokenizer.encode("abca"), 2]  # cut to six tokens


# What neither kind has, by the field that says so.
EDITS = {
    "tower.embed_norm": lambda m: m.clone(tower=dataclasses.replace(m.tower, embed_norm=False)),
    "similarity.biased": lambda m: m.clone(similarity=SimilarityConfig(biased=True)),
    "pad_id": lambda m: m.clone(pad_id=3),
    "projection.bias": lambda m: m.clone(projection=ProjectionConfig(width=5, bias=True)),
}


@pytest.mark.parametrize("told", one_fast(*EDITS))
def test_models_that_neither_kind_is(told, tmp_path):
  model = EDITS[told](CLIP)
  assert told in message(save_pretrained, str(tmp_path / "x"), model, random_params(model))


def test_sections_of_older_files():
  """Sections twice, of which the second wins, and what all configs once had."""
  config = {"model_type": "clip", "architectures": ["CLIPModel"], "projection_dim": 10,
            "text_config": {"hidden_size": 8, "is_decoder": False, "top_k": 50, "dropout": 0.0},
            "text_config_dict": {"hidden_size": 16, "num_attention_heads": 4},
            "vision_config": None, "vision_config_dict": {"patch_size": 16}}
  fields = huggingface.model_fields(config)
  assert fields["text_stack"]["width"] == 16 and fields["patch_size"] == 16
  for section, told in (
      ({"hidden_siz": 8}, "'text_config.hidden_siz'=8 is not known to jtx"),
      ({"hidden_size": 0}, "text_config.hidden_size=0 is not a whole number of 1 or more"),
      ({"is_decoder": True}, "text_config.is_decoder=True is not what jtx computes"),
      (3, "text_config=3 is not an object")):
    wrong = {**config, "text_config": section, "text_config_dict": None}
    assert told in message(huggingface.model_fields, wrong)


def test_siglip_has_one_width():
  wrong = {"model_type": "siglip", "text_config": {"projection_size": 9}}
  assert "text_config.projection_size=9 is not vision_config.hidden_size=768" in message(
      huggingface.fields_for, wrong, {"image_text"})


@pytest.mark.slow
def test_positions_of_a_larger_image_are_interpolated(tmp_path):
  path, params = str(tmp_path / "saved"), random_params(CLIP)
  save_pretrained(path, CLIP, params)
  larger = CLIP.clone(image=dataclasses.replace(CLIP.image, size=16))
  found, missing = open_saved(path).params_for(larger)
  table, before = (tree["image_tower"]["position_embedding"] for tree in (found, params))
  assert not missing and table.shape == (17, 8) and before.shape == (5, 8)
  np.testing.assert_array_equal(table[0], before[0])  # of the class token
  # Half-pixel centres: the four corners are beyond the old ones, and their mean is the old mean.
  np.testing.assert_allclose(table[1:].mean(0), before[1:].mean(0), atol=1e-6)
  equal(found["text_tower"], params["text_tower"])
  with pytest.raises(ConfigError, match="model.projection.width=4 does not fit the weights"):
    open_saved(path).params_for(CLIP.clone(projection=ProjectionConfig(width=4)))


@pytest.mark.slow
def test_rows_are_filled_up_to_the_longest():
  """A SigLIP's text is the same in rows of any length, and another with another token in them."""
  params = jax.tree.map(jnp.asarray, random_params(SIGLIP))
  run = jax.jit(lambda text, mask, pad=SIGLIP.pad_id: SIGLIP.clone(pad_id=pad).apply(
      {"params": params}, {"text": text, "text_segment_ids": mask, "text_positions": text * 0},
      method="embed_texts"), static_argnums=2)
  short, long = (run(np.array([[4, 5] + [9] * n]), np.array([[1, 1] + [0] * n])) for n in (1, 4))
  np.testing.assert_allclose(short, long, atol=1e-6)
  other = run(np.array([[4, 5, 9]]), np.array([[1, 1, 0]]), 2)
  assert abs(other - short).max() > 0.01
