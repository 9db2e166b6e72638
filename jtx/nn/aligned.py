"""First values by which tokens attend to their like before anything is learnt.

Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers", arXiv:2305.09828, find
that products of the kernels of queries and keys are near a multiple of the identity in trained
models, and begin with that. Here both kernels are the same but for their scale, so their product is
near it, too: a token's logit for its like is by the root of the heads' width above all others.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.nn.layers import Dense


def like(query: Dense, init_std: float | None, rng: jax.Array, shape: tuple[int, int, int],
         dtype: jnp.dtype) -> jax.Array:
  """The first kernel [D, K, H] of keys: that of queries, of each group's first head.

  Args:
    query: the projection of queries, of which the kernel [D, N, H] was made.
    init_std: the standard deviation of the keys' kernel; None is Glorot's.
    rng: of Flax's initialisers; nothing is drawn.
    shape: of the kernel.
    dtype: of the kernel.
  """
  del rng
  D, K, H = shape
  kernel = nn.meta.unbox(query.variables["params"]["kernel"])
  kernel = kernel[:, ::kernel.shape[1] // K].astype(dtype)
  std = init_std or (2 / (D + K * H))**0.5
  return kernel * std / jnp.sqrt(jnp.mean(kernel**2))
