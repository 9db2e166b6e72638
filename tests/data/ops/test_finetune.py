"""Inputs of encoders for fine-tuning: texts, words with tags, choices."""

import dataclasses
import os
import pathlib

import numpy as np
import pytest

from jtx.config import build, section
from jtx.data.op import Column
from jtx.data.ops.finetune import Encode, EncodeChoices, EncodeEach, EncodeWords, tag_names
from jtx.data.ops.labels import Label, Number
from jtx.data.ops.registry import OPS
from jtx.data.ops.text import Fields, Tokenize
from jtx.data.ops.windows import EncodeWindows
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.files import read_tokenizer
from jtx.errors import ConfigError, DataError
from tests.data.ops.encoders import answer_of, check_columns, examples, fails, pieces


def test_encode_one_text_and_a_pair(tokenizers):
  op = Encode()
  [e] = op([{"id": 3, "text": "as b", "more": 1}], tokenizers)
  assert (e["id"], e["more"], pieces(e["text"])) == (3, 1, "[CLS]a##sb[SEP]")
  assert e["text_types"].tolist() == [0] * 5
  op = Encode(texts=("q", "s"), max_length=7)
  done = op([{"id": 0, "q": "a", "s": "b c"}, {"id": 1, "q": "a b", "s": "c d e f"}], tokenizers)
  assert [pieces(e["text"]) for e in done] == ["[CLS]a[SEP]bc[SEP]", "[CLS]ab[SEP]cd[SEP]"]
  assert done[0]["text_types"].tolist() == [0, 0, 0, 1, 1, 1]
  check_columns(op, done)
  assert op([], tokenizers) == []


def test_encode_columns_and_texts_to_train_on():
  op = Encode(texts=("q", "s"))
  assert op.columns == {"text": Column("tokens"), "text_types": Column("aligned:text")}
  assert op.tokenizer_fields == ("text",)
  assert op.texts_of({"id": 0, "q": "a", "s": "b"}, "text") == ["a", "b"]
  assert Tokenize(fields=("src",)).columns == {"src": Column("tokens")}


def test_encode_errors(tokenizers):
  assert fails(DataError, Encode(texts=("q",)), {"id": 5, "text": "a"}) == (
      "op encode: example 5 has no text 'q'; its texts are: text")
  for texts in ((), ("a", "b", "c")):
    with pytest.raises(ConfigError, match="must name one text or two"):
      Encode(texts=texts)
  with pytest.raises(ConfigError, match="op encode: max_length=2 must be more than 2"):
    Encode(max_length=2)


def test_encode_each_text_by_itself(tokenizers):
  op = EncodeEach(texts=("q", "s", "q"), max_length=4)
  done = op([{"id": 0, "q": "a", "s": "b c d"}, {"id": 1, "q": "d", "s": "a"}], tokenizers)
  assert [[pieces(e[f"each_{i}"]) for i in range(3)] for e in done] == [
      ["[CLS]a[SEP]", "[CLS]bc[SEP]", "[CLS]a[SEP]"], ["[CLS]d[SEP]", "[CLS]a[SEP]", "[CLS]d[SEP]"]]
  check_columns(op, done)
  assert op.texts_of({"id": 0, "q": "a", "s": "b"}, "text") == ["a", "b"]
  assert (op.inputs, done[1]["matched"]) == ({"text": "q"}, 1)
  with pytest.raises(ConfigError, match="op encode_each: texts=.* must name two texts or more"):
    EncodeEach(texts=("q",))
  assert fails(DataError, op, {"id": 5, "q": "a"}) == (
      "op encode_each: example 5 has no text 's'; its texts are: q")


