"""A new user's first hour: own files, the command jtx from a wheel, a pipeline of transformers.

Texts in a CSV, pairs in Parquet, a folder of photos and texts with several labels in JSON lines are
trained on, evaluated on another file, predicted with gold, exported and opened elsewhere.
"""

import csv
import json

import numpy as np
from PIL import Image
import pyarrow
import pyarrow.parquet
import pytest

from tests.parity.wheel import run

transformers = pytest.importorskip("transformers", reason="make test-parity installs it")

STACK = "--config.model.stack"
SMALL = [f"{STACK}.num_layers=1", f"{STACK}.width=32", f"{STACK}.block.attention.num_heads=2",
         f"{STACK}.block.ffn.dim=64", f"{STACK}.block.dropout=0.0",
         f"{STACK}.block.init_std=0.2"]
WORDS = {"bad": "awful", "good": "lovely", "so-so": "middling"}
TOPICS = {"art": "painting", "law": "court", "war": "army"}
COLOURS = {"blue": (40, 40, 200), "green": (40, 200, 40), "red": (200, 40, 40)}


class User:
  """Types commands in a folder."""

  def __init__(self, jtx, folder):
    self.jtx, self.folder = jtx, folder

  def __call__(self, command, *args, status=0, **kwargs):
    return run(self.jtx, command, *args, cwd=self.folder, status=status, **kwargs)

  def jsonl(self, name):
    return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]


@pytest.fixture
def user(installed, tmp_path):
  return User(installed / "jtx", tmp_path)


def review(rng, word):
  """A text with a comma and a quote, of which one word says the class."""
  what, when = rng.choice(["the film", "a play", "this book"]), rng.choice(["of 1999", "again"])
  return f'{what}, "{when}", was {word}'


def test_a_csv_of_three_classes(user):
  rng = np.random.default_rng(0)
  for name, count in (("train", 240), ("dev", 60), ("test", 60)):
    with open(user.folder / f"{name}.csv", "w", newline="") as f:
      write = csv.writer(f)
      write.writerow(["review", "stars"])
      for label in rng.choice(list(WORDS), count):
        write.writerow([review(rng, WORDS[label]), label])
  user("train", "--config=jtx.configs.classify:text=review,label=stars,train=train.csv,dev=dev.csv,"
       "max_length=24,lr=3e-3,batch=16,epochs=10,scores=accuracy+macro_f1", "--workdir=w", *SMALL)
  check_evaluation(user, "test.csv", WORDS, 60)

  with open(user.folder / "new.csv", "w", newline="") as f:  # without labels
    csv.writer(f).writerows([["review"], ['a play, "again", was lovely'], ["it was awful"]])
  user("predict", "--workdir=w", "--input=new.csv", "--output=out.jsonl")
  found = user.jsonl("out.jsonl")
  assert [x["label"] for x in found] == ["good", "bad"]
  user("convert", "--workdir=w", "--to_hf=hf")
  pipeline = transformers.pipeline("text-classification", str(user.folder / "hf"), top_k=None)
  assert_equal(pipeline(['a play, "again", was lovely', "it was awful"]), found)


def test_parquet_of_pairs(user):
  rng = np.random.default_rng(1)
  questions, answers = ("is it good?", "was it?"), {"no": "never", "yes": "it is, of course"}
  def rows(count):
    for label in rng.choice(["no", "yes"], count):
      yield {"question": rng.choice(questions), "answer": answers[label], "agreed": label}
  for name, count in (("train", 400), ("dev", 40), ("test", 80)):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows(count))),
                                user.folder / f"{name}.parquet", row_group_size=100)
  user("train", "--config=jtx.configs.classify:text=question,second=answer,label=agreed,"
       "train=train.parquet,dev=dev.parquet,max_length=24,lr=3e-3,batch=16,epochs=5,scores=f1",
       "--workdir=w", *SMALL)
  check_evaluation(user, "test.parquet", ("no", "yes"), 80)

  pairs = [("was it?", "it is, of course"), ("was it?", "never")]
  lines = "".join("\t".join(pair) + "\n" for pair in pairs)
  user("predict", "--workdir=w", "--output=out.jsonl", text=lines)
  found = user.jsonl("out.jsonl")
  assert [x["label"] for x in found] == ["yes", "no"]
  user("convert", "--workdir=w", "--to_hf=hf")
  pipeline = transformers.pipeline("text-classification", str(user.folder / "hf"), top_k=None)
  assert_equal(pipeline([{"text": a, "text_pair": b} for a, b in pairs]), found)


