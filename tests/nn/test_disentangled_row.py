"""Disentangled attention of whole rows, against lookups of every pair."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import disentangled
from jtx.nn.disentangled import Disentangled, skewed
from jtx.nn.positions import Places, Project, Sizes

B, N, H, D = 2, 2, 4, 8


def test_rows_begin_ever_earlier():
  x = np.arange(2 * 3 * 5).reshape(2, 3, 5)
  expected = [[row[2 - t:5 - t] for t, row in enumerate(rows)] for rows in x]
  np.testing.assert_array_equal(skewed(jnp.asarray(x)), expected)
  assert skewed(jnp.ones((4, 1, 1))).shape == (4, 1, 1)


@pytest.mark.parametrize("position, T", [
    (Disentangled(16, 0, shared=False, norm=False), 7),  # fewer distances than rows
    (Disentangled(6, 12), 11),  # more, in buckets
    pytest.param(Disentangled(3, 0, terms=("c2p",)), 1, marks=pytest.mark.slow)])
def test_values_and_gradients_are_those_of_lookups(position, T, monkeypatch):
  monkeypatch.setattr(disentangled, "BLOCK", 4)  # several blocks, the last one smaller
  random = np.random.default_rng(0)
  draw = lambda shape: jnp.asarray(random.normal(size=shape), jnp.float32)
  sizes = Sizes(D, N, H)
  params = {name: draw(table.shape) for name, table in
            {**position.stack_tables(sizes), **position.layer_tables(sizes)}.items()}
  kernels = draw((2, D, N, H))
  q, k = draw((B, T, N, H)), draw((B, T, N, H))
  positions = jnp.broadcast_to(jnp.arange(T), (B, T))
  cotangent = draw((B, N, T, T))

  def loss(in_order, params, kernels, q, k):
    places = Places(positions, in_order=in_order)
    of = lambda i: lambda x: jnp.einsum("rd,dnh->rnh", x, kernels[i])
    bias = position.bias(q, k, places, places, params=params, project=Project(of(0), of(1)),
                         scale=0.5)
    return (bias * cotangent).sum(), bias

  run = lambda in_order: jax.jit(jax.value_and_grad(
      functools.partial(loss, in_order), argnums=(0, 1, 2, 3), has_aux=True))(params, kernels, q, k)
  for a, b in zip(*(jax.tree.leaves(run(in_order)) for in_order in (T, 0)), strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * max(1, abs(np.asarray(b)).max()))