def test_a_query_is_cut_and_filled_up_with_masks(bert, tokenizers):
  split = [{"id": 0, "q": "a", "s": "b"}, {"id": 1, "q": "a b c d", "s": "a b c d"}]
  op = EncodeEach(texts=("q", "s", "q"), max_length=6, query_length=5)
  tokens = lambda e, i: "".join(bert.tokens(e[f"each_{i}"]))
  first, second = op([dict(e) for e in split], {"text": bert})
  assert [tokens(first, i) for i in range(3)] == ["[CLS]a[SEP]", "[CLS]b[SEP]", "[CLS]a[SEP]"]
  assert [tokens(second, i) for i in range(3)] == ["[CLS]abc[SEP]", *["[CLS]abcd[SEP]"] * 2]
  filled = dataclasses.replace(op, fill=True)
  done = filled([dict(e) for e in split], {"text": bert})
  assert tokens(done[0], 0) == "[CLS]a[SEP][MASK][MASK]" and tokens(done[0], 2) == "[CLS]a[SEP]"
  assert tokens(done[1], 0) == "[CLS]abc[SEP]"
  check_columns(op, done)
  assert fails(ConfigError, filled, split[0], tokenizers=tokenizers) == (
      "op encode_each: fill=True fills queries up with masks, and the tokenizer has none; set it to"
      " False")
  for fields, message in ((dict(query_length=2), "query_length=2 must be more than 2"),
                          (dict(fill=True), "fill=True needs the query_length")):
    with pytest.raises(ConfigError, match=message):
      EncodeEach(texts=("q", "s"), **fields)


# -------------------------------------------------------------------------------- tags


def test_encode_words_tags_the_first_token_of_a_word(tokenizers):
  op = EncodeWords(names=("O", "B-x", "I-x"), max_length=16)
  example = {"id": 2, "words": ["as", "bts", "c,", "d"], "tags": ["O", "B-x", 2, "O"]}
  done = op([example], tokenizers)
  assert pieces(done[0]["text"]) == "[CLS]a##sb##t##sc,d[SEP]"
  assert done[0]["tags"].tolist() == [-1, 0, -1, 1, -1, -1, 2, -1, 0, -1]
  assert done[0]["text_words"].tolist() == [-1, 0, 0, 1, 1, 1, 2, 2, 3, -1]
  assert done[0]["word_tags"] == ["O", "B-x", "I-x", "O"]
  check_columns(op, done)


def test_encode_words_leaves_cut_and_vanished_words_without_a_tag(tokenizers):
  op = EncodeWords(names=("O", "X"), max_length=5)
  [e] = op([{"id": 0, "words": ["a", "\u200d", "b", "cs", "d"], "tags": list("OXXOX")}], tokenizers)
  assert pieces(e["text"]) == "[CLS]abc[SEP]"
  assert e["tags"].tolist() == [-1, 0, 1, 0, -1]
  assert e["text_words"].tolist() == [-1, 0, 2, 3, -1]
  assert e["word_tags"] == list("OXXOX")
  [e] = op([{"id": 0, "words": [], "tags": []}], tokenizers)
  assert e["tags"].tolist() == [-1, -1]


def test_encode_words_errors(tokenizers):
  op = EncodeWords(names=("O", "X"))
  for example, said in (
      ({"words": ["a", "b"], "tags": ["O"]}, "example 1 has 2 words, but 1 tags"),
      ({"words": ["a", "b"], "tags": ["O", "Y"]},
       "example 1 has the tag 'Y' at word 'b'; valid are O, X"),
      ({"words": "a b", "tags": ["O"]}, "example 1 has words='a b', which is not a list of words"),
      ({"tags": []}, "example 1 has no 'words'; it has tags"),
      ({"words": []}, "example 1 has no 'tags'; it has words")):
    assert fails(DataError, op, {"id": 1, **example}) == f"op encode_words: {said}"
  assert op.misfit({"words": ["a", "b"], "tags": ["O", "Y"]}).startswith("has the tag 'Y' at word")
  assert op.misfit({"words": ["a"], "tags": ["X"]}) == op.misfit({"text": "a"}) == ""
  assert fails(ConfigError, EncodeWords(), tokenizers=tokenizers) == (
      "op encode_words: names is empty; it must name the tags in order")
  with pytest.raises(ConfigError, match="names has X more than once"):
    EncodeWords(names=("X", "X"))
  assert op.texts_of({"id": 0, "words": ["a", "b"]}, "text") == ["a b"]


