"""Folders with trained models: their kinds, tokenizers and stacks, and weights for others."""

import dataclasses
import json
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from experiments.config_files import load_config
from jtx import config_files
from jtx.config import section
from jtx.data.tokenizers import kinds
from jtx.errors import ConfigError, DataError
from jtx.models import MODELS
from jtx.models.encdec import EmbeddingConfig, EncDec
from jtx.models.encoder import Encoder
from jtx.models.text_head import HeadConfig
from jtx.nn.attention import AttentionConfig
from jtx.nn.block import BlockConfig
from jtx.nn.layers import FfnConfig
from jtx.nn.positions import Learned
from jtx.nn.rope import Linear, Llama3, Rope
from jtx.nn.stack import StackConfig
from jtx.saved.folder import Converted, HuggingFace, Run, open_saved
from jtx.saved.pretrained import load_pretrained, load_tokenizer, save_pretrained
from jtx.saved.trained import told_length, trained
from jtx.saved.workdir import load_run, make_checkpoints, open_data
from jtx.train import loop, phases
from tests.helpers import ROOT, encoder, one_device, tiny_config
from tests.interop.samples import BERT, MODERNBERT, TOKENIZER, random_params
from tests.models.test_contract import drawn

WORDS = {"src": "one two three four five", "tgt": "eins zwei drei vier sechs"}
STACK = StackConfig(
    width=8, num_layers=2, position=Learned(max_length=16),
    block=BlockConfig(attention=AttentionConfig(num_heads=2), ffn=FfnConfig(dim=12)))
MODEL = EncDec(30, 40, encoder=STACK,
               decoder=dataclasses.replace(STACK, num_layers=1, causal=True),
               embedding=EmbeddingConfig(tie=("output",)))


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
  """A folder with an encoder-decoder and its two tokenizers, and what it was made of."""
  tokenizers = {field: kinds.wordpiece(iter([text]), vocab_size=60, min_frequency=1)
                for field, text in WORDS.items()}
  params = jax.device_get(jax.tree.map(
      lambda x: x + 0.5, loop.sharding.unbox(MODEL.init(jax.random.key(0), MODEL.example()))
      ["params"]))
  folder = str(tmp_path_factory.mktemp("saved") / "translator")
  save_pretrained(folder, MODEL, params, tokenizers, format="jtx")
  return folder, params, tokenizers


@pytest.mark.parametrize("head, found", [
    (dict(task="next_sentence", transform="tanh"), dict(pool="first", transform="tanh")),
    (dict(task="classes", outputs=2, pool="mean"), dict(pool="mean", transform="none")),
    (dict(task="tags", outputs=2, pool="none"), dict(pool="mean")),
    (dict(), dict(pool="mean")),  # masked tokens alone, which leave [CLS] as it is
])
def test_a_new_head_pools_as_the_one_that_was_trained(head, found, tmp_path):
  model = encoder(vocab_size=9, mlm=True, position=Learned(max_length=6), head=HeadConfig(**head))
  save_pretrained(str(tmp_path / "m"), model, drawn(model), format="jtx")
  kind, fields = open_saved(str(tmp_path / "m")).finetuned_fields("classes")
  assert kind == "encoder"
  assert fields["head"].items() >= (dict(task="classes") | found).items()
  assert open_saved(str(tmp_path / "m")).finetuned_fields("tags")[1]["head"] == dict(
      task="tags", pool="none")


def test_a_run_and_its_export_give_the_same_head(tmp_path):
  """Of a BERT of pairs, whose pooler is trained."""
  model = BERT.clone(mlm=True, head=HeadConfig(task="next_sentence", transform="tanh"))
  for format in ("jtx", "hf"):
    save_pretrained(str(tmp_path / format), model, drawn(model), format=format)
  ours, theirs = (section(MODELS, kind, **fields).head for kind, fields in (
      open_saved(str(tmp_path / format)).finetuned_fields("classes") for format in ("jtx", "hf")))
  assert ours == theirs


