"""Text files: of parallel lines, of classes, of tags, of documents and of questions."""

import gzip
import json
import os

from benchmarks.bad_inputs.case import Case

NMT = "train --config=jtx.configs.nmt_text --workdir=w --config.steps=2 --config.data.path="
CLASSIFY = "train --config=jtx.configs.classify:model=bert_small --workdir=w --config.data.train="
OWN = "train --config=jtx.configs.classify:model=bert_small,epochs=1 --workdir=w"
TAG = "train --config=jtx.configs.tag --workdir=w"
SQUAD = "train --config=jtx.configs.squad --workdir=w"

GOOD = "a b c\td e f\n"
LINES = "a b c\n" * 20
TSV = "a good one\t0\na bad one\t1\n" * 10


def pairs(**changes):
  files = {f"{split}.{end}": LINES for split in ("train", "val") for end in ("en", "de")}
  files |= {name.replace("_", "."): text for name, text in changes.items()}
  return {f"d/{name}": text for name, text in files.items() if text is not None}


def labelled(**changes):
  files = {"train.tsv": TSV, "dev.tsv": TSV} | {k.replace("_", "."): v for k, v in changes.items()}
  return {name: text for name, text in files.items() if text is not None}


def fifo(path, _):
  os.mkfifo(path)


def bomb(path, _):
  """3 MB that are 3 GB."""
  with gzip.open(path, "wb", compresslevel=9) as f:
    for _ in range(3000):
      f.write(b"a" * (1 << 20))


def squad(*questions, context="Ann sat on the mat ."):
  return json.dumps({"data": [{"title": "t", "paragraphs": [
      {"context": context, "qas": list(questions)}]}]})


ASKED = {"id": "1", "question": "Who ?", "answers": [{"text": "Ann", "answer_start": 0}]}

CASES = [
    Case("no files", NMT + "d", "train.en", {"d/x": ""}),
    Case("one language", NMT + "d", "train.de", pairs(train_de=None)),
    Case("no validation", NMT + "d", "val.en", pairs(val_en=None)),
    Case("empty validation", NMT + "d", "val", pairs(val_en="", val_de="")),
    Case("empty files", NMT + "d", "train", pairs(train_en="", train_de="")),
    Case("a line more", NMT + "d", "21.*20|20.*21", pairs(train_en=LINES + "x\n")),
    Case("a line more in validation", NMT + "d", "21.*20|20.*21", pairs(val_de=LINES + "x\n")),
    Case("bytes that are no UTF-8", NMT + "d", "train.de.*UTF-8",
         pairs(train_de=LINES.encode()[:-2] + b"\xff\n")),
    Case("bytes that are no UTF-8 in validation", NMT + "d", "val.de.*UTF-8",
         pairs(val_de=LINES.encode()[:-2] + b"\xff\n")),
    Case("UTF-16", NMT + "d", "train.en", pairs(train_en=LINES.encode("utf-16"))),
    Case("a folder for a file", NMT + "d", "train.en", {
        **{k: v for k, v in pairs().items() if k != "d/train.en"}, "d/train.en/a": ""}),
    Case("a named pipe", NMT + "d", "train.en", {**pairs(), "d/train.en": fifo}),
    Case("a named pipe in validation", NMT + "d", "val.en", {**pairs(), "d/val.en": fifo}),
    Case("a path that is a file", NMT + "f", "f", {"f": "x"}),
    Case("only blank lines", NMT + "d", "train", pairs(train_en="\n" * 20, train_de="\n" * 20)),
    Case("no label", OWN, "train.tsv: line 1", labelled(train_tsv="a good one\nb\n")),
    Case("a label that is missing once", OWN, "train.tsv.*21", labelled(train_tsv=TSV + "x\n")),
    Case("one label only", OWN, "one class only", labelled(train_tsv="a\t0\n" * 20)),
    Case("a label of validation that is new", OWN, "dev.tsv.*'2'",
         labelled(dev_tsv=TSV + "x y\t2\n")),
    Case("a label of validation that is missing", OWN, "dev.tsv", labelled(dev_tsv=TSV + "x y\n")),
    Case("no validation file", OWN, "dev.tsv: no such file", labelled(dev_tsv=None)),
    Case("an empty validation file", OWN, "dev.tsv", labelled(dev_tsv="")),
    Case("an empty training file", OWN, "train.tsv", labelled(train_tsv="")),
    Case("numbers that are words", OWN.replace("epochs=1", "epochs=1,names=,scores=pearson"),
         "train.tsv", labelled(train_tsv="a b\tgood\n" * 9)),
    Case("numbers that are nan", OWN.replace("epochs=1", "epochs=1,names=,scores=pearson"),
         "nan", labelled(train_tsv="a b\tnan\n" * 9)),
    Case("names that the data has not", OWN.replace("epochs=1", "epochs=1,names=x+y"),
         "train.tsv", labelled()),
    Case("a column that is not there", OWN.replace("epochs=1", "epochs=1,text=5"), "'5'",
         labelled()),
    Case("a gz that is none", OWN.replace("epochs=1", "epochs=1,train=train.tsv.gz"), "tsv.gz",
         labelled(**{"train.tsv.gz": "no gz"})),
    Case("an ending that says nothing", OWN.replace("epochs=1", "epochs=1,train=train.doc"),
         "train.doc", {**labelled(), "train.doc": "x"}),
    Case("a source that is none", f"{CLASSIFY}tvs:train.tsv,", "tvs", labelled()),
    Case("rows that are not there", f"{CLASSIFY}'tsv:train.tsv:rows[90:99],'", "rows",
         labelled()),
    Case("no tags", TAG, "train", {"d/x": ""}),
    Case("a word without a tag", TAG + " --config.data.path=d", "train.conll.*2|line 2",
         {"d/train.conll": "Ann NAME\nsat\n\n", "d/dev.conll": "Ann NAME\n\n"}),
    Case("a question file that is no JSON", SQUAD, "train.*json",
         {"train-v1.1.json": "{", "dev-v1.1.json": "{"}),
    Case("a nested list of 100,000", "predict --workdir={made}/classes --input=deep.jsonl",
         "deep.jsonl:1: ", {"deep.jsonl": "[" * 100_000 + "]" * 100_000}),
    Case("a lone surrogate", "predict --workdir={made}/classes --input=s.jsonl", "s.jsonl.*1",
         {"s.jsonl": '{"text": "\\ud800"}\n'}),
    Case("no object", "predict --workdir={made}/classes --input=s.jsonl", "s.jsonl.*1",
         {"s.jsonl": "3\n"}),
    Case("no JSON", "predict --workdir={made}/classes --input=s.jsonl", "s.jsonl.*2",
         {"s.jsonl": '{"text": "a"}\n{"text": \n'}),
    Case("another field", "predict --workdir={made}/classes --input=s.jsonl", "text",
         {"s.jsonl": '{"txet": "a"}\n'}),
    Case("a text that is a number", "predict --workdir={made}/classes --input=s.jsonl", "text",
         {"s.jsonl": '{"text": 3}\n'}),
    Case("bytes to predict", "predict --workdir={made}/classes --input=s.txt", "UTF-8",
         {"s.txt": b"\xff\xfe"}),
    Case("bytes to translate", "translate --workdir={made}/translator --input=s.txt", "UTF-8",
         {"s.txt": b"a\n\xff"}),
    Case("a named pipe to translate", "translate --workdir={made}/translator --input=s.txt",
         "s.txt", {"s.txt": fifo}),
    Case("a device to predict", "predict --workdir={made}/classes --input=/dev/zero", "/dev/zero"),
]
