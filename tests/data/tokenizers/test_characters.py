"""Characters as tokens: ids by hand, unknown ones, files, and the same as a tokenizer.json."""

import json
import pickle

import numpy as np
import pytest
import tokenizers as hf

from jtx.config import build, section
from jtx.data.ops.text import Tokenize
from jtx.data.tokenizers.characters import Characters, UnknownCharacters
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.kinds import TOKENIZERS
from jtx.errors import DataError
from tests.data.streams import Rows

TEXTS = ["banana, ", "Öl\n", "日a𝛼"]


def trained(texts=TEXTS, **fields):
  return build(TOKENIZERS, section(TOKENIZERS, "characters", **fields), iter(texts))


def test_the_vocabulary_is_the_sorted_characters_of_the_texts():
  tokenizer = trained()
  assert tokenizer.characters == "\n ,abln" + "Ö日𝛼"
  assert tokenizer.vocab_size == 14
  assert tokenizer.encode("ban\n𝛼").tolist() == [8, 7, 10, 4, 13]
  assert tokenizer.tokens([0, 1, 2, 3, 4, 13]) == ["<pad>", "<bos>", "<eos>", "<unk>", "\n", "𝛼"]
  assert tokenizer.decode([1, 8, 7, 10, 2, 3]) == "ban"
  assert tokenizer.plain_ids().tolist() == [*range(4, 14)]
  for text in (*TEXTS, "", "<eos>"[1:1], "aaa"):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32 and tokenizer.decode(ids) == text
  # The same whatever the order of the texts is.
  assert trained(TEXTS[::-1]) == tokenizer


def test_unknown_characters_are_named_or_unk():
  with pytest.raises(UnknownCharacters) as e:
    trained().encode("bäx")
  assert str(e.value) == ("has characters that the tokenizer does not know: 'x' (U+0078), 'ä'"
                          " (U+00E4); it takes them as <unk> with tokenizer.kind.unknown=True")
  with pytest.raises(UnknownCharacters, match=r"'4' \(U\+0034\) and 5 more; it"):
    trained().encode("0123456789")
  assert trained(unknown=True).encode("bäxa").tolist() == [8, 3, 3, 7]
  with pytest.raises(DataError, match="text 2: has .* half of a surrogate pair"):
    trained(unknown=True).encode_batch(["a", "\ud800"])


def test_tokenize_names_the_example():
  examples = Rows({"id": i, "text": text} for i, text in ((5, "ban"), (6, "Ba")))
  with pytest.raises(DataError) as e:
    Tokenize(("text",))(examples, {"text": trained()})
  assert str(e.value).startswith("op tokenize: example 6 has characters that the tokenizer does not"
                                 " know: 'B' (U+0042); it")


@pytest.mark.parametrize("unknown", [False, True])
def test_it_is_read_again(tmp_path, unknown):
  tokenizer = trained(unknown=unknown)
  tokenizer.save(tmp_path / "own.json")
  for again in (read_tokenizer(tmp_path / "own.json"), from_json(tokenizer.to_json()),
                pickle.loads(pickle.dumps(tokenizer))):
    assert isinstance(again, Characters) and again == tokenizer
    assert again.encode("nab").tolist() == tokenizer.encode("nab").tolist()
    assert again.unknown == unknown


def test_the_tokenizer_json_has_the_same_ids():
  tokenizer = trained()
  backend = hf.Tokenizer.from_str(json.dumps(tokenizer.model()))
  for text in TEXTS:
    assert backend.encode(text).ids == tokenizer.encode(text).tolist()
    assert backend.decode(tokenizer.encode(text).tolist()) == text
  encoding, = tokenizer.encode_texts(["日a"], max_length=8)
  assert encoding.ids.tolist() == [1, 12, 7, 2]
  assert encoding.offsets[1:3].tolist() == [[0, 1], [1, 2]]


def test_no_text_and_damaged_files():
  with pytest.raises(DataError, match="no text to train a tokenizer on"):
    trained([])
  with pytest.raises(DataError, match="is damaged"):
    from_json(json.dumps({"kind": "characters"}))
