"""Tokenizers, trained here or read from files: ids, round trips, special tokens."""

import json
import os
import pathlib
import pickle

import numpy as np
import pytest
import tokenizers as hf

from jtx import config
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.data.tokenizers.tokenizer import SPECIALS
from jtx.errors import ConfigError, DataError
from tests.data.tokenizers.trained import HOSTILE, TRAINED

UNSEEN = ["日本語 😀", "e\u0301 \u200d ﬁ", "\x00\x7f", "", " ", "\t\n"]


@pytest.mark.parametrize("kind", TRAINED)
def test_trained_specials_and_size(trained, kind):
  t = trained[kind]
  assert (t.pad_id, t.bos_id, t.eos_id, t.unk_id) == (0, 1, 2, 3)
  assert t.tokens(range(4)) == list(SPECIALS)
  assert 350 < t.vocab_size <= 400
  assert len(set(t.tokens(range(t.vocab_size)))) == t.vocab_size


@pytest.mark.parametrize("kind", [*TRAINED, "bytes"])
def test_batch_is_int32_and_agrees_with_one_by_one(trained, texts, kind):
  t = trained[kind]
  batch = t.encode_batch(texts[:50] + UNSEEN)
  for text, ids in zip(texts[:50] + UNSEEN, batch):
    assert ids.dtype == np.int32 and ids.ndim == 1
    np.testing.assert_array_equal(ids, t.encode(text))
  assert t.decode_batch(batch) == [t.decode(ids) for ids in batch]
  assert t.encode_batch([]) == [] and t.encode("").shape == (0,)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte_bpe", "bytes"])
def test_round_trip_of_seen_text(trained, texts, kind):
  t = trained[kind]
  texts = [text for text in texts if "▁" not in text]  # what a space is written as
  assert t.decode_batch(t.encode_batch(texts)) == texts


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_white_space_becomes_one_space(trained, kind):
  t = trained[kind]
  text = " eine\tneun\r\nzwei\u00a0 drei  "
  assert t.decode(t.encode(text)) == "eine neun zwei drei"
  np.testing.assert_array_equal(t.encode(text), t.encode("eine neun zwei drei"))


@pytest.mark.parametrize("kind", ["byte_bpe", "bytes"])
def test_round_trip_of_any_text(trained, kind):
  t = trained[kind]
  for text in [*UNSEEN, *HOSTILE, "  zwei  Leerzeichen ", "a\u00a0b\r\nc"]:
    ids = t.encode(text)
    assert t.decode(ids) == text
    assert not np.isin(ids, range(4)).any()


@pytest.mark.parametrize("kind", [*TRAINED, "bytes"])
def test_text_never_becomes_a_special_token(trained, kind):
  t = trained[kind]
  for text in HOSTILE:
    assert not np.isin(t.encode(text), (t.pad_id, t.bos_id, t.eos_id)).any()


@pytest.mark.parametrize("kind", [*TRAINED, "bytes"])
def test_decode_skips_specials(trained, kind):
  t = trained[kind]
  ids = t.encode("eine neun").tolist()
  assert t.decode([t.bos_id, *ids, t.eos_id, t.pad_id, t.pad_id]) == t.decode(ids) == "eine neun"


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram"])
def test_unseen_characters_are_unknown(trained, kind):
  t = trained[kind]
  assert t.unk_id in t.encode("日")
  assert t.unk_id not in t.encode("neun")


@pytest.mark.parametrize("kind", ["bpe", "byte_bpe", "wordpiece"])
def test_training_is_deterministic(trained, texts, kind):
  assert TOKENIZERS[kind](iter(texts), vocab_size=400) == trained[kind]
  assert TOKENIZERS[kind](iter(texts), vocab_size=399) != trained[kind]


@pytest.mark.parametrize("kind", [*TRAINED, "bytes"])
def test_save_load_pickle_equality(trained, texts, tmp_path, kind):
  t = trained[kind]
  t.save(tmp_path / "t.json")
  for other in (read_tokenizer(tmp_path / "t.json"), from_json(t.to_json()),
                pickle.loads(pickle.dumps(t)),
                TOKENIZERS["file"](iter(()), path=str(tmp_path / "t.json"))):
    assert other == t and hash(other) == hash(t)
    for text in texts[-60:] + UNSEEN:
      np.testing.assert_array_equal(other.encode(text), t.encode(text))
    assert (other.eos_id, other.vocab_size) == (t.eos_id, t.vocab_size)
  assert all(t != o for k, o in trained.items() if k != kind)


