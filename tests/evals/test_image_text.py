"""Recall by hand and zero-shot classes of vectors that are given."""

import itertools
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import clip, common
from jtx import build
from jtx.data.dataset import Dataset
from jtx.errors import ConfigError
from jtx.evals.choose import chosen
from jtx.evals.image_text import ImageText, marked, pairs, ranks_of
from jtx.evals.loss import total_sums
from jtx.evals.task import Task
from jtx.evals.zero_shot import ZeroShot
from jtx.inference.towers import class_vectors, fits
from jtx.models.two_towers import SimilarityConfig, normed
from jtx.objectives.sums import summarize
from jtx.parallel import sharding
from tests.models.test_contract import drawn


class Given(nn.Module):
  """Two towers whose vectors are the first pixels, and the first tokens, of their inputs."""
  similarity: SimilarityConfig = SimilarityConfig()
  longest = None

  def embed_texts(self, batch):
    return normed(batch["text"][:, :2])

  def embed_images(self, batch):
    return normed(batch["image"][:, 0, :2, 0])

  def vectors(self, batch):
    return self.embed_images(batch), self.embed_texts(batch)

  def scores(self, images, texts):
    return 10 * images @ texts.T


def test_ranks_count_what_is_as_near_as_the_right_answer():
  answers = np.array([[1, 0], [0.8, 0], [0, 1], [0.8, 0]])
  right = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]], bool)
  queries = np.array([[1, 0], [1, 0], [1, 0], [0, 1.0]])
  assert ranks_of(queries, answers, right).tolist() == [0, 2, 3, 0]


def batches(images, texts):
  """A split in batches of four rows, the last filled up."""
  number = len(images)
  for start in range(0, number, 4):
    rows = np.arange(start, start + 4)
    real, at = rows < number, np.minimum(rows, number - 1)
    image = np.zeros((4, 2, 2, 1), np.uint8)
    image[:, 0, :, 0] = np.array(images)[at]
    text = np.array(texts, np.int32)[at]
    yield {"image": image, "text": text, "text_segment_ids": np.ones_like(text),
           "text_positions": np.zeros_like(text), "real": real[:, None].astype(np.int32)}


def task_of(model, batch_size, found):
  """A model's task whose splits have the batches `found`."""
  return Task(config=types.SimpleNamespace(batch_size=batch_size, phases=()), model=model,
              objective=None, data=types.SimpleNamespace(eval_batches=lambda *_: list(found)),
              mesh=sharding.make_mesh({"data": 1}, jax.devices()[:1]))


def test_equal_images_and_equal_texts_are_one():
  """Five pairs, of which two share an image and two others a text."""
  images = [(4, 0), (4, 0), (0, 4), (3, 3), (1, 9)]
  texts = [(5, 0), (9, 1), (0, 5), (0, 5), (1, 1)]
  task = task_of(Given(), 4, list(batches(images, texts)))
  found_images, found_texts, own = pairs(task, {}, ("split",))
  assert own.shape == (4, 4) and own.sum() == 5
  np.testing.assert_allclose(np.square(found_images).sum(-1), 1, atol=1e-6)
  results = dict(ImageText(("split",), depths=(1, 2))(task, {}))
  assert results["images"] == results["texts"] == 4
  # By angle: (4, 0) finds (5, 0); (0, 4) finds (0, 5); (3, 3) finds (1, 1), and (0, 5) is third to
  # it; (1, 9) finds (0, 5), then (1, 1), its own.
  assert results["text_recall_at_1"] == 0.5 and results["text_recall_at_2"] == 0.75
  # (5, 0) and (9, 1) find (4, 0); (0, 5) finds (0, 4); (1, 1) finds (3, 3), then (1, 9).
  assert results["image_recall_at_1"] == 0.75 and results["image_recall_at_2"] == 1


