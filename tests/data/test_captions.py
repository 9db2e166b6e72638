"""Images with texts: tables of captions, scenes of digits, their tokens, and rows of both."""

import io
import json
import pickle

import numpy as np
from PIL import Image
import pytest

from configs import common
from jtx.data.dataset import Dataset
from jtx.data.ops.captions import Caption
from jtx.data.ops.decode import DecodeImage
from jtx.data.sources import captions
from jtx.data.sources.registry import open_source
from jtx.data.tokenizers.kinds import bpe
from jtx.errors import ConfigError, DataError

TEXTS = ("a red square", "a green one", "a blue square and more")


@pytest.fixture
def folder(tmp_path):
  """Three images of one colour each, and tables of them."""
  (tmp_path / "pictures").mkdir()
  for name, colour in (("r", (255, 0, 0)), ("g", (0, 255, 0)), ("b", (0, 0, 255))):
    Image.new("RGB", (6, 5), colour).save(tmp_path / "pictures" / f"{name}.png")
  rows = list(zip((f"pictures/{name}.png" for name in "rgb"), TEXTS))
  (tmp_path / "c.tsv").write_text("image\ttext\n" + "".join(f"{a}\t{b}\n" for a, b in rows))
  (tmp_path / "l.csv").write_text("file;kind\n" + "".join(
      f"{a};{kind}\n" for (a, _), kind in zip(rows, ("warm", "cold", "cold"))))
  (tmp_path / "c.jsonl").write_text("".join(
      json.dumps({"file_name": a, "told": b}) + "\n" for a, b in rows))
  return tmp_path


def config(train, folder, **caption):
  c = common.get_config()
  c.data.train, c.data.path = (train,), str(folder)
  c.tokenizer.kind = common.tokenizer("bpe", vocab_size=60)
  c.data.ops = (common.op("decode_image", labelled=False), common.op("resize", size=4),
                common.op("caption", **{"length": 6, **caption}), common.op("images", size=4))
  return c


def opened(*args, **caption):
  c = config(*args, **caption)
  return Dataset(c.data, c.tokenizer)


@pytest.mark.parametrize("spec", [
    "captions:c.tsv", "captions:c.jsonl:columns[image=file_name+text=told]"])
def test_tables_name_images_and_their_texts(spec, folder):
  source = open_source(spec, str(folder))
  assert [source[i]["text"] for i in range(len(source))] == list(TEXTS)
  assert Image.open(io.BytesIO(source[1]["image"])).getpixel((0, 0)) == (0, 255, 0)
  assert source[2]["path"] == str(folder / "pictures/b.png")
  assert pickle.loads(pickle.dumps(source))[0] == source[0]


@pytest.mark.parametrize("spec, message", [
    ("captions:c.jsonl", "example 0 has no text 'image' but file_name, told; image is the file"),
    ("captions:c.txt", "it is a table in a file that ends in .tsv, .csv, .jsonl, beside the"),
    ("captions:c.tsv:columns[image]", "example 0 has no text 'text' and no 'label' but image;"),
    ("captions:c.tsv:delimiter[;]", "has the option delimiter[;]; valid are rows[:90%], columns["),
    ("captions:l.csv", "is one column by commas, 'file;kind'; where another character parts the"
     " columns, write captions:FILE:delimiter[;]"),
])
def test_tables_that_lack_a_column_or_are_none(spec, message, folder):
  with pytest.raises((ConfigError, DataError)) as e:
    open_source(spec, str(folder))
  assert message in str(e.value)


def test_a_table_of_labels_is_of_classes(folder):
  spec = "captions:l.csv:delimiter[;]:columns[image=file+label=kind]"
  c = config(spec, folder)
  c.data.ops = (common.op("decode_image"), common.op("resize", size=4), common.op("images", size=4))
  data = Dataset(c.data, c.tokenizer)
  assert data.labels == ("cold", "warm") and data.label_shares() == pytest.approx((2 / 3, 1 / 3))
  batch, = data.eval_batches((spec,), 3, range(3))
  assert batch["label"].tolist() == [[1], [0], [0]] and batch["image"][1, 0, 0, 1] == 255
  source = open_source(spec, str(folder))
  assert "text" not in source[0] and source.labels == ["warm", "cold", "cold"]
  assert source.path(2) == str(folder / "pictures/b.png")
  (folder / "l.csv").write_text("file;kind\npictures/r.png;warm\npictures/g.png;\n")
  with pytest.raises(DataError, match=r"l.csv.*: line 3: .* has label='', which is no class, but"):
    Dataset(c.data, c.tokenizer)


def test_of_many_labels_and_beside_texts(folder):
  (folder / "m.jsonl").write_text("".join(
      json.dumps({"image": f"pictures/{name}.png", "text": "x", "label": label}) + "\n"
      for name, label in (("r", ["a", "b"]), ("g", []), ("b", ["b"]))))
  c = config("captions:m.jsonl", folder)
  c.data.ops = (common.op("decode_image", multi_label=True), common.op("resize", size=4),
                common.op("images", size=4))
  data = Dataset(c.data, c.tokenizer)
  batch, = data.eval_batches(("captions:m.jsonl",), 3, range(3))
  assert data.labels == ("a", "b") and batch["label"][:, 0].tolist() == [[1, 1], [0, 0], [0, 1]]
  assert open_source("captions:m.jsonl", str(folder))[0]["text"] == "x"


