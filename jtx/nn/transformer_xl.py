"""Relative positions of Transformer-XL (Dai et al. 2019), with XLNet's texts (Yang et al. 2019).

A query q answers a key k, their distance, and whether both are of one text. Times the scale of
logits, a logit is (q + u) k + (q + v) W R_{i-j} + (q + s) e_{same text?}. R are sinusoids; every
layer learns W, u, v, s, and the two vectors e, of every head (XLNet, section 2.5).
"""

import dataclasses

import jax.numpy as jnp

from jtx.nn.disentangled import chosen, of_distances, per_head, products
from jtx.nn.encodings import sinusoidal
from jtx.nn.numerics import add_bias
from jtx.nn.positions import POSITIONS, Position, Table
from jtx.ranges import NotNegative, SizeOrNone


@dataclasses.dataclass(frozen=True)
class TransformerXl(Position):
  """XLNet's; of Transformer-XL, which knows nothing of texts, with types=False."""
  clamp: SizeOrNone = 0  # longer distances count as this one; 0: they count as they are
  types: bool = True  # whether the token types of a query and a key are the same is told
  init_std: NotNegative = 0.02  # standard deviation of the first values

  def layer_tables(self, sizes):
    heads, axes = (sizes.num_heads, sizes.head_dim), ("heads", "kv")
    table = lambda *more: Table((*(n for n, _ in more), *heads), self.init_std,
                                (*(axis for _, axis in more), *axes))
    tables = {"key": table((sizes.width, "embed")), "content_bias": table(),
              "distance_bias": table()}
    if self.types:
      tables |= {"type": table((2, "types")), "type_bias": table()}
    return tables

  def bias(self, q, k, q_places, k_places, *, params, project, scale):
    p = {name: x.astype(q.dtype) for name, x in params.items()}
    heads, keys = q.shape[2], k.shape[1]
    total = jnp.einsum("nh,bsnh->bns", p["content_bias"], per_head(k, heads),
                       preferred_element_type=jnp.float32)[:, :, None]
    total += self.by_distance(add_bias(q, params["distance_bias"]), q_places, k_places, p["key"])
    if self.types:
      biased = add_bias(q, params["type_bias"])
      same, other = jnp.moveaxis(products(biased, p["type"]), -1, 0)[..., None]
      if q_places.types is not None:
        differ = q_places.types[:, :, None] != k_places.types[:, None]
        same = jnp.where(differ[:, None], other, same)
      total += same
    return scale * total

  def by_distance(self, x, q_places, k_places, kernel):
    """Products of queries [B, T, N, H] with keys of the distances of all keys, [B, N, T, S]."""
    keys, first = k_places.positions.shape[1], q_places.in_order
    # Places of a text are less apart than there are keys. The farthest behind comes first.
    distances = jnp.arange(keys - 1, -keys, -1)
    if self.clamp:
      distances = jnp.clip(distances, -self.clamp, self.clamp)
    waves = sinusoidal(distances, kernel.shape[0], layout="concatenated").astype(x.dtype)
    table = jnp.einsum("rd,dnh->rnh", waves, kernel)
    parts = []
    if first:
      parts.append(of_distances(x[:, :first], table[:keys + first - 1]))
    if first < x.shape[1]:
      apart = q_places.positions[:, first:, None] - k_places.positions[:, None]
      rows = jnp.clip(keys - 1 - apart, 0, 2 * keys - 2)
      parts.append(chosen(products(x[:, first:], table), rows[:, None]))
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, 2)


POSITIONS["transformer_xl"] = TransformerXl
