"""Tables in text files: CSV with quotes, and what is noticed in TSV."""

import csv
import io
import pickle
import random

import pytest

from jtx.data.sources.registry import open_source
from jtx.data.sources.tables import fields
from jtx.errors import ConfigError, DataError
from tests.data.sources.text_files import all_of, write


def read(folder, content, options=""):
  write(folder, "a.csv", content)
  return open_source(f"csv:a.csv{options}", str(folder))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quotes_hold_commas_quotes_and_newlines(tmp_path, end):
  lines = ['\ufefftext,label', '"one, two",a', '', '"say ""hi""",b', '"first', '', 'third",c',
           'no "quotes" here,"d"', ',""', '', '']
  source = read(tmp_path, end.join(lines))
  assert source.name == "csv:a.csv" and source.columns == ("text", "label")
  assert all_of(source) == [
      {"text": "one, two", "label": "a"}, {"text": 'say "hi"', "label": "b"},
      {"text": f"first{end}{end}third", "label": "c"},
      {"text": 'no "quotes" here', "label": "d"}, {"text": "", "label": ""}]
  assert source[-1] == source[4] and pickle.loads(pickle.dumps(source))[2] == source[2]
  with pytest.raises(IndexError):
    source[5]


def test_what_the_csv_module_writes_is_read(tmp_path):
  rng = random.Random(0)
  rows = [["".join(rng.choices('ab ,;"\n\tü', k=rng.randrange(9))) + "x" for _ in range(3)]
          for _ in range(300)]
  for delimiter, option in ((",", ""), (";", "semicolon"), ("\t", "tab"), ("|", "|")):
    for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
      file = io.StringIO(newline="")
      writer = csv.writer(file, delimiter=delimiter, quoting=quoting)
      writer.writerows([["a", "b", "c"], *rows])
      source = read(tmp_path, file.getvalue(), option and f":delimiter[{option}]")
      assert [list(e.values()) for e in all_of(source)] == rows


def test_header_and_names(tmp_path):
  assert all_of(read(tmp_path, "a,b\n1,2\n", ":header[no]")) == [
      {"0": "a", "1": "b"}, {"0": "1", "1": "2"}]
  assert read(tmp_path, ",text\n7,a\n")[0] == {"0": "7", "text": "a"}  # as pandas writes an index
  assert read(tmp_path, "a,b\n1,2\n3,4\n5,6\n", ":rows[1:]:columns[x=b]")[1] == {"x": "6"}
  assert fields('"a"b,"c', ",") == ["ab", "c"]


@pytest.mark.parametrize("content, said", [
    ("a,b\n\n1,2\n\"x\ny\",2\n1,2,3\n", "a.csv:6: 3 columns, but line 1 has 2; a column that holds"
                                        " the delimiter ',' stands in quotes"),
    ("a,b\n1,\"2\n3,4\n", "a.csv:2: a quote opens a column in this line and is never closed"),
    ("a,a\n1,2\n", "a.csv:1: the header names 'a' more than once"),
    ("a;b\n1;2\n", "a.csv:1: is one column by commas, 'a;b'; where another character parts the"
                   " columns, write csv:FILE:delimiter[;]"),
    ("a\tb\n1\t2\n", "write csv:FILE:delimiter[tab]"),
    (b"\x1f\x8b\x08\x00", "a.csv: is compressed by gzip, but its lines"),
    (b"a,b\n1,\"x\n\xff\"\n", "a.csv:3: not valid UTF-8"),
    ("a,b\n", "csv:a.csv: empty split"),
    ("", "csv:a.csv: empty split"),
])
def test_errors_name_file_and_line(tmp_path, content, said):
  with pytest.raises(DataError) as e:
    all_of(read(tmp_path, content))
  assert said in str(e.value)


@pytest.mark.parametrize("options, said", [
    (":delimiter[ab]", "has delimiter[ab]; it is one character of ASCII, or tab"),
    (":header[off]", "has header[off]; valid are yes and no"),
    (":folders[:3]", "has the option folders[:3]; valid are rows[:90%], columns[text=review+label],"
                     " delimiter[;], header[no]"),
    (":rows[:3]:rows[3:]", "has the option rows[3:] twice"),
    (":rows[x]", "ends in 'rows[x]'; a part of the rows is written rows[:80%]"),
    (":rows[:3", "ends in 'rows[:3'; options are written rows[:90%], "),
    (":columns[a=]", "has columns[a=]; write the names of columns joined by +"),
    (":columns[a+a]", "has columns[a+a]; write"),
])
def test_bad_options(tmp_path, options, said):
  with pytest.raises(ConfigError) as e:
    read(tmp_path, "a,b\n1,2\n", options)
  assert said in str(e.value)


@pytest.mark.parametrize("content, found", [
    ("en\tde\nA dog.\tEin Hund.\nYes\tJa\n", False),  # nor does a later line have more
    ("en\tde\nA dog.\tEin Hund.\nYes!\tJa\n", True), ("en\ten\nA dog.\tEin Hund.\n", False),
    ("source.en\ttarget_de\n4\t5\n", True), ("one\teins\ntwo\tzwei\n", False),
    ("A dog.\tEin Hund.\nYes!\tJa\n", False), ("en\tde\n", False), ("text\nA dog.\n", False)])
def test_a_first_line_of_names_is_hinted_at(content, found, tmp_path, warnings):
  write(tmp_path, "a.tsv", content)
  open_source("tsv:a.tsv", str(tmp_path))
  first, second = content.partition("\n")[0].split("\t") if found else ("", "")
  assert warnings == [
      f"{tmp_path}/a.tsv:1: {first!r} and {second!r} look like names of columns, and tsv: takes the"
      " line for an example; if they are names, table:FILE takes them as such"] * found
  if found:
    assert open_source("table:a.tsv", str(tmp_path)).columns == (first, second)
    assert len(warnings) == 1


def test_a_csv_that_is_read_as_tsv_is_noticed(tmp_path, warnings):
  write(tmp_path, "a.csv", 'text,label\n"a, b",x\n')
  for kind in ("tsv", "table"):
    with pytest.raises(DataError) as e:
      open_source(f"{kind}:a.csv", str(tmp_path))
    assert str(e.value) == (
        f"{tmp_path}/a.csv:1: has no tab, and {kind}: reads tab-separated columns; csv: reads"
        " commas, quotes and a header")
  write(tmp_path, "b.csv", 'text\tlabel\n"a\tb"\tx\n')
  assert len(open_source("table:b.csv", str(tmp_path))) == 1 and not warnings
  write(tmp_path, "c.tsv", 'text\tlabel\na\t""\n"a, b"\tx\n')
  assert open_source("table:c.tsv", str(tmp_path))[1] == {"text": '"a, b"', "label": "x"}
  assert warnings == [
      f"{tmp_path}/c.tsv:3: a column stands in quotes, which table: keeps as characters of the"
      " text; csv:FILE:delimiter[tab] takes them away"]
  assert open_source("csv:c.tsv:delimiter[tab]", str(tmp_path))[1]["text"] == "a, b"
