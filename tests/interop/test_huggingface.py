"""Directories of Hugging Face models: what is read, what is refused, and by which sentence."""

import dataclasses
import json
import os

from absl import logging
from flax.traverse_util import flatten_dict, unflatten_dict
import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx import config as config_lib
from jtx.data.tokenizers.kinds import wordpiece
from jtx.data.tokenizers.subword_nmt import SubwordNmt
from jtx.errors import ConfigError, DataError
from jtx.interop import configs, export, huggingface
from jtx.interop.families import FAMILIES
from jtx.interop.trunks import param_shapes
from jtx.models import MODELS
from jtx.models.encoder import Encoder, HeadConfig
from jtx.nn.positions import Alibi, Learned, Rope
from jtx.nn.rope import Linear
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from tests.helpers import block, encoder

BLOCK = block(num_heads=3, attention_bias=True, ffn_dim=20, activation="gelu", norm_eps=1e-12,
              attention_dropout=0.1, init_std=0.02)
POOLER = HeadConfig(task="embedding", transform="tanh")
CLASSES = HeadConfig(task="classes", outputs=4, transform="tanh")
BERT = encoder(vocab_size=31, width=12, num_layers=2, block=BLOCK, position=Learned(16), mlm=False,
               head=CLASSES)
PRETRAINING = BERT.clone(
    mlm=True, head=HeadConfig(task="next_sentence", transform="tanh", dropout=0.0))
ROBERTA = encoder(BERT, position=Learned(16, first_position=2), num_token_types=1)
ALBERT = encoder(BERT, embedding_width=8, share_layers=True)
DISTILBERT = encoder(BERT, num_token_types=0, head=HeadConfig(
    task="classes", outputs=4, transform="relu", dropout=0.2))
MODERNBERT = encoder(
    vocab_size=31, width=12, num_layers=4, num_token_types=0, window=3,
    block=block(num_heads=3, ffn_dim=20, activation="gelu", gated=True, use_bias=False,
                norm_position="pre", norm_eps=1e-5, attention_norm=False, dropout=0.0,
                init_std=0.02),
    position=Rope(160_000.0, local_base=10_000.0), pattern=("global", "local", "local"),
    head=HeadConfig(task="classes", outputs=4, transform="gelu", norm=True, use_bias=False,
                    dropout=0.0))
MODELS_BY_TYPE = {"bert": BERT, "roberta": ROBERTA, "albert": ALBERT, "distilbert": DISTILBERT,
                  "modernbert": MODERNBERT}


def random_params(model, seed=0):
  random = np.random.default_rng(seed)
  return unflatten_dict({path: random.normal(size=shape).astype(np.float32)
                         for path, shape in param_shapes(model).items()}, sep="/")


@pytest.fixture
def saved(tmp_path):
  """Saves a model of random parameters, and lets a test edit the files."""
  def save(model=BERT, config=None, tensors=None, name="model"):
    directory = str(tmp_path / name)
    params = random_params(model)
    export.save(directory, model, params)
    path = os.path.join(directory, "config.json")
    if config is not None:
      content = json.load(open(path)) | config
      json.dump({k: v for k, v in content.items() if v is not DROP}, open(path, "w"))
    if tensors is not None:
      path = os.path.join(directory, "model.safetensors")
      safetensors.numpy.save_file(tensors(safetensors.numpy.load_file(path)), path)
    return directory, params
  return save


@pytest.fixture
def told(monkeypatch):
  """The lines that are logged."""
  lines = []
  monkeypatch.setattr(logging, "info", lambda text, *args: lines.append(text % args))
  return lines


DROP = object()


def equal(a, b):
  a, b = flatten_dict(a), flatten_dict(b)
  assert a.keys() == b.keys()
  for key in a:
    np.testing.assert_array_equal(a[key], b[key], err_msg=str(key))


