"""ColBERT's score against float64 loops, packed and alone, and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.late_interaction import late_interaction

RNG = np.random.default_rng(0)
QUERIES, TEXTS = (RNG.normal(size=shape).astype(np.float32) for shape in ((3, 6, 5), (2, 7, 5)))
OF_QUERIES = np.array([[1, 1, 2, 2, 2, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])
OF_TEXTS = np.array([[1, 1, 1, 2, 2, 0, 0], [1, 1, 0, 0, 0, 0, 0]])


def by_loops(a, b):
  """The score of two texts [T, D] and [U, D]; 0 where one has no token."""
  a, b = a.astype(np.float64), b.astype(np.float64)
  return sum(max(float(x @ y) for y in b) for x in a) if len(a) and len(b) else 0.0


def test_the_best_token_of_a_text_for_each_of_a_query():
  found = jax.jit(late_interaction, static_argnums=4)(QUERIES, OF_QUERIES, TEXTS, OF_TEXTS, 2)
  split = lambda x, segments: [rows[own == n] for rows, own in zip(x, segments) for n in (1, 2)]
  expected = [[by_loops(a, b) for b in split(TEXTS, OF_TEXTS)] for a in split(QUERIES, OF_QUERIES)]
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
  assert (found[3:] == 0).all() and (found[:, 3] == 0).all() and (found[:3, :3] != 0).all()


def test_it_is_not_the_same_both_ways():
  a, b = np.eye(3, dtype=np.float32)[None, :2], np.eye(3, dtype=np.float32)[None, :1]
  ones = lambda x: np.ones(x.shape[:2], np.int32)
  assert late_interaction(a, ones(a), b, ones(b)) == 1
  twice = np.concatenate([a, a], 1)
  assert late_interaction(twice, ones(twice), a, ones(a)) == 4
  assert late_interaction(a, ones(a), twice, ones(twice)) == 2


def test_the_gradient_goes_to_the_best_tokens_alone():
  def score(texts):
    return late_interaction(QUERIES[:1], OF_QUERIES[:1], texts, OF_TEXTS, 2)[0, 0]

  gradient = np.asarray(jax.grad(score)(jnp.asarray(TEXTS)))
  expected = np.zeros_like(TEXTS)
  for token in QUERIES[0, :2]:
    expected[0, (TEXTS[0, :3] @ token).argmax()] += token
  np.testing.assert_allclose(gradient, expected, atol=1e-6)  # finite where a row has no text, too
