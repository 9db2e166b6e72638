"""Sources by their specs: text files, TFDS, embedded sets, and errors."""

import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import pytest

from jtx.data.sources import tfds
from jtx.data.sources.registry import KINDS, open_source
from jtx.data.sources.specs import options, without_options
from jtx.errors import ConfigError, DataError
from tests.data.sources.text_files import all_of, write


def test_parallel_text(tmp_path):
  write(tmp_path, "a.en", "one\ntwo\n")
  write(tmp_path, "a.de", "eins\nzwei")
  source = open_source("text:a.en,a.de", str(tmp_path))
  assert source.name == "text:a.en,a.de"
  assert all_of(source) == [{"src": "one", "tgt": "eins"}, {"src": "two", "tgt": "zwei"}]
  assert source[-1] == source[1]
  with pytest.raises(IndexError):
    source[2]
  assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)


def test_lines_end_at_newlines_only(tmp_path):
  lines = ["a\x0bb\x0cc", "d\x1ce\x85f", "g\u2028h\u2029i", "j\rk", "", " l ", "Grüße 😀"]
  for end in ("\n", "\r\n"):
    write(tmp_path, "a.txt", b"\xef\xbb\xbf" + end.join(lines).encode() + end.encode())
    source = open_source("text:a.txt", str(tmp_path))
    assert [e["text"] for e in all_of(source)] == lines


def test_absolute_path_stands_alone(tmp_path):
  write(tmp_path, "a.txt", "x\n")
  assert len(open_source(f"text:{tmp_path}/a.txt", "/nowhere")) == 1


def test_unequal_line_counts_name_files_and_counts(tmp_path):
  write(tmp_path, "a.en", "1\n2\n3\n")
  write(tmp_path, "a.de", "1\n2\n")
  with pytest.raises(DataError, match=r"a\.en has 3 and .*a\.de has 2"):
    open_source("text:a.en,a.de", str(tmp_path))


def test_invalid_utf8_names_file_and_line(tmp_path):
  write(tmp_path, "a.txt", b"fine\nGr\xfc\xdfe\n")
  with pytest.raises(DataError, match=r"a\.txt:2: not valid UTF-8"):
    open_source("text:a.txt", str(tmp_path))


def test_missing_and_empty_files(tmp_path):
  with pytest.raises(DataError, match=r"gone\.txt: No such file"):
    open_source("text:gone.txt", str(tmp_path))
  for kind in ("text", "jsonl", "tsv", "table", "conll", "conllu"):
    for content in (b"", b"\xef\xbb\xbf"):
      write(tmp_path, "empty", content)
      with pytest.raises(DataError, match=f"{kind}:empty: empty split"):
        open_source(f"{kind}:empty", str(tmp_path))


def test_jsonl(tmp_path):
  write(tmp_path, "a.jsonl", '{"a": {"b": 1}}\n{"a": "ü\\n"}\n')
  source = open_source("jsonl:a.jsonl", str(tmp_path))
  assert all_of(source) == [{"a": {"b": 1}}, {"a": "ü\n"}]
  write(tmp_path, "bad.jsonl", '{"a": 1}\n{"a": \n[1]\n\n{}\n')
  source = open_source("jsonl:bad.jsonl", str(tmp_path))
  for i, message in ((1, "2: not valid JSON"), (2, "3: a line must be a JSON object"),
                     (3, "4: is empty; only lines at the end")):
    with pytest.raises(DataError, match=rf"bad\.jsonl:{message}"):
      source[i]


def test_tsv(tmp_path):
  write(tmp_path, "a.tsv", 'a\t"b\tc\n\t"\t""\nd\te\n')
  source = open_source("tsv:a.tsv", str(tmp_path))
  assert source[0] == {"0": "a", "1": '"b', "2": "c"}
  assert source[1] == {"0": "", "1": '"', "2": '""'}
  with pytest.raises(DataError, match=r"a\.tsv:3: 2 columns, but line 1 has 3"):
    source[2]