@pytest.mark.slow
def test_an_encoder_decoder_and_its_two_tokenizers_come_back(translator):
  folder, params, tokenizers = translator
  saved = open_saved(folder)
  assert isinstance(saved, Converted)
  model, loaded = load_pretrained(folder)
  assert model == MODEL
  jax.tree.map(np.testing.assert_array_equal, loaded, params)
  found = saved.tokenizers()
  assert list(found) == ["src", "tgt"]
  for field, text in WORDS.items():
    assert found[field].to_json() == tokenizers[field].to_json()
    assert found[field].encode(text).tolist() == tokenizers[field].encode(text).tolist()
  assert load_tokenizer(folder).to_json() == tokenizers["src"].to_json()


def test_another_encoder_decoder_starts_from_it(translator):
  folder, params, _ = translator
  found, missing = open_saved(folder).params_for(MODEL.clone(dtype="float32"))
  assert missing == []
  jax.tree.map(np.testing.assert_array_equal, found, params)


def test_the_outputs_of_another_task_are_fresh(tmp_path):
  """Be they as many: those of two sentences in order are no classes, and no ends of a span."""
  head = HeadConfig(task="next_sentence", transform="tanh")
  model = Encoder(30, stack=STACK, head=head)
  params = loop.sharding.unbox(model.init(jax.random.key(0), model.example())["params"])
  save_pretrained(str(tmp_path / "w"), model, params, format="jtx")
  saved = open_saved(str(tmp_path / "w"))
  assert saved.params_for(model)[1] == []
  for task, pool, transform in (("classes", "first", "tanh"), ("span", "none", "none")):
    other = model.clone(head=HeadConfig(task=task, outputs=2, pool=pool, transform=transform))
    found, missing = saved.params_for(other)
    assert sorted(missing) == ["task_head/output/bias", "task_head/output/kernel"]
    assert ("transform" in found.get("task_head", {})) == (transform == "tanh")


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_layers_that_do_not_fit_are_named(translator, stack):
  folder, *_ = translator
  other = MODEL.clone(**{stack: dataclasses.replace(getattr(MODEL, stack), num_layers=3)})
  with pytest.raises(ConfigError, match=f"model.{stack}.num_layers=3 does not fit the weights of"):
    open_saved(folder).params_for(other)


def test_fields_of_a_trunk_are_all_stacks(translator):
  folder, *_ = translator
  fields = open_saved(folder).trunk_fields("encdec")
  assert fields["encoder"].num_layers == 2 and fields["decoder"].num_layers == 1
  with pytest.raises(ConfigError, match="holds a model of the kind 'encdec', not 'encoder'"):
    open_saved(folder).trunk_fields("encoder")


def test_arguments_of_another_kind_of_folder(translator):
  saved = open_saved(translator[0])
  with pytest.raises(ConfigError, match="step=3: .* holds a model and no run; leave it unset"):
    saved.load(step=3)
  with pytest.raises(ConfigError, match="architecture='BertModel': .* is a workdir of jtx"):
    saved.load("BertModel")


def test_several_tokenizers_have_no_place_in_a_hugging_face_folder(translator, tmp_path):
  _, params, tokenizers = translator
  with pytest.raises(ConfigError, match="format='hf' has one, and these are of src, tgt"):
    save_pretrained(str(tmp_path / "hf"), MODEL, params, tokenizers)


def test_a_folder_without_a_tokenizer(translator, tmp_path):
  folder = str(tmp_path / "bare")
  save_pretrained(folder, MODEL, translator[1], format="jtx")
  assert open_saved(folder).tokenizers() == {}
  with pytest.raises(DataError, match="has no tokenizer: the model was saved without one"):
    load_tokenizer(folder)


def test_folders_that_are_none(tmp_path):
  with pytest.raises(ConfigError, match="nowhere is not a directory"):
    open_saved("nowhere")
  (tmp_path / "file").write_text("")
  with pytest.raises(ConfigError, match="file is not a directory"):
    open_saved(str(tmp_path / "file"))
  with pytest.raises(ConfigError, match="does not exist: what it would lie in is a file and no f"):
    load_run(str(tmp_path / "file"))
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(ConfigError, match="has neither the model_type of a Hugging Face model nor"):
    open_saved(str(tmp_path))
  (tmp_path / "config.json").write_text('{"model_type": "bert"}')
  assert isinstance(open_saved(str(tmp_path)), HuggingFace)


