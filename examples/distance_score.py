"""Checks distance_score.diff against float64 NumPy: the outputs and a derivative."""

import jax
import jax.numpy as jnp
import numpy as np

from jtx.nn.attend import attend
from jtx.nn.attention import AttentionConfig

B, T, S, N, K, H = 2, 3, 5, 4, 2, 6
rng = np.random.default_rng(0)
q, k, v = (rng.normal(size=shape) for shape in ((B, T, N, H), (B, S, K, H), (B, S, K, H)))
dq, dk, cotangent = (rng.normal(size=x.shape) for x in (q, k, q))


def want(q, k, scale):
  out = np.zeros((B, T, N, H))
  for b, t, n in np.ndindex(B, T, N):
    keys, values = k[b, :, n // (N // K)], v[b, :, n // (N // K)]
    p = np.exp(-scale * ((q[b, t, n] - keys) ** 2).sum(-1))
    out[b, t, n] = p / p.sum() @ values
  return out


def got(q, k, scale=None):
  return attend(q, k, jnp.float32(v), score="distance", scale=scale)


args = jnp.float32(q), jnp.float32(k)
np.testing.assert_allclose(got(*args), want(q, k, H**-0.5), atol=2e-6)
np.testing.assert_allclose(got(*args, 0.2), want(q, k, 0.2), atol=2e-6)

# The derivative in the direction (dq, dk), by central differences.
of = lambda e: (want(q + e * dq, k + e * dk, H**-0.5) * cotangent).sum()
grads = jax.grad(lambda q, k: (got(q, k) * cotangent).sum(), (0, 1))(*args)
found = sum((np.asarray(g, np.float64) * d).sum() for g, d in zip(grads, (dq, dk)))
np.testing.assert_allclose(found, (of(1e-5) - of(-1e-5)) / 2e-5, rtol=1e-5)

AttentionConfig(score="distance", scale=0.5)  # a config may scale it
