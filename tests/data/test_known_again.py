"""A run knows its training data again wherever it lies, and not when it has changed."""

import json
import shutil
import types
import zipfile

from absl import logging
import jax
import numpy as np
import pytest

from configs import common
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.train import loop, states
from tests.data.image_files import SMALL, configs, png, write_tree
from tests.data.sources.test_webdataset import samples, write_tar
from tests.helpers import logged, losses, tiny_config


def known_by(path, train, *ops):
  c = common.get_config()
  c.data.path, c.data.train = str(path), (train,)
  c.data.ops = ops or tuple(configs("decode_image", "pad_crop", "images", **SMALL))
  c.tokenizer.kind = common.tokenizer("bytes")
  return Dataset(c.data, c.tokenizer).known_by


def pictures(count, first=0):
  return {f"{i:02}.png": png(i, (8, 8)) for i in range(first, first + count)}


def folder(path, count=20, first=0):
  write_tree(path / "photos", ant=pictures(30), bird=pictures(count, first))


def zipped(path, count=20, first=0):
  with zipfile.ZipFile(path / "photos.zip", "w") as archive:
    for name, files in {"ant": pictures(30), "bird": pictures(count)}.items():
      for file, data in files.items():
        archive.writestr(f"{name}/{file}", png(99) if file == f"{first - 1:02}.png" else data)


def arrays(path, count=20, first=0):
  images = np.arange(count + 30, dtype=np.uint8)[:, None, None] + np.zeros((8, 8), np.uint8)
  images[20] += first
  np.savez(path / "a.npz", images=images, labels=np.arange(count + 30) % 3)


def listed(path, count=20, first=0):
  write_tree(path, photos=pictures(60))
  names = [f"photos/{i:02}.png" for i in range(count + 30)]
  names[20] = f"photos/{20 + 37 * bool(first)}.png"
  (path / "t.tsv").write_text("image\tlabel\n" + "".join(
      f"{name}\t{'ab'[i % 2] + 'c' * (first and i == 20)}\n" for i, name in enumerate(names)))


def tars(path, count=20, first=0):
  images = samples(0, count + 30)
  if first:
    images[41] = images[41][0], b"0" if images[41][1] != b"0" else b"1"
  write_tar(path / "a.tar", images)


# How the data is written, the spec, and whether a change of one example in the midst is noticed.
IMAGES = {"images:photos": folder, "images:photos.zip": zipped, "npz:a.npz": arrays,
          "captions:t.tsv": listed, "wds:a.tar": tars}


@pytest.mark.parametrize("spec", IMAGES)
def test_images_are_known_by_what_their_source_lists(tmp_path, spec):
  def known(name, **change):
    path = tmp_path / name
    path.mkdir()
    IMAGES[spec](path, **change)
    return known_by(path, spec)

  here, = known("here")
  assert [here] == known("moved") and here["examples"] == 50
  more, = known("more", count=21)
  other, = known("other", first=1)
  assert more["examples"] == 51 and other["examples"] == 50
  assert len({here["digest"], more["digest"], other["digest"]}) == 3


def test_images_of_another_size_under_their_old_names(tmp_path):
  folder(tmp_path)
  before = known_by(tmp_path, "images:photos")
  for file in (tmp_path / "photos").rglob("*.png"):
    file.write_bytes(png(5, (9, 9)))
  assert known_by(tmp_path, "images:photos") != before


def test_rows_behind_those_that_are_taken_change_nothing(tmp_path):
  listed(tmp_path)
  some, all_of = (known_by(tmp_path, f"captions:t.tsv{part}") for part in (":rows[:10]", ""))
  with open(tmp_path / "t.tsv", "a", encoding="utf-8") as f:
    f.write("photos/07.png\ta\n")
  assert known_by(tmp_path, "captions:t.tsv:rows[:10]") == some
  assert known_by(tmp_path, "captions:t.tsv") != all_of


def test_texts_are_known_by_all_that_training_reads(tmp_path):
  ops = common.op("tokenize"), common.op("pack", lengths=(20, 20))
  lines = [json.dumps({"src": f"word {i}", "tgt": "a", "note": i}) for i in range(300)]

  def known(name, lines):
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.jsonl").write_text("\n".join(lines))
    return known_by(tmp_path / name, "jsonl:a.jsonl", *ops)

  before = known("here", lines)
  assert before == known("moved", lines) and before[0]["examples"] == 300
  assert before == known("notes", [line.replace('"note": 1', '"note": 2') for line in lines])
  edited = [line.replace("word 77", "wort 77") for line in lines]
  shifted = [line.replace("word 8", "wor d8") for line in lines]
  assert len({json.dumps(k) for k in (before, known("edited", edited), known("shifted", shifted),
                                      known("turned", lines[::-1]))}) == 4


@pytest.mark.parametrize("spec, written, ops", [
    ("text:v.txt", lambda texts: "\n".join(texts), (
        common.op("tokenize", fields=("text",)),
        common.op("pack", fields=("text",), lengths=(20,)))),
    ("tsv:v.tsv", lambda texts: "\n".join(f"{text}\tb" for text in texts), (
        common.op("fields", keep=("src=0", "tgt=1")), common.op("tokenize"),
        common.op("pack", lengths=(20, 20))))])
