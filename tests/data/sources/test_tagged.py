"""Sentences whose words have tags: CoNLL and CoNLL-U."""

import gzip
import pickle

import pytest

from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError, DataError
from tests.data.sources.text_files import all_of, write


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


def test_comments_before_a_sentence_of_conll(tmp_path):
  write(tmp_path, "a.conll",
        "# sent_id 1\n# id = 1\nAnn B\n# O\n\n#\n# two words more\n# O\n1 O\n")
  source = open_source("conll:a.conll", str(tmp_path))
  assert all_of(source) == [{"words": ["Ann", "#"], "tags": ["B", "O"]},
                            {"words": ["#", "1"], "tags": ["O", "O"]}]
  assert [source.line(i) for i in range(2)] == [3, 8]
  write(tmp_path, "b.conll", "# O\n\n# X\n")
  assert [e["tags"] for e in all_of(open_source("conll:b.conll", str(tmp_path)))] == [["O"], ["X"]]
  write(tmp_path, "c.conll", "# key = 1\n\na b c O\n# = b O\n\n# = b O\n")
  assert [e["words"] for e in all_of(open_source("conll:c.conll", str(tmp_path)))] == [
      ["a", "#"], ["#"]]


@pytest.mark.parametrize("content, message", [
    ("#id 1 2\n\n# id 1\na\tO\n", r"a\.conll:1: has 3 columns"),
    ("a\tO\n# id 1\n", r"a\.conll:2: has 3 columns"),
    ("# id = 1\n", "conll:a.conll: empty split"),
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


def test_some_of_the_sentences(tmp_path):
  write(tmp_path, "a.conllu", CONLLU)
  write(tmp_path, "a.conll", "a\tX\tO\n\nb\tY\tO\n\nc\tZ\tO\n")
  tags = lambda spec: [example["tags"] for example in all_of(open_source(spec, str(tmp_path)))]
  assert tags("conllu:a.conllu:rows[1:]") == [["INTJ"]]
  assert tags("conll:a.conll:rows[:67%]") == [["O"], ["O"]]
  assert tags("conll:a.conll:1:rows[1:]") == [["Y"], ["Z"]]
  with pytest.raises(ConfigError, match=r"has the option columns\[a\]; valid are rows\[:90%\]"):
    open_source("conllu:a.conllu:columns[a]", str(tmp_path))
