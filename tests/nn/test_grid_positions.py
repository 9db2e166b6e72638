"""Positions of patches against closed forms in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import encodings
from jtx.nn.grid_positions import (
    GRID_POSITIONS, Grid, Learned2d, LearnedGrid, Sincos2d)
from jtx.nn.grid_relative import RelativeBias, Rope2d
from jtx.nn.positions import Places, Sizes

GRID = Grid(3, 4, prefix=2)
ALL = Places(jnp.arange(GRID.tokens)[None])
D = 8


def normal(*shape, seed=0):
  return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def at(*tokens):
  return Places(jnp.array([tokens]))


def sizes(num_heads):
  return Sizes(D, num_heads, D // num_heads)


def bias_of(position, q, places, table):
  return np.asarray(position.bias(q, q, places, places, params={"position_bias": table},
                                  project=None, scale=1.0))


def place(token):
  return divmod(token - GRID.prefix, GRID.width)


def test_tokens_have_the_coordinates_of_their_patches():
  coordinates = np.asarray(GRID.coordinates(ALL.positions))[0]
  assert (coordinates[:2] < 0).all()
  np.testing.assert_array_equal(coordinates[2:], np.asarray(encodings.grid(3, 4)))
  assert GRID.tokens == 14


@pytest.mark.parametrize("name", GRID_POSITIONS)
def test_tokens_that_are_left_out_change_nothing_for_the_others(name):
  """As MAE's encoder sees them."""
  position = GRID_POSITIONS[name]().bind(GRID)
  x, kept = normal(1, GRID.tokens, D), np.array([0, 1, 3, 6, 13])
  params = {n: normal(*t.shape, seed=1) for n, t in position.model_tables(D).items()}
  whole = position.embed(jnp.asarray(x), ALL, params)
  part = position.embed(jnp.asarray(x[:, kept]), at(*kept), params)
  np.testing.assert_allclose(part, np.asarray(whole)[:, kept], atol=1e-6)
  heads = normal(1, GRID.tokens, 2, D, seed=2)
  np.testing.assert_allclose(position.rotate(jnp.asarray(heads[:, kept]), at(*kept), {}),
                             np.asarray(position.rotate(jnp.asarray(heads), ALL, {}))[:, kept],
                             atol=1e-6)
  if tables := position.stack_tables(sizes(2)):
    bias = lambda places: bias_of(position, heads, places, normal(*tables["position_bias"].shape))
    np.testing.assert_array_equal(bias(at(*kept)), bias(ALL)[:, :, kept][..., kept])


@pytest.mark.parametrize("of_prefix", [True, False])
def test_learned_vectors_are_those_of_the_table(of_prefix):
  position = LearnedGrid(of_prefix=of_prefix).bind(GRID)
  table = normal(*position.model_tables(D)["position_embedding"].shape)
  assert len(table) == GRID.tokens - (0 if of_prefix else GRID.prefix)
  got = np.asarray(position.embed(jnp.zeros((1, GRID.tokens, D)), ALL,
                                  {"position_embedding": table}))[0]
  np.testing.assert_array_equal(got[GRID.prefix:], table[-12:])
  np.testing.assert_array_equal(got[:GRID.prefix], table[:2] if of_prefix else np.zeros((2, D)))


def test_two_learned_vectors_for_row_and_column():
  table = normal(3 + 4, D // 2)
  got = np.asarray(Learned2d().bind(GRID).embed(jnp.zeros((1, GRID.tokens, D)), ALL,
                                                {"position_embedding": table}))[0]
  for token in range(GRID.prefix, GRID.tokens):
    row, column = place(token)
    np.testing.assert_array_equal(got[token], np.concatenate([table[row], table[3 + column]]))
  assert not got[:GRID.prefix].any()


@pytest.mark.parametrize("order", ["row_column", "column_row"])
def test_sines_of_row_and_column(order):
  got = np.asarray(Sincos2d(order=order).bind(GRID).embed(
      jnp.zeros((1, GRID.tokens, D)), ALL, {}))[0]
  frequencies = 10_000.0 ** (-np.arange(2) / 2)
  for token in range(GRID.prefix, GRID.tokens):
    parts = [np.concatenate([np.sin(at * frequencies), np.cos(at * frequencies)])
             for at in place(token)]
    np.testing.assert_allclose(got[token], np.concatenate(
        parts if order == "row_column" else parts[::-1]), atol=1e-6)
  assert not got[:GRID.prefix].any()


def test_a_table_that_starts_as_sines_has_them():
  position = LearnedGrid(init="sincos", trained=False).bind(GRID)
  table = position.model_tables(D)["position_embedding"]
  assert table.axes[0] == "fixed_positions"
  np.testing.assert_array_equal(
      table.init(jax.random.key(0), table.shape, jnp.float32)[None],
      Sincos2d(order="column_row").bind(GRID).embed(jnp.zeros((1, GRID.tokens, D)), ALL, {}))


def test_relative_biases_are_of_offsets():
  position, heads = RelativeBias().bind(GRID), 3
  table = normal(*position.stack_tables(sizes(heads))["position_bias"].shape)
  assert len(table) == 5 * 7 + 3
  q = jnp.zeros((1, GRID.tokens, heads, 4))
  bias = bias_of(position, q, ALL, table)
  for i, j in np.ndindex(GRID.tokens, GRID.tokens):
    if i < 2 or j < 2:
      index = 35 + (2 if i < 2 and j < 2 else 0 if i < 2 else 1)
    else:
      (a, b), (c, d) = place(i), place(j)
      index = (c - a + 2) * 7 + d - b + 3
    np.testing.assert_array_equal(bias[0, :, i, j], table[index])


def test_rotated_products_depend_on_offsets_of_both_kinds():
  position = Rope2d().bind(Grid(6, 6, prefix=1))
  q, k = normal(1, 1, 1, 8), normal(1, 1, 1, 8, seed=1)

  def score(a, b):
    turned = lambda x, p: position.rotate(x, at(1 + p[0] * 6 + p[1]), {})
    return float((turned(q, a) * turned(k, b)).sum())

  assert score((0, 1), (2, 2)) == pytest.approx(score((3, 2), (5, 3)), abs=1e-5)
  assert abs(score((0, 1), (2, 2)) - score((0, 1), (1, 3))) > 1e-3
  np.testing.assert_array_equal(position.rotate(q, at(0), {}), q)  # a token of the prefix
  # Rows turn the first half of the pairs, columns the second.
  turned = np.asarray(position.rotate(jnp.ones((1, 1, 1, 8)), at(1 + 2 * 6), {}))[0, 0, 0]
  angle = 2 * 100.0 ** (-np.arange(2) / 2)
  np.testing.assert_allclose(turned[:2], np.cos(angle) - np.sin(angle), rtol=1e-5)
  np.testing.assert_array_equal(turned[[2, 3, 6, 7]], 1)


@pytest.mark.parametrize("run, message", [
    (lambda: Learned2d().bind(GRID).model_tables(7), "even width, not 7"),
    (lambda: Rope2d().bind(GRID).rotate(jnp.zeros((1, 14, 1, 6)), ALL, {}),
     "divisible by 4, not 6"),
    (lambda: Sincos2d().bind(GRID).embed(jnp.zeros((1, 14, 6)), ALL, {}), "divisible by 4"),
])
def test_widths_that_do_not_fit(run, message):
  with pytest.raises(ConfigError, match=message):
    run()
