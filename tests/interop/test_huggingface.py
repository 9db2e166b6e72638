"""Directories of Hugging Face models that are read."""

import dataclasses
import json
import os

import numpy as np
import pytest
import safetensors.numpy

from jtx import config as config_lib
from jtx.errors import ConfigError, DataError
from jtx.interop import configs, export, huggingface
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.models import MODELS
from jtx.models.encoder import HeadConfig
from jtx.nn.rope import Rope
from jtx.saved.pretrained import load_pretrained
from tests.helpers import encoder
from tests.interop.samples import (
    BERT, MODELS_BY_TYPE, MODERNBERT, POOLER, PRETRAINING, change_block, equal, message)


@pytest.mark.parametrize("model_type", MODELS_BY_TYPE)
def test_a_model_is_saved_as_its_family_and_loads_as_it_was(model_type, saved):
  model = MODELS_BY_TYPE[model_type]
  directory, params = saved(model)
  config = json.load(open(directory + "/config.json"))
  assert config["model_type"] == model_type
  again, loaded = load_pretrained(directory)
  assert again == model
  equal(loaded, params)


def test_fields_are_those_of_a_config_section():
  fields = huggingface.model_fields({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
  model = config_lib.build(MODELS, config_lib.section(MODELS, "encoder", **fields))
  assert model == encoder(vocab_size=30522, mlm=True)  # BERT-Base
  roberta = huggingface.model_fields(
      {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, "RobertaModel")
  assert roberta["stack"]["position"].first_position == 2
  assert roberta["stack"]["position"].max_length == 514


# Of the published files, and the number of parameters of their base models.
PUBLISHED = {
    "BertModel": (109_482_240, dict(
        architectures=["BertForMaskedLM"], attention_probs_dropout_prob=0.1,
        gradient_checkpointing=False, hidden_act="gelu", hidden_dropout_prob=0.1, hidden_size=768,
        initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-12,
        max_position_embeddings=512, model_type="bert", num_attention_heads=12,
        num_hidden_layers=12, pad_token_id=0, position_embedding_type="absolute",
        transformers_version="4.6.0.dev0", type_vocab_size=2, use_cache=True, vocab_size=30522,
        directionality="bidi", pooler_fc_size=768, pooler_type="first_token_transform")),
    "RobertaModel": (124_645_632, dict(
        architectures=["RobertaForMaskedLM"], attention_probs_dropout_prob=0.1, bos_token_id=0,
        eos_token_id=2, hidden_act="gelu", hidden_dropout_prob=0.1, hidden_size=768,
        initializer_range=0.02, intermediate_size=3072, layer_norm_eps=1e-5,
        max_position_embeddings=514, model_type="roberta", num_attention_heads=12,
        num_hidden_layers=12, pad_token_id=1, type_vocab_size=1, vocab_size=50265)),
    "AlbertModel": (11_683_584, dict(
        architectures=["AlbertForMaskedLM"], attention_probs_dropout_prob=0, bos_token_id=2,
        classifier_dropout_prob=0.1, down_scale_factor=1, embedding_size=128, eos_token_id=3,
        gap_size=0, hidden_act="gelu_new", hidden_dropout_prob=0, hidden_size=768,
        initializer_range=0.02, inner_group_num=1, intermediate_size=3072, layer_norm_eps=1e-12,
        max_position_embeddings=512, model_type="albert", net_structure_type=0,
        num_attention_heads=12, num_hidden_groups=1, num_hidden_layers=12, num_memory_blocks=0,
        pad_token_id=0, type_vocab_size=2, vocab_size=30000)),
    "DistilBertModel": (66_362_880, dict(
        activation="gelu", architectures=["DistilBertForMaskedLM"], attention_dropout=0.1, dim=768,
        dropout=0.1, hidden_dim=3072, initializer_range=0.02, max_position_embeddings=512,
        model_type="distilbert", n_heads=12, n_layers=6, pad_token_id=0, qa_dropout=0.1,
        seq_classif_dropout=0.2, sinusoidal_pos_embds=False, tie_weights_=True,
        transformers_version="4.10.0.dev0", vocab_size=30522)),
    "ModernBertModel": (149_014_272, dict(
        architectures=["ModernBertForMaskedLM"], attention_bias=False, attention_dropout=0.0,
        bos_token_id=50281, classifier_activation="gelu", classifier_bias=False,
        classifier_dropout=0.0, classifier_pooling="mean", cls_token_id=50281, decoder_bias=True,
        deterministic_flash_attn=False, embedding_dropout=0.0, eos_token_id=50282,
        global_attn_every_n_layers=3, global_rope_theta=160000.0, gradient_checkpointing=False,
        hidden_activation="gelu", hidden_size=768, initializer_cutoff_factor=2.0,
        initializer_range=0.02, intermediate_size=1152, layer_norm_eps=1e-5, local_attention=128,
        local_rope_theta=10000.0, max_position_embeddings=8192, mlp_bias=False, mlp_dropout=0.0,
        model_type="modernbert", norm_bias=False, norm_eps=1e-5, num_attention_heads=12,
        num_hidden_layers=22, pad_token_id=50283, position_embedding_type="absolute",
        sep_token_id=50282, tie_word_embeddings=True, torch_dtype="float32",
        transformers_version="4.47.0.dev0", vocab_size=50368)),
    "ElectraForPreTraining": (13_549_057, dict(
        architectures=["ElectraForPreTraining"], attention_probs_dropout_prob=0.1,
        embedding_size=128, hidden_act="gelu", hidden_dropout_prob=0.1, hidden_size=256,
        initializer_range=0.02, intermediate_size=1024, layer_norm_eps=1e-12,
        max_position_embeddings=512, model_type="electra", num_attention_heads=4,
        num_hidden_layers=12, pad_token_id=0, position_embedding_type="absolute",
        summary_activation="gelu", summary_last_dropout=0.1, summary_type="first",
        summary_use_proj=True, transformers_version="4.9.0.dev0", type_vocab_size=2,
        vocab_size=30522)),
    "XLNetModel": (116_718_336, dict(
        architectures=["XLNetLMHeadModel"], attn_type="bi", bi_data=False, bos_token_id=1,
        clamp_len=-1, d_head=64, d_inner=3072, d_model=768, dropout=0.1, end_n_top=5,
        eos_token_id=2, ff_activation="gelu", initializer_range=0.02, layer_norm_eps=1e-12,
        mem_len=None, model_type="xlnet", n_head=12, n_layer=12, pad_token_id=5, reuse_len=None,
        same_length=False, start_n_top=5, summary_activation="tanh", summary_last_dropout=0.1,
        summary_type="last", summary_use_proj=True, untie_r=True, vocab_size=32000)),
    "DebertaModel": (138_601_728, dict(
        architectures=["DebertaForMaskedLM"], attention_probs_dropout_prob=0.1, hidden_act="gelu",
        hidden_dropout_prob=0.1, hidden_size=768, initializer_range=0.02, intermediate_size=3072,
        layer_norm_eps=1e-7, max_position_embeddings=512, max_relative_positions=-1,
        model_type="deberta", num_attention_heads=12, num_hidden_layers=12, padding_idx=0,
        pooler_dropout=0, pooler_hidden_act="gelu", pos_att_type="c2p|p2c",
        position_biased_input=False, relative_attention=True, type_vocab_size=0, vocab_size=50265)),
    "DebertaV2Model": (183_831_552, dict(
        architectures=["DebertaV2ForMaskedLM"], attention_probs_dropout_prob=0.1,
        hidden_act="gelu", hidden_dropout_prob=0.1, hidden_size=768, initializer_range=0.02,
        intermediate_size=3072, layer_norm_eps=1e-7, max_position_embeddings=512,
        max_relative_positions=-1, model_type="deberta-v2", norm_rel_ebd="layer_norm",
        num_attention_heads=12, num_hidden_layers=12, pos_att_type="p2c|c2p", position_buckets=256,
        position_biased_input=False, relative_attention=True, share_att_key=True,
        type_vocab_size=0, vocab_size=128100)),
}


def made(config, architecture):
  """The model of a config.json."""
  family = FAMILIES[config["model_type"]]
  return configs.make_model(family, huggingface.model_fields(config, architecture))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_understood(name):
  count, config = PUBLISHED[name]
  model = made(config, name)
  assert sum(int(np.prod(s)) for s in param_shapes(model).values()) == count
  if config["model_type"] == "roberta":  # whose positions begin behind its padding, 1
    assert model.stack.position.first_position == 2
  huggingface.model_fields(config)  # as the architecture that it names


def test_every_attribute_that_is_read_changes_the_model():
  others = {"size": 10, "id": 7, "rate": 0.3, "positive": 0.25, "flag": None, "activation": "relu",
            "pooling": "mean", "size_or_minus_1": 20, "words": ["c2p"]}
  for model_type, model in MODELS_BY_TYPE.items():
    family = FAMILIES[model_type]
    base = export.hf_config(model)
    if model_type == "modernbert":  # the old spelling, which the new one overrules
      base = {k: v for k, v in base.items() if k not in ("layer_types", "rope_parameters")}
    for name, (kind, default) in family.attributes.read.items():
      if kind not in others:
        continue
      other = others[kind]
      if kind == "flag":
        other = not (base[name] if name in base else default)
      seen = set()
      for heads in ({"mlm"}, *family.architectures.values()):
        make = lambda config: repr(configs.model_fields(family, config, heads, "c"))
        try:
          seen.add(make(base) != make(base | {name: other}))
        except ConfigError:  # the value does not fit the others: it is read
          seen.add(True)
      assert True in seen, (model_type, name)


def test_new_and_old_spellings_of_modernbert_are_one_model():
  new = {"model_type": "modernbert", "num_hidden_layers": 4, "num_attention_heads": 3,
         "hidden_size": 12, "local_attention": 7,
         "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
         "rope_parameters": {"full_attention": {"rope_theta": 500.0, "rope_type": "default"},
                             "sliding_attention": {"rope_theta": 70.0, "rope_type": "default"}}}
  old = {k: v for k, v in new.items() if k not in ("layer_types", "rope_parameters")} | {
      "global_attn_every_n_layers": 3, "global_rope_theta": 500.0, "local_rope_theta": 70.0}
  a, b = (made(c, "ModernBertModel") for c in (new, old))
  assert a == b
  assert a.stack.pattern == ("global", "local", "local") and a.stack.window == 3
  assert a.stack.position == Rope(500.0, local_base=70.0)


def test_biases_of_norms_and_of_feed_forward_are_apart(saved):
  model = change_block(MODERNBERT, norm_bias=True)
  directory, params = saved(model)
  config = json.load(open(directory + "/config.json"))
  assert config["norm_bias"] is True and config["mlp_bias"] is False
  again, loaded = load_pretrained(directory)
  assert again == model
  equal(loaded, params)


def test_old_names_of_tensors_are_read(saved):
  """gamma and beta, no prefix, a buffer of positions, tied tensors twice."""
  def old(tensors):
    table = tensors["bert.embeddings.word_embeddings.weight"]
    tensors["cls.predictions.decoder.weight"] = table.copy()
    tensors["cls.predictions.decoder.bias"] = tensors.pop("cls.predictions.bias")
    renamed = {}
    for name, x in tensors.items():
      name = name.removeprefix("bert.")
      if "LayerNorm" in name:
        name = name.replace(".weight", ".gamma").replace(".bias", ".beta")
      renamed[name] = x
    return renamed | {"embeddings.position_ids": np.arange(16)[None]}
  directory, params = saved(PRETRAINING, tensors=old)
  equal(load_pretrained(directory)[1], params)


def test_a_file_opens_as_another_architecture_and_says_what_it_leaves(saved, told):
  directory, params = saved(PRETRAINING)
  model, loaded = load_pretrained(directory, "BertModel")
  assert model == BERT.clone(head=dataclasses.replace(POOLER, dropout=0.0))
  equal(loaded["task_head"]["transform"], params["task_head"]["transform"])
  text = "\n".join(told)
  assert "cls.predictions.bias" in text and "cls.seq_relationship.weight" in text
  assert "bert.pooler" not in text


def test_a_base_model_without_pooler_returns_hidden_states(saved):
  directory, _ = saved(BERT.clone(mlm=True, head=HeadConfig()))
  model, _ = load_pretrained(directory, "BertModel")
  assert model.head == HeadConfig()


def test_parts_of_a_sharded_model_are_read(saved):
  directory, params = saved()
  tensors = safetensors.numpy.load_file(directory + "/model.safetensors")
  os.remove(directory + "/model.safetensors")
  names = sorted(tensors)
  weight_map = {n: f"model-0000{i % 2 + 1}-of-00002.safetensors" for i, n in enumerate(names)}
  for part in set(weight_map.values()):
    safetensors.numpy.save_file({n: tensors[n] for n in names if weight_map[n] == part},
                                os.path.join(directory, part))
  index = directory + "/model.safetensors.index.json"
  json.dump({"metadata": {}, "weight_map": weight_map}, open(index, "w"))
  equal(load_pretrained(directory)[1], params)

  for part in ("../other.safetensors", "/etc/passwd"):
    json.dump({"weight_map": weight_map | {names[0]: part}}, open(index, "w"))
    assert f"{part!r} is no file beside it" in message(load_pretrained, directory, error=DataError)
  json.dump({"weight_map": weight_map | {"new.weight": "gone.safetensors"}}, open(index, "w"))
  assert message(load_pretrained, directory, error=DataError) == (
      f"{directory}/gone.safetensors does not exist, and model.safetensors.index.json says it has"
      " tensor 'new.weight'")
  json.dump([1], open(index, "w"))
  assert "is not an index" in message(load_pretrained, directory, error=DataError)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_not_finite(saved, value):
  directory, _ = saved()
  tensors = safetensors.numpy.load_file(directory + "/model.safetensors")
  name = max(tensors)
  tensors[name] = np.full_like(tensors[name], value)
  safetensors.numpy.save_file(tensors, directory + "/model.safetensors")
  assert message(load_pretrained, directory, error=DataError) == (
      f"{directory}: tensor {name!r} has values that are NaN or infinite")
