"""Adapters as files of PEFT: names, shapes, and numbers that make the merged tensors."""

import json

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import configs, export, huggingface, peft, tables
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.models.text_head import HeadConfig
from jtx.nn import lora
from jtx.nn.lora import LoraConfig
from jtx.nn.positions import Learned
from tests.helpers import block, decoder, encoder
from tests.models.test_contract import CASES, drawn

BERT = encoder(
    vocab_size=11, width=8, num_layers=2, position=Learned(max_length=6),
    block=block(num_heads=2, ffn_dim=12, attention_bias=True, activation="gelu", norm_eps=1e-12),
    head=HeadConfig(task="classes", outputs=3, transform="tanh"))
GPT2 = decoder(vocab_size=11, width=8, num_layers=2, position=Learned(max_length=6),
               block=block(decoder(vocab_size=11).stack.block, num_heads=2, ffn_dim=32))


def tiny(values):
  """A model by the values of a config.json."""
  return configs.make_model(FAMILIES[values["model_type"]], huggingface.model_fields(values))


def of(model, *names, **fields):
  model = model.clone(lora=LoraConfig(rank=2, alpha=3.0, names=names, **fields))
  return model, drawn(model)


def test_names_and_shapes(tmp_path):
  model, params = of(BERT, "attention/(query|value)$", "ffn/in")
  peft.save(str(tmp_path / "out"), model, params, "the/base")
  config = json.loads((tmp_path / "out" / "adapter_config.json").read_text())
  assert config["peft_type"] == "LORA" and config["base_model_name_or_path"] == "the/base"
  assert (config["r"], config["lora_alpha"], config["task_type"]) == (2, 3.0, "SEQ_CLS")
  layers = [f"bert.encoder.layer.{i}.{name}" for i in range(2) for name in (
      "attention.self.query", "attention.self.value", "intermediate.dense")]
  assert sorted(config["target_modules"]) == layers
  assert config["modules_to_save"] == ["bert.pooler.dense", "classifier"]
  assert not config["rank_pattern"] and not config["fan_in_fan_out"]
  tensors = safetensors.numpy.load_file(tmp_path / "out" / "adapter_model.safetensors")
  shapes = {name: x.shape for name, x in tensors.items()}
  out = lambda layer: 12 if "intermediate" in layer else 8
  assert shapes == {
      **{f"base_model.model.{x}.lora_A.weight": (2, 8) for x in layers},
      **{f"base_model.model.{x}.lora_B.weight": (out(x), 2) for x in layers},
      "base_model.model.bert.pooler.dense.weight": (8, 8),
      "base_model.model.bert.pooler.dense.bias": (8,),
      "base_model.model.classifier.weight": (3, 8), "base_model.model.classifier.bias": (3,)}


@pytest.mark.parametrize("model, names", [
    (BERT, ("attention/", "ffn/")), (GPT2, ("attention/(query|value)$", "out$")),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in (
        (GPT2, ("attention/", "ffn/in")),
        (CASES["vit with a head"][0], ("attention/out", "ffn/out"))))])
def test_products_are_those_that_are_merged(model, names):
  """W' - W of each tensor is alpha / rank B A, also where a tensor has several of our kernels."""
  model, params = of(model, *names)
  config, tensors = peft.contents(model, params)
  bare, merged = lora.merged(model, params)
  left = {p: x for p, x in flatten_dict(params, sep="/").items() if "lora_" not in p}
  family = FAMILIES[configs.expressed(FAMILIES, bare)[0]]
  before, after = (by_modules(export.tensors_of(family, bare, p), family, bare)
                   for p in (unflatten_dict(left, sep="/"), merged))
  changed = {name for name in before if not np.array_equal(before[name], after[name])}
  assert changed == {f"{name}.weight" for name in config["target_modules"]}
  for name in config["target_modules"]:
    a, b = (tensors[f"base_model.model.{name}.lora_{m}.weight"] for m in "AB")
    rank = config["rank_pattern"][name] if name in config["rank_pattern"] else config["r"]
    alpha = config["alpha_pattern"][name] if name in config["alpha_pattern"] else 3.0
    assert len(a) == rank and alpha / rank == 1.5
    product = alpha / rank * b @ a
    added = after[f"{name}.weight"] - before[f"{name}.weight"]
    np.testing.assert_allclose(added, product.T if config["fan_in_fan_out"] else product,
                               atol=2e-5)


def by_modules(tensors, family, model):
  """Tensors of files by the names of modules, where each is of one."""
  entries = tables.entries(family.names.rows_for(model.heads), model.stacks, param_shapes(model))
  return {peft.of_modules(entry, family, model)[0].name: tensors[export.file_name(
      family, model, entry.name)] for entry in entries}


def test_layers_have_the_names_of_modules():
  vit, params = of(CASES["vit with a head"][0], "attention/", "ffn/")
  layers = {name.split(".", 3)[3] for name in peft.contents(vit, params)[0]["target_modules"]}
  assert layers == {*(f"attention.{x}_proj" for x in "qkvo"), "mlp.fc1", "mlp.fc2"}
  assert all(name.startswith("vit.layers.") for name in peft.contents(vit, params)[0][
      "target_modules"])


