"""Questions in the JSON format of SQuAD."""

import json
import os
import pickle

import pytest

from jtx.data.sources.registry import open_source
from jtx.errors import ConfigError, DataError
from tests.data.sources.text_files import all_of, write


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
