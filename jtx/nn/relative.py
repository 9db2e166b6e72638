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

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    distance = jnp.abs(k_places.positions[:, None, :] - q_places.positions[:, :, None])  # [B, T, S]
    return -alibi_slopes(q.shape[2])[:, None, None] * distance[:, None]


@dataclasses.dataclass(frozen=True)
class T5Bias(Position):
  num_buckets: Size = 32
  max_distance: Size = 128
  init_std: NotNegative = 0.02

  def __post_init__(self):
    if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
      raise ConfigError(f"position.num_buckets={self.num_buckets} must be a multiple of 4, and"
                        f" max_distance={self.max_distance} more than half of it")

  def stack_tables(self, sizes):
    return {"position_bias": Table((self.num_buckets, sizes.num_heads), self.init_std,
                                   ("buckets", "heads"))}

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    distance = k_places.positions[:, None, :] - q_places.positions[:, :, None]
    buckets = relative_buckets(distance, num_buckets=self.num_buckets,
                               max_distance=self.max_distance, bidirectional=not q_places.causal)
    return jnp.moveaxis(params["position_bias"][buckets], -1, 1)


POSITIONS |= {"alibi": Alibi, "t5": T5Bias}
