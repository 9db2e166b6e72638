"""A family of its own kind: two stacks, a fused matrix, untransposed ones, generation settings."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from jtx.errors import ConfigError, DataError
from jtx.interop import export, huggingface
from jtx.interop.families import FAMILIES
from jtx.interop.family import Attributes, Family, Names, pretraining, task_of
from jtx.interop.generation import Generation
from jtx.interop.tables import dense, norm, table
from jtx.interop.trunks import param_shapes
from jtx.models.encdec import EncDec
from jtx.saved.folder import open_saved

WIDTH, HEADS, FFN, VOCAB = 8, 2, 12, 20


def trunk(values, heads):
  assert heads <= {"seq2seq"}
  block = {"attention": {"num_heads": values["heads"], "biases": ("query", "key", "value", "out")},
           "ffn": {"dim": values["ffn"]}}
  stack = {"width": values["width"], "block": block}
  return {"vocab_size": values["vocab_size"],
          "encoder": {**stack, "num_layers": values["encoder_layers"]},
          "decoder": {**stack, "num_layers": values["decoder_layers"]}}


def values_of(model):
  return {"vocab_size": model.vocab_size, "width": model.encoder.width,
          "heads": model.encoder.block.attention.num_heads, "ffn": model.encoder.block.ffn.dim,
          "encoder_layers": model.encoder.num_layers, "decoder_layers": model.decoder.num_layers}


def layer(theirs, ours):
  """Query, key and value are one matrix, inputs first, and lie together head by head."""
  qkv = [f"{ours}/attention/{name}" for name in ("query", "key", "value")]
  return (*dense(f"{theirs}.qkv", *qkv, transposed=False, by_head=True),
          *dense(f"{theirs}.out", f"{ours}/attention/out", num_in=2, transposed=False),
          *norm(f"{theirs}.norm1", f"{ours}/attention_norm"),
          *dense(f"{theirs}.fc1", f"{ours}/ffn/in", transposed=False),
          *dense(f"{theirs}.fc2", f"{ours}/ffn/out"),
          *norm(f"{theirs}.norm2", f"{ours}/ffn_norm"))


def cross(theirs, ours):
  names = {"q": "query", "k": "key", "v": "value"}
  return (*(row for t, o in names.items() for row in dense(
              f"{theirs}.cross.{t}", f"{ours}/cross_attention/{o}")),
          *dense(f"{theirs}.cross.o", f"{ours}/cross_attention/out", num_in=2),
          *norm(f"{theirs}.norm3", f"{ours}/cross_attention_norm"))


TOY = Family(
    architectures={"ToyForTranslation": {"seq2seq"}},
    attributes=Attributes({
        "vocab_size": ("size", VOCAB), "width": ("size", WIDTH), "heads": ("size", HEADS),
        "ffn": ("size", FFN), "encoder_layers": ("size", 2), "decoder_layers": ("size", 1)},
        fixed={"is_encoder_decoder": (True,)}),
    names=Names(
        prefix="toy",
        trunk=(
            *table("toy.shared.weight", "tgt_embed/embedding"),
            *layer("toy.encoder.layers.{i}", "encoder/{layers}"),
            *layer("toy.decoder.layers.{i}", "decoder/{layers}"),
            *cross("toy.decoder.layers.{i}", "decoder/{layers}"),
        ),
        heads={"seq2seq": ()}),
    trunk=trunk, values=values_of, model="encdec", generates=True)


@pytest.fixture
def toy(monkeypatch, tmp_path):
  """A folder of the family, its model and parameters."""
  monkeypatch.setitem(FAMILIES, "toy", TOY)
  model = huggingface.configs.make_model(
      TOY, huggingface.model_fields({"model_type": "toy", "architectures": ["ToyForTranslation"]}))
  random = np.random.default_rng(0)
  params = huggingface.unflatten_dict(
      {path: random.normal(size=shape).astype(np.float32)
       for path, shape in param_shapes(model).items()}, sep="/")
  folder = str(tmp_path / "toy")
  export.save(folder, model, params)
  return folder, model, params


def test_two_stacks_there_and_back(toy):
  folder, model, params = toy
  assert isinstance(model, EncDec)
  assert (model.encoder.num_layers, model.decoder.num_layers) == (2, 1)
  again, loaded = huggingface.load(folder)
  assert again == model
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  found, missing = open_saved(folder).params_for(model)
  assert missing == []
  jax.tree.map(np.testing.assert_array_equal, found, params)


def test_the_tensors_of_the_file(toy):
  folder, _, params = toy
  tensors = safetensors.numpy.load_file(f"{folder}/model.safetensors")
  own = params["encoder"]["layers"]
  head_dim = WIDTH // HEADS
  # [D, 3 * N * H], feature (n, part, h).
  fused = tensors["toy.encoder.layers.1.qkv.weight"].reshape(WIDTH, HEADS, 3, head_dim)
  for part, name in enumerate(("query", "key", "value")):
    np.testing.assert_array_equal(fused[:, :, part], own["attention"][name]["kernel"][1])
  np.testing.assert_array_equal(tensors["toy.encoder.layers.0.fc1.weight"],
                                own["ffn"]["in"]["kernel"][0])
  np.testing.assert_array_equal(tensors["toy.encoder.layers.0.fc2.weight"],
                                own["ffn"]["out"]["kernel"][0].T)
  assert not any(name.startswith("toy.decoder.layers.1.") for name in tensors)


def test_a_missing_tensor_of_the_second_stack_is_named(toy):
  folder, *_ = toy
  tensors = safetensors.numpy.load_file(f"{folder}/model.safetensors")
  del tensors["toy.decoder.layers.0.cross.q.weight"]
  safetensors.numpy.save_file(tensors, f"{folder}/model.safetensors")
  with pytest.raises(DataError, match="needs tensor 'toy.decoder.layers.0.cross.q.weight'"):
    huggingface.load(folder)


def test_the_width_of_both_stacks_is_checked(toy):
  with pytest.raises(ConfigError, match="3 attention heads do not divide the width 8"):
    huggingface.model_fields({"model_type": "toy", "architectures": ["ToyForTranslation"],
                              "heads": 3})


def test_generation_settings_of_a_family_that_has_them(toy, tmp_path):
  folder, *_ = toy
  source = huggingface.open_source(folder)
  assert huggingface.generation(source) == Generation()
  with open(f"{folder}/generation_config.json", "w") as f:
    json.dump({"decoder_start_token_id": 3, "length_penalty": 0.6}, f)
  assert huggingface.generation(source) == Generation(start=3, length_penalty=0.6)
  without = source._replace(family=dataclasses.replace(TOY, generates=False))
  assert huggingface.generation(without) is None


def test_heads_by_name():
  assert task_of({"mlm", "next_sentence"}) == "next_sentence" and task_of({"mae"}) == "none"
  assert pretraining({"mlm", "next_sentence"}) == {"mlm"}
  assert pretraining({"classes", "distilled"}) == frozenset()


def test_a_head_takes_the_place_of_another_with_the_same_parameters():
  deit = FAMILIES["deit"].names
  names = [row.name for row in deit.rows_of({"classes", "distilled"})]
  assert names == ["cls_classifier.weight", "cls_classifier.bias",
                   "distillation_classifier.weight", "distillation_classifier.bias"]
  assert [row.name for row in deit.rows_of({"classes"})] == ["classifier.weight", "classifier.bias"]