class Source(list):
  name = "list:x"


def test_tag_names_has_o_first_then_the_alphabet():
  sources = [Source([{"tags": ["I-a", "O"]}, {"tags": []}]), Source([{"tags": ["B-a", "O"]}])]
  assert tag_names(sources) == ("O", "B-a", "I-a")
  renamed = [Source([{"words": ["a"], "ner": ["Z"]}])]
  assert tag_names(renamed, [Fields(keep=("words=words", "tags=ner"))]) == ("Z",)
  with pytest.raises(DataError, match=r"list:x: example 0 has tags=\[3\], which are no names"):
    tag_names([Source([{"tags": [3]}])])
  with pytest.raises(DataError, match="example 0 has no 'tags'; it has ner"):
    tag_names([Source([{"ner": []}])])


def test_a_comment_is_no_word_with_a_tag(tmp_path):
  (tmp_path / "a.conll").write_text("a B-x\n# O\n\n# id7\na O\n\n# id8\na B-x\n")
  with pytest.raises(DataError, match=r"^conll:a\.conll: line 4: reads as the word '#' with the tag"
                                      " 'id7', which no other word has; take comments out of"):
    tag_names([open_source("conll:a.conll", str(tmp_path))])
  words = [{"words": ["#", "1"], "tags": ["O", "N"]}, {"words": ["#"], "tags": ["#"]},
           {"words": ["#", "b"], "tags": ["N", "N"]}, {"words": ["a", "#"], "tags": ["N", "X"]}]
  assert tag_names([Source(words)]) == ("O", "#", "N", "X")


# ----------------------------------------------------------------------------- choices


def test_choices_are_pairs_with_the_prompt(tokenizers):
  op = EncodeChoices(prompt="1", choices=("2", "3"), label="6", max_length=6)
  done = op([{"id": 0, "1": "a b", "2": "c d e", "3": "f", "6": "1"},
             {"id": 1, "1": "a", "2": "", "3": "b", "6": 0}], tokenizers)
  assert [[pieces(e[f"choice_{i}"]) for i in (0, 1)] for e in done] == [
      ["[CLS]a[SEP]cd[SEP]", "[CLS]ab[SEP]f[SEP]"], ["[CLS]a[SEP][SEP]", "[CLS]a[SEP]b[SEP]"]]
  assert done[0]["choice_1_types"].tolist() == [0, 0, 0, 0, 1, 1]
  assert [e["label"] for e in done] == [1, 0]
  check_columns(op, done)
  assert op.columns == {
      "choice_0": Column("tokens"), "choice_0_types": Column("aligned:choice_0"),
      "choice_1": Column("tokens"), "choice_1_types": Column("aligned:choice_1"),
      "label": Column("example")}
  assert op.texts_of({"id": 0, "1": "a", "2": "b", "3": "c"}, "text") == ["a", "b", "c"]


def test_choices_errors(tokenizers):
  op = EncodeChoices(prompt="p", choices=("c", "d"))
  example = {"id": 9, "p": "a", "c": "b", "d": "c"}
  for label in (2, "2", "x", -1):
    assert f"op encode_choices: example 9 has label={label!r}; valid are 0, 1" in fails(
        DataError, op, {**example, "label": label}, tokenizers=tokenizers)
  assert fails(DataError, op, {"id": 9, "p": "a", "c": "b"}) == (
      "op encode_choices: example 9 has no text 'd'; its texts are: p, c")
  with pytest.raises(ConfigError, match="must name two endings or more"):
    EncodeChoices(prompt="p", choices=("c",))
  with pytest.raises(ConfigError, match="choices must be set"):
    build(OPS, section(OPS, "encode_choices", prompt="p"), what="data.ops[0]")