def test_tables_that_other_sources_read_name_this_one(folder):
  (folder / "k.csv").write_text("file,label\npictures/r.png,a\npictures/g.png,b\n")
  for spec, told in (("csv:k.csv", "csv:k.csv: is no source of images; a table that"),
                     ("csv:k.csv:columns[image=file+label]", "example 0 is neither bytes nor a"
                      " uint8 array, but a text; a table that")):
    c = config(spec, folder)
    c.data.ops = (common.op("decode_image"), common.op("images", size=4))
    with pytest.raises(DataError) as e:
      Dataset(c.data, c.tokenizer).check((spec,))
    assert f"{told} names files of images and their labels is read by captions:" in str(e.value)


def test_rows_have_pixels_and_tokens(folder):
  data = opened("captions:c.tsv", folder)
  tokenizer = data.tokenizers["text"]
  assert data.info["vocab_size"] == tokenizer.vocab_size and not data.labels
  batch, = data.eval_batches(("captions:c.tsv",), 4, range(4))
  assert set(batch) == {"image", "real", "ids", "text", "text_segment_ids", "text_positions"}
  assert batch["image"].shape == (4, 4, 4, 3) and batch["text"].shape == (4, 6)
  assert batch["real"][:, 0].tolist() == [1, 1, 1, 0] and batch["image"][0, 0, 0, 0] == 255
  for row, text in enumerate(TEXTS):
    ids = [tokenizer.bos_id, *tokenizer.encode(text)[:4], tokenizer.eos_id]
    segments = batch["text_segment_ids"][row]
    assert batch["text"][row, segments > 0].tolist() == ids
    assert batch["text_positions"][row, :len(ids)].tolist() == list(range(len(ids)))
  assert not batch["text_segment_ids"][3].any()
  again = Dataset(*(config("captions:c.tsv", folder)[key] for key in ("data", "tokenizer")),
                  data.tokenizer_texts())
  np.testing.assert_array_equal(
      next(again.eval_batches(("captions:c.tsv",), 4, range(4)))["text"], batch["text"])


def several(folder, number=3, length=12):
  """Data whose rows have several images and texts."""
  c = config("captions:c.tsv", folder, length=length)
  c.data.ops[-1].max_segments = number
  return c, Dataset(c.data, c.tokenizer)


def test_texts_share_rows_with_their_images(folder):
  alone, = opened("captions:c.tsv", folder, length=12).eval_batches(
      ("captions:c.tsv",), 4, range(4))
  lengths = (alone["text_segment_ids"][:3] > 0).sum(1)
  assert lengths[0] + lengths[1] <= 24 < lengths.sum()
  c, data = several(folder, length=24)
  batch, = data.eval_batches(("captions:c.tsv",), 2, range(2))
  assert batch["image"].shape == (2, 3, 4, 4, 3) and batch["text"].shape == (2, 24)
  assert batch["real"].tolist() == [[1, 1, 0], [1, 0, 0]]
  assert batch["ids"].tolist() == [[0, 1, -1], [2, -1, -1]]
  of_one, = opened("captions:c.tsv", folder, length=24).eval_batches(
      ("captions:c.tsv",), 4, range(4))
  for i, (row, place) in enumerate(((0, 0), (0, 1), (1, 0))):
    np.testing.assert_array_equal(batch["image"][row, place], of_one["image"][i])
    own, there = batch["text_segment_ids"][row] == place + 1, of_one["text_segment_ids"][i] > 0
    for key in ("text", "text_positions"):
      assert batch[key][row, own].tolist() == of_one[key][i, there].tolist()
  assert not batch["image"][0, 2].any() and data.num_train_rows() == 2
  stream = data.train_stream(0, 2, range(2))
  seen = [i for step in range(3) for i in stream.batch(step)["ids"].reshape(-1) if i >= 0]
  assert sorted(seen) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
  again = data.train_stream(0, 2, range(2), cursor=stream.cursor(2)).batch(2)
  np.testing.assert_array_equal(again["text"], stream.batch(2)["text"])


def test_rows_of_texts_are_planned_without_their_images(folder, monkeypatch):
  _, data = several(folder, length=24)
  examples = data.prepare(("captions:c.tsv",))
  monkeypatch.setattr(captions.files, "read", None)
  found = examples.lengths(np.array([2, 0]), ("text",))[:, 0]
  tokens = [data.recipe.maker.encode(TEXTS[i]) for i in (2, 0)]
  assert found.tolist() == [len(x) for x in tokens]


def test_a_text_that_is_none_is_named_before_training(folder):
  (folder / "d.jsonl").write_text('{"image": "pictures/r.png", "text": "x"}\n'
                                  '{"image": "pictures/g.png", "text": 3}\n')
  c, data = several(folder)
  with pytest.raises(DataError, match="jsonl:d.jsonl, example 1 has no text 'text'"):
    data.prepare(("jsonl:d.jsonl",)).lengths(np.array([0]), ("text",))