def test_a_tensor_whose_parameters_are_in_modules_of_their_own():
  nomic = tiny({
      "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 11,
      "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 4,
      "intermediate_size": 12})
  config, tensors = peft.contents(*of(nomic, "attention/(query|value)$"))
  assert config["target_modules"] == [f"layers.0.self_attn.{x}_proj" for x in "qv"]
  assert not config["rank_pattern"]
  assert {x.shape for x in tensors.values()} == {(2, 8), (8, 2)}


def test_parameters_that_are_in_no_layer():
  mixtral = tiny({
      "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 11,
      "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
      "num_key_value_heads": 2, "intermediate_size": 12, "num_local_experts": 2})
  with pytest.raises(ConfigError, match="names: decoder/layers/ffn/router/kernel is of no linear"):
    peft.contents(*of(mixtral, "ffn/router"))
  with pytest.raises(ConfigError, match="trained whole and is no part of a layer"):
    peft.contents(*of(mixtral, "attention/", trained=("ffn/in",)))


def test_a_classifier_is_saved_whole():
  """PEFT saves `classifier` in any case, so layers in it may not be named again."""
  roberta = tiny({
      "model_type": "roberta", "architectures": ["RobertaForSequenceClassification"],
      "vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
      "intermediate_size": 12, "max_position_embeddings": 8})
  config, tensors = peft.contents(*of(roberta, "query$"))
  assert config["modules_to_save"] == ["classifier"]
  assert {name for name in tensors if "lora" not in name} == {
      f"base_model.model.classifier.{layer}.{x}" for layer in ("dense", "out_proj")
      for x in ("weight", "bias")}


def test_labels_are_not_asked_for(caplog):
  with caplog.at_level("WARNING", "absl"):
    peft.contents(*of(BERT, "query$"))
  assert not caplog.messages


def test_names_are_of_the_base_s_model_type():
  """Tags of BERT and ELECTRA are one model here, and have names of their own there."""
  tags = BERT.clone(head=HeadConfig(task="tags", outputs=3, pool="none"))
  for model_type, first in ((None, "bert"), ("electra", "electra")):
    config, _ = peft.contents(*of(tags, "query$"), model_type=model_type)
    assert config["target_modules"][0] == f"{first}.encoder.layer.0.attention.self.query"


def test_what_peft_has_no_place_for(tmp_path):
  vit, params = of(CASES["vit with a head"][0], "patches")
  with pytest.raises(ConfigError, match="patches/kernel is a convolution"):
    peft.contents(vit, params)
  model, params = of(BERT, "query", trained=("query/",))
  with pytest.raises(ConfigError, match="query/kernel, which has adapters and is trained"):
    peft.contents(model, params)
  with pytest.raises(ConfigError, match="lora.rank is 0"):
    peft.save(str(tmp_path / "out"), BERT, drawn(BERT), "there")


def test_a_model_that_pools_has_the_names_of_its_layers_alone():
  head = HeadConfig(task="embedding", pool="mean", normalize=True)
  config, tensors = peft.contents(*of(BERT.clone(head=head), "attention/query$"))
  layers = [f"encoder.layer.{i}.attention.self.query" for i in range(2)]
  assert (config["target_modules"], config["task_type"]) == (layers, "FEATURE_EXTRACTION")
  assert config["modules_to_save"] is None and len(tensors) == 4


def test_a_parameter_beside_layers_goes_with_its_module():
  """The query by which SigLIP's head pools images is trained, and so the head is saved whole."""
  siglip = tiny({
      "model_type": "siglip_vision_model", "architectures": ["SiglipVisionModel"],
      "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12,
      "image_size": 8, "patch_size": 4})
  config, tensors = peft.contents(*of(siglip, "attention/query$"))
  assert config["target_modules"] == ["encoder.layers.0.self_attn.q_proj"]
  assert config["modules_to_save"] == ["head"]
  assert {name.removeprefix("base_model.model.head.") for name in tensors if ".head." in name} == {
      "probe", "attention.in_proj_weight", "attention.in_proj_bias",
      *(f"{layer}.{x}" for layer in ("attention.out_proj", "layernorm", "mlp.fc1", "mlp.fc2")
        for x in ("weight", "bias"))}


def test_a_parameter_of_no_module_is_refused():
  sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
           "intermediate_size": 12}
  siglip = tiny({
      "model_type": "siglip", "architectures": ["SiglipModel"],
      "vision_config": sizes | {"image_size": 8, "patch_size": 4},
      "text_config": sizes | {"vocab_size": 11, "max_position_embeddings": 6}})
  with pytest.raises(ConfigError, match="no place for logit_scale, which is trained whole"):
    peft.contents(*of(siglip, "encoder/layers/attention/query$", trained=("logit_scale",)))
