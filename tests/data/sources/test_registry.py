"""Sources: what every kind yields, and how each kind of bad data is named."""

import gzip
import json
import os
import pickle
import subprocess
import sys

import pytest

from jtx.data.sources import registry
from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError, DataError


def write(folder, name, content):
  (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def all_of(source):
  return [source[i] for i in range(len(source))]


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
  write(tmp_path, "bad.jsonl", '{"a": 1}\n{"a": \n[1]\n\n')
  source = open_source("jsonl:bad.jsonl", str(tmp_path))
  for i, message in ((1, "2: not valid JSON"), (2, "3: a line must be a JSON object"),
                     (3, "4: not valid JSON")):
    with pytest.raises(DataError, match=rf"bad\.jsonl:{message}"):
      source[i]


def test_tsv(tmp_path):
  write(tmp_path, "a.tsv", 'a\t"b\tc\n\t"\t""\nd\te\n')
  source = open_source("tsv:a.tsv", str(tmp_path))
  assert source[0] == {"0": "a", "1": '"b', "2": "c"}
  assert source[1] == {"0": "", "1": '"', "2": '""'}
  with pytest.raises(DataError, match=r"a\.tsv:3: 2 columns, but line 1 has 3"):
    source[2]


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


def test_conll_sentences(tmp_path):
  write(tmp_path, "a.conll", "\n \n-DOCSTART-\t-X-\tO\n\nthe\tD\tO\nbig cat\tN\tB-x\n\t\n\n"
                             "it\tP\tO\n-DOCSTART-\t-X-\tO\nend\tN\tO")
  source = open_source("conll:a.conll", str(tmp_path))
  assert all_of(source) == [{"words": ["the", "big cat"], "tags": ["O", "B-x"]},
                            {"words": ["it"], "tags": ["O"]}, {"words": ["end"], "tags": ["O"]}]
  assert source[-1] == source[2]
  assert open_source("conll:a.conll:1", str(tmp_path))[0]["tags"] == ["D", "N"]
  assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)


def test_conll_columns_may_be_parted_by_spaces(tmp_path):
  write(tmp_path, "a.conll", "U.N.  NNP I-NP  I-ORG \r\nsays VBZ I-VP O\r\n\r\n")
  source = open_source("conll:a.conll", str(tmp_path))
  assert all_of(source) == [{"words": ["U.N.", "says"], "tags": ["I-ORG", "O"]}]
  assert open_source("conll:a.conll:2", str(tmp_path))[0]["tags"] == ["I-NP", "I-VP"]


@pytest.mark.parametrize("content, message", [
    ("a\tO\nb\n", r"a\.conll:2: has 1 columns, but the file's first line of a word has 2"),
    ("a\tO\n\nb\tX\tO\n", r"a\.conll:3: has 3 columns"),
    ("a\tO\nb\t\n", r"a\.conll:2: the tag is empty"),
    ("a\tO\n\tO\n", r"a\.conll:2: the word is empty"),
    ("\na\n", r"a\.conll:2: has 1 columns, but the tags are in column 1, counted from 0"),
    ("\n-DOCSTART-\n", "conll:a.conll: empty split"),
])
def test_bad_conll(tmp_path, content, message):
  write(tmp_path, "a.conll", content)
  with pytest.raises(DataError, match=message):
    all_of(open_source("conll:a.conll", str(tmp_path)))


def test_a_conll_column_that_is_not_there(tmp_path):
  write(tmp_path, "a.conll", "a\tO\n")
  with pytest.raises(DataError, match=r"a\.conll:1: has 2 columns, but the tags are in column 2"):
    open_source("conll:a.conll:2", str(tmp_path))
  for column in ("0", "x", "", "-1"):
    with pytest.raises(ConfigError, match=f"has the column '{column}' for its tags; valid are 1,"):
      open_source(f"conll:a.conll:{column}", str(tmp_path))