# -------------------------------------------------------------------- what is read


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
  huggingface.model_fields(config)  # as the architecture that it names


def test_every_attribute_that_is_read_changes_the_model():
  others = {"size": 10, "id": 7, "rate": 0.3, "positive": 0.25, "flag": True, "activation": "relu",
            "pooling": "mean"}
  for model_type, model in MODELS_BY_TYPE.items():
    family = FAMILIES[model_type]
    base = export.hf_config(model)
    if model_type == "modernbert":  # the old spelling, which the new one overrules
      base = {k: v for k, v in base.items() if k not in ("layer_types", "rope_parameters")}
    for name, (kind, _) in family.attributes.read.items():
      if kind not in others:
        continue
      seen = set()
      for heads in ({"mlm"}, *family.architectures.values()):
        make = lambda config: repr(configs.model_fields(family, config, heads, "c"))
        try:
          seen.add(make(base) != make(base | {name: others[kind]}))
        except ConfigError:  # the value does not fit the others: it is read
          seen.add(True)
      assert True in seen, (model_type, name)


def test_new_and_old_spellings_of_modernbert_are_one_model():
  new = {"model_type": "modernbert", "num_hidden_layers": 4, "num_attention_heads": 3,
         "hidden_size": 12, "local_attention": 7,
         "layer_types": ["full_attention", "sliding_attention"] * 2,
         "rope_parameters": {"full_attention": {"rope_theta": 500.0, "rope_type": "default"},
                             "sliding_attention": {"rope_theta": 70.0, "rope_type": "default"}}}
  old = {k: v for k, v in new.items() if k not in ("layer_types", "rope_parameters")} | {
      "global_attn_every_n_layers": 2, "global_rope_theta": 500.0, "local_rope_theta": 70.0}
  a, b = (made(c, "ModernBertModel") for c in (new, old))
  assert a == b
  assert a.stack.pattern == ("global", "local") and a.stack.window == 3
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

  json.dump({"weight_map": weight_map | {"new.weight": "gone.safetensors"}}, open(index, "w"))
  assert message(load_pretrained, directory, error=DataError) == (
      f"{directory}/gone.safetensors does not exist, and model.safetensors.index.json says it has"
      " tensor 'new.weight'")
  json.dump([1], open(index, "w"))
  assert "is not an index" in message(load_pretrained, directory, error=DataError)


# ----------------------------------------------------------------- what is refused


def message(call, *args, error=ConfigError, **kwargs):
  with pytest.raises(error) as e:
    call(*args, **kwargs)
  assert "\n" not in str(e.value)
  return str(e.value)