def test_a_folder_of_photos(user):
  rng = np.random.default_rng(2)
  def photo(colour, size):
    noise = rng.integers(-30, 30, (*size, 3))
    return Image.fromarray((np.array(COLOURS[colour]) + noise).astype(np.uint8))
  for split, count in (("train", 30), ("val", 8), ("test", 8)):
    for colour in COLOURS:
      folder = user.folder / "photos" / split / colour
      folder.mkdir(parents=True)
      for i in range(count):
        photo(colour, rng.integers(20, 40, 2)).save(folder / f"{i}.jpg")
  user("train", "--config=jtx.configs.vit:patch=8,res=16,crop=none,train=images:photos/train,"
       "val=images:photos/val,batch=16,epochs=20,lr=3e-3", "--workdir=w", *SMALL)
  check_evaluation(user, "images:photos/test", COLOURS, 24)

  (user.folder / "new").mkdir()
  pictures = [photo(colour, (16, 16)) for colour in ("red", "green")]
  for i, picture in enumerate(pictures):
    picture.save(user.folder / "new" / f"{i}.png")
  user("predict", "--workdir=w", "--input=new", "--output=out.jsonl")
  found = user.jsonl("out.jsonl")
  assert [x["label"] for x in found] == ["red", "green"]
  user("convert", "--workdir=w", "--to_hf=hf")
  pipeline = transformers.pipeline("image-classification", str(user.folder / "hf"))
  assert_equal(pipeline(pictures, top_k=3), found)


def test_json_lines_with_several_labels(user):
  rng = np.random.default_rng(3)
  for name, count in (("train", 300), ("dev", 40), ("test", 60)):
    lines = []
    for present in rng.random((count, 3)) < 0.4:
      topics = [t for t, p in zip(TOPICS, present) if p]
      lines.append({"text": " ".join(["news of", *(TOPICS[t] for t in topics)]), "topics": topics})
    (user.folder / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
  user("train", "--config=jtx.configs.classify:multi,text=text,label=topics,train=train.jsonl,"
       "dev=dev.jsonl,max_length=16,lr=3e-3,batch=16,epochs=20,scores=micro_f1",
       "--workdir=w", *SMALL)
  check_evaluation(user, "test.jsonl", TOPICS, 60)

  texts = ["news of painting army", "news of"]
  user("predict", "--workdir=w", "--output=out.jsonl", text="\n".join(texts) + "\n")
  found = user.jsonl("out.jsonl")
  assert [x["labels"] for x in found] == [["art", "war"], []]
  user("convert", "--workdir=w", "--to_hf=hf")
  pipeline = transformers.pipeline("text-classification", str(user.folder / "hf"), top_k=None)
  assert_equal(pipeline(texts), found)


def check_evaluation(user, source, classes, count):
  """Macro F1 of another file, each prediction with gold, and the confusion of classes."""
  results = json.loads((user.folder / "w" / "results.json").read_text())
  told = json.loads(user("evaluate", "--workdir=w", f"--source={source}", "--scores=macro_f1",
                         "--output=predictions.jsonl").splitlines()[-1])
  score, = (value for key, value in told.items() if key.endswith("/macro_f1"))
  assert score > 0.9
  rows = user.jsonl("predictions.jsonl")
  assert len(rows) == count and all(set(x["scores"]) == set(classes) for x in rows)
  assert all(x["correct"] == (x["gold"] == x["prediction"]) for x in rows)
  assert sum(x["correct"] for x in rows) > 0.9 * count
  assert "dev/confusion" in results or "images" in source


def assert_equal(theirs, found):
  """The pipeline's scores are those of `predict`."""
  for scores, ours in zip(theirs, found, strict=True):
    assert {x["label"]: x["score"] for x in scores} == pytest.approx(ours["scores"], abs=1e-6)
