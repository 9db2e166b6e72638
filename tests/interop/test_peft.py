"""Adapters as files of PEFT: names, shapes, and numbers that make the merged tensors."""

import json

from flax.traverse_util import flatten_dict, unflatten_dict
import numpy as np
import pytest
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import export, peft
from jtx.interop.families import FAMILIES
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
  model_type = next(name for name, f in FAMILIES.items()
                    if config["target_modules"][0] + ".weight" in names_of(f, bare))
  family = FAMILIES[model_type]
  before, after = (export.tensors_of(family, bare, p)
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


def names_of(family, model):
  try:
    return export.tensors_of(family, model, drawn(model)).keys()
  except (ConfigError, KeyError):
    return ()


def test_what_peft_has_no_place_for(tmp_path):
  vit, params = of(CASES["vit with a head"][0], "patches")
  with pytest.raises(ConfigError, match="patches/kernel is a convolution"):
    peft.contents(vit, params)
  model, params = of(BERT, "query", trained=("query/",))
  with pytest.raises(ConfigError, match="query/kernel, which has adapters too"):
    peft.contents(model, params)
  with pytest.raises(ConfigError, match="lora.rank is 0"):
    peft.save(str(tmp_path / "out"), BERT, drawn(BERT), "there")


def test_a_model_that_pools_has_the_names_of_its_layers_alone():
  head = HeadConfig(task="embedding", pool="mean", normalize=True)
  config, tensors = peft.contents(*of(BERT.clone(head=head), "attention/query$"))
  layers = [f"encoder.layer.{i}.attention.self.query" for i in range(2)]
  assert (config["target_modules"], config["task_type"]) == (layers, "FEATURE_EXTRACTION")
  assert config["modules_to_save"] is None and len(tensors) == 4
