"""The objectives of images against float64 NumPy."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.image_head import PrefixConfig
from jtx.models.patches import ImageConfig
from jtx.objectives.classify import Classify
from jtx.objectives.distill_classes import DistillClasses
from jtx.objectives.mae import Mae, normalized, own_noise
from jtx.objectives.mixing import boxes, mixed
from tests.helpers import one_fast
from tests.models.test_vit import CLASSES, MAE, PIXELS, SMALL, drawn
from tests.objectives.test_texts import Fixed, check, log_softmax

RNG = np.random.default_rng(0)
REAL = np.array([[1], [1], [0]])
LABELS = np.array([[2], [0], [7]])  # where there is no image it may be anything
OUTPUTS = RNG.normal(size=(3, 1, 4)).astype(np.float32)
BATCH = {"label": LABELS, "real": REAL}


def sums(objective, outputs=OUTPUTS, batch=BATCH):
  return jax.tree.map(float, objective(Fixed(outputs), {}, batch, train=False))


def shares(smooth):
  return [(1 - smooth) * np.eye(4)[LABELS[i, 0]] + smooth / 4 for i in range(2)]


@pytest.mark.parametrize("smooth", [0.0, 0.3])
def test_cross_entropy_with_smoothing(smooth):
  out = sums(Classify(label_smoothing=smooth))
  check(out["loss"], [-(target * log_softmax(OUTPUTS[i, 0])).sum()
                      for i, target in enumerate(shares(smooth))])
  check(out["accuracy"], [OUTPUTS[i, 0].argmax() == LABELS[i, 0] for i in range(2)])


@pytest.mark.parametrize("smooth", [0.0, 0.3])
def test_sigmoid_cross_entropy(smooth):
  p = 1 / (1 + np.exp(-OUTPUTS.astype(np.float64)))[:, 0]
  out = sums(Classify("sigmoid", label_smoothing=smooth))
  check(out["loss"], [-(t * np.log(p[i]) + (1 - t) * np.log(1 - p[i])).sum()
                      for i, t in enumerate(shares(smooth))])


IMAGES = RNG.normal(size=(4000, 8, 8, 1)).astype(np.float32)


def test_mixup_adds_each_image_and_the_one_before_by_its_share():
  image, share = map(np.asarray, mixed(jax.random.key(0), jnp.asarray(IMAGES), np.ones(4000), 0.8,
                                       0.0))
  weight = share[:, None, None, None]
  np.testing.assert_allclose(image, weight * IMAGES + (1 - weight) * np.roll(IMAGES, 1, 0),
                             atol=1e-5)
  # Beta(a, a) has mean 1/2 and variance 1 / (4 (2 a + 1)).
  assert abs(share.mean() - 0.5) < 3 * np.sqrt(1 / 10.4 / 4000)
  assert share.var() == pytest.approx(1 / 10.4, rel=0.1)


def test_cutmix_puts_in_a_box_whose_area_the_share_tells():
  ones, zeros = np.ones((2000, 16, 16, 1), np.float32), np.zeros((2000, 16, 16, 1), np.float32)
  image = np.stack([ones, zeros], 1).reshape(4000, 16, 16, 1)
  out, share = map(np.asarray, mixed(jax.random.key(1), jnp.asarray(image), np.ones(4000),
                                     0.0, 1.0))
  own = image[:, 0, 0, 0] == out[..., 0].transpose(1, 2, 0)  # [H, W, B]
  np.testing.assert_allclose(own.mean((0, 1)), share, atol=1e-6)
  # A box of area u has sides of sqrt(u), of which on average u / 4 is beyond the border; u is
  # uniform, so what is put in is the integral of (sqrt(u) - u / 4)^2.
  assert share.mean() == pytest.approx(1 - (1 / 2 - 1 / 5 + 1 / 48), abs=0.015)
  for b in range(0, 4000, 97):  # what is put in is a rectangle
    other = ~own[:, :, b]
    if other.any():
      inside = np.ix_(other.any(1), other.any(0))
      assert other[inside].all()


def test_boxes_are_uniform_before_they_are_cut():
  side = jnp.full(20_000, 0.5)
  inside = np.asarray(boxes(jax.random.key(0), side, 8, 8)).mean(0)
  # A row at distance d from the border is within half the side of a uniform centre.
  along = np.array([min(c + 2, 8) - max(c - 2, 0) for c in np.arange(8) + 0.5]) / 8
  np.testing.assert_allclose(inside, np.outer(along, along), atol=0.02)


def test_a_row_without_an_image_is_mixed_with_none():
  image = jnp.asarray(IMAGES[:4])
  out, share = mixed(jax.random.key(0), image, jnp.array([1, 0, 1, 1]), 1.0, 0.0)
  assert share[2] == 1 and (np.asarray(share)[[0, 1, 3]] < 1).all()
  np.testing.assert_array_equal(out[2], image[2])


def test_labels_are_mixed_as_images_are():
  class Recorder(Fixed):
    image = ImageConfig(size=8, channels=1, mean=(0.0,), std=(1.0,))

    def __init__(self):
      super().__init__(self.record)

    def record(self, batch):
      self.seen = batch["image"]
      return jnp.asarray(RNG_OUTPUTS)

  RNG_OUTPUTS = np.random.default_rng(5).normal(size=(3, 1, 4)).astype(np.float32)
  batch = {"label": np.array([[2], [0], [1]]), "real": np.ones((3, 1), int),
           "image": jnp.asarray(IMAGES[:3])}
  model, objective = Recorder(), Classify(mixup=1.0)
  out = objective(model, {}, batch, train=True, rngs={"dropout": jax.random.key(0)})
  before = np.roll(IMAGES[:3], 1, 0)
  share = (((np.asarray(model.seen) - before) * (IMAGES[:3] - before)).sum((1, 2, 3))
           / ((IMAGES[:3] - before) ** 2).sum((1, 2, 3)))
  log_p = [log_softmax(x) for x in RNG_OUTPUTS[:, 0]]
  own, other = batch["label"][:, 0], np.roll(batch["label"][:, 0], 1)
  expected = sum(-(a * p[i] + (1 - a) * p[j]) for a, p, i, j in zip(share, log_p, own, other))
  np.testing.assert_allclose(float(out["loss"][0]), expected, rtol=1e-4)
  again = objective(model, {}, batch, train=False)
  assert float(again["loss"][0]) == pytest.approx(-sum(p[i] for p, i in zip(log_p, own)), rel=1e-5)


# -------------------------------------------------------------------------- distillation

IMAGE_BATCH = {"image": PIXELS, "label": np.array([[0], [3], [1]]), "real": np.ones((3, 1), int)}
TEACHER = SMALL.clone(image=dataclasses.replace(SMALL.image, mean=(0.1,), std=(0.7,)))


@pytest.mark.parametrize("kind, distilled", [
    ("soft", False), ("hard", True), *(pytest.param(kind, distilled, marks=pytest.mark.slow)
                                       for kind, distilled in (("hard", False), ("soft", True)))])
def test_what_the_teacher_says_is_learnt(kind, distilled):
  student = SMALL
  if distilled:
    student = SMALL.clone(prefix=PrefixConfig(distillation=True),
                          head=dataclasses.replace(CLASSES, distilled=True))
  params, teacher = drawn(student, 1, 0.2), drawn(TEACHER, 2, 0.2)
  objective = DistillClasses(kind=kind, weight=0.3, temperature=2.0).taught_by(TEACHER)
  out = objective(student, params, IMAGE_BATCH, train=False, teacher=teacher)
  scores = np.asarray(student.apply({"params": params}, IMAGE_BATCH, method="scores"))
  taught = np.asarray(TEACHER.apply({"params": teacher}, {"image": PIXELS}, method="predict"))[:, 0]
  check(jax.tree.map(float, out["loss"]),
        [-log_softmax(s[0])[label] for s, (label,) in zip(scores, IMAGE_BATCH["label"])])
  if kind == "hard":
    expected = [-log_softmax(s[-1])[t.argmax()] for s, t in zip(scores, taught)]
  else:
    p, q = ([log_softmax(x / 2) for x in rows] for rows in (taught, scores[:, -1]))
    expected = [4 * (np.exp(a) * (a - b)).sum() for a, b in zip(p, q)]
  total, weight = map(float, out["taught_loss"])
  assert weight == 3
  np.testing.assert_allclose(total, sum(expected), rtol=2e-4)
  weights = {k: float(v) for k, v in objective.weights(IMAGE_BATCH).items()}
  assert weights == pytest.approx({"loss": 3 / 0.7, "taught_loss": 3 / 0.3})
  alone = objective(student, params, IMAGE_BATCH, train=False)
  assert "taught_loss" not in alone


def test_a_teacher_that_does_not_fit():
  with pytest.raises(ConfigError, match="objective.teacher=t has no head for classes"):
    DistillClasses(teacher="t").taught_by(MAE)
  other = SMALL.clone(head=dataclasses.replace(CLASSES, outputs=7))
  objective = DistillClasses(teacher="t").taught_by(other)
  with pytest.raises(ConfigError, match="has 7 classes, and the model 5"):
    objective(SMALL, drawn(SMALL), IMAGE_BATCH, train=False, teacher=drawn(other))


# --------------------------------------------------------------------------- autoencoding


@pytest.mark.parametrize("normalize", one_fast(True, False))
def test_the_loss_is_of_hidden_patches(normalize):
  model = MAE.clone(decoder=dataclasses.replace(MAE.decoder, normalize=normalize))
  params = drawn(model, std=0.2)
  batch = {"image": PIXELS, "real": np.array([[1], [0], [1]])}
  out = Mae()(model, params, batch, train=False)
  noise = own_noise(jnp.asarray(PIXELS), 9)
  predicted, hidden = map(np.asarray, MAE.apply({"params": params}, batch, noise,
                                                method="reconstruct"))
  assert (hidden.sum(1) == 6).all()  # of 9 patches, 0.6 of them masked
  target = np.asarray(MAE.apply({"params": params}, batch, method="pixels"), np.float64)
  if normalize:
    target = (target - target.mean(-1, keepdims=True)) / np.sqrt(
        target.var(-1, keepdims=True, ddof=1) + 1e-6)
  error = ((predicted - target) ** 2).mean(-1)
  check(jax.tree.map(float, out["loss"]),
        [error[i][hidden[i] > 0].mean() for i in (0, 2)])
  again = Mae()(model, params, batch, train=False)
  assert float(again["loss"][0]) == float(out["loss"][0])
  drawn_anew = [float(Mae()(model, params, batch, train=True, rngs={
      "dropout": jax.random.key(seed)})["loss"][0]) for seed in range(2)]
  assert drawn_anew[0] != drawn_anew[1]


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_what_is_masked_in_an_evaluation_follows_from_the_image(kind):
  """So that a split's loss depends neither on the batch nor on the devices."""
  images = np.random.default_rng(0).integers(256, size=(40, 6, 6, 3)).astype(kind)
  noise = np.asarray(own_noise(jnp.asarray(images), 9))
  assert len(np.unique(noise)) == noise.size and abs(noise.mean() - 0.5) < 0.05
  order = np.random.default_rng(1).permutation(40)
  for rows in (order, order[:7], order[-1:]):
    np.testing.assert_array_equal(own_noise(jnp.asarray(images[rows]), 9), noise[rows])


