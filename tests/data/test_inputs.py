"""Inputs of predictions: read as a run's own data is, and without its labels."""

import json

import pytest

from configs import common
from jtx.config import build
from jtx.data.inputs import Reader, of_plain_lines
from jtx.data.ops.registry import OPS
from jtx.errors import DataError


def reader(source, *ops):
  """Of a run whose `data.train` is this."""
  return Reader((source,), [build(OPS, op) for op in ops])


def classes(source="tsv:train.tsv", texts=("0",), label="1", names=("no", "yes")):
  return reader(source, common.op("encode", texts=texts),
                common.op("label", key=label, names=names))


def written(tmp_path, name, text):
  path = tmp_path / name
  path.write_text(text, encoding="utf-8")
  return str(path)


def read(r, path):
  return r.of_file(r.spec_of(path))


def test_a_label_is_no_text(tmp_path):
  path = written(tmp_path, "train.tsv", "good film\tyes\nbad\tno\n")
  found = [{"text": "good film"}, {"text": "bad"}]
  assert read(classes(), path) == found
  assert classes().of_lines(["good film\tyes", "bad\tno"], "-") == found
  assert classes().of_lines(["good film", "bad"], "-") == found
  label_first = classes(texts=("1",), label="0")
  assert label_first.of_lines(["yes\tgood film", "?\tbad"], "-") == found
  pairs = classes(texts=("0", "1"), label="2")
  assert pairs.of_lines(["a\tb\tyes"], "-") == pairs.of_lines(["a\tb"], "-") == [
      {"text": "a", "second": "b"}]


def test_inputs_of_other_names_are_changed_as_the_data_is(tmp_path):
  """As by jtx.Classifier, a server, and the lines of a .jsonl with the keys of inputs."""
  r = reader("jsonl:t.jsonl", common.op("fields", keep=("a=x", "b=b", "label=label")),
             common.op("lowercase", fields=("a", "b")), common.op("encode", texts=("a", "b")),
             common.op("label", key="label", names=("no", "yes")))
  assert r.changes == ["Lowercase"]
  assert r.cleaned({"text": "A B", "second": "C"}) == {"text": "a b", "second": "c"}
  assert r.cleaned({"text": "A B", "more": "D"}) == {"text": "a b", "more": "D"}
  for other in ({"words": ["A"]}, {"text": 3}, {}):
    assert r.cleaned(other) == other
  path = written(tmp_path, "t.jsonl", '{"x": "A", "b": "B"}\n{"text": "A", "second": "B"}\n')
  assert read(r, path) == 2 * [{"text": "a", "second": "b"}]
  choices = reader("jsonl:t.jsonl", common.op("lowercase", fields=("p", "b")),
                   common.op("encode_choices", prompt="p", choices=("a", "b")))
  assert choices.cleaned({"prompt": "P", "choices": ["A", "B"]}) == {
      "prompt": "p", "choices": ["A", "b"]}
  assert choices.cleaned({"prompt": "P", "choices": ["A"]}) == {"prompt": "P", "choices": ["A"]}


@pytest.mark.parametrize("r, lines, message", [
    (classes(), ["a film\tyes", "a\tb"], "F:2: '1' is 'b', but in the data of the run it is a label"
     ", one of no, yes"),
    (classes(), ["a\tyes", "b"], "F:2: 1 columns, with tabs between them, but line 1 has 2"),
    (classes(texts=("0", "1"), label="2"), ["a"], "F:1: has no '1', of which the run makes its"
     " texts; it has 0"),
    (classes("table:t.tsv", ("text",), "label"), ["a\tyes"],
     "F:1: 2 columns, .* but the run was trained on 1 a line: text"),
    (reader("tsv:t.tsv", common.op("encode", texts=("0",)), common.op("number", key="1")),
     ["a\t0.5", "a\tb"], "F:2: '1' is 'b', but in the data of the run it is a number"),
    (reader("conll:t.conll", common.op("encode_words", names=("O",))), ["a b", "a\tO"],
     "F:2: has a tab, .* is given as conll:FILE"),
])
def test_what_does_not_fit_is_named(r, lines, message):
  with pytest.raises(DataError, match=message):
    r.of_lines(lines, "F")


def test_tables_with_a_header(tmp_path):
  r = classes("table:train.tsv", ("review",), "stars", ("1", "2"))
  lines = ["stars\treview", "2\tgood film"]
  found = [{"text": "good film"}]
  assert read(r, written(tmp_path, "a.tsv", "\n".join(lines) + "\n")) == found
  assert r.of_lines(lines, "-") == r.of_lines(["review", "good film"], "-") == found
  assert r.of_lines(["good film"], "-") == found
  with pytest.raises(DataError, match="a.tsv:2: 'stars' is '7'"):
    read(r, written(tmp_path, "a.tsv", "review\tstars\ngood film\t7\n"))
  with pytest.raises(DataError, match="a.tsv:2: has no 'review', .*; it has text, stars"):
    read(r, written(tmp_path, "a.tsv", "text\tstars\ngood film\t2\n"))