def test_rows_have_no_empty_lines_at_their_end(tmp_path):
  for kind, row, middle in (("tsv", "a\tb", "2: is empty; only lines at the end"),
                            ("table", "a\tb", "2: is empty"), ("jsonl", "{}", "2: is empty")):
    write(tmp_path, "a", f"{row}\r\n{row}\r\n\r\n \r\n\r\n")
    source = open_source(f"{kind}:a", str(tmp_path))
    assert len(all_of(source)) == 2 - (kind == "table")
    write(tmp_path, "a", f"{row}\n\n{row}\n")
    with pytest.raises(DataError, match=f"a:{middle}"):
      all_of(open_source(f"{kind}:a", str(tmp_path)))
  for kind, row in (("tsv", "\t"), ("tsv", "a\n\nb"), ("text", "\n")):
    write(tmp_path, "a", f"{row}\n")
    assert len(all_of(open_source(f"{kind}:a", str(tmp_path)))) == row.count("\n") + 1


def test_table_has_columns_by_name(tmp_path):
  write(tmp_path, "a.tsv", "id\tsentence\tlabel\r\n7\t\"a \t1\r\n\t\t\r\n8\tb\n")
  source = open_source("table:a.tsv", str(tmp_path))
  assert len(source) == 3
  assert source[0] == {"id": "7", "sentence": '"a ', "label": "1"}
  assert source[1] == {"id": "", "sentence": "", "label": ""}
  with pytest.raises(DataError, match=r"a\.tsv:4: 2 columns, but line 1 has 3"):
    source[-1]
  with pytest.raises(IndexError):
    source[3]
  assert pickle.loads(pickle.dumps(source))[0] == source[0]


@pytest.mark.parametrize("header, message", [
    ("a\tb\ta\n1\t2\t3\n", r"a\.tsv:1: the header names 'a' more than once"),
    ("a\t\n1\t2\n", r"a\.tsv:1: the header leaves a column without a name"),
    ("a\tb\n", "table:a.tsv: empty split"),
    ("", "table:a.tsv: empty split"),
])
def test_bad_tables(tmp_path, header, message):
  write(tmp_path, "a.tsv", header)
  with pytest.raises(DataError, match=message):
    open_source("table:a.tsv", str(tmp_path))


def test_embedded():
  assert open_source("embedded:number_words/cardinal:test")[0] == {"src": "six", "tgt": "sechs"}
  default, train = open_source("embedded:number_words"), open_source("embedded:number_words:train")
  assert len(default) == len(train) and default[9] == train[9]


@pytest.mark.parametrize("spec, message", [
    ("txt:a", "did you mean 'text'"),
    ("a.txt", "unknown name 'a.txt'"),
    ("text:", "names no data"),
    ("text", "names no data"),
    ("text:a,b,c", "not 3"),
    ("embedded:number_word", "did you mean 'number_words'"),
    ("embedded:number_words/x", "unknown subset 'x'"),
    ("embedded:number_words:dev", "unknown split 'dev'"),
])
def test_bad_specs(spec, message):
  with pytest.raises(ConfigError, match=message):
    open_source(spec)


# Of those that TFDS finds only once their module is imported, the ones that texts are trained on.
TFDS_TEXTS = """c4 cnn_dailymail conll2002 conll2003 flores glue gsm8k hellaswag multi_nli wiki40b
wikipedia wmt13_translate wmt14_translate wmt15_translate wmt16_translate wmt17_translate
wmt18_translate wmt19_translate wmt_t2t_translate xnli xsum""".split()


def test_a_file_without_its_kind(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "a.en").write_text("a\n")
  (tmp_path / "data").mkdir()
  (tmp_path / "data" / "b.en").write_text("b\n")
  for spec, told in (("a.en", "text:a.en, and of parallel texts text:a.en,FILE; kinds are: text,"),
                     ("a.en,b.en", "text:a.en,b.en; kinds are: text,")):
    with pytest.raises(ConfigError) as found:
      open_source(spec, "data")
    assert str(found.value).startswith(
        f"source: {spec!r} lacks the kind of file that it is; write KIND:{spec}, such as {told}")
  with pytest.raises(ConfigError, match="unknown name 'c.en'"):
    open_source("c.en", "data")


