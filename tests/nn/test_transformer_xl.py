"""Attention with positions of Transformer-XL against the formula in float64 NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import disentangled
from jtx.nn.attention import Attention, AttentionConfig
from jtx.nn.masks import Rows
from jtx.nn.positions import Places, Sizes
from jtx.nn.transformer_xl import TransformerXl
from jtx.parallel.sharding import unbox

B, T, D, N, K, H = 2, 6, 8, 4, 2, 3
POSITIONS = np.array([[0, 1, 2, 3, 4, 5], [0, 1, 0, 1, 2, 3]])
SEGMENTS = np.array([[1] * 6, [1] * 2 + [2] * 4])
TYPES = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 0, 0, 1, 1]])


@pytest.mark.parametrize("position", [TransformerXl(), TransformerXl(clamp=2, types=False)])
def test_attention_is_the_formula(position):
  """((q + u) k + (q + v) W R_{i-j} + (q + s) e) / sqrt(H), with heads that share keys."""
  random = np.random.default_rng(0)
  config = AttentionConfig(num_heads=N, num_kv_heads=K, head_dim=H)
  layer, x = Attention(config), jnp.asarray(random.normal(size=(B, T, D)), jnp.float32)
  rows = Rows(q_segments=jnp.asarray(SEGMENTS), k_segments=jnp.asarray(SEGMENTS))
  run = lambda *args, **more: layer.apply(
      *args, x, x, places=Places(jnp.asarray(POSITIONS), jnp.asarray(TYPES)), position=position,
      rows=rows, return_weights=True, **more)
  shapes = unbox(jax.eval_shape(lambda: layer.init(
      jax.random.key(0), x, x, places=Places(jnp.asarray(POSITIONS)), position=position)))
  params = jax.tree.map(lambda s: jnp.asarray(random.normal(size=s.shape), jnp.float32), shapes)
  _, _, weights = jax.jit(run)(params)

  p = jax.tree.map(np.float64, params["params"])
  assert ("position_type" in p) == position.types
  q, k = (np.einsum("btd,dnh->btnh", np.float64(x), p[name]["kernel"]) for name in ("query", "key"))
  frequencies = 10_000.0 ** (-np.arange(0, D, 2) / D)
  expected = np.zeros((B, N, T, T))
  for b, n, i in np.ndindex(B, N, T):
    logits = np.full(T, -np.inf)
    for j in np.flatnonzero(SEGMENTS[b] == SEGMENTS[b, i]):
      distance = POSITIONS[b, i] - POSITIONS[b, j]
      distance = np.clip(distance, -2, 2) if position.clamp else distance
      wave = np.concatenate([np.sin(distance * frequencies), np.cos(distance * frequencies)])
      own = q[b, i, n]
      logits[j] = (own + p["position_content_bias"][n]) @ k[b, j, n // (N // K)]
      logits[j] += (own + p["position_distance_bias"][n]) @ (wave @ p["position_key"][:, n])
      if position.types:
        differ = int(TYPES[b, i] != TYPES[b, j])
        logits[j] += (own + p["position_type_bias"][n]) @ p["position_type"][differ, n]
    e = np.exp((logits - logits.max()) / np.sqrt(H))
    expected[b, n, i] = e / e.sum()
  np.testing.assert_allclose(weights, expected, atol=2e-5)


@pytest.mark.parametrize("memory, queries, clamp", [(0, 0, 0), (3, 2, 0), (2, 3, 4)])
def test_values_and_gradients_are_those_of_lookups(memory, queries, clamp, monkeypatch):
  """Of whole rows, with tokens before them, and with further queries that are no keys."""
  monkeypatch.setattr(disentangled, "BLOCK", 4)  # several blocks, the last one smaller
  position, random = TransformerXl(clamp=clamp), np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  params = {name: draw(*table.shape) for name, table in
            position.layer_tables(Sizes(D, N, H)).items()}
  row = np.broadcast_to(np.arange(T), (B, T))
  asked = np.concatenate([row, random.integers(T, size=(B, queries))], 1)
  types = [random.integers(2, size=(B, number)) for number in (T + queries, memory + T)]
  k_places = Places(np.concatenate([np.tile(np.arange(-memory, 0), (B, 1)), row], 1), types[1])
  q, k = draw(B, T + queries, N, H), draw(B, memory + T, N, H)
  cotangent = draw(B, N, T + queries, memory + T)

  def loss(in_order, params, q, k):
    places = Places(asked, types[0], in_order=in_order)
    bias = position.bias(q, k, places, k_places, params=params, project=None, scale=0.5)
    return (bias * cotangent).sum(), bias

  run = lambda in_order: jax.jit(jax.value_and_grad(
      functools.partial(loss, in_order), argnums=(0, 1, 2), has_aux=True))(params, q, k)
  for a, b in zip(*(jax.tree.leaves(run(in_order)) for in_order in (T, 0)), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1, abs(np.asarray(b)).max()))