@pytest.mark.parametrize("edit, expected", [
    ({"foo": 3}, "'foo'=3 is not known to jtx and might change the computation"),
    ({"is_decoder": True}, "is_decoder=True is not what jtx computes, which is False"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not what jtx computes"),
    ({"quantization_config": {}}, "quantization_config={} is not what jtx computes"),
    ({"hidden_act": "mish"}, "hidden_act='mish' is not one of gelu, relu"),
    ({"hidden_act": ["gelu"]}, "hidden_act=['gelu'] is not one of gelu, relu"),
    ({"model_type": ["bert"]}, "model_type=['bert']: "),
    ({"hidden_size": "12"}, "hidden_size='12' is not a whole number of 1 or more"),
    ({"num_hidden_layers": True}, "num_hidden_layers=True is not a whole number"),
    ({"hidden_dropout_prob": 1}, "hidden_dropout_prob=1 is not a number from 0 to below 1"),
    ({"num_attention_heads": 5}, "5 attention heads do not divide the width 12"),
    ({"problem_type": "multi_label_classification"},
     "problem_type='multi_label_classification' with 4 labels is not known to jtx"),
    ({"problem_type": "regression"}, "problem_type='regression' with 4 labels"),
    ({"id2label": {"1": "a"}}, 'id2label must name the labels "0", "1" and so on'),
    ({"id2label": DROP, "num_labels": 0}, "num_labels=0 is not a whole number of 1 or more"),
    ({"model_type": "bart"}, "model_type='bart': did you mean 'bert'?"),
    ({"model_type": DROP, "vocab": 1}, "has neither the model_type of a Hugging Face model nor"),
    ({"architectures": ["BertLMHeadModel"]},
     "say which to open by architecture=, one of: BertModel"),
    ({"architectures": None}, "architectures=None names none that jtx has"),
])
def test_a_config_that_is_not_understood_is_refused_by_name(edit, expected, saved):
  directory, _ = saved(config=edit)
  text = message(load_pretrained, directory)
  assert text.startswith(f"{directory}/config.json") and expected in text, text


@pytest.mark.parametrize("model_type, edit, expected", [
    ("roberta", {"hidden_act": "relu", "architectures": ["RobertaForMaskedLM"]},
     "hidden_act='relu': the masked language model's head of RoBERTa has gelu"),
    ("albert", {"num_hidden_groups": 2},
     "num_hidden_groups=2 is not what jtx computes, which is 1"),
    ("albert", {"inner_group_num": 3}, "inner_group_num=3 is not what jtx computes"),
    ("albert", {"embedding_size": 12}, "embedding_size=12 is hidden_size"),
    ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
     "rope_parameters.full_attention.rope_type='yarn' is not what jtx computes"),
    ("modernbert", {"rope_parameters": {"full_attention": {"factor": 2}}},
     "rope_parameters.full_attention.factor=2 is not known to jtx"),
    ("modernbert", {"rope_parameters": {"other": {}}}, "rope_parameters has 'other'"),
    ("modernbert", {"layer_types": ["full_attention"]},
     "layer_types has 1 entries, and num_hidden_layers=4"),
    ("modernbert", {"layer_types": ["chunked_attention"] * 4},
     "layer_types has 'chunked_attention'"),
    ("modernbert", {"decoder_bias": False}, "decoder_bias=False is not what jtx computes"),
    ("modernbert", {"local_attention": 1}, "local_attention=1 is no window"),
    ("modernbert", {"classifier_activation": "relu", "architectures": ["ModernBertForMaskedLM"]},
     "in the head of a masked language model jtx has those of the layers"),
])
def test_what_a_family_lacks_is_refused_by_name(model_type, edit, expected, saved):
  directory, _ = saved(MODELS_BY_TYPE[model_type], config=edit)
  text = message(load_pretrained, directory)
  assert text.startswith(f"{directory}/config.json") and expected in text, text


def without(*names):
  return lambda tensors: {k: v for k, v in tensors.items() if k not in names}


@pytest.mark.parametrize("tensors, expected", [
    (without("bert.encoder.layer.1.output.dense.bias"),
     "BertForSequenceClassification needs tensor 'bert.encoder.layer.1.output.dense.bias', which"
     " the files do not have"),
    (without("classifier.bias", "classifier.weight"), "'classifier.weight', which the files do not"
     " have (nor 1 more)"),
    (lambda t: t | {"classifier.bias": np.zeros(5, np.float32)},
     "tensor 'classifier.bias' has shape [5], and config.json asks for [4]"),
    (lambda t: t | {"bert.adapter.weight": np.zeros(5, np.float32)},
     "tensor 'bert.adapter.weight' is none of the model's, at config.json's size"),
    (lambda t: t | {"bert.encoder.layer.2.output.dense.bias": np.zeros(12, np.float32)},
     "tensor 'bert.encoder.layer.2.output.dense.bias' is none of the"),
    (lambda t: t | {"pooler.dense.bias": np.zeros(12, np.float32)}, "which are one tensor"),
    (lambda t: t | {"classifier.bias": np.zeros(4, np.int64)},
     "tensor 'classifier.bias' is int64; valid are float32, float16, bfloat16"),
])
def test_tensors_that_do_not_fit_are_refused_by_name(tensors, expected, saved):
  directory, _ = saved(tensors=tensors)
  text = message(load_pretrained, directory, error=DataError)
  assert text.startswith(directory) and expected in text, text