def test_rows_of_several_pairs_are_taken_apart():
  """Texts of two tokens, three pairs in rows of two."""
  class Several(Given):
    def embed_texts(self, batch):
      return normed(batch["text"].reshape(-1, 2))

    def embed_images(self, batch):
      return normed(batch["image"][..., 0, :2, 0].reshape(-1, 2))

  image = np.zeros((2, 2, 2, 2, 1), np.uint8)
  image[:, :, 0, :, 0] = [[(4, 0), (0, 4)], [(4, 0), (0, 0)]]
  batch = {"image": image, "text": np.array([[5, 1, 1, 5], [9, 1, 0, 0]], np.int32),
           "text_segment_ids": np.array([[1, 1, 2, 2], [1, 1, 0, 0]], np.int32),
           "text_positions": np.zeros((2, 4), np.int32), "real": np.array([[1, 1], [1, 0]])}
  task = task_of(Several(), 2, [batch])
  images, texts, own = pairs(task, {}, ("split",))
  assert images.shape == (2, 2) and texts.shape == (3, 2) and own.sum() == 3
  expected = {((1, 0), (5, 1)), ((0, 1), (1, 5)), ((1, 0), (9, 1))}
  for i, t in np.argwhere(own):
    image, text = min(expected, key=lambda pair: -images[i] @ pair[0] - texts[t] @ pair[1]
                      / np.linalg.norm(pair[1]))
    np.testing.assert_allclose([images[i], texts[t]], [image, text / np.linalg.norm(text)],
                               atol=1e-6)
    expected.remove((image, text))


def test_devices_that_do_not_divide_a_batch_compare_the_same_pairs():
  """The loss is of all pairs of a batch: five pairs stay five where eight devices read them."""
  c = clip.get_config("tiny")
  c.batch_size = 5
  data = Dataset(c.data, c.tokenizer)
  model, objective = build.make_model(c, data.info)
  params, found = drawn(model), []
  for devices in (1, 8):
    mesh = sharding.make_mesh({"data": devices}, jax.devices()[:devices])
    task = Task(c, model=model, objective=objective, data=data, mesh=mesh)
    batches = itertools.islice(task.batches(c.evals.val.source), 3)
    found.append(summarize(total_sums(task, params, objective, batches)))
  assert task.padded_size == 8 and found[0]["loss"] > 0.1
  assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_marks_tell_rows_apart():
  marks = marked(np.array([[1, 2], [2, 1], [1, 2]]))
  assert marks.shape == (3, 4) and (marks[0] == marks[2]).all() and (marks[0] != marks[1]).any()


def test_a_class_is_the_mean_of_its_prompts():
  """Vectors of texts of two tokens: their numbers of letters before and behind the name."""
  names, asked = ("a_cat", "bird"), []

  def encode(text):
    asked.append(text)
    return np.array([len(text), 4], np.int32)

  vectors = class_vectors(Given(), {}, encode, names, ("{}", "a photo of {}"), batch_size=3)
  assert asked == ["a cat", "a photo of a cat", "bird", "a photo of bird"]
  unit = lambda x: np.asarray(x) / np.linalg.norm(x)
  for vector, texts in zip(vectors, (asked[:2], asked[2:])):
    np.testing.assert_allclose(vector, unit(sum(unit([len(t), 4]) for t in texts)), rtol=1e-6)


def test_probabilities_of_texts():
  images, texts = jnp.array([[1.0, 0]]), jnp.array([[1.0, 0], [0, 1], [0.6, 0.8]])
  scores = np.array([10, 0, 6.0])
  softmax = np.exp(scores) / np.exp(scores).sum()
  np.testing.assert_allclose(fits(Given(), {}, images, texts)[0], softmax, rtol=1e-5)
  alone = Given(SimilarityConfig(biased=True))
  np.testing.assert_allclose(fits(alone, {}, images, texts)[0], 1 / (1 + np.exp(-scores)),
                             rtol=1e-5)


def test_other_sources_of_pairs_are_not_of_classes():
  config = common.get_config()
  config.evals = {name: common.evaluator(name, source=("a",))
                  for name in ("image_text", "zero_shot")}
  evals = chosen(config, frozenset({"image_text"}), ("captions:b.tsv",))
  assert [(e.name, e.source) for e in evals.values()] == [("image_text", ("captions:b.tsv",))]


@pytest.mark.parametrize("make, message", [
    (lambda: ImageText(("a",), depths=()), "depths=() names no k"),
    (lambda: ZeroShot(("a",), templates=("a photo",)), "must be texts with one {} each"),
])
def test_fields_that_make_no_sense(make, message):
  with pytest.raises(ConfigError) as e:
    make()
  assert message in str(e.value)
