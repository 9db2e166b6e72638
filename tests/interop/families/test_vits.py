"""Vision transformers and their files: what is read and written, and what is refused."""

import dataclasses
import json
import os

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import configs, huggingface, trunks
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.models.image_head import ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig
from jtx.models.patches import ImageConfig
from jtx.nn.block import ResidualConfig
from jtx.nn.grid_positions import LearnedGrid, Sincos2d
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from tests.helpers import block, vit
from tests.models.test_vit import BLOCK, drawn

IMAGE = ImageConfig(size=12, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
CLASSES = vit(image=IMAGE, patch_size=4, width=16, num_layers=2, block=BLOCK,
              head=ImageHeadConfig(task="classes", outputs=5))
MAE = vit(image=IMAGE, patch_size=4, width=16, num_layers=2, block=BLOCK,
          position=LearnedGrid(init="sincos", trained=False),
          decoder=DecoderConfig(num_layers=1, width=8, num_heads=2, ffn_dim=12, masked=0.5))
MODELS = {
    "vit": CLASSES,
    "deit": CLASSES.clone(prefix=PrefixConfig(distillation=True),
                          head=ImageHeadConfig(task="classes", outputs=5, distilled=True)),
    "vit_mae": MAE,
}

# As they are published, without what does not matter.
PUBLISHED = {
    "ViTForImageClassification": (86_567_656, dict(
        model_type="vit", architectures=["ViTForImageClassification"],
        attention_probs_dropout_prob=0.0, encoder_stride=16, hidden_act="gelu",
        hidden_dropout_prob=0.0, hidden_size=768, image_size=224, initializer_range=0.02,
        intermediate_size=3072, layer_norm_eps=1e-12, num_attention_heads=12, num_channels=3,
        num_hidden_layers=12, patch_size=16, qkv_bias=True, num_labels=1000,
        transformers_version="4.13.0.dev0")),
    "DeiTForImageClassificationWithTeacher": (87_338_192, dict(
        model_type="deit", architectures=["DeiTForImageClassificationWithTeacher"],
        hidden_size=768, image_size=[224, 224], num_labels=1000)),
    "Dinov2Model": (86_580_480, dict(
        model_type="dinov2", architectures=["Dinov2Model"], image_size=518, out_indices=[12],
        reshape_hidden_states=True)),
    "BeitForImageClassification": (86_530_984, dict(
        model_type="beit", architectures=["BeitForImageClassification"], num_labels=1000,
        use_relative_position_bias=True, vocab_size=8192)),
    "CLIPVisionModelWithProjection": (87_849_216, dict(
        model_type="clip_vision_model", architectures=["CLIPVisionModelWithProjection"])),
    "ViTMAEForPreTraining": (111_907_840, dict(
        model_type="vit_mae", architectures=["ViTMAEForPreTraining"], norm_pix_loss=True)),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_understood(name):
  count, config = PUBLISHED[name]
  model = configs.make_model(FAMILIES[config["model_type"]],
                                huggingface.model_fields(config))
  assert sum(int(np.prod(s)) for s in param_shapes(model).values()) == count


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_is_loaded(name, tmp_path):
  model, path = MODELS[name], str(tmp_path / "new")
  params = drawn(model)
  names = tuple("abcde") if model.head.outputs else None
  save_pretrained(path, model, params, labels=names)
  config = json.load(open(path + "/config.json"))
  assert config["model_type"] == name and "image_mean" not in config
  again, loaded = load_pretrained(path)
  assert set(trunks.differences(model, again)) <= {"stack.block.init_std"}  # of no consequence here
  jax.tree.map(np.testing.assert_array_equal, params, loaded)
  assert open_saved(path).labels() == names
  workdir = str(tmp_path / "workdir")
  save_pretrained(workdir, model, params, format="jtx", labels=names)
  converted, loaded = load_pretrained(workdir)
  assert converted == model
  jax.tree.map(np.testing.assert_array_equal, params, loaded)


def test_pixels_are_normalised_as_the_directory_says(tmp_path):
  path = str(tmp_path / "new")
  save_pretrained(path, CLASSES, drawn(CLASSES))
  file = path + "/preprocessor_config.json"
  content = json.load(open(file))
  assert content["image_mean"] == [0.4, 0.5, 0.6] and content["size"]["height"] == 12
  assert load_pretrained(path)[0].image == IMAGE
  for key, value, said in (("do_normalize", False, "do_normalize=False is not what jtx computes"),
                           ("rescale_factor", 1.0, "rescale_factor=1.0 is not 1/255"),
                           ("image_mean", [0.1, 0.2], "a number for each of the 3 channels")):
    with open(file, "w") as f:
      json.dump(content | {key: value}, f)
    with pytest.raises(ConfigError, match=said):
      load_pretrained(path)
  os.remove(file)
  assert load_pretrained(path)[0].image.mean == (0.5,)


@pytest.mark.parametrize("edits, said", [
    (dict(qkv_bias=False), "qkv_bias=False is not what jtx computes, which is True"),
    (dict(image_size=[224, 196]), r"image_size=\[224, 196\] is not a whole number of pixels, or"),
    (dict(patch_size=15), "image.size=224 is not a multiple of the 15 pixels"),
    (dict(hidden_act="mish"), "hidden_act='mish' is not one of"),
    (dict(rope_theta=100.0), "'rope_theta'=100.0 is not known to jtx"),
    (dict(num_attention_heads=7), "7 attention heads do not divide the width 768"),
])
def test_what_can_not_be_computed_is_refused(edits, said):
  config = PUBLISHED["ViTForImageClassification"][1] | edits
  with pytest.raises(ConfigError, match=said):
    family = FAMILIES["vit"]
    param_shapes(configs.make_model(family, huggingface.model_fields(config)))


@pytest.mark.parametrize("model, said", [
    (vit(CLASSES, position=Sincos2d()), "vit and deit have learned positions, not Sincos2d"),
    (CLASSES.clone(prefix=PrefixConfig(registers=2)), "vit has prefix.registers=0"),
    (CLASSES.clone(head=ImageHeadConfig(task="classes", outputs=5, pool="mean")),
     "vit has head.pool='first'"),
    (vit(CLASSES, position_at="layers"), "vit has stack.position_at='stem'"),
])
def test_a_model_that_no_family_has(model, said, tmp_path):
  with pytest.raises(ConfigError, match=said):
    save_pretrained(str(tmp_path / "new"), model, drawn(model))
  assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("normalize, masked", [(True, 0.5), (False, 0.0)])
def test_the_pixels_that_mae_predicts_and_what_it_hides_are_kept(normalize, masked, tmp_path):
  decoder = dataclasses.replace(MAE.decoder, normalize=normalize, masked=masked)
  model, path = MAE.clone(decoder=decoder), str(tmp_path / "new")
  save_pretrained(path, model, drawn(model))
  config = json.load(open(path + "/config.json"))
  assert (config["norm_pix_loss"], config["mask_ratio"]) == (normalize, masked)
  assert load_pretrained(path)[0].decoder == decoder
  # The encoder alone predicts nothing; the default of `transformers` is without.
  encoder = load_pretrained(path, "ViTMAEModel")[0]
  assert (encoder.decoder.num_layers, encoder.decoder.masked) == (0, masked)
  del config["norm_pix_loss"]
  assert huggingface.model_fields(config)["decoder"]["normalize"] is False
  with pytest.raises(ConfigError, match="norm_pix_loss=1 is not true or false"):
    huggingface.model_fields(config | {"norm_pix_loss": 1})


def test_an_encoder_of_mae_becomes_a_classifier(tmp_path):
  path = str(tmp_path / "mae")
  params = drawn(MAE)
  save_pretrained(path, MAE, params)
  model = CLASSES.clone(head=ImageHeadConfig(task="classes", outputs=7, pool="mean", norm=True))
  loaded, missing = open_saved(path).params_for(model)
  assert all(name.startswith("task_head/") for name in missing)
  np.testing.assert_array_equal(loaded["position_embedding"], params["position_embedding"])
  with pytest.raises(ConfigError, match="model.stack.num_layers=3 does not fit the weights"):
    open_saved(path).params_for(vit(model, num_layers=3))


# --------------------------------------------------------------------------------- timm


def timm_tensors(model, params):
  """The tensors of a model under the names of timm, by hand."""
  D = model.stack.width
  layers = params["encoder"]["layers"]
  result = {
      "cls_token": params["cls_token"][None], "pos_embed": params["position_embedding"][None],
      "patch_embed.proj.weight": params["patches"]["kernel"].transpose(3, 2, 0, 1),
      "patch_embed.proj.bias": params["patches"]["bias"],
      "norm.weight": params["encoder"]["final_norm"]["scale"],
      "norm.bias": params["encoder"]["final_norm"]["bias"],
      "head.weight": params["task_head"]["output"]["kernel"].T,
      "head.bias": params["task_head"]["output"]["bias"],
  }
  for i in range(model.stack.num_layers):
    attention = layers["attention"]
    part = lambda name, kind: attention[name][kind][i]
    names = ("query", "key", "value")
    result |= {f"blocks.{i}.{name}": value for name, value in {
        "attn.qkv.weight": np.concatenate([part(n, "kernel").reshape(D, D).T for n in names]),
        "attn.qkv.bias": np.concatenate([part(n, "bias").reshape(D) for n in names]),
        "attn.proj.weight": part("out", "kernel").reshape(D, D).T,
        "attn.proj.bias": part("out", "bias"),
        "ls1.gamma": layers["attention_scale"][i], "ls2.gamma": layers["ffn_scale"][i],
        "norm1.weight": layers["attention_norm"]["scale"][i],
        "norm1.bias": layers["attention_norm"]["bias"][i],
        "norm2.weight": layers["ffn_norm"]["scale"][i],
        "norm2.bias": layers["ffn_norm"]["bias"][i],
        "mlp.fc1.weight": layers["ffn"]["in"]["kernel"][i].T,
        "mlp.fc1.bias": layers["ffn"]["in"]["bias"][i],
        "mlp.fc2.weight": layers["ffn"]["out"]["kernel"][i].T,
        "mlp.fc2.bias": layers["ffn"]["out"]["bias"][i]}.items()}
  return {name: np.ascontiguousarray(x) for name, x in result.items()}


TIMM = {"architecture": "deit3_small_patch16_224", "num_classes": 5, "num_features": 16,
        "global_pool": "token",
        "model_args": {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2,
                       "num_heads": 2},
        "pretrained_cfg": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.25, 0.3]}}


