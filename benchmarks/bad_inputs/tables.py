"""CSV, JSON lines, Parquet and Arrow."""

import json

from benchmarks.bad_inputs.case import Case

CSV = "text,label\n" + "a good one,yes\n\"a bad, bad one\",no\n" * 10
LINES = "".join(json.dumps({"text": f"a {i}", "label": "yn"[i % 2]}) + "\n" for i in range(20))


def train(name, file, content, sentence, arguments="", dev=None, **files):
  """Classification of a table."""
  return Case(name, f"train --config=jtx.configs.classify:model=bert_small,epochs=1,train={file},"
              f"dev={dev or file}{arguments} --workdir=w", sentence,
              ({file: content} if content is not None else {}) | files)


def embed(name, sentence, arguments=""):
  """Sentence embeddings of a table of texts and labels."""
  return Case(name, "train --config=jtx.configs.embed:model=bert_small,epochs=1,train=t.csv,"
              f"dev=t.csv{arguments} --workdir=w", sentence, {"t.csv": CSV})


def parquet(columns):
  def write(path, _):
    import pyarrow as pa
    import pyarrow.parquet as pq
    pq.write_table(pa.table(columns), path)
  return write


def arrow(columns):
  def write(path, _):
    import pyarrow as pa
    table = pa.table(columns)
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, table.schema) as writer:
      writer.write_table(table)
  return write


def cut(make):
  """The first half of a file."""
  def write(path, made):
    make(path, made)
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
  return write


FINE = {"text": ["a", "b"] * 8, "label": ["y", "n"] * 8}

CASES = [
    train("no such table", "t.csv", None, "t.csv: no such file"),
    train("an empty table", "t.csv", "", "t.csv"),
    train("a header alone", "t.csv", "text,label\n", "t.csv"),
    train("no column of texts", "t.csv", CSV.replace("text,", "txt,"), "t.csv.*'text'"),
    train("no column of labels", "t.csv", CSV.replace(",label", ",lbl"), "'label'"),
    train("a row with a field more", "t.csv", CSV + "a,b,c\n", "t.csv.*22"),
    train("a row with a field less", "t.csv", CSV + "a\n", "t.csv.*22"),
    train("a quote that does not close", "t.csv", CSV + '"a,b\n', "t.csv"),
    train("two columns of one name", "t.csv", CSV.replace("text,", "label,", 1), "label"),
    train("bytes that are no UTF-8", "t.csv", CSV.encode() + b"\xff,yes\n", "t.csv.*UTF-8"),
    train("another delimiter", "t.csv", CSV.replace(",", ";"), "t.csv"),
    train("a label that is empty", "t.csv", CSV + "a,\n", "t.csv.*22|label"),
    train("a text that is empty everywhere", "t.csv", "text,label\n" + ",yes\n,no\n" * 9, "t.csv"),
    train("validation with another label", "t.csv", CSV, "v.csv: line 2.*maybe", dev="v.csv",
          **{"v.csv": "text,label\na,maybe\n"}),
    train("validation without the column", "t.csv", CSV, "v.csv", dev="v.csv",
          **{"v.csv": "text,other\na,yes\n"}),
    train("weights of another number", "t.csv", CSV, "weights|class_weights",
          ",weights=1+2+3"),
    train("weights that are words", "t.csv", CSV, "weights|float|heavy", ",weights=heavy"),
    train("a score that is none", "t.csv", CSV, "f9", ",scores=f9"),
    train("a score of two classes for three", "t.csv", CSV + "c,perhaps\n" * 5, "f1", ",scores=f1"),
    train("no JSON lines", "t.jsonl", "text,label\n", "t.jsonl.*1"),
    train("a line that is cut", "t.jsonl", LINES + '{"text": "a', "t.jsonl.*21"),
    train("a line that is a list", "t.jsonl", LINES + "[1]\n", "t.jsonl.*21"),
    train("a line without the text", "t.jsonl", LINES + '{"label": "y"}\n', "t.jsonl.*21|text"),
    train("a text that is a list", "t.jsonl", LINES + '{"text": ["a"], "label": "y"}\n', "text"),
    train("a label that is null", "t.jsonl", LINES + '{"text": "a", "label": null}\n', "label"),
    train("deep JSON", "t.jsonl", LINES + "[" * 100_000 + "]" * 100_000 + "\n", "t.jsonl.*21"),
    train("numbers that are too long", "t.jsonl", LINES + '{"text": "a", "label": '
          + "9" * 5000 + "}\n", "t.jsonl.*21"),
    train("a lone surrogate", "t.jsonl", LINES + '{"text": "\\ud800", "label": "y"}\n',
          "t.jsonl.*21"),
    train("several labels without multi", "t.jsonl",
          LINES + '{"text": "a", "label": ["y", "n"]}\n', "label"),
    train("no Parquet", "t.parquet", "no parquet", "t.parquet"),
    train("half a Parquet file", "t.parquet", cut(parquet(FINE)), "t.parquet"),
    train("an empty Parquet file", "t.parquet", b"", "t.parquet"),
    train("Parquet without rows", "t.parquet", parquet({"text": [], "label": []}), "t.parquet"),
    train("Parquet without the column", "t.parquet", parquet({"txt": ["a"], "label": ["y"]}),
          "'text'"),
    train("Parquet with numbers for texts", "t.parquet",
          parquet({"text": [1, 2] * 8, "label": ["y", "n"] * 8}), "text"),
    train("Parquet with an empty cell", "t.parquet",
          parquet({"text": ["a", None] * 8, "label": ["y", "n"] * 8}), "text"),
    train("no Arrow", "t.arrow", "no arrow", "t.arrow"),
    train("half an Arrow file", "t.arrow", cut(arrow(FINE)), "t.arrow"),
    train("Arrow without the column", "t.arrow", arrow({"text": ["a"] * 4}), "label"),
    train("a pattern of nothing", "t-*.parquet", None, "t-"),
    embed("embeddings without the pair's column", "t.csv.*second"),
    embed("embeddings without the column of scores", "no 'gold'", ",second=label,gold=gold"),
    embed("embeddings of texts alone with negatives", "simcse.*negatives",
          ",simcse,negatives=label"),
]
