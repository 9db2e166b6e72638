"""Weights of Hugging Face in other models, and in workdirs of jtx."""

import dataclasses

import jax
import numpy as np
import pytest

from jtx import config as config_lib
from jtx.errors import ConfigError, DataError
from jtx.interop import huggingface
from jtx.models import MODELS
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from tests.helpers import encoder
from tests.interop.samples import (
    BERT, CLASSES, MODELS_BY_TYPE, MODERNBERT, PRETRAINING, TOKENIZER, change_block, equal,
    message, random_params, without)


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


# ------------------------------------------------------------------------ workdirs


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


@pytest.mark.slow
def test_a_family_gives_its_own_head_for_another_task(saved):
  heads = {"bert": ("tanh", False), "roberta": ("tanh", False), "distilbert": ("relu", False),
           "albert": ("tanh", False), "modernbert": ("gelu", True), "deberta": ("tanh", False),
           "deberta-v2": ("tanh", False), "electra": ("gelu", False),
           "xlnet": ("tanh", False)}
  for model_type, (transform, norm) in heads.items():
    directory, _ = saved(MODELS_BY_TYPE[model_type], name=model_type)
    kind, fields = huggingface.finetuned_fields(huggingface.open_source(directory), "classes")
    model = config_lib.build(MODELS, config_lib.section(MODELS, kind, **fields))
    assert (model.head.task, model.head.outputs) == ("classes", None)
    assert (model.head.transform, model.head.norm) == (transform, norm)
    params, missing = open_saved(directory).params_for(model.clone(
        head=dataclasses.replace(model.head, outputs=7)))
    assert params["embed"] and all(path.startswith("task_head/") for path in missing)


def test_a_head_that_a_family_does_not_have(saved):
  with pytest.raises(ConfigError, match="a distilbert has no head for 'next_sentence'; valid are"):
    source = huggingface.open_source(saved(MODELS_BY_TYPE["distilbert"])[0])
    huggingface.finetuned_fields(source, "next_sentence")
