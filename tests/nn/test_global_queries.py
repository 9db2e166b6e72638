"""Global tokens with projections of their own (Longformer), against float64 and in cost."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import global_queries
from jtx.nn.attention import PROJECTIONS, Attention, AttentionConfig, LayerKind
from jtx.nn.kernels import blocked
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import FULL, Global, Rows, window
from jtx.nn.positions import Places
from jtx.parallel.sharding import unbox
from jtx.train import flops

B, T, N, H, D = 2, 21, 2, 4, 8
CONFIG = AttentionConfig(num_heads=N, biases=PROJECTIONS, global_projections=True)
MASK = window(2, 2) | Global()
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(B, T, D))
FLAGS = RANDOM.random((B, T)) < 0.2
SEGMENTS = np.where(np.arange(T) < 9, 1, np.where(np.arange(T) < 18, 2, 0)) * np.ones((B, 1), int)
ROWS = Rows(SEGMENTS, SEGMENTS, {"global": FLAGS}, {"global": FLAGS})
PLACES = Places(jnp.broadcast_to(jnp.arange(T), (B, T)))


def module(kernel="xla"):
  return Attention(dataclasses.replace(CONFIG, kernel=kernel))


def apply(attention, params, x, rows=ROWS, **options):
  rows = jax.tree.map(jnp.asarray, rows)
  out, _, weights = attention.apply({"params": params}, x, x, places=PLACES, rows=rows,
                                    kinds=(LayerKind(MASK, True),), **options)
  return (out, weights) if options else out


def drawn():
  shapes = jax.eval_shape(functools.partial(module().init, places=PLACES, rows=ROWS),
                          jax.random.key(0), X, X)["params"]
  shapes = unbox(shapes)
  random = np.random.default_rng(1)
  return jax.tree.map(lambda x: jnp.asarray(random.normal(size=x.shape), jnp.float32), shapes)


def reference(params, x):
  """A query at a time, float64."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  project = lambda name: np.einsum("btd,dnh->btnh", x, p[name]["kernel"]) + p[name]["bias"]
  named = {name: project(name) for name in p if name != "out"}
  result = np.zeros((B, T, D))
  for b in range(B):
    for t in np.flatnonzero(SEGMENTS[b]):
      prefix = "global_" if FLAGS[b, t] else ""
      near = (abs(np.arange(T) - t) <= 2) | FLAGS[b] | FLAGS[b, t]
      seen = near & (SEGMENTS[b] == SEGMENTS[b, t])
      logits = np.einsum("nh,snh->ns", named[f"{prefix}query"][b, t],
                         named[f"{prefix}key"][b, seen]) / np.sqrt(H)
      weights = np.exp(logits - logits.max(-1, keepdims=True))
      weights /= weights.sum(-1, keepdims=True)
      heads = np.einsum("ns,snh->nh", weights, named[f"{prefix}value"][b, seen])
      result[b, t] = np.einsum("nh,nhd->d", heads, p["out"]["kernel"])
  return result + p["out"]["bias"]


def first_of(rows):
  of_query = rows.q_flags["global"]
  return global_queries.First(of_query, jnp.argsort(~of_query, axis=-1, stable=True))


@pytest.fixture(name="params", scope="module")
def make_params():
  return drawn()


@pytest.mark.parametrize("kernel", ["xla", "blocked"])
def test_global_queries_see_all_by_their_own_projections(params, kernel, monkeypatch):
  monkeypatch.setattr(blocked, "CPU_BLOCK", 4)
  out = apply(module(kernel), params, jnp.asarray(X, jnp.float32))
  np.testing.assert_allclose(out, reference(params, X), rtol=0, atol=2e-5)


@pytest.mark.slow
def test_gradients_in_blocks_are_those_of_whole_rows(params, monkeypatch):
  """Of a row without a global token, and of one in which all are."""
  monkeypatch.setattr(blocked, "CPU_BLOCK", 4)
  flags = {"global": np.array([[False], [True]]) & (SEGMENTS == 1)}
  rows = ROWS._replace(q_flags=flags, k_flags=flags)
  weights = jnp.asarray(RANDOM.normal(size=(B, T, D)), jnp.float32)

  def gradients(kernel):
    loss = lambda p, x: (apply(module(kernel), p, x, rows) * weights).sum()
    run = jax.jit(jax.grad(loss, (0, 1)))
    of_params, of_x = run(params, jnp.asarray(X, jnp.float32))
    return of_params | {"x": {"x": of_x}}

  # Each beside its projection's largest: that of a bias of keys is zero, but for what is left of
  # terms as large as those of the kernel.
  blocks, whole = gradients("blocked"), gradients("xla")
  for name, expected in whole.items():
    size = max(abs(leaf).max() for leaf in jax.tree.leaves(expected))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=5e-6 * size),
                 blocks[name], expected)


def test_weights_of_global_queries_are_of_their_own_keys(params):
  _, weights = apply(module(), params, jnp.asarray(X, jnp.float32), return_weights=True)
  weights = np.asarray(weights)
  real = SEGMENTS != 0
  np.testing.assert_allclose(weights.sum(-1).swapaxes(1, 2)[real], 1, atol=1e-5)
  far = abs(np.arange(T)[:, None] - np.arange(T)) > 2
  same = (SEGMENTS[:, :, None] == SEGMENTS[:, None]) & real[:, :, None]
  seen = (weights > 0).all(1)
  np.testing.assert_array_equal(
      seen, same & (~far | FLAGS[:, :, None] | FLAGS[:, None]))


def exponent(cost, lengths=(1024, 4096)):
  """Of the power of the length that the cost is."""
  a, b = map(cost, lengths)
  return math.log(b / a) / math.log(lengths[1] / lengths[0])


@pytest.mark.slow
@pytest.mark.parametrize("places", ["first", "spread"])
def test_the_blocks_that_have_work_are_in_proportion_to_the_length(places):
  """Of queries that see a window, and of global ones, wherever these are."""
  def blocks_of(length):
    at = np.arange(3) if places == "first" else np.arange(3) * length // 3
    flags = {"global": jnp.asarray(np.isin(np.arange(length), at))[None]}
    ids = jnp.ones((1, length), int)
    rows, number = Rows(ids, ids, flags, flags), length // 64
    total = 0
    for mask, rows in ((window(64, 64) | Global(), global_queries.without(rows)),
                       (FULL, first_of(rows).rows(rows))):
      inputs = blocked.Inputs(rows, None, None, jnp.zeros(2, jnp.uint32), jnp.zeros(3, int))
      _, counts = blocked.busy(Variant(mask, 1.0, num_queries=length, num_keys=length),
                               blocked.Plan(64, number, 64, number), inputs)
      total += int(counts.sum())
    return total

  assert 0.9 < exponent(blocks_of) < 1.1


def test_counted_flops_are_in_proportion_to_the_length():
  attention = Attention(AttentionConfig(num_heads=2, global_projections=True))

  def cost(length):
    x = jnp.zeros((1, length, 16))
    flags = {"global": jnp.zeros((1, length), bool)}
    places = Places(jnp.zeros((1, length), int))
    run = lambda: attention.init_with_output(
        jax.random.key(0), x, x, places=places, rows=Rows(q_flags=flags, k_flags=flags),
        kinds=(LayerKind(window(8, 8) | Global(), True),))
    with flops.counted():
      return flops.count(run)

  assert 0.99 < exponent(cost) < 1.01
