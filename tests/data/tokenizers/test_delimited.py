"""Tokens around and between texts, as fine-tuning of decoders adds them."""

import json
import os

import pytest
import tokenizers as hf

from jtx.data.ops.finetune import Encode, EncodeChoices
from jtx.data.tokenizers.delimited import delimited
from jtx.data.tokenizers.files import from_json, read_tokenizer
from jtx.data.tokenizers.kinds import byte_bpe, characters
from jtx.errors import ConfigError
from jtx.interop import export
from jtx.models.text_head import HeadConfig
from tests.helpers import decoder

NAMES = ("<start>", "<delimiter>", "<extract>")


@pytest.fixture(scope="module")
def letters():
  """Ids: the four special tokens, " ", a, b, c, then the three that are added."""
  return delimited(characters(iter(["a b c"]), unknown=True), NAMES)


def test_the_three_transforms_of_the_paper(letters):
  space, a, b, c, start, delimiter, extract = range(4, 11)
  assert letters.vocab_size == 11 and letters.tokens([8, 9, 10]) == list(NAMES)
  tokenizers = {"text": letters}
  example = {"id": 0, "text": "a b", "second": "c", "more": "b", "label": 1}
  ids = lambda e, field: e[field].tolist()
  e, = Encode()([dict(example)], tokenizers)
  assert ids(e, "text") == [start, a, space, b, extract]
  e, = Encode(texts=("text", "second"))([dict(example)], tokenizers)
  assert ids(e, "text") == [start, a, space, b, delimiter, c, extract]
  assert ids(e, "text_types") == [0, 0, 0, 0, 0, 1, 1] and "swapped" not in e
  e, = Encode(texts=("text", "second"), both_orders=True)([dict(example)], tokenizers)
  assert ids(e, "text") == [start, a, space, b, delimiter, c, extract]
  assert ids(e, "swapped") == [start, c, delimiter, a, space, b, extract]
  assert ids(e, "swapped_types") == [0, 0, 0, 1, 1, 1, 1]
  e, = EncodeChoices(prompt="text", choices=("second", "more"))([dict(example)], tokenizers)
  assert ids(e, "choice_0") == [start, a, space, b, delimiter, c, extract]
  assert ids(e, "choice_1") == [start, a, space, b, delimiter, b, extract]


def test_what_is_cut_is_the_text_and_not_the_tokens_around_it(letters):
  e, = Encode(max_length=4)([{"id": 0, "text": "abcabc"}], {"text": letters})
  assert letters.tokens(e["text"]) == ["<start>", "a", "b", "<extract>"]


def test_no_text_has_the_tokens(letters):
  assert not {8, 9, 10} & set(letters.encode("<start>a<extract>").tolist())
  found, = letters.encode_texts(["<extract>"], max_length=30)
  assert found.ids[0] == 8 and found.ids[-1] == 10 and not {8, 9, 10} & set(found.ids[1:-1])


def test_tokens_that_are_there_keep_their_ids(letters):
  assert delimited(letters, NAMES) == letters
  own = delimited(letters, ("<bos>", "<eos>", "<extract>"))
  found, = own.encode_texts(["a"], ["b"], max_length=9)
  assert found.ids.tolist() == [1, 5, 2, 6, 10] and own.vocab_size == letters.vocab_size
  plain = byte_bpe(iter(["a b c"]), vocab_size=270)
  assert delimited(plain, ()) is plain
  assert [*delimited(plain, NAMES).encode("ab c")] == [*plain.encode("ab c")]
  assert from_json(letters.to_json()) == letters


def test_a_folder_of_hugging_face_keeps_them(letters, tmp_path):
  model = decoder(vocab_size=letters.vocab_size, width=8, num_layers=1,
                  head=HeadConfig(task="classes", outputs=2, pool="last"))
  for name, content in export.tokenizer_files(model, letters).items():
    (tmp_path / name).write_text(json.dumps(content))
  again = read_tokenizer(tmp_path)
  for texts in (["a b <extract>"], None), (["a"], ["c b"]):
    ours, theirs = (t.encode_texts(*texts, max_length=30)[0].ids for t in (letters, again))
    assert ours.tolist() == theirs.tolist()


def test_a_vocabulary_with_no_special_token_but_the_unknown_one(tmp_path):
  """As GPT-1's is."""
  backend = hf.Tokenizer(hf.models.BPE({"<unk>": 0, "a</w>": 1, "b</w>": 2}, [], unk_token="<unk>",
                                       end_of_word_suffix="</w>"))
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.add_special_tokens(["<unk>"])
  backend.save(str(tmp_path / "tokenizer.json"))
  tokenizer = read_tokenizer(tmp_path)
  assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 0, 0)
  assert tokenizer.begin_ids() == ()
  found, = delimited(tokenizer, NAMES).encode_texts(["a"], ["b"], max_length=9)
  assert found.ids.tolist() == [3, 1, 4, 2, 5]


def test_the_ids_of_gpt1(tmp_path):
  """Of the authors' vocabulary, by their code: they lie behind its 40,478 tokens."""
  folder = os.environ.get("JTX_TEST_DATA", "") + "/golden/gpt1_bpe"
  if not os.path.isdir(folder):
    pytest.skip("JTX_TEST_DATA has no golden/gpt1_bpe")
  with open(f"{folder}/encoder_bpe_40000.json", encoding="utf-8") as f:
    pieces = json.load(f) | {"<unk>": 0}
  with open(f"{folder}/vocab_40000.bpe", encoding="utf-8") as f:
    merges = [tuple(line.split()) for line in f.read().split("\n")[1:-1]]
  backend = hf.Tokenizer(hf.models.BPE(pieces, merges, unk_token="<unk>",
                                       end_of_word_suffix="</w>"))
  backend.normalizer = hf.normalizers.BertNormalizer(lowercase=True)
  backend.pre_tokenizer = hf.pre_tokenizers.BertPreTokenizer()
  backend.add_special_tokens(["<unk>"])
  backend.save(str(tmp_path / "tokenizer.json"))
  tokenizer = delimited(read_tokenizer(tmp_path), NAMES)
  found, = tokenizer.encode_texts(["A good film"], ["It is"], max_length=30)
  words = [pieces[f"{word}</w>"] for word in ("a", "good", "film", "it", "is")]
  assert found.ids.tolist() == [40478, *words[:3], 40479, *words[3:], 40480]


@pytest.mark.parametrize("names", [("a",), ("a", "b", "c", "d"), ("a", "", "c")])
def test_they_are_three(names, letters):
  with pytest.raises(ConfigError, match=r"tokenizer.delimiters=\('a'.* must name three tokens"):
    delimited(letters, names)