def test_options_change_the_pieces(texts):
  lower = TOKENIZERS["bpe"](iter(texts), vocab_size=400, lowercase=True)
  assert lower.decode(lower.encode("Samstag, 4. JULI")) == "samstag, 4. juli"
  for kind in ("bpe", "byte_bpe", "unigram"):
    t = TOKENIZERS[kind](iter(texts), vocab_size=600, split_digits=True)
    digits = [p for p in t.tokens(range(4, t.vocab_size)) if any(c.isdigit() for c in p)]
    assert {len(p) for p in digits} == {1}
    assert len(t.encode("1987")) in (4, 5)  # 5 with the space that starts a word
  rare = TOKENIZERS["bpe"](iter(texts), vocab_size=5_000, min_frequency=200)
  common = TOKENIZERS["bpe"](iter(texts), vocab_size=5_000, min_frequency=2)
  assert rare.vocab_size < common.vocab_size < 5_000
  cased = TOKENIZERS["wordpiece"](iter(texts), vocab_size=400, lowercase=False)
  assert cased.decode(cased.encode("März")) == "März"
  uncased = TOKENIZERS["wordpiece"](iter(texts), vocab_size=400)
  assert uncased.decode(uncased.encode("März")) == "marz"


def test_bytes_ids():
  t = TOKENIZERS["bytes"](iter(()))
  assert t.vocab_size == 260
  assert t.encode("aß").tolist() == [97 + 4, 0xC3 + 4, 0x9F + 4]
  assert t.tokens([2, 101, 0xC3 + 4]) == ["<eos>", "a", "0xC3"]
  assert t.decode([0xC3 + 4, 101]) == "\ufffda"


@pytest.mark.parametrize("kind", [*TRAINED])
def test_bad_training(texts, kind):
  with pytest.raises(DataError, match="no text to train"):
    TOKENIZERS[kind](iter(()), vocab_size=400)
  with pytest.raises(config.ConfigError, match="vocab_size=20 is too small"):
    TOKENIZERS[kind](iter(texts), vocab_size=20)


@pytest.mark.parametrize("size", [60, 100, 103])  # sentinels alone are as many, or nearly
def test_a_vocabulary_without_room_beside_its_sentinels(size):
  with pytest.raises(config.ConfigError, match=f"vocab_size={size} .* hold sentinels=100, the s"):
    TOKENIZERS["unigram"](iter(["a b"]), vocab_size=size, sentinels=100)


def test_subword_nmt_by_hand(merges):
  t = TOKENIZERS["subword_nmt"](iter(["low  lower new newer", "low"]), merges=merges)
  assert t.segment("low lower new newer slow") == (
      "low lo@@ w@@ er ne@@ w new@@ er s@@ low").split(" ")
  # By frequency, then alphabetically.
  assert t.tokens(range(t.vocab_size)) == [*SPECIALS, "er", "low", "lo@@", "ne@@", "new@@",
                                           "w", "w@@"]
  assert t.encode("slow").tolist() == [t.unk_id, 5]
  assert t.decode([1, *t.encode("lower low new"), 2, 0]) == "lower low new"
  assert pickle.loads(pickle.dumps(t)) == t == from_json(t.to_json())
  small = TOKENIZERS["subword_nmt"](iter(["low lower new newer"]), merges=merges, vocab_size=6)
  assert small.vocab_size == 6


def test_subword_nmt_first_version(tmp_path):
  (tmp_path / "bpe").write_text("l o\nlo w\nw </w>\nlow </w>\n", encoding="utf-8")
  t = TOKENIZERS["subword_nmt"](iter(["low lows wow"]), merges=str(tmp_path / "bpe"))
  assert t.segment("low lows wow") == ["low", "low@@", "s", "w@@", "o@@", "w"]


def test_subword_nmt_bad_merges(tmp_path):
  (tmp_path / "bpe").write_text("#version: 0.2\nl o\nlow\n", encoding="utf-8")
  with pytest.raises(DataError, match="bpe:3: a merge is two symbols"):
    TOKENIZERS["subword_nmt"](iter(["a"]), merges=str(tmp_path / "bpe"))
  with pytest.raises(DataError, match="gone: No such file"):
    TOKENIZERS["subword_nmt"](iter(["a"]), merges=str(tmp_path / "gone"))
  with pytest.raises(config.ConfigError, match="merges:? must be set"):
    config.build(TOKENIZERS, config.section(TOKENIZERS, "subword_nmt"), iter(["a"]),
                 what="tokenizer")