@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_tied_tensor_that_differs_is_refused(kind, saved):
  second = f"cls.predictions.decoder.{kind}"
  shape = (31, 12) if "weight" in second else (31,)
  directory, _ = saved(PRETRAINING, tensors=lambda t: t | {second: np.ones(shape, np.float32)})
  text = message(load_pretrained, directory, error=DataError)
  assert f"{second!r} and " in text and "differ, and jtx has them as one" in text
  load_pretrained(directory, "BertModel")  # does not use it


def test_files_that_are_not_whole_are_named(saved, tmp_path):
  directory, _ = saved()
  path = directory + "/model.safetensors"
  content = open(path, "rb").read()
  for broken in (content[:-5], content[:50], b""):
    open(path, "wb").write(broken)
    text = message(load_pretrained, directory, error=DataError)
    assert text.startswith(f"{path} is not a whole safetensors file")
  os.remove(path)
  assert message(load_pretrained, directory, error=DataError) == (
      f"{directory} has no model.safetensors, nor model.safetensors.index.json of several parts")
  open(directory + "/pytorch_model.bin", "w").close()
  text = message(load_pretrained, directory, error=DataError)
  assert "pytorch_model.bin: jtx reads model.safetensors only" in text
  assert "save_pretrained(NEW, safe_serialization=True)" in text
  open(directory + "/config.json", "w").write("{")
  assert "config.json is not valid JSON" in message(load_pretrained, directory)
  open(directory + "/config.json", "w").write("[1]")
  assert "its top level must be a JSON object" in message(load_pretrained, directory)
  os.remove(directory + "/config.json")
  assert "config.json does not exist" in message(load_pretrained, directory)
  assert message(load_pretrained, str(tmp_path / "gone")) == f"{tmp_path}/gone is not a directory"


def test_arguments_of_loading_are_checked(saved):
  directory, _ = saved()
  assert message(load_pretrained, directory, "BertForSequenceClasification") == (
      "architecture='BertForSequenceClasification': did you mean 'BertForSequenceClassification'?")
  assert "dtype='float64'" in message(load_pretrained, directory, dtype="float64")


# --------------------------------------------------------------- what can't be saved


def change_block(model, **edits):
  return encoder(model, block=block(model.stack.block, **edits))


@pytest.mark.parametrize("model, expected", [
    (change_block(BERT, gated=True), "bert has stack.block.ffn.gated=False in"
     " BertForSequenceClassification, not True"),
    (change_block(BERT, norm="rmsnorm"), "bert has stack.block.norm.kind='layernorm'"),
    (change_block(BERT, num_kv_heads=1), "bert has stack.block.attention.num_kv_heads=3"),
    (change_block(BERT, activation="gelu_sigmoid", head_dim=5),
     "bert has stack.block.attention.head_dim=4"),
    (encoder(BERT, position=Alibi()), "bert has learned positions, not Alibi"),
    (BERT.clone(head=dataclasses.replace(CLASSES, transform="none")), "bert has"
     " head.transform='tanh' in BertForSequenceClassification, not 'none'"),
    (BERT.clone(head=HeadConfig(task="embedding", pool="mean")), "bert has head.pool='first'"),
    (BERT.clone(mlm=True), "bert has no architecture with the head of pretraining and"
     " head.task='classes'"),
    (encoder(BERT, pattern=("local",), window=2), "bert has stack.pattern=('global', 'global')"),
    (encoder(BERT, share_layers=True), "albert has embedding.width below stack.width"),
    (change_block(MODERNBERT, norm_eps=1e-5, use_bias=True).clone(
        mlm=True, head=HeadConfig(task="tags", outputs=3, pool="none")),
     "modernbert has no architecture with the head of pretraining and head.task='tags'"),
    (encoder(MODERNBERT, position=Rope(scaling=Linear(factor=2.0))),
     "modernbert has stack.position.scaling='Scaling'"),
    (encoder(MODERNBERT, pattern=("prefix",), window=0),
     "modernbert has no layers of kind 'prefix'"),
])
def test_a_model_that_no_family_has_is_refused_with_each_ones_reason(model, expected, tmp_path):
  text = message(export.save, str(tmp_path / "new"), model, {})
  assert text.startswith("the model can't be expressed as a Hugging Face model: bert ")
  assert expected in text, text
  assert all(f"{name} has" in text for name, family in FAMILIES.items()
             if family.model == "encoder")
  assert not os.listdir(tmp_path)


