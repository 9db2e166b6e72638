"""The geometry of boxes and the matching of boxes with predictions, against NumPy and SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from jtx.errors import ConfigError
from jtx.objectives.boxes import corners, generalized_iou, iou
from jtx.objectives.matching import match

RNG = np.random.default_rng(0)


def test_corners():
  box = jax.jit(corners)(jnp.array([0.5, 0.4, 0.2, 0.6]))
  np.testing.assert_allclose(box, [0.4, 0.1, 0.6, 0.7], atol=1e-7)


# Two boxes; their intersection over union, and what of the box around both is in neither.
PAIRS = [
    ((2, 2, 2, 2), (2, 2, 2, 2), 1, 0),
    ((1, 1, 2, 2), (2, 1, 2, 2), 1 / 3, 0),  # beside one another, half of each shared
    ((1, 1, 2, 2), (2, 2, 2, 2), 1 / 7, 2 / 9),
    ((1, 1, 2, 2), (4, 1, 2, 2), 0, 1 / 5),  # apart by 1
    ((1, 1, 2, 2), (1, 1, 1, 1), 1 / 4, 0),  # inside
    ((1, 1, 2, 2), (1, 1, 0, 0), 0, 0),  # a point
    ((1, 1, 0, 0), (1, 1, 0, 0), 0, 0),  # nothing at all
]


def test_intersection_over_union_and_its_generalised_form():
  a, b = (jnp.array([pair[i] for pair in PAIRS], jnp.float32) for i in (0, 1))
  expected = np.array([pair[2] for pair in PAIRS])
  outside = np.array([pair[3] for pair in PAIRS])

  @jax.jit
  def both(a, b):
    return iou(a, b), generalized_iou(a, b)

  of_pairs, generalized = map(np.asarray, both(jnp.stack([a, b]), jnp.stack([b, a])[:, :3]))
  assert of_pairs.shape == generalized.shape == (2, 7, 3)
  whole, other = map(np.asarray, both(a, b))
  np.testing.assert_allclose(whole.diagonal(), expected, atol=1e-6)
  np.testing.assert_allclose(other.diagonal(), expected - outside, atol=1e-6)
  np.testing.assert_allclose(of_pairs[1], whole[:3].T, atol=1e-6)
  np.testing.assert_allclose(generalized[0], other[:, :3], atol=1e-6)


def test_gradients_are_finite_where_there_is_nothing():
  gradient = jax.jit(jax.grad(lambda b: generalized_iou(b, b).sum()))(jnp.zeros((2, 4)))
  assert np.isfinite(gradient).all()


def test_matchings_cost_as_little_as_those_of_scipy():
  """200 images with none to all of 9 boxes, whose rest may cost anything, and 12 queries."""
  cost = RNG.normal(size=(2, 100, 12, 9)).astype(np.float32)
  number = RNG.integers(10, size=100)
  there = RNG.permuted(np.arange(9) < number[:, None], axis=1)
  cost[:, ~there.any(1)] *= 1e6
  cost += np.where(there, 0, 1e3 * RNG.normal(size=there.shape))[:, None].astype(np.float32)
  found = np.asarray(jax.jit(match)(cost, there))
  assert (number == 0).any() and (number == 9).any()
  for layer, image in np.ndindex(2, 100):
    own, is_box = cost[layer, image], there[image]
    queries = found[layer, image, is_box]
    assert len(set(queries)) == number[image] and (found[layer, image, ~is_box] == 0).all()
    best = own[:, is_box][linear_sum_assignment(own[:, is_box])].sum()
    assert own[queries, np.flatnonzero(is_box)].sum() == pytest.approx(best, abs=1e-5)


def test_more_boxes_than_queries_are_refused():
  with pytest.raises(ConfigError, match="have 4 boxes an image and the model has 3 queries.* set"
                     " config.model.num_queries to 4 or more"):
    match(jnp.zeros((1, 2, 3, 4)), jnp.ones((2, 4), bool))
