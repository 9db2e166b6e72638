"""Languages of mBART's tokenizers: texts have the tokens that `transformers` gives them."""

import pytest

from jtx.data.tokenizers.files import read_tokenizer
from jtx.errors import ConfigError
from jtx.inference.decode import Ends
from jtx.inference.rules import Rules
from jtx.inference.translate import Writing
from jtx.saved import speaking
from jtx.saved.folder import open_saved
from jtx.saved.languages import between, codes

transformers = pytest.importorskip("transformers", reason="make test-parity installs it")

TEXTS = ["ab b", "", "b ba ab"]
PIECES = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0),
          *((piece, -1.0) for piece in ("\u2581", "a", "b", "\u2581a", "\u2581b"))]
END = 2


@pytest.fixture(params=["MBartTokenizer", "MBart50Tokenizer"])
def folder(request, tmp_path):
  theirs = getattr(transformers, request.param)(vocab=PIECES)
  theirs.save_pretrained(tmp_path)
  return theirs, read_tokenizer(str(tmp_path)), request.param == "MBartTokenizer"


def test_texts_and_starts_are_those_of_transformers(folder):
  theirs, tokenizer, older = folder
  known = codes(tokenizer)
  assert known["de_DE"] == theirs.convert_tokens_to_ids("de_DE") and len(known) == (
      25 if older else 52)
  start = known["en_XX"] if older else END
  told = Writing(start, Ends((END,), 1, Rules(start=start, no_repeat=3)))
  sides, writing = between({"text": tokenizer}, told, "de_DE", "fr_XX")
  ids = lambda side: [e.ids.tolist() for e in sides[side].encode_texts(TEXTS, max_length=20)]
  theirs.src_lang, theirs.tgt_lang = "de_DE", "fr_XX"
  assert ids("src") == theirs(TEXTS)["input_ids"]
  assert ids("tgt") == theirs(text_target=TEXTS)["input_ids"]
  first = known["fr_XX"]
  expected = Rules(start=first if older else END, forced_first=None if older else first,
                   no_repeat=3)
  assert writing == Writing(first if older else END, Ends((END,), 1, expected))
  alone, same = between({"text": tokenizer}, told, "de_DE", "")
  assert same == told and alone["tgt"] == tokenizer and alone["src"] == sides["src"]


def test_languages_that_there_are_not(folder):
  _, tokenizer, _ = folder
  told = Writing(END, Ends((END,), 1))
  with pytest.raises(ConfigError, match="target_language='de_DA': did you mean 'de_DE'?"):
    between({"text": tokenizer}, told, "", "de_DA")
  with pytest.raises(ConfigError, match="source_language='de_DE': .* has no codes"):
    between({"text": tokenizer}, told._replace(by_template=False), "de_DE", "")


def test_training_does_not_take_texts_without_their_codes(folder, tmp_path):
  transformers.MBartConfig().save_pretrained(tmp_path)
  with pytest.raises(ConfigError, match="beside codes of languages, such as ar_AR"):
    speaking.around_texts(open_saved(str(tmp_path)))
