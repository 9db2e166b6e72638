"""Datasets of configs whose data is in tables: CSV, JSONL, Parquet and Arrow."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from configs import choose, classify, nmt_text, squad, tag, vit
from jtx.data import pipeline
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError, DataError
from tests.data.image_files import png
from tests.data.sources.test_webdataset import write_tar
from tests.data.sources.text_files import write

TEXTS = ["a good film", "bad, very bad", "so so", 'the "best"'] * 3
STARS = [5, 1, 3, 5] * 3


def dataset(config, folder, **edits):
  config.data.path = str(folder)
  for key, value in edits.items():
    config.data[key] = value
  return Dataset(config.data, config.tokenizer)


def jsonl(folder, name, rows):
  write(folder, name, "".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def reviews(tmp_path):
  """The same texts and stars in files of all kinds."""
  rows = [{"text": t, "label": s} for t, s in zip(TEXTS, STARS)]
  jsonl(tmp_path, "a.jsonl", rows)
  quoted = ['"' + t.replace('"', '""') + '"' for t in TEXTS]
  write(tmp_path, "a.csv", "".join(f"{t},{s}\n" for t, s in zip(["text", *quoted],
                                                              ["label", *STARS])))
  write(tmp_path, "a.tsv", "".join(f"{t}\t{s}\n" for t, s in zip(TEXTS, STARS)))
  write(tmp_path, "h.tsv", "".join(f"{t}\t{s}\n" for t, s in zip(["text", *TEXTS],
                                                                ["label", *STARS])))
  pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
  return tmp_path


@pytest.mark.parametrize("arg", [
    "train=a.tsv", "train=h.tsv,header", "train=a.csv", "train=a.jsonl", "train=a.parquet",
    "train=a.csv:columns[t=text+l=label],text=t,label=l",
    "train=h.tsv,header,text=text,label=label,names=1+3+5"])
def test_classes_are_collected_from_files_of_all_kinds(reviews, arg):
  data = dataset(classify.get_config(arg), reviews)
  assert data.labels == ("1", "3", "5") and data.info["head.outputs"] == 3
  examples = data.encoded(data.data.train)
  assert [int(e["label"]) for e in examples] == [(s - 1) // 2 for s in STARS]
  assert [data.tokenizers["text"].decode(e["text"].tolist()) for e in examples[:2]] == [
      "a good film", "bad, very bad"]


def test_numbers_are_no_classes(reviews):
  data = dataset(classify.get_config("train=a.csv,names="), reviews)
  assert [float(e["label"]) for e in data.encoded(data.data.train)] == STARS


def test_any_number_of_labels(tmp_path):
  rows = [{"text": "a b", "label": labels} for labels in (["x", "z"], [], ["y"])]
  jsonl(tmp_path, "a.jsonl", rows)
  coded = pa.Table.from_pylist([{"text": "a b", "label": n} for n in ([0, 1], [], [2])])
  names = {"feature": {"names": ["x", "z", "y"], "_type": "ClassLabel"}, "_type": "List"}
  coded = coded.replace_schema_metadata(
      {"huggingface": json.dumps({"info": {"features": {"label": names}}})})
  pa.parquet.write_table(coded, tmp_path / "a.parquet")
  for file, names in (("a.jsonl", ("x", "y", "z")), ("a.parquet", ("x", "z", "y"))):
    data = dataset(classify.get_config(f"multi,train={file}"), tmp_path)
    assert data.labels == names
    found = [[n for n, on in zip(names, e["label"]) if on] for e in data.encoded(data.data.train)]
    assert [sorted(labels) for labels in found] == [["x", "z"], [], ["y"]]


def test_a_header_that_is_read_as_a_line_is_noticed(reviews):
  with pytest.raises(DataError, match=r"^tsv:h\.tsv: the '1' of its first line, 'label', is that of"
                                      r" no other line, so the line looks like a header; tables"):
    dataset(classify.get_config("train=h.tsv"), reviews)
  with pytest.raises(ConfigError, match="config argument header is for files of tabs, and the sour"
                                        "ce is csv:a.csv"):
    classify.get_config("train=a.csv,header")


CONTEXT = "Ann met Bob in Rome ."
FLAT = [{"id": "1", "context": CONTEXT, "question": "Where ?",
         "answers": {"text": ["Rome", "in Rome"], "answer_start": [15, 12]}},
        {"id": "2", "context": CONTEXT, "question": "When ?",
         "answers": {"text": [], "answer_start": []}}]


def test_questions_in_the_flat_form(tmp_path):
  jsonl(tmp_path, "a.jsonl", FLAT)
  pa.parquet.write_table(pa.Table.from_pylist(FLAT), tmp_path / "a.parquet")
  write(tmp_path, "flat.json", json.dumps({"version": "x", "data": FLAT}))
  qas = [{**q, "answers": [{"text": t, "answer_start": s} for t, s in zip(*q["answers"].values())]}
         for q in FLAT]
  write(tmp_path, "a.json", json.dumps(
      {"data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}))
  wanted = None
  for file in ("a.json", "flat.json", "a.jsonl", "a.parquet"):
    data = dataset(squad.get_config(f"v2,max_length=80,stride=8,train={file}"), tmp_path)
    found = [{k: np.asarray(e[k]).tolist() for k in ("text", "text_types", "start", "end")}
             | {"answers": e["answers"]} for e in data.encoded(data.data.train)]
    wanted = wanted or found
    assert found == wanted and [bool(e["start"]) for e in found] == [True, False]


@pytest.mark.parametrize("answers", [
    {"text": ["Rome"], "start": [15]}, [{"text": "Rome"}], ["Rome"],
    {"text": ["Rome"], "answer_start": ["15"]}])
def test_answers_of_another_form(tmp_path, answers):
  jsonl(tmp_path, "a.jsonl", [{**FLAT[0], "answers": answers}])
  data = dataset(squad.get_config("max_length=80,stride=8,train=a.jsonl"), tmp_path)
  with pytest.raises(DataError, match="op encode_windows: example 0 has the answer .*; an answer ha"
                                      "s a text and its answer_start, the number of its first"):
    data.encoded(data.data.train)


def test_tags_of_rows(tmp_path):
  rows = [{"tokens": ["Ann", "ran"], "ner_tags": [1, 0]}]
  features = {"ner_tags": {"feature": {"names": ["O", "B-PER"], "_type": "ClassLabel"}}}
  table = pa.Table.from_pylist(rows).replace_schema_metadata(
      {"huggingface": json.dumps({"info": {"features": features}})})
  pa.parquet.write_table(table, tmp_path / "a.parquet")
  spec = "parquet:a.parquet:columns[words=tokens+tags=ner_tags]"
  data = dataset(tag.get_config(f"train={spec}"), tmp_path)
  assert data.labels == ("O", "B-PER")
  assert data.encoded([spec])[0]["word_tags"] == ["B-PER", "O"]
  jsonl(tmp_path, "a.jsonl", [{"words": ["Ann", "ran"], "tags": ["B-PER", "O"]}])
  assert dataset(tag.get_config("train=a.jsonl"), tmp_path).labels == ("O", "B-PER")


def test_choices_of_rows(tmp_path):
  jsonl(tmp_path, "a.jsonl", [{"p": "Ann met", "a": "Bob", "b": "Rome", "right": 1}])
  data = dataset(choose.get_config("prompt=p,choices=a+b,label=right,train=a.jsonl"), tmp_path)
  example, = data.encoded(data.data.train)
  assert example["label"] == 1 and {"choice_0", "choice_1"} <= example.keys()
  assert "choice_2" not in example


def test_pairs_of_a_table(tmp_path):
  rows = [{"translation": {"en": f"one {i}", "de": f"eins {i}"}} for i in range(20)]
  pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
  config = nmt_text.get_config("src=translation.en,tgt=translation.de,train=a.parquet,"
                               "val=a.parquet:rows[:2]")
  data = dataset(config, tmp_path)
  assert data.examples(config.evals.val.source) == [
      {"id": i, "src": f"one {i}", "tgt": f"eins {i}"} for i in range(2)]


def test_images_of_a_table(tmp_path):
  for name, labels in (("names", ["b", "a", "b"]), ("numbers", [4, 2, 4])):
    rows = [{"image": {"bytes": png(i), "path": None}, "label": l} for i, l in enumerate(labels)]
    pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    config = vit.get_config("tiny")
    config.data.train = (f"parquet:{name}.parquet",)
    data = dataset(config, tmp_path)
    assert data.labels == (("a", "b") if name == "names" else ("2", "4"))
    assert [int(e["label"]) for e in data.encoded(data.data.train)] == [1, 0, 1]


def batches(data, start, stop, workers=0):
  stream = data.train_stream(3, 4, range(4))
  return list(pipeline.iterate(stream, start, stop, threads=2, workers=workers))


def test_order_and_resume_are_those_of_other_sources(reviews):
  wanted = batches(dataset(classify.get_config("train=a.jsonl"), reviews), 0, 6)
  for file in ("a.csv", "a.parquet"):
    data = dataset(classify.get_config(f"train={file}"), reviews)
    np.testing.assert_equal(batches(data, 0, 6), wanted)
    np.testing.assert_equal(batches(data, 4, 6), wanted[4:])


@pytest.fixture
def photos(tmp_path):
  """The same pictures in a tar archive, and in Parquet with few rows a group."""
  rows = [{"image": {"bytes": png(5 * i, (9, 9)), "path": None}, "label": i % 3} for i in range(40)]
  write_tar(tmp_path / "a.tar", [file for i, row in enumerate(rows) for file in (
      (f"{i}.png", row["image"]["bytes"]), (f"{i}.cls", str(row["label"]).encode()))])
  pa.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=7)
  return tmp_path


def pictures(folder, spec):
  config = vit.get_config("tiny")
  return dataset(config, folder, train=(spec,))


def test_images_of_tables_and_archives_come_in_the_order_of_the_seed(photos):
  wanted = batches(pictures(photos, "wds:a.tar"), 0, 12)
  found = batches(pictures(photos, "parquet:a.parquet"), 0, 12)
  np.testing.assert_equal(found, wanted)
  np.testing.assert_equal(batches(pictures(photos, "parquet:a.parquet"), 7, 12), wanted[7:])
  assert len({float(b["image"].sum()) for b in wanted}) > 6


@pytest.mark.slow
def test_worker_processes_read_tables(photos):
  wanted = batches(pictures(photos, "wds:a.tar"), 0, 4)
  for spec in ("wds:a.tar", "parquet:a.parquet"):
    np.testing.assert_equal(batches(pictures(photos, spec), 0, 4, workers=1), wanted)