def test_a_text_goes_with_an_image_that_is_broken(folder):
  (folder / "pictures/r.png").write_bytes(b"none")
  c, _ = several(folder, length=24)
  c.data.ops[0].max_bad = 0.5
  batch, = Dataset(c.data, c.tokenizer).eval_batches(("captions:c.tsv",), 2, range(2))
  assert batch["real"].tolist() == [[1, 0, 0], [1, 0, 0]]
  assert batch["ids"].tolist() == [[1, -1, -1], [2, -1, -1]]
  assert batch["image"][0, 0, 0, 0].tolist() == [0, 255, 0] and batch["text_segment_ids"].max() == 1


def test_several_images_a_row_have_texts(folder):
  c, _ = several(folder)
  c.data.ops = (*c.data.ops[:2], c.data.ops[3])
  with pytest.raises(ConfigError, match="max_segments=3 of 'images' is for images with texts, which"
                     " 'caption' makes tokens of"):
    Dataset(c.data, c.tokenizer)


def test_the_end_of_a_long_text_stays():
  tokenizer = bpe(iter(TEXTS), vocab_size=60)
  ids = tokenizer.encode(TEXTS[2]).tolist()
  op = Caption(length=5).bind({"text": tokenizer})
  assert op.encode(TEXTS[2]).tolist() == [tokenizer.bos_id, *ids[:3], tokenizer.eos_id]
  assert pickle.loads(pickle.dumps(op)).encode(TEXTS[2]).tolist() == op.encode(TEXTS[2]).tolist()


def test_what_does_not_fit_is_told(folder):
  (folder / "c.tsv").write_text("image\ttext\npictures/none.png\tx\n")
  c = config("captions:c.tsv", folder)
  data = Dataset(c.data, c.tokenizer)
  with pytest.raises(DataError, match="c.tsv: the image of example 0: .*pictures/none.png"):
    data.check(c.data.train)
  c.data.ops = (*c.data.ops[:3], c.data.ops[2], c.data.ops[3])
  with pytest.raises(ConfigError, match="there is one 'caption' at most"):
    Dataset(c.data, c.tokenizer)
  with pytest.raises(DataError, match="op caption: p has no text 'text'; it has image"):
    Caption().bind({"text": None}).augment({"path": "p", "image": 1}, None)
  with pytest.raises(ConfigError, match="names and multi_label are of labels"):
    DecodeImage(labelled=False, multi_label=True)


# ------------------------------------------------------------------------------ scenes


def test_scenes_are_as_they_are_told():
  """A pair's second digit is on the other half, to the side that its text says."""
  source = captions.scenes("pairs", "train")
  for i in range(40):
    scene, text = source[i]["image"], source[i]["text"]
    rows, columns = (np.flatnonzero(scene.any(axis)) for axis in (1, 0))
    upright = "above" in text or "below" in text
    extent, other = (rows, columns) if upright else (columns, rows)
    assert extent.max() >= 12 and extent.min() < 12 and other.max() - other.min() < 11
    assert text.split()[0] in ("a", "an")
  assert captions.told(captions.Pair(0, (7, 2), False)) == "a seven above a two"
  assert captions.told(captions.Pair(1, (7, 8), True)) == "an eight right of a seven"


@pytest.mark.slow
def test_evaluation_has_pairs_that_training_does_not():
  held, known = (set(captions.pairs(held_out)) for held_out in (True, False))
  assert len(held) == 40 and len(known) == 160 and not held & known
  both = lambda r, *digits: {captions.told(captions.Pair(r, digits, swapped))
                             for swapped in (False, True)}
  of_training = set().union(*(both(*pair) for pair in known))
  texts = {text for text in captions.scenes("pairs", "test").column("text")}
  assert len(texts) == 40 and not texts & of_training
  assert {x for x in captions.scenes("", "train").column("text")} - of_training == {
      captions.named(digit) for digit in range(10)}


@pytest.mark.parametrize("subset, split", [("", "train"), ("singles", "test"), ("pairs", "test")])
def test_texts_without_scenes_are_theirs(subset, split):
  source = captions.scenes(subset, split)
  texts = [text for text, _ in zip(source.column("text"), range(40))]
  assert texts == [source[i]["text"] for i in range(40)]
  labels = [label for label, _ in zip(source.column("label"), range(4))]
  assert labels == [source[i]["label"] for i in range(4)]


def test_scenes_are_the_same_every_time_and_singles_have_all_classes():
  source = captions.scenes("singles", "test")
  again = pickle.loads(pickle.dumps(source))
  assert all((source[i]["image"] == again[i]["image"]).all() for i in range(12))
  assert {source[i]["label"] for i in range(10)} == set(source.classes)
  for subset, split in (("triples", "train"), ("", "val")):
    with pytest.raises(ConfigError, match="valid"):
      captions.scenes(subset, split)
