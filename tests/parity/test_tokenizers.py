"""Texts that name special tokens, as the tokenizers of `transformers` read them."""

import pytest

from jtx.data.tokenizers.files import read_tokenizer
from tests.data.tokenizers.folders import FOLDERS, NAMED, TEXT, write

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: see make test-parity")

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