def test_a_model_that_hides_nothing_has_nothing_to_learn():
  model = MAE.clone(decoder=dataclasses.replace(MAE.decoder, masked=0.0))
  with pytest.raises(ConfigError, match="masked=0.0: objective 'mae' predicts the patches that"):
    Mae()(model, {}, {"image": PIXELS, "real": np.ones((3, 1))}, train=False)


def test_patches_are_normalised_one_by_one():
  x = normalized(jnp.asarray(RNG.normal(3, 2, (2, 5, 12)), jnp.float32))
  np.testing.assert_allclose(np.asarray(x).mean(-1), 0, atol=1e-5)
  np.testing.assert_allclose(np.asarray(x).std(-1, ddof=1), 1, atol=1e-4)


@pytest.mark.parametrize("make, message", [
    (lambda: Classify("hinge"), "objective.loss='hinge'"),
    (lambda: Classify("squared_error", mixup=0.2), "go with classes"),
    (lambda: DistillClasses(kind="warm"), "objective.kind='warm'"),
])
def test_values_that_do_not_fit(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


def test_texts_are_not_mixed():
  batch = {"text_segment_ids": np.ones((2, 3), int), "label": np.zeros((2, 1), int)}
  with pytest.raises(ConfigError, match="are for images"):
    Classify(mixup=0.5)(types.SimpleNamespace(), {}, batch, train=True, rngs={})
