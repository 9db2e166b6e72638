"""Names of what the backward pass may keep of a layer; the rest is cheap to compute again."""

import jax
from jax.ad_checkpoint import checkpoint_name

KEPT = ("attention", "projected", "hidden", "residual", "statistics")


def keep(x: jax.Array, name: str) -> jax.Array:
  """x, which a rematerialised layer keeps: a name of `KEPT`.

  "attention" is a fused kernel's output and sums, "projected" the queries, keys and values that go
  into one, "hidden" what an activation is of, and "residual" a sub-layer's output and its input
  added up, of which the norms are, and "statistics" their means and deviations.
  """
  assert name in KEPT
  return checkpoint_name(x, name)
