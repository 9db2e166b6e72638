"""Documents split into sentences, and sentences into tokens."""

import itertools

import numpy as np
import pytest

from jtx.data.op import Column
from jtx.data.ops.sentences import SENTENCE, WORD, EncodeSentences, SplitSentences
from jtx.errors import ConfigError, DataError
from tests.data.ops.documents import message


def split(*texts, language="en"):
  return SplitSentences(language)([{"id": i, "text": t} for i, t in enumerate(texts)], None)


def test_split_sentences_ends_them_where_moses_does():
  [e] = split("Mr. Smith of the U.S. Navy went. He ran! \"Why?\" he said. No. 5 is alive... And")
  assert e["sentences"] == ["Mr. Smith of the U.S. Navy went.", "He ran!", '"Why?" he said.',
                            "No. 5 is alive...", "And"]
  assert e.keys() == {"id", "sentences"}
  text = "Das gilt bzw. Alles."  # an abbreviation in German
  assert [split(text, language=l)[0]["sentences"] for l in ("en", "de")] == [
      ["Das gilt bzw.", "Alles."], [text]]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\r\n \t\r\n"])
def test_a_line_ends_a_sentence(end):
  [e] = split(f"  a title{end}a line. Two\t{end}{end}")
  assert e["sentences"] == ["a title", "a line.", "Two"]


def test_documents_without_text_are_dropped():
  assert [e["id"] for e in split("", "a", " \n\r\n\t\u00a0", "b", "\u2028")] == [1, 3]
  assert split() == []


def test_split_sentences_says_what_is_wrong():
  for language in ("xx", "zh", "EN", ""):
    assert message(ConfigError, SplitSentences, language) == (
        f"op split_sentences: language={language!r} is not one that the library has rules for; try"
        " 'en'")
  assert message(DataError, SplitSentences(), [{"id": 7, "title": "x", "text": 3}], None) == (
      "op split_sentences: example 7 has text=3, which is not a text; its texts are: title")


def test_encode_sentences_marks_words_and_sentences(bert):
  op = EncodeSentences()
  done = op([{"id": 0, "sentences": ["as b's.", "e", "at"]}, {"id": 1, "sentences": ["\u200b", ""]},
             {"id": 2, "sentences": ["", "zst [MASK]"]}], {"text": bert})
  assert [e["id"] for e in done] == [0, 2]  # the other has no tokens
  assert bert.tokens(done[0]["text"]) == ["a", "##s", "b", "'", "[UNK]", ".", "e", "a", "##t"]
  both = SENTENCE | WORD
  assert done[0]["text_marks"].tolist() == [both, 0, WORD, WORD, WORD, WORD, both, both, 0]
  assert bert.tokens(done[1]["text"]) == ["[UNK]"] * 4 and bert.mask_id not in done[1]["text"]
  assert done[1]["text_marks"].tolist() == [both, WORD, WORD, WORD]
  assert op.columns == {"text": Column("tokens"), "text_marks": Column("aligned:text", "uint8")}
  for e in done:
    assert (e["text"].dtype, e["text_marks"].dtype) == (np.int32, np.uint8)
  assert op.texts_of({"id": 0, "sentences": ["a", "b"]}, "text") == ["a", "b"]
  assert op.tokenizer_fields == ("text",)


def test_encode_sentences_needs_sentences(bert):
  expected = ("op encode_sentences: example 4 has no sentences, which 'split_sentences' makes; it"
              " has 'id', 'text'")
  example = {"id": 4, "text": "a"}
  assert message(DataError, EncodeSentences(), [example], {"text": bert}) == expected
  assert message(DataError, EncodeSentences().texts_of, example, "text") == expected


def test_lines_that_have_no_end_inside_are_not_looked_at_further():
  """Each word of three, with what may stand behind and before it, split as by the rules alone."""
  import sentence_splitter
  rules = sentence_splitter.SentenceSplitter(language="en").split
  ends = ("", ".", "?", "!", "...", ".)", "!\u201d", ".\u00bb", " .", ",", ".b", "?c", ".,")
  parts = (("a", "Dr", "U.S"), ends, ("", " ", "  "), ("", '"', "(\u00ab", "\u00bf"), "Bb5",
           (" x", " x.", " x!"))
  lines = ["".join(line) for line in itertools.product(*parts)]
  assert [split(line)[0]["sentences"] for line in lines] == [rules(line) for line in lines]
  assert 0 < sum(len(rules(line)) > 1 for line in lines) < len(lines)
