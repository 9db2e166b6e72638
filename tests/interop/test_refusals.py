"""Directories of Hugging Face models that are refused, and by which sentence."""

import os

import numpy as np
import pytest

from jtx.errors import DataError
from jtx.interop import configs, export, huggingface
from jtx.interop.families import FAMILIES
from jtx.saved.pretrained import load_pretrained
from tests.interop.samples import DROP, MODELS_BY_TYPE, PRETRAINING, message, without


@pytest.mark.parametrize("edit, expected", [
    ({"foo": 3}, "'foo'=3 is not known to jtx and might change the computation"),
    ({"is_decoder": True}, "is_decoder=True is not what jtx computes, which is False"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key'"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False is not what jtx computes"),
    ({"quantization_config": {}}, "quantization_config={} is not what jtx computes"),
    ({"hidden_act": "mish"}, "hidden_act='mish' is not one of gelu, gelu_python, relu"),
    ({"hidden_act": ["gelu"]}, "hidden_act=['gelu'] is not one of gelu, gelu_python, relu"),
    ({"model_type": ["bert"]}, "model_type=['bert']: "),
    ({"hidden_size": "12"}, "hidden_size='12' is not a whole number of 1 or more"),
    ({"num_hidden_layers": True}, "num_hidden_layers=True is not a whole number"),
    ({"hidden_dropout_prob": 1}, "hidden_dropout_prob=1 is not a number from 0 to below 1"),
    ({"num_attention_heads": 5}, "5 attention heads do not divide the width 12"),
    ({"problem_type": "multi_label_regression"},
     "problem_type='multi_label_regression' with 4 labels is not known to jtx"),
    ({"problem_type": "regression"}, "problem_type='regression' with 4 labels"),
    ({"id2label": {"1": "a"}}, 'id2label must name the labels "0", "1" and so on'),
    ({"id2label": DROP, "num_labels": 0}, "num_labels=0 is not a whole number of 1 or more"),
    ({"model_type": "bertt"}, "model_type='bertt': did you mean 'bert'?"),
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
    ("electra", {"hidden_act": "relu", "architectures": ["ElectraForMaskedLM"]},
     "hidden_act='relu': the masked language model's head of ELECTRA has gelu"),
    ("electra", {"summary_type": "mean"}, "summary_type='mean' is not what jtx computes"),
    ("xlnet", {"bi_data": True}, "bi_data=True is not what jtx computes, which is False"),
    ("xlnet", {"attn_type": "uni"}, "attn_type='uni' is not what jtx computes, which is 'bi'"),
    ("xlnet", {"d_head": 3}, "d_head=3 must be d_model=12 / n_head=3"),
    ("xlnet", {"architectures": ["XLNetForQuestionAnswering"]},
     "names none that jtx has; say which to open by architecture=, one of: XLNetModel, "),
    ("deberta", {"relative_attention": DROP}, "relative_attention=False and position_biased_input="
     "False are not what jtx computes, which are True and False"),
    ("deberta", {"pos_att_type": "c2p|p2p"}, "pos_att_type='c2p|p2p' must have c2p, p2c or both"),
    ("deberta", {"pos_att_type": 3}, "pos_att_type=3 is not words in a list, or joined by '|'"),
    ("deberta", {"max_relative_positions": 0}, "max_relative_positions=0 is not a whole number of"
     " 1 or more, or -1"),
    ("deberta", {"embedding_size": 7}, "embedding_size=7 must be hidden_size=12"),
    ("deberta", {"talking_head": True}, "talking_head=True is not what jtx computes"),
    ("deberta-v2", {"share_att_key": DROP}, "share_att_key=False: jtx has projections of"),
    ("deberta-v2", {"attention_head_size": 8}, "attention_head_size=8 must be hidden_size=12 /"
     " num_attention_heads=3"),
    ("deberta-v2", {"norm_rel_ebd": "rms"}, "norm_rel_ebd='rms': valid are 'none' and"
     " 'layer_norm'"),
    ("deberta-v2", {"conv_kernel_size": 4}, "conv_kernel_size=4 must be odd, and conv_gr"),
    ("deberta-v2", {"position_buckets": 7}, "position_buckets=7 must be even, and max_rel"),
])
def test_what_a_family_lacks_is_refused_by_name(model_type, edit, expected, saved):
  directory, _ = saved(MODELS_BY_TYPE[model_type], config=edit)
  text = message(load_pretrained, directory)
  assert text.startswith(f"{directory}/config.json") and expected in text, text


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


def test_a_detector_whose_class_norms_what_goes_between_layers_is_refused():
  config = {"model_type": "detr", "architectures": ["DetrForObjectDetection"],
            "use_timm_backbone": True, "backbone": "resnet18"}
  assert huggingface.model_fields(config | {"auxiliary_loss": False})
  text = message(huggingface.model_fields, config | {"auxiliary_loss": True})
  assert text.startswith("config.json: auxiliary_loss=True norms what goes from one layer")


@pytest.mark.parametrize("name", ["T5ForConditionalGeneration", "MT5EncoderModel",
                                  "UMT5ForConditionalGeneration"])
def test_a_t5_whose_activations_contradict_each_other_is_refused(name):
  config = {"model_type": name.partition("5")[0].lower() + "5", "architectures": [name],
            "feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new"}
  huggingface.model_fields(config)
  for edit, expected in (
      ({"dense_act_fn": "gelu"},
       "dense_act_fn='gelu' contradicts feed_forward_proj='gated-gelu'; remove dense_act_fn, or"),
      ({"feed_forward_proj": "gelu_new"}, "is_gated_act=True contradicts"),
      ({"dense_act_fn": "mish"}, "dense_act_fn='mish' is not one of gelu, ")):
    assert expected in message(huggingface.model_fields, config | edit)


@pytest.mark.parametrize("name, key, exact", [
    ("gemma", "hidden_act", "gelu_python"), ("gemma2", "hidden_activation", "gelu"),
    ("gemma3_text", "hidden_activation", "gelu")])
def test_a_gemma_computes_with_the_activation_of_its_generation(name, key, exact):
  def fields(**edits):
    return huggingface.model_fields({"model_type": name, "architectures": [
        {"gemma": "GemmaModel", "gemma2": "Gemma2Model"}.get(name, "Gemma3TextModel")], **edits})
  activation = lambda **edits: fields(**edits)["stack"]["block"]["ffn"]["activation"]
  other, = {"hidden_act", "hidden_activation"} - {key}
  assert activation() == activation(**{other: "relu"}) == activation(**{other: None}) == "gelu_tanh"
  assert activation(**{key: exact, other: "relu"}) == "gelu"
  assert activation(**{key: "gelu"}) == ("gelu_tanh" if name == "gemma" else "gelu")
  model = configs.make_model(FAMILIES[name], fields(**{key: exact}))
  assert export.hf_config(model)[key] == exact