CONLLU = """# text = Don't go
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\t_\t3\taux\t_\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t_\t_
2.1\tyou\tyou\tPRON\tPRP\t_\t_\t_\t_\t_
3\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_

# a comment alone

1\tNo way\tno\tINTJ\tUH\t_\t0\troot\t_\t_
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_conllu_words_and_universal_tags(tmp_path, end):
  content = CONLLU.replace("\n", end).encode()
  write(tmp_path, "a.conllu", content)
  write(tmp_path, "a.conllu.gz", gzip.compress(content))
  for name in ("a.conllu", "a.conllu.gz"):
    source = open_source(f"conllu:{name}", str(tmp_path))
    assert all_of(source) == [{"words": ["Do", "n't", "go"], "tags": ["AUX", "PART", "VERB"]},
                              {"words": ["No way"], "tags": ["INTJ"]}]
    assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)


@pytest.mark.parametrize("content, message", [
    (CONLLU.replace("\tgo\tgo", "\tgo go"),
     r"a\.conllu:6: has 9 columns; a line of CoNLL-U has 10"),
    (CONLLU.replace("2.1", "x"), r"a\.conllu:5: the id 'x' is not of the form 1, 1-2 or 1\.1"),
    (b"# a\n\xff\n", r"a\.conllu:2: not valid UTF-8"),
    ("# a\n\n", "conllu:a.conllu: empty split"),
])
def test_bad_conllu(tmp_path, content, message):
  write(tmp_path, "a.conllu", content)
  with pytest.raises(DataError, match=message):
    open_source("conllu:a.conllu", str(tmp_path))


def test_bad_gzip(tmp_path):
  whole = gzip.compress(CONLLU.encode())
  for content in (b"plain", whole[:-9], whole[:30] + b"\x00" + whole[31:]):
    write(tmp_path, "a.gz", content)
    with pytest.raises(DataError, match=r"a\.gz: "):
      open_source("conllu:a.gz", str(tmp_path))
  with pytest.raises(DataError, match=r"gone\.gz: No such file"):
    open_source("conllu:gone.gz", str(tmp_path))


def squad(*titles, version=1):
  """An article a title, with one answered question; in version 2 another without an answer."""
  articles = []
  for i, title in enumerate(titles):
    qas = [{"id": f"{i}-0", "question": "Who?", "answers": [{"text": "cät", "answer_start": 4}]}]
    if version == 2:
      qas[0]["is_impossible"] = False
      qas.append({"id": f"{i}-1", "question": "Why?", "answers": [], "is_impossible": True})
    articles.append({"title": title, "paragraphs": [{"context": f"The cät {title}", "qas": qas}]})
  return {"version": str(version), "data": articles}


def test_squad_is_flattened(tmp_path):
  write(tmp_path, "a.json", json.dumps(squad("A", "B", version=2)))
  source = open_source("squad:a.json", str(tmp_path))
  assert len(source) == 4
  assert source[2] == {"question_id": "1-0", "title": "B", "question": "Who?",
                       "context": "The cät B", "impossible": False,
                       "answers": [{"text": "cät", "answer_start": 4}]}
  assert source[3] == {"question_id": "1-1", "title": "B", "question": "Why?",
                       "context": "The cät B", "impossible": True, "answers": []}
  source[2]["answers"].clear()
  assert source[2]["answers"]
  assert all_of(pickle.loads(pickle.dumps(source))) == all_of(source)


def test_squad_titles_can_be_held_out(tmp_path):
  write(tmp_path, "a.json", json.dumps(squad(*"ABCDAEFGHI")))  # 9 titles, A twice

  def titles(part):
    return "".join(e["title"] for e in all_of(open_source(f"squad:a.json{part}", str(tmp_path))))

  assert titles("") == titles(":titles[:]") == "ABCDAEFGHI"
  assert titles(":titles[:80%]") == "ABCDAEFG"  # 7 of 9, both articles of A
  assert titles(":titles[80%:]") == "HI"
  assert titles(":titles[3:]") == "DEFGHI" and titles(":titles[1:3]") == "BC"
  with pytest.raises(DataError, match=r"squad:a\.json:titles\[9:\]: empty split"):
    titles(":titles[9:]")
  for part in (":titles", ":titles[80%]", ":titles[%:]", ":titles[-1:]", ":", ":train"):
    with pytest.raises(ConfigError, match=r"a part of the titles is written titles\[:80%\]"):
      titles(part)


def edited(path, value, version=2):
  """`squad` with something put into its first question, paragraph or article."""
  data = squad("A", "B", version=version)
  place = data["data"][0]
  if path[0] != "title":
    place = place["paragraphs"][0]
  if path[0] in ("id", "question", "answers", "is_impossible"):
    place = place["qas"][0]
  for key in path[:-1]:
    place = place[key]
  if value is None:
    del place[path[-1]]
  else:
    place[path[-1]] = value
  return json.dumps(data)


@pytest.mark.parametrize("content, message", [
    (edited(["answers"], [{"text": "cat", "answer_start": 4}]),
     "question 0-0: the answer 'cat' is not at answer_start=4 of the context"),
    (edited(["answers"], [{"text": "A", "answer_start": -1}]), "'A' is not at answer_start=-1"),
    (edited(["answers"], [{"text": "cät"}]),
     "question 0-0: has no 'answer_start' that is a number"),
    (edited(["answers"], None), "question 0-0: has no 'answers' that is a list"),
    (edited(["question"], None), "question 0-0: has no 'question' that is a string"),
    (edited(["id"], "1-0"), "2 questions have the id 1-0"),
    (edited(["id"], None), "article 0, paragraph 0: has no 'id' that is a string"),
    (edited(["is_impossible"], True), "question 0-0: is_impossible is True, but it has 1 answers"),
    (edited(["context"], None), "article 0, paragraph 0: has no 'context' that is a string"),
    ('{"data": [{"paragraphs": 3}]}', "article 0: has no 'paragraphs' that is a list"),
    ('{"data": [3]}', "article 0: is not a JSON object"),
    ("[]", "has no 'data' that is a list"),
    ("{", "a.json: not valid JSON"),
    (b"\xff", "a.json: not valid JSON"),
])
def test_bad_squad(tmp_path, content, message):
  write(tmp_path, "a.json", content)
  with pytest.raises(DataError) as e:
    open_source("squad:a.json", str(tmp_path))
  assert "a.json" in str(e.value) and message in str(e.value)


def test_squad_without_titles_or_file(tmp_path):
  write(tmp_path, "a.json", edited(["title"], None))
  assert open_source("squad:a.json", str(tmp_path))[0]["title"] == ""
  with pytest.raises(DataError, match=r"a\.json: article 0: has no 'title' that is a string"):
    open_source("squad:a.json:titles[:1]", str(tmp_path))
  with pytest.raises(DataError, match=r"gone\.json: No such file"):
    open_source("squad:gone.json", str(tmp_path))


@pytest.mark.parametrize("spec, number, keys", [
    ("table:sick/train.txt", 4500, "pair_ID sentence_A sentence_B relatedness_score"
                                   " entailment_judgment"),
    ("tsv:sst2/train.tsv", 6920, "0 1"),
    ("tsv:codah/train.tsv", 1665, "0 1 2 3 4 5 6"),
    ("conll:wnut17/train.conll", 3394, "words tags"),
    ("conllu:ud_ewt/dev.conllu.gz", 2001, "words tags"),
    ("squad:policyqa/squad_format.json", 3809, "question_id question answers impossible title"
                                               " context"),
    ("squad:xquad/xquad.de.json", 1190, "question_id question answers impossible title context"),
])
def test_published_files_are_read_to_the_end(spec, number, keys):
  if "JTX_TEST_DATA" not in os.environ:
    pytest.skip("JTX_TEST_DATA is unset; published data sets are in it")
  source = open_source(spec, os.environ["JTX_TEST_DATA"])
  every = all_of(source)
  assert len(every) == number
  assert all(list(e) == keys.split() for e in every)
  if "words" in every[0]:
    tags = {tag for e in every for tag in e["tags"]}
    assert len(tags) == (13 if "wnut" in spec else 17)
    assert all(len(e["words"]) == len(e["tags"]) > 0 for e in every)
  if "codah" in spec:  # the rows without a category have an empty one
    assert sum(e["0"] == "" for e in every) == 7

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


def test_tfds_modules_exist():
  import importlib
  for module in set(registry._TFDS_MODULES.values()):
    assert importlib.import_module(f"tensorflow_datasets.{module}")


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
from jtx.data.sources.registry import open_source
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
