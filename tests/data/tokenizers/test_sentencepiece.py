"""Models of SentencePiece, read without its library."""

import json
import os
import pickle
import struct

import pytest

from jtx.data.tokenizers.files import read_tokenizer
from jtx.errors import DataError


def field(number, value):
  """A field of a protocol buffer: a whole number, a float or bytes."""
  if isinstance(value, float):
    return bytes([number << 3 | 5]) + struct.pack("<f", value)
  key = number << 3 | (2 if isinstance(value, bytes) else 0)
  body = varint(len(value)) + value if isinstance(value, bytes) else varint(value)
  return varint(key) + body


def varint(value):
  low = [value >> shift & 127 for shift in range(0, max(value.bit_length(), 1), 7)]
  return bytes([b | 128 for b in low[:-1]] + low[-1:])


SPECIALS = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2)]
PIECES = [("\u2581", -3.0, 1), ("\u2581the", -1.0, 1), ("\u2581cat", -2.0, 1), ("s", -2.5, 1),
          ("t", -4.0, 1), ("h", -4.0, 1), ("e", -4.0, 1), ("\u2581thes", -9.0, 1)]


def model(pieces=SPECIALS + PIECES, trainer=b"", normalizer=b""):
  content = b"".join(field(1, field(1, name.encode()) + field(2, score) + field(3, kind))
                     for name, score, kind in pieces)
  return content + field(2, trainer) + field(3, normalizer)


def read(tmp_path, content, **declared):
  (tmp_path / "spiece.model").write_bytes(content)
  if declared:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(declared))
  return read_tokenizer(tmp_path)


def test_the_best_pieces_are_taken(tmp_path):
  t = read(tmp_path, model())
  pieces = lambda text: t.tokens(t.encode(text))
  assert pieces("  the   cats ") == ["\u2581the", "\u2581cat", "s"]
  assert pieces("thes") == ["\u2581the", "s"]  # -3.5, and the one piece has -9
  assert pieces("het") == ["\u2581", "h", "e", "t"]
  assert pieces("xx") == ["\u2581", "<unk>"]
  assert t.decode(t.encode("the cats")) == "the cats"
  assert (t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.vocab_size) == (0, 0, 1, 2, 111)
  assert [*t.sentinel_ids] == [*range(110, 10, -1)]
  one, = t.encode_texts(["the cat"], max_length=8)
  assert one.ids.tolist() == [4, 5, 1] and t.begin_ids() == ()
  assert pickle.loads(pickle.dumps(t)) == t


def test_sentinels_are_as_many_as_declared_or_as_the_model_has(tmp_path):
  assert read(tmp_path, model(), extra_ids=3).sentinel_ids == (13, 12, 11)
  (tmp_path / "tokenizer_config.json").unlink()
  own = [("\u2581<extra_id_1>", 0.0, 1), ("\u2581<extra_id_0>", 0.0, 1)]  # as mT5 has them
  assert read(tmp_path, model(SPECIALS + PIECES + own)).sentinel_ids == (12, 11)


@pytest.mark.parametrize("content, said", [
    (b"", "not a model of SentencePiece"), (b"\x0a\xff", "not a model of SentencePiece"),
    (b'{"model": 1}', "not a model of SentencePiece"),
    (model()[:-3], "not a model of SentencePiece"),
    (model(trainer=field(3, 2)), "is not of the kind Unigram"),
    (model(trainer=field(35, 1)), "is not of the kind Unigram"),
    (model(normalizer=field(3, 0)), "does not put a space before a text")])
def test_other_files_are_refused(content, said, tmp_path):
  with pytest.raises(DataError, match=f"spiece.model: {said}"):
    read(tmp_path, content)


def test_a_wrong_number_of_sentinels_is_told(tmp_path):
  with pytest.raises(DataError, match="tokenizer_config.json: extra_ids is 'many', and not"):
    read(tmp_path, model(), extra_ids="many")


def test_the_model_of_t5():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA names no folder with vocab/t5_tokenizer_base.model")
  t = read_tokenizer(os.path.join(os.environ["JTX_TEST_DATA"], "vocab/t5_tokenizer_base.model"))
  # The example of the documentation of transformers.
  assert t.encode("translate English to German: The house is wonderful.").tolist() == [
      13959, 1566, 12, 2968, 10, 37, 629, 19, 1627, 5]
  assert t.vocab_size == 32100 and [*t.sentinel_ids] == [*range(32099, 31999, -1)]
  assert t.tokens(t.sentinel_ids[:2]) == ["<extra_id_0>", "<extra_id_1>"]
  assert t.decode(t.encode("The \ufb01sh \u2460")) == "The fish 1"  # NFKC
