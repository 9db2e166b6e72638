"""DeBERTa's attention and convolution against formulas in float64 NumPy, buckets against golden."""

import json
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.attention import Attention, AttentionConfig
from jtx.nn.convolution import Convolution, ConvolutionConfig
from jtx.nn.disentangled import Disentangled
from jtx.nn.encodings import distance_rows, log_buckets
from jtx.nn.masks import Rows
from jtx.nn.positions import Places
from jtx.parallel.sharding import unbox

B, T, D, N, H = 2, 7, 12, 3, 4
POSITIONS = np.array([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 0, 1, 2, 3]])
SEGMENTS = np.array([[1] * 7, [1] * 3 + [2] * 4])


def draw(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.skipif("JTX_TEST_DATA" not in os.environ, reason="JTX_TEST_DATA is unset")
def test_buckets_are_those_of_the_published_code():
  path = pathlib.Path(os.environ["JTX_TEST_DATA"], "golden", "deberta", "log_buckets.json")
  for sizes, values in json.loads(path.read_text())["tables"].items():
    buckets, reach = map(int, sizes.split(","))
    ours = log_buckets(reach, buckets)
    assert len(values) == reach
    np.testing.assert_array_equal(ours[reach:-1], values)
    np.testing.assert_array_equal(ours[1:reach + 1][::-1], -np.array(values))


def test_rows_of_distances():
  """Single distances to 3, then buckets to 16, then the ends for ever: 0 to 11 of a span of 6."""
  rows = lambda at, **sizes: np.asarray(distance_rows(jnp.array(at), **sizes)).tolist()
  assert rows([-9, -4, -3, 0, 2, 3, 4, 9], span=4, max_distance=0) == [0, 0, 1, 4, 6, 7, 7, 7]
  sizes = dict(span=6, max_distance=16)
  assert rows(range(-3, 4), **sizes) == [3, 4, 5, 6, 7, 8, 9]
  # ceil(ln(x / 3) / ln(15 / 3) 2) + 3: 4 for x to 3 sqrt(5) = 6.7, 5 to 15, 6 beyond.
  assert rows([4, 6, 7, 15, 16, 900], **sizes) == [10, 10, 11, 11, 11, 11]
  assert rows([-4, -6, -7, -15, -16, -900], **sizes) == [2, 2, 1, 1, 0, 0]


@pytest.mark.parametrize("position", [
    Disentangled(2, 0, shared=False, norm=False), Disentangled(9, 0),
    Disentangled(2, 4, terms=("c2p",)), Disentangled(2, 3, terms=("p2c",), shared=False)])
def test_attention_is_the_formula(position):
  """(Q K + Q K^r + Q^r K) / sqrt(terms d), with weights drawn wide."""
  config = AttentionConfig(num_heads=N, biases=("query", "key", "value", "out"))
  layer = Attention(config)
  x = jnp.asarray(draw(0, B, T, D), jnp.float32)
  tables = position.stack_tables(config.sizes(D))
  stack = {name: jnp.asarray(draw(i + 5, *table.shape), jnp.float32)
           for i, (name, table) in enumerate(tables.items())}
  places = Places(jnp.asarray(POSITIONS))
  rows = Rows(q_segments=jnp.asarray(SEGMENTS), k_segments=jnp.asarray(SEGMENTS))

  def run(params, stack, **more):
    return layer.apply({"params": params}, x, x, places=places, position=position, params=stack,
                       rows=rows, **more)

  shapes = unbox(jax.eval_shape(lambda key: layer.init(
      key, x, x, places=places, position=position, params=stack), jax.random.key(0)))["params"]
  leaves, tree = jax.tree.flatten(shapes)
  params = jax.tree.unflatten(tree, [
      jnp.asarray(draw(20 + i, *leaf.shape), jnp.float32) for i, leaf in enumerate(leaves)])
  _, _, weights = run(params, stack, return_weights=True)

  p = jax.tree.map(np.float64, params)
  heads = lambda name, y: np.einsum("...d,dnh->...nh", y, p[name]["kernel"]) + p[name]["bias"]
  table = np.float64(stack["distances"])
  if position.norm:
    table -= table.mean(-1, keepdims=True)
    table /= np.sqrt((table**2).mean(-1, keepdims=True) + position.norm_eps)
    table = table * np.float64(stack["distances_norm_scale"]) + np.float64(
        stack["distances_norm_bias"])
  if position.shared:
    of_query, of_key = heads("query", table), heads("key", table)
  else:
    of_query = np.einsum("rd,dnh->rnh", table, p["position_query"]) + p["position_query_bias"]
    of_key = np.einsum("rd,dnh->rnh", table, p["position_key"]) if (
        "c2p" in position.terms) else None
  q, k = heads("query", np.float64(x)), heads("key", np.float64(x))
  expected = np.zeros((B, N, T, T))
  for b, n, i in np.ndindex(B, N, T):
    same = SEGMENTS[b] == SEGMENTS[b, i]
    logits = np.full(T, -np.inf)
    for j in np.flatnonzero(same):
      row = int(distance_rows(jnp.array(POSITIONS[b, i] - POSITIONS[b, j]), span=position.span,
                              max_distance=position.max_distance))
      total = q[b, i, n] @ k[b, j, n]
      if "c2p" in position.terms:
        total += q[b, i, n] @ of_key[row, n]
      if "p2c" in position.terms:
        total += of_query[row, n] @ k[b, j, n]
      logits[j] = total / np.sqrt((1 + len(position.terms)) * H)
    e = np.exp(logits - logits.max())
    expected[b, n, i] = e / e.sum()
  np.testing.assert_allclose(weights, expected, atol=2e-5)


@pytest.mark.parametrize("fields, expected", [
    (dict(terms=("p2p",)), "position.terms=('p2p',): "),
    (dict(terms=()), "must have 'c2p', 'p2c' or both, once each"),
    (dict(terms=("c2p", "c2p")), "must have 'c2p', 'p2c' or both, once each"),
    (dict(span=5, max_distance=9), "position.span=5 must be even"),
    (dict(span=8, max_distance=5), "max_distance=5 at least half of it and 2, or 0"),
])
def test_fields_that_do_not_fit_are_refused(fields, expected):
  with pytest.raises(ConfigError) as e:
    Disentangled(**fields)
  assert expected in str(e.value)


@pytest.mark.parametrize("size, groups", [(3, 1), (5, 3)])
def test_a_convolution_sees_its_own_text_alone(size, groups):
  layer = Convolution(ConvolutionConfig(size=size, groups=groups, activation="tanh"))
  x = draw(0, B, T, D)
  params = {"kernel": draw(1, size, D // groups, D), "bias": draw(2, D)}
  ours = layer.apply({"params": jax.tree.map(lambda y: jnp.asarray(y, jnp.float32), params)},
                     jnp.asarray(x, jnp.float32), jnp.asarray(SEGMENTS))
  expected = np.zeros((B, T, D))
  inside = D // groups
  for b, t, o in np.ndindex(B, T, D):
    group, total = o // inside, params["bias"][o]
    for tap in range(size):
      s = t + tap - size // 2
      if 0 <= s < T and SEGMENTS[b, s] == SEGMENTS[b, t]:
        total += x[b, s, group * inside:(group + 1) * inside] @ params["kernel"][tap, :, o]
    expected[b, t, o] = np.tanh(total)
  np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_groups_that_do_not_divide_the_width_are_refused():
  layer = Convolution(ConvolutionConfig(size=3, groups=5))
  with pytest.raises(ConfigError, match="convolution.groups=5 does not divide width=12"):
    layer.init(jax.random.key(0), jnp.zeros((B, T, D)))
