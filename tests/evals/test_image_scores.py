"""Scores of images against scikit-learn and closed forms; pictures of known attention."""

import numpy as np
import pytest

from jtx.evals import scores
from jtx.evals.images import Images
from jtx.figures.attention import attention_rollout
from jtx.figures.images import grid_similarity, looked_at, reconstructions

RNG = np.random.default_rng(0)


def test_top_accuracy_is_scikit_learns():
  from sklearn.metrics import top_k_accuracy_score
  outputs, labels = RNG.normal(size=(300, 8)), RNG.integers(0, 8, 300)
  for k in (1, 3, 5):
    assert scores.top_accuracy(outputs, labels, k) == pytest.approx(
        top_k_accuracy_score(labels, outputs, k=k, labels=range(8)))
  assert scores.top_accuracy(np.zeros((1, 4)), np.array([3]), 3) == 0  # ties go to the first


def test_calibration_error_is_the_gap_of_confidence_and_accuracy():
  # 40 examples said with 0.9 of which 30 are right, 10 with 0.6 of which 6 are.
  confident, unsure = np.tile([0.9, 0.1], (40, 1)), np.tile([0.4, 0.6], (10, 1))
  labels = np.array([0] * 30 + [1] * 10 + [1] * 6 + [0] * 4)
  error = scores.calibration_error(np.concatenate([confident, unsure]), labels, 10)
  assert error == pytest.approx((40 * abs(0.9 - 0.75) + 10 * abs(0.6 - 0.6)) / 50)
  perfect = np.eye(3)[RNG.integers(0, 3, 20)]
  assert scores.calibration_error(perfect, perfect.argmax(1), 15) == 0


def test_calibrated_probabilities_have_no_error():
  p = RNG.uniform(0.5, 1, 200_000)
  labels = (RNG.uniform(size=p.size) > p).astype(int)
  assert scores.calibration_error(np.stack([p, 1 - p], 1), labels, 15) < 0.005


def test_neighbours_vote_by_their_cosine():
  train = np.array([[1, 0], [1, 0.1], [0, 50], [0.1, 1], [-1, 0]], float)
  labels = np.array([0, 0, 1, 1, 2])
  test = np.array([[5, 0.2], [0.1, 7], [-3, 0.1]], float)
  accuracy = lambda truth, k=2: scores.neighbour_accuracy(train, labels, test, np.array(truth), k,
                                                          0.07)
  assert accuracy([0, 1, 2]) == 1 and accuracy([1, 1, 2]) == pytest.approx(2 / 3)
  assert accuracy([0, 1, 2], 5) == 1


@pytest.mark.parametrize("examples", [12, 60])
def test_the_linear_probe_is_ridge_regression(examples):
  from sklearn.linear_model import Ridge
  centres = RNG.normal(size=(3, 20))
  labels = np.arange(examples) % 3
  train = centres[labels] + RNG.normal(size=(examples, 20))
  truth = RNG.integers(0, 3, 200)
  test = centres[truth] + RNG.normal(size=(200, 20))
  mean, std = train.mean(0), train.std(0) + 1e-5
  scale = lambda x: np.concatenate([(x - mean) / std, np.ones((len(x), 1))], 1)
  theirs = Ridge(alpha=3.0, fit_intercept=False).fit(scale(train), 2.0 * np.eye(3)[labels] - 1)
  expected = (theirs.predict(scale(test)).argmax(1) == truth).mean()
  assert scores.linear_accuracy(train, labels, test, truth, 3.0) == pytest.approx(expected)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_scores_of_the_evaluator(sigmoid):
  outputs, labels = RNG.normal(size=(50, 6)).astype(np.float32), RNG.integers(0, 6, 50)
  got = dict(Images(("x",), sigmoid=sigmoid).score(outputs, labels))
  p = 1 / (1 + np.exp(-outputs.astype(float))) if sigmoid else (
      np.exp(outputs.astype(float)) / np.exp(outputs.astype(float)).sum(1, keepdims=True))
  assert got["accuracy"] == (outputs.argmax(1) == labels).mean()
  assert got["nll"] == pytest.approx(-np.log(p[np.arange(50), labels]).mean())
  assert got["examples"] == 50 and 0 <= got["calibration_error"] <= 1
  assert got["top5_accuracy"] == scores.top_accuracy(outputs, labels, 5)


def test_attention_rolled_out():
  weights = RNG.dirichlet(np.ones(4), (2, 3, 4))  # [L, N, T, T]
  mean = weights.mean(1)
  expected = ((mean[1] + np.eye(4)) / 2) @ ((mean[0] + np.eye(4)) / 2)
  got = attention_rollout(weights)
  np.testing.assert_allclose(got, expected)
  np.testing.assert_allclose(got.sum(-1), 1)
  batch = attention_rollout(np.stack([weights, weights], 1))
  np.testing.assert_allclose(batch, [expected, expected])


def test_figures_show_what_they_are_given():
  images = RNG.uniform(size=(2, 8, 8, 3))
  figure = looked_at(images, RNG.uniform(size=(2, 4, 4)), ["one", "two"])
  assert [a.get_title() for a in figure.axes] == ["one", "", "two", ""]
  assert len(figure.axes[1].get_images()) == 2
  hidden = np.zeros((2, 8, 8))
  hidden[:, :4] = 1
  figure = reconstructions(images, hidden, 1 - images)
  seen, made = (figure.axes[i].get_images()[0].get_array() for i in (1, 2))
  assert (seen[:4] == 0.5).all() and np.allclose(seen[4:], images[0, 4:])
  assert np.allclose(made[:4], 1 - images[0, :4]) and np.allclose(made[4:], images[0, 4:])
  table = np.eye(6)
  figure = grid_similarity(table, (2, 3))
  first = figure.axes[0].get_images()[0].get_array()
  assert first[0, 0] == 1 and first.sum() == 1


@pytest.mark.parametrize("run, message", [
    (lambda: looked_at(np.zeros((2, 4, 4, 1)), np.zeros((1, 2, 2))), "2 images and 1"),
    (lambda: grid_similarity(np.zeros((5, 2)), (2, 3)), "no grid of 2 x 3"),
    (lambda: reconstructions(np.zeros((4, 4)), 0, 0), r"\[B, H, W, C\]"),
])
def test_figures_of_wrong_shapes(run, message):
  with pytest.raises(ValueError, match=message):
    run()
