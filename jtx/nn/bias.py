"""Biases of attention's logits as functions of places, which kernels compute as they need them."""

import dataclasses
from typing import Any, Callable, Mapping

import flax.struct
import jax
import jax.numpy as jnp


@flax.struct.dataclass
class PairBias:
  """A bias that is a function of the positions of a query and a key, and a head's parameters."""
  # Positions of queries and keys that broadcast, and parameters of a head -> their bias. Static.
  function: Callable = flax.struct.field(pytree_node=False)
  params: Mapping[str, jax.Array]  # [N] numbers and [N, n] tables
  q_positions: jax.Array  # [B, T] int
  k_positions: jax.Array  # [B, S] int

  @property
  def tables(self) -> tuple[str, ...]:
    return tuple(name for name, x in self.params.items() if x.ndim == 2)

  @property
  def largest(self) -> int:
    """Entries of its largest table."""
    return max((x.shape[1] for x in self.params.values() if x.ndim == 2), default=0)

  def with_arrays(self, params, q_positions, k_positions) -> "PairBias":
    """The same function of others."""
    return self.replace(params=params, q_positions=q_positions, k_positions=k_positions)

  def materialize(self) -> jax.Array:
    """The bias of all pairs, [B, N or 1, T, S]."""
    if not self.params:
      return self.function(self.q_positions[:, :, None], self.k_positions[:, None, :], {})[:, None]
    of_head = lambda params: self.function(
        self.q_positions[:, :, None], self.k_positions[:, None, :], params)
    return jnp.moveaxis(jax.vmap(of_head)(self.params), 0, 1)


@dataclasses.dataclass(frozen=True)
class OfPositions:
  """The `pair_bias` of a `jtx.nn.positions.Position`, as a function that can be compared."""
  position: Any
  causal: bool

  def __call__(self, q: jax.Array, k: jax.Array, params: Mapping[str, jax.Array]) -> jax.Array:
    return self.position.pair_bias(q, k, params, self.causal)
