"""DINOv2 and BEiT against their classes in `transformers`, through files in both directions."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.saved.pretrained import load_pretrained, save_pretrained

torch = pytest.importorskip(
    "torch", reason="PyTorch is not installed: make test-parity installs it")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

from tests.parity.test_encoders import TOLERANCE, error, redraw, saved  # noqa: E402
from tests.parity.test_vit_classes import (  # noqa: E402
    CLASSES, jtx_outputs, make_image, peer_outputs)

SIZE = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=15, patch_size=5)
BEIT = SIZE | dict(intermediate_size=40)
SHARED = dict(use_shared_relative_position_bias=True, use_mask_token=True)
CASES = {
    "Dinov2Model": {},
    "Dinov2ForImageClassification": dict(use_swiglu_ffn=True, use_mask_token=False),
    "Dinov2WithRegistersModel": dict(mlp_ratio=2, num_channels=1, use_swiglu_ffn=True),
    "Dinov2WithRegistersForImageClassification": dict(num_register_tokens=3, hidden_act="relu"),
    "BeitModel": dict(use_relative_position_bias=True),
    "BeitForImageClassification": SHARED,
    "BeitForImageClassification of [CLS]": dict(
        use_absolute_position_embeddings=True, use_mean_pooling=False, layer_scale_init_value=0.0),
}


def make_peer(case):
  name = case.split()[0]
  kind = name.removesuffix("Model").removesuffix("ForImageClassification")
  sizes = BEIT if kind == "Beit" else SIZE
  config = getattr(transformers, f"{kind}Config")(**sizes | CASES[case])
  config.num_labels = CLASSES
  return redraw(getattr(transformers, name)(config).eval())


def pixels_of(image):
  return torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_files_are_those_of_transformers(case, tmp_path):
  peer = make_peer(case)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  assert sum(x.size for x in jax.tree.leaves(params)) == sum(p.numel() for p in peer.parameters())
  image = make_image(peer.config)
  theirs = peer_outputs(peer, image)
  assert error(jtx_outputs(model, case.endswith("Model"))(params, image), theirs) < TOLERANCE

  save_pretrained(str(tmp_path / "ours"), model, params)
  a, b = (safetensors.numpy.load_file(tmp_path / d / "model.safetensors")
          for d in ("theirs", "ours"))
  assert a.keys() == b.keys()
  for key in a:
    assert a[key].tobytes() == b[key].tobytes() and a[key].shape == b[key].shape, key
  again, info = type(peer).from_pretrained(tmp_path / "ours", output_loading_info=True)
  assert not any(info[k] for k in ("missing_keys", "unexpected_keys", "mismatched_keys"))
  assert error(peer_outputs(again.eval(), image), theirs) == 0


@pytest.mark.parametrize("case", ["Dinov2WithRegistersModel", "BeitForImageClassification"])
def test_hidden_patches_become_the_mask_token(case, tmp_path):
  peer = make_peer(case)
  model, params = load_pretrained(saved(peer, tmp_path / "theirs"), dtype="float32")
  image = make_image(peer.config)
  masked = np.random.default_rng(2).random((3, 9)) < 0.5
  ours = model.apply({"params": params}, {"image": image, "image_masked": masked})
  with torch.no_grad():
    trunk = peer if case.endswith("Model") else peer.beit
    theirs = trunk(pixels_of(image), bool_masked_pos=torch.from_numpy(masked)).last_hidden_state
  assert error({"x": np.asarray(ours)}, {"x": theirs.numpy()}) < TOLERANCE


@pytest.mark.parametrize("size", [25, 10])
@pytest.mark.parametrize("case", ["Dinov2Model", "Dinov2WithRegistersModel"])
def test_positions_are_interpolated_to_the_processor_s_images(case, size, tmp_path):
  """As the published models are run: their positions are those of larger images."""
  peer = make_peer(case)
  directory = saved(peer, tmp_path / "theirs")
  with open(f"{directory}/preprocessor_config.json", "w") as f:
    json.dump({"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 28},
               "crop_size": {"height": size, "width": size},
               "image_mean": [0.5] * peer.config.num_channels,  # its own are of three channels
               "image_std": [0.25] * peer.config.num_channels}, f)
  model, params = load_pretrained(directory, dtype="float32")
  assert model.image.size == size and model.grid.height == size // 5
  image = make_image(peer.config, size=size)
  ours = np.asarray(model.apply({"params": params}, {"image": image}))
  with torch.no_grad():
    theirs = peer(pixels_of(image)).last_hidden_state.numpy()
  assert error({"x": ours}, {"x": theirs}) < TOLERANCE
  save_pretrained(str(tmp_path / "ours"), model, params, like=directory)
  config = json.loads((tmp_path / "ours" / "config.json").read_text())
  assert config["image_size"] == 15 and "side_of_images" not in config
  assert load_pretrained(str(tmp_path / "ours"))[0].image == model.image
