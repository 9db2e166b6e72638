"""Relative positions as biases of the attention logits: ALiBi and T5's buckets."""

import dataclasses

import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn.encodings import alibi_slopes, relative_buckets
from jtx.nn.positions import POSITIONS, Position, Table
from jtx.ranges import NotNegative, Size


@dataclasses.dataclass(frozen=True)
class Alibi(Position):
  """Press et al. 2021; keys after the query, where a mask allows them, count their distance too."""

  def head_params(self, params, num_heads):
    return {"slope": jnp.asarray(alibi_slopes(num_heads))}

  def pair_bias(self, q, k, params, causal):
    return -params["slope"] * jnp.abs(k - q)


@dataclasses.dataclass(frozen=True)
class T5Bias(Position):
  """A number a head for each bucket of distances (Raffel et al. 2020, section 2.1)."""
  num_buckets: Size = 32  # a multiple of 4; half are for later keys, unless these are hidden
  max_distance: Size = 128  # from which on all share a bucket
  init_std: NotNegative = 0.02  # standard deviation of the first values
  per_layer: bool = False  # every layer has a table of its own (UMT5)

  def __post_init__(self):
    if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
      raise ConfigError(f"position.num_buckets={self.num_buckets} must be a multiple of 4, and"
                        f" max_distance={self.max_distance} more than half of it")

  def _table(self, sizes):
    return Table((self.num_buckets, sizes.num_heads), self.init_std, ("buckets", "heads"))

  def stack_tables(self, sizes):
    return {} if self.per_layer else {"position_bias": self._table(sizes)}

  def layer_tables(self, sizes):
    return {"bias": self._table(sizes)} if self.per_layer else {}

  def head_params(self, params, num_heads):
    return {"bias": params["bias" if self.per_layer else "position_bias"].T}

  def pair_bias(self, q, k, params, causal):
    return params["bias"][relative_buckets(
        k - q, num_buckets=self.num_buckets, max_distance=self.max_distance,
        bidirectional=not causal)]


POSITIONS |= {"alibi": Alibi, "t5": T5Bias}
