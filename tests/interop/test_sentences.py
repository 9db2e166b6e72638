"""Folders of sentence-transformers: files of pooled models, and what is read of others' files."""

import json

import pytest

import jtx
from jtx.errors import ConfigError, DataError
from jtx.interop import sentences
from jtx.models.text_head import HeadConfig
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained
from jtx.saved.trained import lengths
from tests.interop.samples import BERT, POOLER, TOKENIZER, XLNET, equal, random_params

MEAN = HeadConfig(task="embedding", pool="mean", normalize=True)
MODEL = BERT.clone(head=MEAN)


@pytest.fixture
def folder(tmp_path):
  path = str(tmp_path / "model")
  save_pretrained(path, MODEL.clone(vocab_size=TOKENIZER.vocab_size),
                  random_params(MODEL.clone(vocab_size=TOKENIZER.vocab_size)), TOKENIZER)
  return path


def change(folder, name, content):
  with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
    json.dump(content, f)


def read(folder, name):
  with open(f"{folder}/{name}", encoding="utf-8") as f:
    return json.load(f)


def test_the_files_of_a_pooled_model_and_back(folder, tmp_path):
  assert [step["type"].rpartition(".")[2] for step in read(folder, "modules.json")] == [
      "Transformer", "Pooling", "Normalize"]
  pooling = read(folder, "1_Pooling/config.json")
  assert pooling.pop("word_embedding_dimension") == 12
  assert [key for key, value in pooling.items() if value] == ["pooling_mode_mean_tokens"]
  assert read(folder, "sentence_bert_config.json")["max_seq_length"] == 16
  assert read(folder, "config.json")["architectures"] == ["BertModel"]
  model, params = load_pretrained(folder)
  assert model.head == MEAN
  # The settings stay, and so does the length that texts are cut to, through a workdir too.
  change(folder, sentences.SETTINGS, {"prompts": {"query": "q: "}, "default_prompt_name": None})
  change(folder, sentences.LENGTH, {"max_seq_length": 9})
  work, again = str(tmp_path / "work"), str(tmp_path / "again")
  save_pretrained(work, model, params, format="jtx", like=folder)
  assert lengths(open_saved(work)) == {"max_length": 9} and jtx.Embedder(work).max_length == 9
  save_pretrained(again, *load_pretrained(work), like=work)
  assert read(again, sentences.SETTINGS)["prompts"] == {"query": "q: "}
  assert read(again, sentences.LENGTH)["max_seq_length"] == 9
  equal(params, load_pretrained(again)[1])


def test_xlnet_pools_as_its_files_say(tmp_path):
  model = XLNET.clone(head=HeadConfig(task="embedding", pool="last", normalize=True))
  save_pretrained(str(tmp_path / "new"), model, random_params(model))
  assert load_pretrained(str(tmp_path / "new"))[0].head == model.head


def test_the_embedder_does_as_the_model_was_trained(folder):
  """Their vectors are compared in tests/parity/test_sentences.py."""
  chosen = lambda **options: jtx.Embedder(folder, **options).embed.predictor.function.args
  assert (chosen(), chosen(pool="last", normalize=False)) == (("mean", True), ("last", False))
  change(folder, "modules.json", read(folder, "modules.json")[:2])
  change(folder, "1_Pooling/config.json", {"embedding_dimension": 12, "pooling_mode": "cls"})
  assert load_pretrained(folder)[0].head == HeadConfig(task="embedding")
  assert chosen() == ("first", False)


def test_a_head_with_parameters_is_no_pooling(tmp_path):
  assert sentences.files(BERT.clone(head=POOLER), None) == {}
  assert sentences.files(MODEL, 7)[sentences.LENGTH]["max_seq_length"] == 7
  with pytest.raises(ConfigError, match="head.pool='before_last' has no name in sentence-tr"):
    sentences.files(BERT.clone(head=HeadConfig(task="embedding", pool="before_last")), None)


@pytest.mark.parametrize("name, content, error, message", [
    ("modules.json", {"a": 1}, DataError, "is not a list of modules"),
    ("modules.json", [{"type": "a.Transformer", "path": ""}, {"type": "a.Dense", "path": "b"}],
     ConfigError, "the modules Transformer, Dense are not what jtx computes"),
    ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, ConfigError,
     r"pooling by \['pooling_mode_max_tokens'\] is not"),
    ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, ConfigError,
     "valid is one of cls, lasttoken, mean"),
    (sentences.LENGTH, {"do_lower_case": True}, ConfigError, "do_lower_case=True is not what"),
    (sentences.SETTINGS, {"default_prompt_name": "query"}, ConfigError, "default_prompt_name='qu"),
])
def test_what_jtx_does_not_compute_is_refused(folder, name, content, error, message):
  change(folder, name, content)
  with pytest.raises(error, match=message):
    load_pretrained(folder)