def test_modules_of_tfds_are_looked_up():
  import importlib

  from tensorflow_datasets.core import registered
  for name in TFDS_TEXTS:
    module = importlib.import_module(tfds.defined_in(name))
    found = registered.imported_builder_cls(name)
    assert (found.name, found.__module__) == (name, module.__name__)
  assert tfds.defined_in("no_such_dataset") is None


def test_tfds_errors(tmp_path):
  for spec, message in (
      ("tfds:no_such_dataset", "TFDS has no dataset 'no_such_dataset'"),
      ("tfds:glue/cola:train", "not prepared in .*file_format='array_record'"),
      ("tfds:glue/no_such_config", "TFDS cannot build 'glue/no_such_config'"),
      ("tfds:wmt14_translate/de-en:train[:1%]", "not prepared in")):
    with pytest.raises(DataError, match=message):
      open_source(spec, str(tmp_path))


_TFDS_SCRIPT = """
import json, pickle, sys
import numpy as np
import tensorflow_datasets as tfds

class TinyPairs(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version("1.0.0")

  def _info(self):
    pair = tfds.features.FeaturesDict({"en": tfds.features.Text(), "de": tfds.features.Text()})
    tags = tfds.features.Sequence({"tag": tfds.features.Text()})
    features = tfds.features.FeaturesDict({"translation": pair, "tags": tags, "id": np.int64})
    return tfds.core.DatasetInfo(builder=self, features=features)

  def _split_generators(self, dl_manager):
    return {"train": self._generate_examples(10), "test": self._generate_examples(2)}

  def _generate_examples(self, n):
    for i in range(n):
      yield i, {"translation": {"en": f"dog {i}", "de": f"Hündin {i}"},
                "tags": [{"tag": "ä"}, {"tag": "b"}], "id": i}

folder = sys.argv[1]
TinyPairs(data_dir=folder, file_format="array_record").download_and_prepare()

from jtx.errors import DataError
from jtx.data.sources.registry import KINDS, open_source
from jtx.data.sources.specs import options, without_options
train = open_source("tfds:tiny_pairs:train", folder)
part = open_source("tfds:tiny_pairs:train[:30%]", folder)
again = pickle.loads(pickle.dumps(part))
try:
  open_source("tfds:tiny_pairs:dev", folder)
except DataError as e:
  error = str(e)
rows = [{**train[i], "id": int(train[i]["id"])} for i in range(len(train))]
print(json.dumps({
    "rows": rows, "part": len(part), "test": len(open_source("tfds:tiny_pairs:test", folder)),
    "pickled": again[2] == part[2], "error": error, "tensorflow": "tensorflow" in sys.modules}))
"""


def test_tfds_array_record_without_tensorflow(tmp_path):
  done = subprocess.run([sys.executable, "-c", _TFDS_SCRIPT, str(tmp_path)],
                        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                        capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  result = json.loads(done.stdout.splitlines()[-1])
  rows = sorted(result["rows"], key=lambda row: row["id"])
  assert rows == [{"translation": {"en": f"dog {i}", "de": f"Hündin {i}"},
                   "tags": {"tag": ["ä", "b"]}, "id": i} for i in range(10)]
  assert (result["part"], result["test"], result["pickled"]) == (3, 2, True)
  assert "no split 'dev'; tiny_pairs has" in result["error"]
  assert not result["tensorflow"]


def test_the_table_of_the_docs_has_every_kind():
  """And its examples are of the kinds of their rows, with options that are read."""
  text = (pathlib.Path(__file__).parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
  rows = [re.findall(r"`([^`]*)`", line.partition("|")[2].partition("|")[2])
          for line in text.splitlines() if line.startswith("| ") and ":`" in line]
  kinds = [found[0] for found in rows]
  assert {kind.removesuffix(":") for row in rows for kind in row if kind.endswith(":")} == (
      KINDS.keys())
  assert len(kinds) > 15
  for row in rows:
    own = {entry for entry in row if entry.endswith(":") and entry.count(":") == 1}
    for example in row:
      kind, colon, rest = example.partition(":")
      if colon and rest and kind in KINDS:
        assert f"{kind}:" in own
        file = without_options(rest)
        if file != rest and kind in ("csv", "jsonl", "parquet"):
          options(example, rest, "", ("rows", "columns", "delimiter", "header"))