def test_subword_nmt_reference():
  """The segmentation that the subword-nmt package's own tests expect."""
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; the subword-nmt reference is in it")
  folder = pathlib.Path(os.environ["JTX_TEST_DATA"]) / "golden" / "subword_nmt"
  corpus = (folder / "corpus.en").read_text("utf-8").rstrip("\n").split("\n")
  expected = (folder / "corpus.bpe.ref.en").read_text("utf-8").rstrip("\n").split("\n")
  t = TOKENIZERS["subword_nmt"](iter(corpus), merges=str(folder / "bpe.ref"))
  assert [" ".join(t.segment(line)) for line in corpus] == expected
  ids = t.encode_batch(corpus)
  assert [" ".join(t.tokens(i)) for i in ids] == expected
  assert t.decode_batch(ids) == [" ".join(line.split()) for line in corpus]


def test_hugging_face_file(tmp_path):
  """A BERT-like tokenizer.json: its own special ids; its post-processor and padding stay out."""
  vocab = {w: i for i, w in enumerate(
      ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "hello", "##s", "[", "]", "sep"])}
  backend = hf.Tokenizer(hf.models.WordPiece(vocab, unk_token="[UNK]"))
  backend.normalizer = hf.normalizers.BertNormalizer(lowercase=True)
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.decoder = hf.decoders.WordPiece()
  backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
  backend.post_processor = hf.processors.TemplateProcessing(
      single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
  backend.enable_padding(length=20)
  backend.enable_truncation(3)
  backend.save(str(tmp_path / "tokenizer.json"))
  t = TOKENIZERS["file"](iter(()), path=str(tmp_path / "tokenizer.json"))
  assert (t.pad_id, t.unk_id, t.bos_id, t.eos_id) == (0, 1, 2, 3)
  assert t.tokens(t.encode("Hellos [SEP] x")) == ["hello", "##s", "[", "sep", "]", "[UNK]"]
  assert t.decode([2, *t.encode("Hellos"), 3, 0]) == "hellos"
  assert from_json(t.to_json()) == t


def test_hugging_face_file_whose_model_knows_special_names(tmp_path):
  """As T5's: Unigram, words split at spaces only, so "</s>" in a text is a piece."""
  pieces = ["<pad>", "</s>", "<unk>", "<s>", "▁", "▁a", "<", "/", "s", ">"]
  backend = hf.Tokenizer(hf.models.Unigram([(p, -1.0) for p in pieces], 2, False))
  backend.pre_tokenizer = hf.pre_tokenizers.Metaspace()
  backend.add_special_tokens(pieces[:4])
  backend.save(str(tmp_path / "tokenizer.json"))
  t = read_tokenizer(tmp_path / "tokenizer.json")
  assert t.tokens(t.encode("a </s> a")) == ["▁a", "▁", "<unk>", "▁a"]


def test_file_errors(tmp_path):
  for content, message in ((None, "No such file"), ("{", "not valid JSON"), ("[]", "neither"),
                           ('{"kind": "x"}', "neither"), ('{"model": {}}', "not a tokenizer"),
                           (b"\xff\xfe", "not a tokenizer, not valid UTF-8")):
    path = tmp_path / "t.json"
    if content is not None:
      path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"^{path}: [^(]*{message}"):
      read_tokenizer(path)
  backend = hf.Tokenizer(hf.models.WordLevel({"a": 0}, unk_token="a"))
  path.write_text(backend.to_str())
  with pytest.raises(DataError, match=r"none of the special tokens <pad>, \[PAD\]"):
    read_tokenizer(path)


def test_a_size_in_place_of_a_file():
  kind = config.section(TOKENIZERS, "file", path="200")
  said = "kind.path='200', .* argument vocab .* is no file .* --config.tokenizer.kind.vocab_size$"
  with pytest.raises(ConfigError, match=said):
    config.build(TOKENIZERS, kind, iter(()), what="tokenizer.kind")


def test_json_is_plain(trained):
  """Anyone can take the tokenizer.json out of it, special tokens marked."""
  model = json.loads(trained["bpe"].to_json())["model"]
  backend = hf.Tokenizer.from_str(json.dumps(model))
  assert [t["content"] for t in model["added_tokens"]] == list(SPECIALS)
  assert backend.encode("neun").ids == trained["bpe"].encode("neun").tolist()
