"""A bias of the logits that falls with the logarithm of the distance."""

import dataclasses

import jax.numpy as jnp

from jtx.nn.positions import POSITIONS, Position, Table


@dataclasses.dataclass(frozen=True)
class Kerple(Position):
  """-r log(1 + a |distance|), with r and a of each head (Chi et al. 2022, KERPLE, equation 3)."""
  slope: float = 1.0  # that r and a start from

  def stack_tables(self, sizes):
    start = lambda key, shape, dtype: jnp.full(shape, self.slope, dtype)
    return {"kerple": Table((2, sizes.num_heads), start, ("positions", "heads"))}

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    """[B, N, T, S]."""
    r, a = jnp.maximum(params["kerple"], 0.01)[:, None, :, None, None]
    far = jnp.abs(k_places.positions[:, None, :] - q_places.positions[:, :, None])
    return -r * jnp.log1p(a * far[:, None])


POSITIONS["kerple"] = Kerple
