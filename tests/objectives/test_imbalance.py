"""Weights of classes, the focal loss and multi-label losses against float64 NumPy."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from jtx.errors import ConfigError
from jtx.objectives import imbalance
from jtx.objectives.classify import Classify
from jtx.objectives.contract import units_of
from jtx.objectives.distill_classes import DistillClasses, TaughtClasses
from jtx.objectives.distilled import Distilled
from jtx.objectives.multi_label import MultiLabel
from jtx.objectives.terms import Soft
from tests.objectives.test_texts import BASE, TEXTS, Fixed, check, log_softmax

RNG = np.random.default_rng(0)
OUTPUTS = RNG.normal(size=(3, 2, 4)).astype(np.float32)
CLASSES = np.array([[2, 0], [3, -5], [7, 7]])  # what is not there may be anything
LABELS = np.where(np.arange(6).reshape(3, 2, 1) < 3, RNG.integers(0, 2, (3, 2, 4)), 99)
WEIGHTS = (0.5, 1.0, 2.0, 7.0)
IMAGES = {"real": np.array([[1], [1], [0]])}


def sums(objective, labels, batch=BASE, outputs=OUTPUTS, **head):
  model = Fixed(outputs)
  model.head = types.SimpleNamespace(threshold=0.5, **head)
  out = objective(model, {}, {**batch, "label": labels}, train=False)
  return jax.tree.map(float, out), float(objective.weights({**batch, "label": labels})["loss"])


@pytest.mark.parametrize("smooth", [0.0, 0.3])
def test_a_weighted_loss_is_the_mean_that_the_classes_weigh(smooth):
  """Of texts and of images, as PyTorch's CrossEntropyLoss has it with weights and smoothing."""
  for batch, places in ((BASE, TEXTS), (IMAGES, [(0, 0), (1, 0)])):
    labels, outputs = CLASSES, OUTPUTS
    if batch is IMAGES:
      labels, outputs = CLASSES[:, :1], OUTPUTS[:, :1]
    out, divisor = sums(Classify(class_weights=WEIGHTS, label_smoothing=smooth), labels, batch,
                        outputs)
    nll = {t: -np.array(WEIGHTS) * log_softmax(outputs[t]) for t in places}
    total = sum((1 - smooth) * nll[t][labels[t]] + smooth / 4 * nll[t].sum() for t in places)
    assert out["loss"][0] == pytest.approx(total)
    assert out["loss"][1] == divisor == sum(WEIGHTS[labels[t]] for t in places)
    assert out["accuracy"] == (sum(outputs[t].argmax() == labels[t] for t in places), len(places))
    for objective in (Classify(class_weights=WEIGHTS), Distilled(
        Classify(class_weights=WEIGHTS), (Soft(),), "teacher")):
      assert units_of(objective, out) == len(places) != divisor


def test_equal_weights_change_nothing():
  plain, _ = sums(Classify(), CLASSES)
  equal, _ = sums(Classify(class_weights=(3.0,) * 4), CLASSES)
  assert units_of(Classify(), plain) == units_of(Classify(class_weights=(3.0,) * 4), equal) == 3
  assert equal["loss"][0] / equal["loss"][1] == pytest.approx(plain["loss"][0] / 3)


def test_balanced_weights_are_scikit_learns():
  labels = np.array([0] * 6 + [1] * 3 + [2])
  shares = np.bincount(labels) / 10
  expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
  objective = Classify(class_weights=("balanced",))
  assert objective.needs_shares and not Classify(class_weights=(1.0,)).needs_shares
  np.testing.assert_allclose(objective.with_shares(shares).class_weights, expected)
  # Then every class weighs the same in the training data.
  np.testing.assert_allclose(np.bincount(labels) * expected, 10 / 3)
  with pytest.raises(ConfigError, match="class_weights='balanced' needs the labels of training"):
    objective.weights({**BASE, "label": CLASSES})


def test_balanced_labels_are_negatives_over_positives():
  objective = MultiLabel(pos_weight=("balanced",)).with_shares((0.25, 0.5, 0.9))
  np.testing.assert_allclose(objective.pos_weight, (3.0, 1.0, 1 / 9))


