"""Texts that name special tokens, as the tokenizers of `transformers` read them."""

import json

import numpy as np
import pytest

import jtx
from jtx.data.tokenizers.files import read_tokenizer
from tests.data.tokenizers.folders import FOLDERS, NAMED, TEXT, write
from tests.data.tokenizers.vocabularies import byte_level

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")
torch = pytest.importorskip("torch", reason="see make test-parity")

TEXTS = [TEXT, "[E1][E1]", " [E1] <e2> ", "a<e2>  b", "[E1", "sat[E1]<e2>on", ""]


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", FOLDERS)
def test_added_special_tokens_are_those_of_transformers(name, saved, tmp_path):
  kind = "PreTrainedTokenizerFast" if saved else "BertTokenizer"
  files = dict(FOLDERS[name])
  files["tokenizer_config.json"] = {**files["tokenizer_config.json"], "do_lower_case": True}
  folder = write(tmp_path / "m", files, saved)
  theirs, ours = getattr(transformers, kind).from_pretrained(folder), read_tokenizer(folder)
  assert ours.vocab_size == len(theirs)
  for text, e in zip(TEXTS, ours.encode_texts(TEXTS, max_length=64)):
    assert e.ids.tolist() == theirs(text)["input_ids"], text
  second = TEXTS[1:-1] + TEXTS[:1]  # where "" is none for `transformers`
  for a, b, e in zip(TEXTS, second, ours.encode_texts(TEXTS[:-1], second, max_length=64)):
    assert e.ids.tolist() == theirs(a, b)["input_ids"], (a, b)


def test_roles_are_those_of_transformers(tmp_path):
  folder = write(tmp_path / "m", {"tokenizer_config.json": NAMED | {"mask_token": "sat"}}, True)
  theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
  ours = read_tokenizer(folder)
  for role in ("pad", "unk", "cls", "sep", "mask"):
    assert ours.roles[role] == getattr(theirs, f"{role}_token_id"), role


@pytest.mark.parametrize("kind, options", [
    ("BertTokenizer", {}), ("BertTokenizer", {"do_lower_case": False}),
    ("BertTokenizerFast", {"strip_accents": False}),
    ("DistilBertTokenizer", {"tokenize_chinese_chars": False}),
    ("ElectraTokenizer", {"do_lower_case": False, "strip_accents": True}),
    ("PreTrainedTokenizerFast", {"do_lower_case": False})])
def test_options_of_the_class_go_before_tokenizer_json(kind, options, tmp_path):
  folder = write(tmp_path / "m", {"tokenizer_config.json": {
      **NAMED, "tokenizer_class": kind, "truncation_side": "left", **options}}, True)
  content = json.loads((folder / "tokenizer.json").read_text())
  content["normalizer"] |= {"lowercase": kind != "BertTokenizer" or bool(options)}
  (folder / "tokenizer.json").write_text(json.dumps(content))
  theirs, ours = transformers.AutoTokenizer.from_pretrained(folder), read_tokenizer(folder)
  for text in ("The cat", "thé cat", "a\u4e2db", "cat a b c d e f"):
    e, = ours.encode_texts([text], max_length=5)
    expected = theirs(text, truncation=True, max_length=5)["input_ids"]
    assert e.ids.tolist() == expected, text


@pytest.mark.parametrize("kind", ["RobertaTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizerFast",
                                  "PreTrainedTokenizerFast"])
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True}])
def test_a_space_before_texts_is_that_of_the_class(kind, in_file, options, tmp_path):
  byte_level(in_file).save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({
      "tokenizer_class": kind, "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
      "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", **options}))
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  ids = theirs("ab a", add_special_tokens=False)["input_ids"]
  assert read_tokenizer(tmp_path).encode("ab a").tolist() == ids


def test_classes_of_a_gpt2_have_the_scores_of_transformers(tmp_path):
  """Whose tokenizer.json puts nothing around a text."""
  backend = byte_level(False, template=False)
  backend.save(str(tmp_path / "tokenizer.json"))
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({
      "tokenizer_class": "GPT2Tokenizer", "unk_token": "</s>", "bos_token": "</s>",
      "eos_token": "</s>", "pad_token": "<pad>"}))
  torch.manual_seed(0)
  model = transformers.GPT2ForSequenceClassification(transformers.GPT2Config(
      vocab_size=backend.get_vocab_size(), n_positions=64, n_embd=24, n_layer=1, n_head=3,
      num_labels=3, pad_token_id=1, bos_token_id=2, eos_token_id=2, initializer_range=0.4)).eval()
  model.save_pretrained(str(tmp_path))
  theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
  for text, ours in zip(TEXTS[:4], jtx.Classifier(str(tmp_path))(TEXTS[:4]), strict=True):
    with torch.no_grad():
      scores = model(**theirs(text, return_tensors="pt")).logits[0].softmax(-1)
    np.testing.assert_allclose(list(ours.scores.values()), scores, atol=1e-4, err_msg=text)
