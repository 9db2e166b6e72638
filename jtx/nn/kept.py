"""Names of what the backward pass may keep of a layer; the rest is cheap to compute again."""

import jax
from jax.ad_checkpoint import checkpoint_name

NAMES = ("attention", "projected", "hidden", "residual", "statistics")
# Projections of a layer's input take less time again than a scan's copies of them do.
KEPT = tuple(name for name in NAMES if name != "projected")


def keep(x: jax.Array, name: str) -> jax.Array:
  """x, under a name of `NAMES` by which a rematerialised layer may keep it.

  "attention" is a fused kernel's output and sums, "projected" the queries, keys and values that go
  into one, "hidden" what an activation is of, "residual" a sub-layer's output and its input added
  up, of which the norms are, and "statistics" their means and deviations.
  """
  assert name in NAMES
  return checkpoint_name(x, name)