@pytest.mark.slow
def test_a_translator_is_fine_tuned_from_the_workdir_of_another(tmp_path):
  first, second = str(tmp_path / "first"), str(tmp_path / "second")
  loop.run(tiny_config(steps=2), first)
  assert isinstance(open_saved(first), Run)
  loop.run(tiny_config(**{"steps": 1, "init_from": first, "optim.lr": 0.0, "seed": 7}), second)
  jax.tree.map(np.testing.assert_array_equal, load_run(second)[1], load_run(first)[1])


BEGUN = """
import sys
from jax._src import xla_bridge
from experiments.config_files import load_config
for spec in sys.argv[1:]:
  c = load_config(spec)
  print(c.tokenizer.kind.path, xla_bridge.backends_are_initialized())
"""


def test_a_config_that_begins_from_a_run_leaves_the_devices_alone(tmp_path):
  """So processes of several can still meet when it is made."""
  folders = []
  for name, config in (("pairs", tiny_config()), ("decoder", load_config(
      "configs/instruct.py:tiny").lock())):
    folders.append(folder := str(tmp_path / name))
    (tmp_path / name).mkdir()
    config_files.save(config, f"{folder}/config.json")
    checkpoints = make_checkpoints(config, folder)
    texts = open_data(config, folder, checkpoints).tokenizer_texts()
    checkpoints.save(5, {"params": {"x": jax.numpy.zeros(1)}},
                     {"tokenizers": texts, "config": json.loads(config.to_json())})
    checkpoints.close()
  pairs, decoder = folders
  done = subprocess.run(
      [sys.executable, "-c", BEGUN, f"configs/instruct.py:init={decoder},train=jsonl:a",
       f"configs/dpo.py:init={decoder},train=jsonl:a", f"configs/classify.py:init={pairs}"],
      cwd=ROOT, env=one_device(), capture_output=True, text=True, check=False)
  assert done.stdout.split("\n")[:-1] == [
      f"{decoder} False", f"{decoder} False", f"{pairs} False"], done.stderr


# ------------------------------------------------------------------ beyond the trained length

@pytest.fixture
def rotary(tmp_path):
  """A folder of a model with rotary positions, trained with texts of up to 32 tokens."""
  folder = tmp_path / "rotary"
  model = MODERNBERT.clone(vocab_size=TOKENIZER.vocab_size)
  save_pretrained(str(folder), model, random_params(model), TOKENIZER)
  config = json.loads((folder / "config.json").read_text())
  (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32}))
  return str(folder), model


def test_a_length_beyond_that_of_rotary_positions_is_told(rotary, caplog):
  folder, model = rotary
  opened, told = open_saved(folder), lambda: [r.getMessage() for r in caplog.records
                                              if "rotary" in r.getMessage()]
  params = random_params(model)
  trained(opened, model, params, max_length=32)
  config = tiny_config(init_from=folder)
  recipe = lambda length: types.SimpleNamespace(with_length=lambda _: types.SimpleNamespace(
      row_lengths=lambda: {"text": length}))
  phases.warn_of_lengths(config, recipe(32), model)
  phases.warn_of_lengths(tiny_config(), recipe(33), model)
  assert not told()
  trained(opened, model, params, max_length=33)
  phases.warn_of_lengths(config, recipe(40), model)
  expected = [
      f"{folder}: {what} tokens, and by max_position_embeddings in its config.json the model is for"
      " 32: rotary positions take more, but it was not trained with them"
      for what in ("texts may have 33", "texts of config.data.ops may have 40")]
  assert told() == expected


@pytest.mark.parametrize("scaling, length", [
    (None, 32), (Linear(factor=4.0), 128), (Llama3(factor=8.0, original_length=8), 64),
    (Llama3(factor=8.0, original_length=2), 32)])
def test_a_scaling_makes_the_length_longer(scaling, length, rotary):
  folder, model = rotary
  position = Rope() if scaling is None else Rope(scaling=scaling)
  assert told_length(open_saved(folder), encoder(model, position=position)) == length
  assert told_length(open_saved(folder), encoder(model, position=Learned(16))) is None