def write_timm(path, config, tensors):
  path.mkdir()
  (path / "config.json").write_text(json.dumps(config))
  safetensors.numpy.save_file(tensors, path / "model.safetensors")
  return str(path)


def test_files_of_timm_are_read(tmp_path):
  residual = ResidualConfig(layer_scale=1e-6)
  model = vit(CLASSES, block=block(BLOCK, ffn_dim=64, residual=residual),
              position=LearnedGrid(of_prefix=False))
  params = drawn(model)
  directory = write_timm(tmp_path / "timm", TIMM, timm_tensors(model, params))
  again, loaded = load_pretrained(directory)
  assert again.image == IMAGE and not set(trunks.differences(model, again))
  jax.tree.map(np.testing.assert_array_equal, params, loaded)
  assert open_saved(directory).labels() is None
  with pytest.raises(ConfigError, match="no family|can't be expressed"):
    save_pretrained(str(tmp_path / "new"), again, loaded)  # layer scale is none of ViTModel's


@pytest.mark.parametrize("edits, said", [
    (dict(architecture="vit_giant_patch14_224"), "architecture='vit_giant_patch14_224' is none"),
    (dict(global_pool="avg"), "global_pool='avg' is not what jtx reads"),
    (dict(model_args={"qk_norm": True}), "model_args has 'qk_norm'=True, which is not known"),
])
def test_what_is_not_known_of_timm(edits, said, tmp_path):
  with pytest.raises(ConfigError, match=said):
    load_pretrained(write_timm(tmp_path / "timm", TIMM | edits, {"x": np.zeros(1)}))
