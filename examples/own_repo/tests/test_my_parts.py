"""My parts against their formulas in NumPy, and the config as a whole."""

import jax
import jax.numpy as jnp
import my_config
from my_parts.metric import worst_recall
from my_parts.objective import ClassifyEntropy
from my_parts.position import Kerple
import numpy as np

from jtx.nn.kinds import kind_mask
from jtx.nn.masks import materialize
from jtx.nn.positions import Places


def test_position():
  params = {"kerple": jnp.array([[1.0, 2.0], [0.5, 3.0]])}  # r and a of two heads
  places = Places(jnp.array([[0, 1, 5]]))
  queries = jnp.zeros((1, 3, 2, 4))
  bias = Kerple().bias(
      queries, queries, places, places, params=params, project=None, scale=1.0).materialize()
  distance = np.array([[0, 1, 5], [1, 0, 4], [5, 4, 0]])
  expected = [-r * np.log(1 + a * distance) for r, a in ((1, 0.5), (2, 3))]
  np.testing.assert_allclose(bias[0], expected, rtol=1e-6)


def test_mask():
  allowed = materialize(kind_mask("strided", causal=True, window=3), 8, 8)
  assert ["".join(".x"[int(x)] for x in row) for row in np.asarray(allowed)] == [
      "x.......", "xx......", "xxx.....", "xxxx....", ".xxxx...", "..xxxx..", "x..xxxx.",
      ".x..xxxx"]


def test_objective():
  outputs, shares = jnp.array([[2.0, 0.0, -1.0]]), jnp.array([[0.0, 1.0, 0.0]])
  p = np.exp([2.0, 0.0, -1.0]) / np.exp([2.0, 0.0, -1.0]).sum()
  loss = ClassifyEntropy(penalty=0.3).class_loss(outputs, shares)
  np.testing.assert_allclose(loss, [-np.log(p[1]) + 0.3 * (p * np.log(p)).sum()], rtol=1e-5)


def test_metric():
  assert worst_recall([0, 0, 0, 1], [0, 0, 1, 1]) == 0.5
  assert worst_recall([0, 0, 0, 0], [0, 0, 0, 1]) == 0


def test_config():
  c = my_config.get_config()
  assert c.imports == ("my_parts",)
  assert jax.tree.leaves(c.model.stack.position.slope) == [0.5]
