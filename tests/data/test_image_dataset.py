"""The dataset of a config of images."""

import numpy as np
import pytest

from configs import common
from jtx import config_files
from jtx.data import make_corpus, pipeline
from jtx.data.dataset import Dataset
from jtx.data.recipes import build_ops
from jtx.data.tokenizers.files import save_tokenizers
from jtx.errors import ConfigError, DataError
from jtx.saved import workdir as workdirs
from tests.data.image_files import REASON, SMALL, assert_same, configs, error_of, png, write_tree


@pytest.fixture
def tree(tmp_path):
  """Training and validation folders of two classes; a value is a picture's number."""
  for split, count in (("train", 12), ("val", 5)):
    write_tree(tmp_path / split, bird={f"{i:02}.png": png(i, (8, 8)) for i in range(count)},
               ant={f"{i:02}.png": png(100 + i, (8, 8)) for i in range(count)})
  return tmp_path


def data_config(path, **edits):
  c = common.get_config()
  c.data.path, c.data.train = str(path), ("images:train",)
  c.data.ops = tuple(configs("decode_image", "pad_crop", "flip", "images", **SMALL))
  common.apply(c, edits)
  return c


def dataset(path, saved=None, labels=None, **edits):
  c = data_config(path, **edits)
  return Dataset(c.data, c.tokenizer, saved, labels)


def test_a_dataset_of_images(tree):
  data = dataset(tree)
  assert data.labels == ("ant", "bird") and data.info == {"head.outputs": 2}
  assert (data.tokenizers, data.tokenizer_texts(), data.fields) == ({}, {}, ())
  assert data.num_train_rows() == 24
  stream = data.train_stream(0, 6, range(6))
  batch = stream.batch(0)
  assert batch["image"].shape == (6, 8, 8, 3)
  np.testing.assert_array_equal(batch["label"], batch["ids"] >= 12)  # ants come first
  assert {k: (v.shape, v.dtype) for k, v in data.example_batch(6).items()} == {
      k: (v.shape, v.dtype) for k, v in batch.items() if k != "ids"}
  batches = list(data.eval_batches(("images:val",), 4, range(4)))
  assert np.concatenate([b["ids"] for b in batches]).ravel().tolist() == [*range(10), -1, -1]
  values = np.concatenate([b["image"] for b in batches])[:10]
  np.testing.assert_array_equal(values[:, 0, 0, 0], [*range(100, 105), *range(5)])


def test_encoded_images_are_those_of_evaluation(tree):
  examples = dataset(tree).encoded(("images:val",))
  assert [e["id"] for e in examples] == list(range(10))
  assert [e["label"] for e in examples] == [0] * 5 + [1] * 5
  assert {e["image"].shape for e in examples} == {(8, 8, 3)}
  assert [e["image"][0, 0, 0] for e in examples] == [*range(100, 105), *range(5)]
  assert examples[7]["path"] == f"{tree}/val/bird/02.png"
  (tree / "val" / "ant" / "03.png").write_bytes(b"")
  with pytest.raises(DataError, match="1 of the 10 images read so far can't be used"):
    dataset(tree).encoded(("images:val",))
  kept = dataset(tree, **{"data.ops[0].max_bad": 0.1}).encoded(("images:val",))
  assert [e["id"] for e in kept] == [0, 1, 2, *range(4, 10)]


def test_evaluation_draws_nothing(tree, monkeypatch):
  def drawn(seed, *path):
    assert path[0] != "row", "evaluation draws for a row"
    return np.random.default_rng(len(path))
  data = dataset(tree)
  first = list(data.eval_batches(("images:val",), 3, range(3)))
  data.train_stream(3, 6, range(6)).batch(2)
  monkeypatch.setattr(pipeline, "rng", drawn)
  for a, b in zip(data.eval_batches(("images:val",), 3, range(3)), first, strict=True):
    assert_same(a, b)


def test_a_broken_image_is_warned_of_once_in_all_evaluations(tree, warnings):
  (tree / "val" / "ant" / "03.png").write_bytes(b"x")
  data = dataset(tree, **{"data.ops[0].max_bad": 0.2})
  for _ in range(2):
    list(data.eval_batches(("images:val",), 3, range(3)))
    data.encoded(("images:val",))
  assert warnings == [f"{tree}/val/ant/03.png: {REASON}; it is left out"]


class Checkpoints:
  """What `open_data` reads of the checkpoints of a run."""

  def __init__(self, meta):
    self.meta = meta

  def latest_step(self):
    return 7

  def read_meta(self, step):
    return self.meta


def test_a_run_on_images_is_opened_from_its_workdir(tree):
  c = data_config(tree)
  data = Dataset(c.data, c.tokenizer)
  save_tokenizers(data.tokenizer_texts(), str(tree))
  meta = {"tokenizers": data.tokenizer_texts(), "labels": list(data.labels)}
  c.data.train = ("images:gone",)
  again = workdirs.open_data(c, str(tree), Checkpoints(meta))
  assert (again.labels, again.info, again.tokenizers) == (("ant", "bird"), {"head.outputs": 2}, {})


