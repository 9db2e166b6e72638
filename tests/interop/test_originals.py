"""Files of a Hugging Face folder that come back as they were, and how older ones name things."""

import json
import os
import pathlib

import numpy as np
import pytest
import safetensors.numpy

from jtx.errors import ConfigError
from jtx.interop import export, huggingface
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.nn.rope import Llama3, Rope
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, load_tokenizer, save_pretrained
from tests.helpers import block, decoder
from tests.interop.samples import TOKENIZER, equal, message, random_params

LAYER = dict(num_heads=2, ffn_dim=32, norm_position="pre", norm_eps=1e-5, init_std=0.02)
GPT2 = decoder(vocab_size=31, width=8, num_layers=2, position=Learned(16),
               block=block(**LAYER, activation="gelu_tanh", attention_bias=True))
LLAMA = decoder(vocab_size=31, width=8, num_layers=2, tie=False,
                position=Rope(500.0, scaling=Llama3(original_length=16)),
                block=block(**LAYER, num_kv_heads=1, activation="silu", gated=True, norm="rmsnorm",
                            biases=(), ffn_bias=False, dropout=0.0))
MORE = {"generation_config.json": b'{"do_sample": true,\n "eos_token_id": [2, 5], "top_p": 0.9}',
        "chat_template.jinja": b"{{ messages[0]['content'] }}\n"}


@pytest.fixture
def folder(tmp_path):
  """Of a Llama in bfloat16 with settings of generation and a chat template, and its parameters."""
  path, params = str(tmp_path / "folder"), random_params(LLAMA)
  save_pretrained(path, LLAMA, params, TOKENIZER, dtype="bfloat16")
  for name, content in MORE.items():
    (tmp_path / "folder" / name).write_bytes(content)
  change(path, eos_token_id=[2, 5], max_position_embeddings=777, pretraining_tp=1,
         no_repeat_ngram_size=3, early_stopping=True, bad_words_ids=[[4]], prefix="a")
  return path


def change(path, **edits):
  name = os.path.join(path, "config.json")
  content = json.load(open(name)) | edits
  json.dump({k: v for k, v in content.items() if v != "drop"}, open(name, "w"))


def contents(path):
  return {entry.name: entry.read_bytes() for entry in pathlib.Path(path).iterdir()}


@pytest.mark.parametrize("through", ["like", "workdir"])
def test_a_folder_comes_back_byte_for_byte(through, folder, tmp_path):
  """Also through a workdir: bfloat16, the tokenizer's files, and what jtx does not compute with."""
  back, source = str(tmp_path / "back"), folder
  if through == "workdir":
    source = str(tmp_path / "workdir")
    save_pretrained(source, *load_pretrained(folder), load_tokenizer(folder), format="jtx",
                    like=folder)
  save_pretrained(back, *load_pretrained(source), like=source)
  a, b = contents(folder), contents(back)
  assert a.keys() == b.keys()
  assert json.loads(a.pop("config.json")) == json.loads(b.pop("config.json"))
  assert a == b
  assert load_tokenizer(back).chat_template == MORE["chat_template.jinja"].decode()


def test_another_tokenizer_or_dtype_is_not_that_of_the_folder(folder, tmp_path):
  small = type(TOKENIZER)(**TOKENIZER.state() | {"roles": {**TOKENIZER.roles, "mask": 3}})
  back = str(tmp_path / "back")
  save_pretrained(back, *load_pretrained(folder), small, like=folder, dtype="float32")
  assert "chat_template.jinja" not in os.listdir(back)
  assert json.load(open(f"{back}/config.json"))["eos_token_id"] == small.eos_id
  tensors = safetensors.numpy.load_file(f"{back}/model.safetensors")
  assert {x.dtype.name for x in tensors.values()} == {"float32"}


def test_the_model_type_of_the_folder_is_kept(tmp_path):
  """A Mistral without a window is as good a Llama."""
  model = decoder(LLAMA, position=Rope(500.0))
  path, back = str(tmp_path / "mistral"), str(tmp_path / "back")
  export.save(path, model, random_params(model))
  change(path, model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None,
         attention_bias="drop", mlp_bias="drop")
  save_pretrained(back, *load_pretrained(path), like=path)
  config = json.load(open(f"{back}/config.json"))
  assert (config["model_type"], config["architectures"]) == ("mistral", ["MistralForCausalLM"])


def test_both_spellings_of_rope_are_one_model():
  new = export.hf_config(LLAMA)
  scaling = new["rope_parameters"]
  assert scaling == {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0,
                     "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 16}
  old = {k: v for k, v in new.items() if k != "rope_parameters"} | {
      "rope_theta": 500.0, "rope_scaling": {k: v for k, v in scaling.items() if k != "rope_theta"}}
  fields = huggingface.model_fields(new)
  assert huggingface.model_fields(old) == fields
  assert huggingface.model_fields(
      old | {"rope_scaling": {"type": "linear", "factor": 2.0}}) != fields
  for edit, expected in (
      ({"rope_type": "dynamic", "factor": 2.0}, "rope_parameters.rope_type='dynamic': "),
      ({"rope_type": "linear", "factor": 2.0, "beta": 1}, "rope_parameters.beta=1 is not known"),
      ({"rope_type": "linear", "factor": 0}, "rope_parameters.factor=0 is not a number above 0"),
      ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: the model type turns whole")):
    assert expected in message(huggingface.model_fields, new | {"rope_parameters": edit})


def test_a_window_counts_the_query():
  config = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}
  for size, pattern, window in ((4, ("local",), 3), (2, ("local",), 1), (None, ("global",), 0)):
    stack = huggingface.model_fields(config | {"sliding_window": size})["stack"]
    assert (stack["pattern"], stack["window"]) == (pattern, window)
  with pytest.raises(ConfigError, match="sliding_window=1 is no window of sliding_attention"):
    huggingface.model_fields(config | {"sliding_window": 1})


def test_names_and_buffers_of_older_files(tmp_path):
  """GPT-2's: no prefix, masks among the tensors, and the other of two tied names."""
  path, params = str(tmp_path / "gpt2"), random_params(GPT2)
  export.save(path, GPT2, params)
  file = f"{path}/model.safetensors"
  tensors = {name.removeprefix("transformer."): x
             for name, x in safetensors.numpy.load_file(file).items()}
  for i in range(2):
    tensors[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, 16, 16), bool))
    tensors[f"h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
  tensors["lm_head.weight"] = tensors.pop("wte.weight")
  safetensors.numpy.save_file(tensors, file)
  equal(load_pretrained(path)[1], params)


def test_output_weights_of_their_own_are_not_the_embedding(tmp_path):
  path, params = str(tmp_path / "llama"), random_params(LLAMA)
  export.save(path, LLAMA, params)
  equal(load_pretrained(path)[1], params)
  classes = LLAMA.clone(lm=False, head=HeadConfig(task="classes", outputs=2, pool="last",
                                                  output_bias=False))
  found, missing = open_saved(path).params_for(classes)
  assert missing == ["task_head/output/kernel"] and "output" not in found
  equal(found["embed"], params["embed"])