@pytest.mark.parametrize("name, edits, op", [
    ("encode", {"texts": ("a", "b")}, Encode(texts=("a", "b"))),
    ("label", {"names": ("x",)}, Label(names=("x",))),
    ("number", {"key": "s", "scale": 0.2}, Number(key="s", scale=0.2)),
    ("encode_words", {"max_length": 9}, EncodeWords(max_length=9)),
    ("encode_windows", {"stride": 3}, EncodeWindows(stride=3)),
    ("encode_choices", {"prompt": "p", "choices": ("c", "d")},
     EncodeChoices(prompt="p", choices=("c", "d"))),
])
def test_config_sections_build_the_ops(name, edits, op):
  assert build(OPS, section(OPS, name, **edits)) == op


# --------------------------------------------------------------------------- real data


@pytest.fixture(scope="module")
def real():
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published data sets are in it")
  folder = pathlib.Path(os.environ["JTX_TEST_DATA"])
  return str(folder), {"text": read_tokenizer(folder / "vocab" / "bert_base_uncased_vocab.txt")}


def test_every_answer_of_xquad_and_policyqa_is_found_again(real):
  """Of each question at least one window holds the answer, and its tokens give the text."""
  folder, tokenizers = real
  op = EncodeWindows(max_length=128, stride=64, max_question=32)
  for spec in ("squad:xquad/xquad.en.json", "squad:policyqa/squad_format.json"):
    chosen = examples(open_source(spec, folder), 150)
    found, long = {}, set()
    for e in op([dict(e) for e in chosen], tokenizers):
      text = e["answers"][0]["text"].strip()
      if len(tokenizers["text"].encode(text)) > 60:
        long.add(e["id"])
      if e["start"]:
        # An answer may begin or end inside a token.
        assert text in answer_of(e) and len(answer_of(e)) <= len(text) + 20
        found.setdefault(e["id"], []).append(answer_of(e) == text)
    assert set(found) | long == {e["id"] for e in chosen}
    assert np.mean([x for xs in found.values() for x in xs]) > 0.9


def test_a_tag_for_every_word_of_wnut(real):
  folder, tokenizers = real
  sources = [open_source("conll:wnut17/train.conll", folder)]
  names = tag_names(sources)
  assert len(names) == 13 and names[0] == "O"
  chosen = examples(sources[0], 300)
  done = EncodeWords(names=names, max_length=400)([dict(e) for e in chosen], tokenizers)
  for e, raw in zip(done, chosen):
    tagged = e["tags"] >= 0
    assert [names[t] for t in e["tags"][tagged]] == [
        raw["tags"][w] for w in e["text_words"][tagged]]
  kept = sum(int((e["tags"] >= 0).sum()) for e in done)
  total = sum(len(e["words"]) for e in chosen)
  assert kept >= 0.999 * total


def test_codah_and_sick(real):
  folder, tokenizers = real
  op = EncodeChoices(prompt="1", choices=("2", "3", "4", "5"), label="6")
  done = op(examples(open_source("tsv:codah/train.tsv", folder), 100), tokenizers)
  assert {int(e["label"]) for e in done} == {0, 1, 2, 3}
  sick = open_source("table:sick/train.txt", folder)
  names = ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")
  done = Label(key="entailment_judgment", names=names)(examples(sick, 200), None)
  assert {int(e["label"]) for e in done} == {0, 1, 2}
  done = Number(key="relatedness_score")(examples(sick, 200), None)
  assert all(1 <= e["label"] <= 5 for e in done)
  done = Encode(texts=("sentence_A", "sentence_B"))(examples(sick, 200), tokenizers)
  assert all(e["text_types"].max() == 1 for e in done)
