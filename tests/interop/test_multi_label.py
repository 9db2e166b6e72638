"""Multi-label heads to and from `problem_type` of Hugging Face."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from jtx.interop import huggingface, presets
from jtx.interop.export import hf_config
from jtx.interop.families import FAMILIES
from jtx.interop.family import task_of, type_of
from jtx.models.image_head import ImageHeadConfig
from jtx.models.text_head import HeadConfig
from jtx.models.vit import VIT_STACK
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained
from tests import helpers
from tests.interop.samples import BERT, CLASSES, MODERNBERT, message

NAMES = ("art", "law", "war")
HEAD = dataclasses.replace(CLASSES, task="multi_label")


@pytest.mark.parametrize("model", [BERT, MODERNBERT], ids=["bert", "modernbert"])
def test_problem_type_is_the_task_of_the_head(model):
  head = dataclasses.replace(model.head, task="multi_label", outputs=3)
  config = hf_config(model.clone(head=head, mlm=False), labels=NAMES)
  assert config["problem_type"] == "multi_label_classification"
  assert config["id2label"] == {"0": "art", "1": "law", "2": "war"}
  assert config["architectures"][0].endswith("ForSequenceClassification")
  fields = huggingface.model_fields(config)
  assert fields["head"]["task"] == "multi_label" and fields["head"]["outputs"] == 3
  one = huggingface.model_fields({**config, "problem_type": "single_label_classification"})
  assert one["head"] == {**fields["head"], "task": "classes"}


def test_it_comes_back_whole_but_for_the_threshold(saved, told):
  model = BERT.clone(head=dataclasses.replace(HEAD, threshold=0.3))
  directory, params = saved(model)
  again, found = load_pretrained(directory)
  assert again == BERT.clone(head=HEAD)
  jax.tree.map(np.testing.assert_array_equal, found, params)
  assert "BertForSequenceClassification has no place for head.threshold" in "\n".join(told)
  # Its weights, the head's too, are there for another run of the same task.
  params, missing = open_saved(directory).params_for(model)
  assert not missing
  for task in ("classes", "multi_label"):
    assert open_saved(directory).finetuned_fields(task)[1]["head"]["task"] == task


def test_tags_have_no_problem_type(tmp_path):
  model = BERT.clone(head=HeadConfig(task="tags", outputs=3, pool="none"))
  config = hf_config(model, labels=NAMES)
  assert "problem_type" not in config
  config["problem_type"] = "multi_label_classification"
  assert huggingface.model_fields(config)["head"]["task"] == "tags"


# What files of a model type say, where the defaults of its class are not what jtx computes.
SAID = {"deberta": presets.DEBERTA, "deberta-v2": presets.DEBERTA_V2}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_class_of_a_problem_type_is_read(family):
  """The tasks of all architectures, with the number of labels that `transformers` writes."""
  model_type = type_of(family)
  for name, heads in FAMILIES[family].architectures.items():
    task = task_of(huggingface.configs.make_model(FAMILIES[family], huggingface.model_fields(
        {"model_type": model_type, "architectures": [name], "id2label": dict.fromkeys("012", "a"),
         "problem_type": "multi_label_classification", **SAID.get(model_type, {})})).heads)
    assert task == ("multi_label" if "classes" in heads else task_of(heads))


def test_regression_of_several_numbers_is_refused():
  config = json.loads(json.dumps(hf_config(BERT)))
  assert message(huggingface.model_fields, {**config, "problem_type": "regression"}) == (
      "config.json: problem_type='regression' with 4 labels is not known to jtx: it has"
      " single_label_classification, multi_label_classification, and regression of one number")


def test_images_have_the_same_head():
  model = helpers.vit(width=12, num_layers=1, block=helpers.block(
      VIT_STACK.block, num_heads=2, ffn_dim=24), head=ImageHeadConfig(
          task="multi_label", outputs=3))
  config = hf_config(model, labels=NAMES)
  assert config["architectures"] == ["ViTForImageClassification"]
  assert config["problem_type"] == "multi_label_classification"
  head = huggingface.model_fields(config)["head"]
  assert (head["task"], head["outputs"]) == ("multi_label", 3)
