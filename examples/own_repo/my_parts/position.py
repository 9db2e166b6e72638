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

  def head_params(self, params, num_heads):
    r, a = jnp.maximum(params["kerple"], 0.01)
    return {"r": r, "a": a}

  def pair_bias(self, q, k, params, causal):
    """Kernels call this on blocks of positions; no array of all pairs is made."""
    return -params["r"] * jnp.log1p(params["a"] * jnp.abs(k - q))


POSITIONS["kerple"] = Kerple