def test_texts_to_evaluate_on_are_known_by_where_they_end(spec, written, ops, tmp_path):
  def known(name, texts):
    (tmp_path / name).mkdir()
    (tmp_path / name / spec.partition(":")[2]).write_text(written(texts) + "\n")
    c = common.get_config()
    c.data.path, c.data.train, c.data.ops = str(tmp_path / name), (spec,), ops
    c.tokenizer.kind = common.tokenizer("bytes")
    found = Dataset(c.data, c.tokenizer).known_splits(((spec,), (spec, f"{spec}:rows[:9]")))
    assert found.keys() == {spec, f"{spec}:rows[:9]"}
    return found[spec]

  texts = [f"word {i}" for i in range(300)]
  before = known("here", texts)
  assert before["examples"] == 300 and known("moved", texts) == before
  # No one of 64 samples; and one, as long as before.
  assert known("longer", [*texts[:78], "words 78", *texts[79:]]) != before
  assert known("first", ["wort 0", *texts[1:]]) != before


def test_images_to_evaluate_on_are_known_by_their_names(tmp_path):
  def known(name, **change):
    (tmp_path / name).mkdir()
    folder(tmp_path / name, **change)
    c = common.get_config()
    c.data.path, c.data.train = str(tmp_path / name), ("images:photos",)
    c.data.ops = tuple(configs("decode_image", "pad_crop", "images", **SMALL))
    data = Dataset(c.data, c.tokenizer)
    assert [data.known_splits((("images:photos",),))["images:photos"]] == data.known_by
    return data.known_by

  assert known("here") == known("moved") != known("other", first=1)


def test_a_change_of_data_to_evaluate_on_is_told(monkeypatch):
  told = []
  monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text % args))
  config = tiny_config()
  config.evals = {"a": common.evaluator("loss", source=("text:a", "text:b")),
                  "c": common.evaluator("loss", source=("text:c",))}
  found = {"text:a": {"examples": 3, "digest": "x"}, "text:b": {"examples": 4, "digest": "y"},
           "text:c": {"examples": 5, "digest": "z"}}
  data = types.SimpleNamespace(
      known_splits=lambda splits: {spec: found[spec] for specs in splits for spec in specs})
  for known in ({}, found, {"text:gone": found["text:a"]}):
    states.check_splits(config, data, known, "the checkpoint")
  assert not told
  states.check_splits(config, data, found | {
      "text:a": {"examples": 2, "digest": "w"}, "text:c": {"examples": 5, "digest": "v"}}, "it")
  assert told == ["the data to evaluate on has changed since it was written: text:a had 2 examples"
                  " and has 3, text:c has other examples; scores from here on do not compare with"
                  " those before"]


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_data_only(tmp_path, monkeypatch):
  texts = {name: [f"{name} {i}" for i in range(60)] for name in ("one", "two")}

  def write(path, count=60):
    path.mkdir(exist_ok=True)
    for name, lines in texts.items():
      (path / f"{name}.txt").write_text("\n".join(lines[:count]))

  def run(workdir, path, steps=None, **edits):
    with monkeypatch.context() as m:
      if steps:
        m.setattr(loop.workdirs, "ended", lambda config, checkpoints, step: step == steps)
      return loop.run(tiny_config(**{
          "data.train": ("text:one.txt,two.txt",), "data.path": str(path), "checkpoint.every": 2,
          "steps": 4, **edits}), str(workdir), jax.devices()[:1])

  write(tmp_path / "data")
  run(tmp_path / "straight", tmp_path / "data")
  run(tmp_path / "run", tmp_path / "data", steps=2)
  (tmp_path / "run" / "results.json").unlink()
  shutil.copytree(tmp_path / "run", tmp_path / "forced")
  write(tmp_path / "data", 15)
  before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
  with pytest.raises(ConfigError, match=r"the checkpoint of step 2 was written: text:one.txt,two"
                     r".txt had 60 examples and has 15; .* by --config.checkpoint.same_data=False"):
    run(tmp_path / "run", tmp_path / "data")
  assert before == {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
  told = []
  monkeypatch.setattr(logging, "warning", lambda text, *args: told.append(text % args))
  run(tmp_path / "forced", tmp_path / "data", **{"checkpoint.same_data": False})
  assert len([line for line in told if "had 60 examples and has 15; the run goes on" in line]) == 1
  run(tmp_path / "forced", tmp_path / "data")  # it has ended
  epochs = [line["seen/epochs"] for line in logged(tmp_path / "forced")]
  assert epochs == pytest.approx([8 / 3, 16 / 3, 16 / 3 + 8, 16 / 3 + 16])  # of 3 rows, then of 1

  write(tmp_path / "moved")
  run(tmp_path / "run", tmp_path / "moved")
  assert losses(tmp_path / "run") == losses(tmp_path / "straight")