@pytest.mark.parametrize("make, message", [
    (lambda: imbalance.of_classes((0.5, 0.0, 0.5)), "no training example has label 1"),
    (lambda: imbalance.of_labels((0.5, 1.0)), "all training examples have label 1"),
    (lambda: Classify(class_weights=("balance",)), "class_weights=.*or 'balanced'"),
    (lambda: Classify(class_weights=(1.0, -1.0)), "class_weights=.*not negative"),
    (lambda: Classify(class_weights=(0.0, 0.0)), "not all 0"),
    (lambda: MultiLabel(focal_gamma=-1.0), "focal_gamma=-1.0 must not be negative"),
    (lambda: sums(Classify(class_weights=(1.0, 2.0)), CLASSES), "2 numbers, and the model has 4"),
    (lambda: sums(MultiLabel(pos_weight=(1.0,)), LABELS), "1 numbers, and the model has 4 outputs"),
    (lambda: sums(Classify(), LABELS), "objective.name='classify' needs one class an example"),
    (lambda: sums(MultiLabel(), CLASSES), "objective.name='multi_label' needs labels that do not"),
])
def test_what_can_not_be(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_focal_loss_is_its_formula(gamma):
  p = np.exp(log_softmax(OUTPUTS))
  out, _ = sums(Classify(focal_gamma=gamma), CLASSES)
  check(out["loss"], [-(1 - p[t][CLASSES[t]])**gamma * np.log(p[t][CLASSES[t]]) for t in TEXTS])
  q = 1 / (1 + np.exp(-OUTPUTS.astype(np.float64)))
  of = lambda p: -(1 - p)**gamma * np.log(p)
  out, _ = sums(Classify("sigmoid", focal_gamma=gamma), CLASSES)
  check(out["loss"], [of(q[t][CLASSES[t]]) + of(1 - np.delete(q[t], CLASSES[t])).sum()
                      for t in TEXTS])


def test_focal_loss_of_the_paper():
  """Section 3.2: with gamma 2 the loss of p = 0.9 is 100 times lower, of 0.968 1000 times."""
  for p, times in ((0.9, 100), (0.968, 1000)):
    log_p = jnp.log(jnp.float32(p))
    assert -log_p / imbalance.focal(log_p, 2.0) == pytest.approx(times, rel=0.03)


@pytest.mark.parametrize("gamma", [0.3, 1.0, 2.0])
def test_focal_loss_has_a_gradient_where_the_model_is_sure(gamma):
  for log_p in (0.0, -1e-8, -80.0):
    value, gradient = jax.value_and_grad(imbalance.focal)(jnp.float32(log_p), gamma)
    assert np.isfinite(value) and np.isfinite(gradient)


def test_distillation_keeps_the_weights_of_its_own_labels():
  objective = TaughtClasses(weight=0.25, class_weights=WEIGHTS, model=None)
  weights = objective.weights({**IMAGES, "label": CLASSES[:, :1]})
  assert {k: float(v) for k, v in weights.items()} == {
      "loss": pytest.approx((2.0 + 7.0) / 0.75), "taught_loss": 2 / 0.25}
  assert DistillClasses(focal_gamma=2.0).focal_gamma == 2.0


@pytest.mark.parametrize("weights", [(), WEIGHTS])
@pytest.mark.parametrize("gamma", [0.0, 2.0])
def test_labels_are_the_mean_of_weighted_binary_cross_entropies(weights, gamma):
  for batch, places in ((BASE, TEXTS), (IMAGES, [(0, 0), (1, 0)])):
    labels, outputs = LABELS, OUTPUTS
    if batch is IMAGES:
      labels, outputs = LABELS[:, :1], OUTPUTS[:, :1]
    out, divisor = sums(MultiLabel(weights, gamma), labels, batch, outputs)
    p = 1 / (1 + np.exp(-outputs.astype(np.float64)))
    w = np.array(weights or (1.0,) * 4)
    there, absent = -w * (1 - p)**gamma * np.log(p), -p**gamma * np.log(1 - p)
    check(out["loss"], [np.where(labels[t] == 1, there[t], absent[t]).mean() for t in places])
    assert divisor == len(places)
    check(out["accuracy"], [((outputs[t] >= 0) == labels[t]).all() for t in places])


def test_the_threshold_decides_what_is_right():
  outputs = np.log(np.array([[[0.35 / 0.65, 0.2 / 0.8]]], np.float32))
  batch, label = {"real": np.ones((1, 1))}, np.array([[[1, 0]]])
  for threshold, right in ((0.3, 1), (0.5, 0), (0.1, 0)):
    model = Fixed(outputs)
    model.head = types.SimpleNamespace(threshold=threshold)
    out = MultiLabel()(model, {}, {**batch, "label": label}, train=False)
    assert tuple(map(float, out["accuracy"])) == (right, 1)