def test_a_restored_dataset_has_the_labels_of_its_checkpoint(tree):
  trained = dataset(tree)
  meta = {"tokenizers": trained.tokenizer_texts(), "labels": list(trained.labels)}
  # The training images are not opened for it, and need not be there.
  restored = dataset(tree, meta["tokenizers"], meta["labels"], **{"data.train": ("images:gone",)})
  assert restored.labels == trained.labels and restored.info == trained.info
  for a, b in zip(restored.eval_batches(("images:val",), 4, range(4)),
                  trained.eval_batches(("images:val",), 4, range(4))):
    assert_same(a, b)


def test_evaluation_of_other_classes_is_refused(tree):
  data = dataset(tree)
  write_tree(tree / "more", ant={"1.png": png(1)}, bird={"1.png": png(1)}, cow={"1.png": png(1)})
  write_tree(tree / "less", ant={"1.png": png(1)})
  assert error_of(DataError, lambda: list(data.eval_batches(("images:more",), 4, range(4)))) == (
      "images:more: does not have the classes of the run: it also has cow")
  assert error_of(DataError, data.encoded, ("images:less",)) == (
      "images:less: does not have the classes of the run: it lacks bird")
  mixed = dataset(tree, **{"data.train": ("images:train", "images:less")})
  assert error_of(DataError, lambda: mixed.prepared_train) == (
      "images:less: does not have the classes of the run: it lacks bird")


def test_names_in_the_config_have_their_order(tree):
  data = dataset(tree, **{"data.ops[0].names": ("bird", "ant")})
  assert data.labels == ("bird", "ant")
  assert [e["label"] for e in data.encoded(("images:val",))] == [1] * 5 + [0] * 5


def test_sources_are_mixed_by_weight(tree):
  data = dataset(tree, **{"data.train": ("images:train:each[:3]", "images:train:each[3:]"),
                          "data.weights": (1.0, 1.0), "data.window": 0})
  stream = data.train_stream(0, 8, range(8))
  ids = np.concatenate([stream.batch(step)["ids"] for step in range(3)]).ravel()
  assert (ids < 6).sum() == (ids >= 6).sum() == 12


def test_what_is_for_texts_only_is_refused(tree):
  data = dataset(tree)
  assert error_of(ConfigError, data.train_stream, 0, 4, range(4), (0, 0), 64) == (
      "config.phases: is for rows of tokens, and data.ops make images; leave it unset")
  assert error_of(ConfigError, lambda: dataset(tree, **{"data.train": ("prepared:x",)})) == (
      "data.train=('prepared:x',): a prepared source holds tokens, and data.ops work on images")
  c = data_config(tree)
  assert error_of(ConfigError, lambda: make_corpus.prepare(
      c.data, c.tokenizer, str(tree / "out"), shard_size=10)) == (
          "data.ops work on images, which are read as training goes on; only texts can be prepared")
  assert error_of(ConfigError, lambda: dataset(tree, **{"data.train": ()})) == (
      "data.train: no source is named")
  (tree / "text.txt").write_text("a\nb\n")
  texts = dataset(tree, **{"data.train": ("text:text.txt",), "data.ops[0].names": ("a", "b")})
  assert error_of(DataError, texts.train_stream, 0, 1, range(1)).startswith(
      "op decode_image: text:text.txt, example ")


def test_a_config_of_images_is_read_back_from_its_file(tree, tmp_path):
  c = data_config(tree)
  config_files.save(c, str(tmp_path / "config.json"))
  again = config_files.load(str(tmp_path / "config.json"))
  assert build_ops(again.data.ops) == build_ops(c.data.ops)


def test_images_of_any_shape_share_rows(tmp_path):
  """Each is in one row of an epoch, with its own label; what is broken has no place."""
  sizes = {f"{i:02}.png": (4 + 3 * i, 20 - i) for i in range(12)}
  write_tree(tmp_path / "train", ant={name: png(i, size) for i, (name, size) in enumerate(
      sizes.items())}, bird={"0.png": png(100, (30, 6)), "1.png": b"no image"})
  ops = configs("decode_image", "patches", decode_image={"max_bad": 0.5},
                patches=dict(size=4, most=24, length=40, max_segments=4))
  data = dataset(tmp_path, **{"data.ops": tuple(ops), "data.window": 0})
  assert data.info == {"head.outputs": 2, "max_side": 64}
  rows = data.num_train_rows()
  assert 4 <= rows < 14
  seen = {}
  for batch in data.eval_batches(("images:train",), 3, range(3)):
    assert batch["patch"].shape == (3, 40, 48) and batch["patch_places"].shape == (3, 40, 2)
    for r, s in np.argwhere(batch["real"]):
      mine = batch["patch_segment_ids"][r] == s + 1
      seen[int(batch["ids"][r, s])] = batch["label"][r, s], mine.sum(), batch["patch"][r, mine]
  assert sorted(seen) == list(range(13))
  layout = data.recipe.layout
  for i, (label, number, pixels) in seen.items():
    width, height = [*sizes.values(), (30, 6)][i]
    assert (label, number) == (int(i == 12), layout.number((height, width)))
    assert np.all(pixels == (100 if i == 12 else i))
  stream = data.train_stream(0, 2, range(2))
  again = data.train_stream(0, 2, range(2), cursor=stream.cursor(5))
  for step in (5, 6):
    assert_same(stream.batch(step), again.batch(step))