def test_what_only_training_uses_is_saved_where_there_is_a_place(saved, told):
  model = change_block(BERT, ffn_dropout=0.3, dropout=0.2).clone(
      head=dataclasses.replace(CLASSES, dropout=0.4))
  directory, _ = saved(model)
  again, _ = load_pretrained(directory)
  assert again == change_block(model, ffn_dropout=0.0)
  assert "BertForSequenceClassification has no place for stack.block.ffn.dropout" in "\n".join(told)


def test_a_failed_save_leaves_nothing(tmp_path, monkeypatch):
  def fail(*_):
    raise OSError("disk full")
  monkeypatch.setattr(safetensors.numpy, "save_file", fail)
  with pytest.raises(OSError, match="disk full"):
    export.save(str(tmp_path / "new"), BERT, random_params(BERT))
  assert not os.listdir(tmp_path)


def test_a_directory_in_use_is_not_overwritten(tmp_path):
  (tmp_path / "used").mkdir()
  export.save(str(tmp_path / "used"), BERT, random_params(BERT))  # empty is fine
  assert message(export.save, str(tmp_path / "used"), BERT, random_params(BERT)) == (
      f"{tmp_path}/used is not empty; name a directory to make")
  assert "is a file" in message(export.save, str(tmp_path / "used" / "config.json"), BERT,
                                random_params(BERT))


def test_arguments_of_saving_are_checked(tmp_path):
  path, params = str(tmp_path / "new"), random_params(BERT)
  assert message(save_pretrained, path, BERT, params, dtype="float64") == (
      "dtype='float64': valid are float32, float16, bfloat16")
  assert "format='tf': valid are: hf, jtx" in message(save_pretrained, path, BERT, params,
                                                      format="tf")
  assert message(save_pretrained, path, BERT, params, labels=("a",)) == (
      "labels has 1 names, and the model has head.outputs=4")
  bare = BERT.clone(head=POOLER)
  assert "a model with head.task='embedding' has none" in message(
      save_pretrained, path, bare, random_params(bare), labels=("a",))
  wrong = jax.tree.map(lambda x: x[:1], params)
  assert message(save_pretrained, path, BERT, wrong) == (
      "params are not of this model: embed/embedding is [1, 12] in params and [31, 12] in the"
      " model")
  assert "only Encoder or Vit can" in message(save_pretrained, path, Encoder, params)
  assert not os.listdir(tmp_path)


def test_labels_are_kept(saved, tmp_path):
  path, params = str(tmp_path / "new"), random_params(BERT)
  save_pretrained(path, BERT, params, labels=("a", "b", "c", "d"))
  assert open_saved(path).labels() == ("a", "b", "c", "d")
  config = json.load(open(path + "/config.json"))
  assert config["label2id"] == {"a": 0, "b": 1, "c": 2, "d": 3}
  assert load_pretrained(path)[0].head.outputs == 4
  assert open_saved(saved(BERT.clone(head=POOLER))[0]).labels() is None


