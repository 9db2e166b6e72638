"""Rows and columns of sources, by options of their specs."""

import json
import pickle

import pyarrow
import pyarrow.parquet
import pytest

from jtx.data.sources.registry import open_source
from jtx.data.sources.specs import spec_of, split
from jtx.errors import ConfigError, DataError
from tests.data.sources.text_files import all_of, write


def test_columns_have_other_names_and_come_from_objects(tmp_path):
  rows = [{"t": {"en": f"e{i}", "de": f"d{i}"}, "a.b": i, "c": 0} for i in range(10)]
  write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
  source = open_source("jsonl:a.jsonl:columns[src=t.en+tgt=t.de+n=a.b]:rows[20%:5]", str(tmp_path))
  assert source.name == "jsonl:a.jsonl:columns[src=t.en+tgt=t.de+n=a.b]:rows[20%:5]"
  assert all_of(source) == [{"src": f"e{i}", "tgt": f"d{i}", "n": i} for i in range(2, 5)]
  assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)
  assert list(source.column("n")) == [2, 3, 4] and source[-1] == source[2]
  with pytest.raises(IndexError):
    source[3]
  with pytest.raises(DataError, match=r"rows\[7:7\]: empty split"):
    open_source("jsonl:a.jsonl:rows[7:7]", str(tmp_path))
  with pytest.raises(DataError, match="example 0 has no column 't.fr'; it has t, a.b, c"):
    open_source("jsonl:a.jsonl:columns[x=t.fr]", str(tmp_path))[0]


def test_a_column_that_a_table_lacks(tmp_path):
  write(tmp_path, "a.tsv", "text\tlabel\na\t1\n")
  with pytest.raises(DataError, match=r"\]: has no column 'lable'; did you mean 'label'\?"):
    open_source("table:a.tsv:columns[text+lable]", str(tmp_path))
  assert open_source("tsv:a.tsv:columns[1]", str(tmp_path))[1] == {"1": "1"}


def test_a_column_that_all_examples_share(tmp_path):
  table = pyarrow.table({"a": ["x", "y"], "b": [1, 2]})
  pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
  write(tmp_path, "a.jsonl", '{"a": "x", "b": 1}\n{"a": "y", "b": 2}\n')
  for kind in ("parquet", "jsonl"):
    source = open_source(f"{kind}:a.{kind}:columns[t='my task'+b+a]", str(tmp_path))
    assert all_of(source) == [{"t": "my task", "b": 1, "a": "x"},
                              {"t": "my task", "b": 2, "a": "y"}]
    assert list(source.column("t")) == ["my task"] * 2 and list(source.column("b")) == [1, 2]
  with pytest.raises(ConfigError, match="or NEW='TEXT' for one that is the same in all examples"):
    open_source("jsonl:a.jsonl:columns['x']", str(tmp_path))


def test_rows_of_parallel_files(tmp_path):
  (tmp_path / "sub").mkdir()
  for name, line in (("a.en", "e{}"), ("sub/a.de", "d{}")):
    write(tmp_path, name, "".join(line.format(i) + "\n" for i in range(5)))
  source = open_source("text:a.en,sub/a.de:rows[1:3]", str(tmp_path))
  assert all_of(source) == [{"src": "e1", "tgt": "d1"}, {"src": "e2", "tgt": "d2"}]
  source = open_source("text:sub/a.de:columns[x=text]:rows[80%:]", str(tmp_path))
  assert all_of(source) == [{"x": "d4"}]


def test_columns_of_sources_without_other_options(tmp_path):
  write(tmp_path, "a.en", "one\ntwo\n")
  write(tmp_path, "a.de", "eins\nzwei\n")
  source = open_source("text:a.en,a.de:columns[x=tgt+task='t']", str(tmp_path))
  assert all_of(source) == [{"x": "eins", "task": "t"}, {"x": "zwei", "task": "t"}]
  assert source.name == "text:a.en,a.de:columns[x=tgt+task='t']"
  sentences = open_source("embedded:sentences:val:columns[task='t'+text]")
  whole = open_source("embedded:sentences:val")
  assert len(sentences) == 200 and sentences[3] == {"task": "t", "text": whole[3]["text"]}
  question = {"id": "q", "question": "who?", "answers": [{"text": "b", "answer_start": 2}]}
  article = {"title": "T", "paragraphs": [{"context": "a b", "qas": [question]}]}
  write(tmp_path, "s.json", json.dumps({"data": [article]}))
  source = open_source("squad:s.json:titles[:1]:columns[task='qa'+question+answers]", str(tmp_path))
  assert all_of(source) == [{"task": "qa", "question": "who?", "answers": question["answers"]}]


@pytest.mark.parametrize("file, spec", [
    ("a.csv", "csv:a.csv"), ("a.CSV", "csv:a.CSV"), ("d/a.jsonl", "jsonl:d/a.jsonl"),
    ("a.parquet:rows[:90%]", "parquet:a.parquet:rows[:90%]"), ("a.feather", "arrow:a.feather"),
    ("gs://b/a.csv", "csv:gs://b/a.csv"), ("a.conllu.gz", "conllu:a.conllu.gz"),
    ("a.txt", "tsv:a.txt"), ("table:a.csv", "table:a.csv"), ("a-{0..7}.tar", "wds:a-{0..7}.tar"),
])
def test_kinds_by_the_endings_of_files(file, spec):
  assert spec_of(file, "tsv") == spec


@pytest.mark.parametrize("rest, parts", [
    ("a.zip:each[:3]", ("a.zip", ":", "each[:3]")), ("a", ("a", "", "")),
    ("gs://b/a.zip:each[:3]", ("gs://b/a.zip", ":", "each[:3]")), ("gs://b", ("gs://b", "", "")),
    ("a:each[2:3]", ("a", ":", "each[2:3]")),
])
def test_files_and_parts_are_told_apart(rest, parts):
  assert split(rest) == parts
