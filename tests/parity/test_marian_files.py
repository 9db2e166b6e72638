"""Folders of Marian with the files that its models are published with: two SentencePiece models."""

import json
import os
import shutil

import pytest

import jtx
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.files import read_tokenizer
from jtx.errors import DataError
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import load_pretrained, save_pretrained

spm = pytest.importorskip("sentencepiece", reason="make test-parity installs it")
torch = pytest.importorskip("torch", reason="make test-parity installs it")
transformers = pytest.importorskip("transformers", reason="make test-parity installs it")

# Which is itself skipped without them.
from tests.parity.test_decoders import redraw, same_files  # noqa: E402

CODES = [">>deu<<", ">>fra<<"]
# Unknown letters, alone and several; doubled spaces; codes; ligatures, which are normalised.
HARD = ["", " ", "two  thousand ", "漢字 twelve", "漢", ">>deu<< forty one", ">>deu<<forty", "ﬁve",
        "zwölf zwölf", "a\u00a0b"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """A tiny MarianMTModel of its own tokenizer, both saved by `transformers`."""
  path = tmp_path_factory.mktemp("marian")
  train = open_source("embedded:number_words:train")
  examples = [train[i] for i in range(0, len(train), 7)]
  pieces = set()
  for side, field in (("source", "src"), ("target", "tgt")):
    (path / f"{side}.txt").write_text("\n".join(x[field] for x in examples), encoding="utf-8")
    spm.SentencePieceTrainer.train(
        input=str(path / f"{side}.txt"), model_prefix=str(path / side), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, num_threads=1)
    model = spm.SentencePieceProcessor(model_file=str(path / f"{side}.model"))
    pieces |= {model.id_to_piece(i) for i in range(len(model))}
    os.rename(path / f"{side}.model", path / f"{side}.spm")
  names = ["</s>", "<unk>", *sorted(pieces - {"<s>", "</s>", "<unk>"}), *CODES, "<pad>"]
  (path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
  tokenizer = transformers.MarianTokenizer(
      str(path / "source.spm"), str(path / "target.spm"), str(path / "vocab.json"))
  pad = len(names) - 1
  config = transformers.MarianConfig(
      vocab_size=len(names), d_model=24, encoder_layers=2, decoder_layers=2,
      encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=20, decoder_ffn_dim=20,
      max_position_embeddings=64, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad,
      forced_eos_token_id=0)
  peer = redraw(transformers.MarianMTModel(config).eval())
  with torch.no_grad():
    for name, p in peer.named_parameters():
      p.mul_(3.0 if name.endswith("norm.weight") else 1.0)  # else all places of a text are alike
  peer.generation_config.update(num_beams=2, max_length=20, bad_words_ids=[[pad]])
  peer.save_pretrained(path / "hf")
  tokenizer.save_pretrained(path / "hf")
  return str(path / "hf")


@pytest.fixture(scope="module")
def texts():
  source = open_source("embedded:number_words:test")
  return [source[i] for i in range(0, 2000, 10)]


def test_ids_are_those_of_transformers(folder, texts):
  theirs = transformers.MarianTokenizer.from_pretrained(folder)
  ours = open_saved(folder).tokenizers()
  assert list(ours) == ["src", "tgt"]
  for side, text in (("src", "text"), ("tgt", "text_target")):
    lines = [x[side] for x in texts] + HARD
    expected = theirs(**{text: lines})["input_ids"]
    for line, found, ids in zip(lines, ours[side].encode_texts(lines, max_length=1000), expected):
      assert found.ids.tolist() == ids, line
  for line, ids in zip((x["tgt"] for x in texts), expected):
    assert ours["tgt"].decode(ids) == theirs.decode(ids, skip_special_tokens=True) == line
  assert ours["src"].tokens([0, 1]) == ["</s>", "<unk>"]


def test_translations_are_those_of_generate(folder, texts, tmp_path):
  peer = transformers.MarianMTModel.from_pretrained(folder).eval()
  theirs = transformers.MarianTokenizer.from_pretrained(folder)
  lines = [x["src"] for x in texts[:40]]
  inputs = theirs(lines, return_tensors="pt", padding=True)
  with torch.no_grad():
    expected = theirs.batch_decode(peer.generate(**inputs), skip_special_tokens=True)
  assert jtx.Translator(folder)(lines) == expected and len(set(expected)) > 3

  model, params = load_pretrained(folder)
  save_pretrained(str(tmp_path / "again"), model, params, like=folder)
  same_files(folder, str(tmp_path / "again"))
  for name in ("source.spm", "target.spm", "vocab.json"):
    with open(os.path.join(folder, name), "rb") as a, open(tmp_path / "again" / name, "rb") as b:
      assert a.read() == b.read()
  save_pretrained(str(tmp_path / "run"), model, params, like=folder, format="jtx")
  assert jtx.Translator(str(tmp_path / "run"))(lines) == expected


@pytest.mark.parametrize("vocab", [{"</s>": 0, "a": 1}, {"</s>": 0, "<unk>": 2}, {"</s>": "0"}])
def test_a_vocabulary_that_can_not_be(vocab, folder, tmp_path):
  for name in ("source.spm", "target.spm"):
    shutil.copy(os.path.join(folder, name), tmp_path)
  (tmp_path / "vocab.json").write_text(json.dumps(vocab))
  with pytest.raises(DataError, match="source.spm: the vocab.json beside it has no ids from 0 on"):
    read_tokenizer(tmp_path)