def test_one_output_is_a_regression(saved):
  model = BERT.clone(head=dataclasses.replace(CLASSES, outputs=1))
  directory, _ = saved(model)
  assert json.load(open(directory + "/config.json"))["problem_type"] == "regression"
  assert load_pretrained(directory)[0] == model


# ----------------------------------------------------------------------- tokenizers


TOKENIZER = wordpiece(iter(["the cat sat on the mat"] * 3), vocab_size=30, min_frequency=1)


def test_a_tokenizer_is_saved_beside_the_model(tmp_path):
  from jtx.saved.pretrained import load_tokenizer
  path = str(tmp_path / "new")
  save_pretrained(path, BERT, random_params(BERT), TOKENIZER)
  assert load_tokenizer(path).encode("the mat").tolist() == TOKENIZER.encode("the mat").tolist()
  config = json.load(open(path + "/tokenizer_config.json"))
  assert config["pad_token"] == "<pad>" and config["cls_token"] == "<bos>"
  assert config["model_max_length"] == 16
  assert json.load(open(path + "/config.json"))["eos_token_id"] == TOKENIZER.eos_id
  os.remove(path + "/config.json")  # the tokenizer's files alone
  assert load_tokenizer(path).encode("the mat").tolist() == TOKENIZER.encode("the mat").tolist()


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path):
  path = str(tmp_path / "new")
  small = BERT.clone(vocab_size=9)
  assert message(save_pretrained, path, small, random_params(small), TOKENIZER) == (
      f"the tokenizer has {TOKENIZER.vocab_size} ids, and the model vocab_size=9")
  assert "subword_nmt" in message(save_pretrained, path, BERT, random_params(BERT),
                                  SubwordNmt([], ["a"]))
  assert message(save_pretrained, path, ROBERTA, random_params(ROBERTA), TOKENIZER) == (
      "pad_token_id=0 of the tokenizer does not fit the model, whose positions were counted for"
      " pad_token_id=1 (position.first_position)")
  assert not os.listdir(tmp_path)


# ---------------------------------------------------------------------- fine-tuning


def test_a_new_head_takes_what_the_files_have(saved):
  """The pooler of a pretrained model becomes the transform of the head; its output is new."""
  directory, params = saved(PRETRAINING)
  loaded, missing = open_saved(directory).params_for(BERT)
  assert missing == ["task_head/output/bias", "task_head/output/kernel"]
  equal(loaded["encoder"], params["encoder"])
  equal(loaded["task_head"], {"transform": params["task_head"]["transform"]})
  assert "mlm_head" not in loaded
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {np.dtype("float32")}


def test_a_head_of_the_files_is_taken_where_it_is_the_same(saved):
  directory, params = saved(BERT)
  loaded, missing = open_saved(directory).params_for(BERT)
  assert missing == []
  equal(loaded, params)
  more = BERT.clone(head=dataclasses.replace(CLASSES, outputs=7))  # the pooler still fits
  loaded, missing = open_saved(directory).params_for(more)
  assert missing == ["task_head/output/bias", "task_head/output/kernel"]
  other = BERT.clone(head=dataclasses.replace(CLASSES, transform="relu"))
  _, missing = open_saved(directory).params_for(other)
  assert missing == [f"task_head/{p}" for p in ("output/bias", "output/kernel",
                                                "transform/dense/bias", "transform/dense/kernel")]
  _, missing = open_saved(directory).params_for(PRETRAINING)
  assert "mlm_head/bias" in missing and "task_head/transform/dense/kernel" not in missing


def test_a_model_for_training_may_have_other_rates_of_dropout(saved):
  directory, params = saved(BERT)
  model = change_block(BERT, dropout=0.0, attention_dropout=0.5, init_std=None)
  model = encoder(model, remat="full")
  equal(open_saved(directory).params_for(model)[0], params)


