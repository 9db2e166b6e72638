"""Attention with positions of Transformer-XL against the formula in float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn.attention import Attention, AttentionConfig
from jtx.nn.masks import Rows
from jtx.nn.positions import Places
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