def test_lines_of_records_and_of_some_rows_are_counted_in_the_file(tmp_path):
  r = classes("csv:train.csv:columns[text=review+label=stars]", ("text",), "label", ("1", "2"))
  path = written(tmp_path, "a.csv", 'review,stars\n"two\nlines",1\ngood,2\nbad,7\n')
  with pytest.raises(DataError, match="a.csv:5: 'label' is '7'"):
    r.of_file(f"csv:{path}:columns[text=review+label=stars]:rows[1:]")
  r = classes("tsv:train.tsv", names=("1", "2"))
  path = written(tmp_path, "a.tsv", "good\t2\nbad\t1\nbad\t7\n")
  with pytest.raises(DataError, match="a.tsv:3: '1' is '7'"):
    r.of_file(f"tsv:{path}:rows[1:]")


def test_objects_have_the_runs_keys_or_those_of_inputs(tmp_path):
  r = reader("jsonl:t.jsonl", common.op("fields", keep=("text=review.body", "label=stars")),
             common.op("clean", fields=("text",)), common.op("encode", texts=("text",)),
             common.op("label", key="label", names=("no", "yes")))
  objects = [{"review": {"body": " a  film "}, "stars": "yes"}, {"review": {"body": " "}},
             {"text": "a film", "label": "yes"}]
  lines = lambda objects: "".join(json.dumps(x) + "\n" for x in objects)
  path = written(tmp_path, "a.jsonl", lines(objects))
  assert read(r, path) == [{"text": "a film"}, {"text": ""}, {"text": "a film"}]
  assert r.of_lines(["a  film"], "-") == [{"text": "a film"}]
  for x, message in (({"text": "a", "second": "b"}, "has second, but the run was trained on text"),
                     ({"body": "a"}, "has no 'review.body'; it has body")):
    with pytest.raises(DataError, match=f"a.jsonl:2: .*{message}"):
      read(r, written(tmp_path, "a.jsonl", lines([objects[0], x])))


def test_a_value_that_is_no_text_is_named(tmp_path):
  r = classes("jsonl:t.jsonl", ("text",), "label")
  for text, told in (("null", "None"), ("5", "5"), ('["a"]', r"\['a'\]")):
    path = written(tmp_path, "a.jsonl", '{"text": "a"}\n{"text": %s}\n' % text)
    with pytest.raises(DataError, match=f"a.jsonl:2: 'text' is {told}, which is not a text$"):
      read(r, path)
  r = reader("jsonl:t.jsonl", common.op("encode_words", names=("O",)))
  for words in ('"a b"', "[1, 2]"):
    path = written(tmp_path, "a.jsonl", '{"words": %s}\n' % words)
    with pytest.raises(DataError, match="a.jsonl:1: 'words' is .*, which is not a list of texts$"):
      read(r, path)


def test_words_and_questions(tmp_path):
  tags = reader("conll:train.conll:2", common.op("encode_words", names=("O", "B-x")))
  path = written(tmp_path, "dev.conll", "Ann\tNN\tB-x\nsat\tVB\tO\n\nBob\tNN\tB-x\n")
  assert read(tags, path) == [{"words": ["Ann", "sat"]}, {"words": ["Bob"]}]
  assert tags.spec_of(path) == f"conll:{path}:2" and tags.spec_of("lines.txt") is None
  assert tags.of_lines(["Ann sat", ""], "-") == [{"words": ["Ann", "sat"]}, {"words": []}]
  spans = reader("squad:train.json:titles[:80%]",
                 common.op("encode_windows", max_length=128, stride=16))
  qa = {"id": "q", "question": "who?", "answers": [{"text": "Ann", "answer_start": 0}]}
  content = {"data": [{"title": "t", "paragraphs": [{"context": "Ann sat", "qas": [qa]}]}]}
  path = written(tmp_path, "dev.json", json.dumps(content))
  assert read(spans, path) == [{"question": "who?", "context": "Ann sat"}]
  assert spans.of_lines(["who?\tAnn sat"], "-") == read(spans, path)
  choices = reader("tsv:t.tsv", common.op("encode_choices", prompt="1", choices=("2", "3"),
                                          label="4"))
  found = [{"prompt": "a", "choices": ["b", "c"]}]
  for line in ("id\ta\tb\tc\t0", "id\ta\tb\tc"):
    assert choices.of_lines([line], "-") == found


def test_whole_examples_of_any_file():
  r = classes("tsv:train.tsv")
  assert r.spec_of("other.txt", whole=True) == "tsv:other.txt"
  assert r.spec_of("other.tsv") == r.spec_of("tsv:other.tsv") == "tsv:other.tsv"
  assert r.spec_of("other.jsonl", whole=True) == "jsonl:other.jsonl"
  r = classes("csv:train.csv:columns[text=review+label]:rows[:90%]:delimiter[;]", ("text",),
              "label")
  assert r.spec_of("dev.csv", whole=True) == (
      "csv:dev.csv:columns[text=review+label]:delimiter[;]")
  assert r.spec_of("dev.csv") == "csv:dev.csv:columns[text=review]:delimiter[;]"


def test_lines_for_a_model_without_a_run():
  lines = lambda *lines, words=False: of_plain_lines(lines, "F", ("no", "yes"), words)
  assert lines("a film", "b\tc") == [{"text": "a film"}, {"text": "b", "second": "c"}]
  assert lines("a b", words=True) == [{"words": ["a", "b"]}]
  with pytest.raises(DataError, match="F:1: 'yes' behind the tab is a class of the model"):
    lines("a film\tyes", "b\tno")
  with pytest.raises(DataError, match="F:2: 3 columns"):
    lines("a", "a\tb\tc")