def test_parts_of_a_head_by_the_same_name_are_not_another_head(saved):
  """ModernBERT's `head.dense` is of both heads; without the rest it says nothing of ours."""
  directory, params = saved(MODERNBERT)
  model = MODERNBERT.clone(mlm=True)
  loaded, missing = open_saved(directory).params_for(model)
  assert [p.split("/")[0] for p in missing] == ["mlm_head"] * 3
  equal(loaded, params)


@pytest.mark.parametrize("model, expected", [
    (change_block(BERT, ffn_dim=24), "model.stack.block.ffn.dim=24 does not fit the weights of"),
    (BERT.clone(vocab_size=32), "model.vocab_size=32"),
    (encoder(BERT, num_layers=3), "whose stack.num_layers is 2"),
    (encoder(BERT, position=Learned(20)), "model.stack.position.max_length=20"),
    (encoder(BERT, position=Rope()), "model.stack.position='Rope'"),
    (change_block(BERT, norm_eps=1e-6), "whose stack.block.norm.eps is 1e-12"),
])
def test_a_trunk_that_differs_is_refused_by_field(model, expected, saved):
  assert expected in message(open_saved(saved(BERT)[0]).params_for, model)


def test_a_trunk_that_is_not_whole_is_refused(saved):
  directory, _ = saved(tensors=without("bert.embeddings.LayerNorm.bias"))
  assert "does not have tensor 'bert.embeddings.LayerNorm.bias' of the model's layers" in message(
      open_saved(directory).params_for, BERT, error=DataError)


# ----------------------------------------------------------------------------- workdirs


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
def test_a_converted_workdir_loads_as_it_was(model_type, tmp_path):
  from jtx.saved.pretrained import load_tokenizer
  model, path = MODELS_BY_TYPE[model_type], str(tmp_path / "workdir")
  params = random_params(model)
  save_pretrained(path, model, params, TOKENIZER, format="jtx", labels=("a", "b", "c", "d"))
  again, loaded = load_pretrained(path)
  assert again == model
  equal(loaded, params)
  assert open_saved(path).labels() == ("a", "b", "c", "d")
  assert load_tokenizer(path) == TOKENIZER
  assert load_pretrained(path, dtype="bfloat16")[0].dtype == "bfloat16"
  assert "leave it unset" in message(load_pretrained, path, "BertModel")


def test_a_converted_workdir_needs_no_tokenizer_or_labels(tmp_path):
  from jtx.saved.pretrained import load_tokenizer
  path = str(tmp_path / "workdir")
  save_pretrained(path, BERT, random_params(BERT), format="jtx")
  assert open_saved(path).labels() is None
  assert "has no tokenizer" in message(load_tokenizer, path, error=DataError)
  assert "has float32 only" in message(
      save_pretrained, path + "2", BERT, {}, format="jtx", dtype="float16")


def test_a_family_gives_its_own_head_for_another_task(saved):
  heads = {"bert": ("tanh", False), "roberta": ("tanh", False), "distilbert": ("relu", False),
           "albert": ("tanh", False), "modernbert": ("gelu", True)}
  for model_type, (transform, norm) in heads.items():
    directory, _ = saved(MODELS_BY_TYPE[model_type], name=model_type)
    fields = huggingface.finetuned_fields(huggingface.open_source(directory), "classes")
    model = config_lib.build(MODELS, config_lib.section(MODELS, "encoder", **fields))
    assert (model.head.task, model.head.outputs) == ("classes", None)
    assert (model.head.transform, model.head.norm) == (transform, norm)
    params, missing = open_saved(directory).params_for(model.clone(
        head=dataclasses.replace(model.head, outputs=7)))
    assert params["embed"] and all(path.startswith("task_head/") for path in missing)


def test_a_head_that_a_family_does_not_have(saved):
  with pytest.raises(ConfigError, match="a distilbert has no head for 'next_sentence'; valid are"):
    source = huggingface.open_source(saved(MODELS_BY_TYPE["distilbert"])[0])
    huggingface.finetuned_fields(source, "next_sentence")
