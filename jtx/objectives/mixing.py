"""Mixup and CutMix: images of a batch mixed in pairs, each with the one before it.

mixup (Zhang et al. 2017): x = a x1 + (1 - a) x2, with a from Beta(alpha, alpha). CutMix (Yun et
al. 2019): x is x1 with a box of x2 in it, of a share 1 - a of the area before it is cut at the
border; a becomes what is left of x1. Labels are mixed by a.
"""

from typing import Any, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.sums import Batch


def mix(alphas: Any, model: nn.Module, batch: Batch, train: bool,
        rngs: Mapping[str, jax.Array] | None) -> tuple[Batch, jax.Array | float]:
  """A batch, its images mixed in training, and the share [B, 1] of each one's own label.

  Args:
    alphas: an objective with `mixup` and `cutmix`; see `mixed`.
    model: that normalises the images first.
    batch: with `image` and `real`.
    train: else nothing is mixed.
    rngs: with "dropout".

  Raises:
    ConfigError: there are no images.
  """
  if not train or not (alphas.mixup or alphas.cutmix):
    return batch, 1.0
  if "image" not in batch:
    raise ConfigError("objective.mixup and objective.cutmix are for images, one a row")
  key = jax.random.fold_in(rngs["dropout"], 1)
  image, share = mixed(key, model.image.normalize(batch["image"]), batch["real"][:, 0],
                       alphas.mixup, alphas.cutmix)
  return {**batch, "image": image}, share[:, None]


def mixed(key: jax.Array, image: jax.Array, real: jax.Array, mixup: float,
          cutmix: float) -> tuple[jax.Array, jax.Array]:
  """Mixed images, and a [B]: the share of its own label that each one has.

  Args:
    key: a random key.
    image: [B, H, W, C] floats.
    real: [B], 0 where a row has no image; others are not mixed with it.
    mixup: alpha; 0 is off.
    cutmix: alpha; 0 is off. With both, half of the images get each.
  """
  number, height, width, _ = image.shape
  keys = jax.random.split(key, 4)
  draw = lambda key, alpha: jax.random.beta(key, alpha, alpha, (number,))
  first = jnp.ones((number, height, width))  # the weight of each pixel of x1
  if mixup:
    first = jnp.broadcast_to(draw(keys[0], mixup)[:, None, None], first.shape)
  if cutmix:
    box = 1.0 - boxes(keys[1], jnp.sqrt(1 - draw(keys[2], cutmix)), height, width)
    if mixup:
      chosen = jax.random.bernoulli(keys[3], 0.5, (number, 1, 1))
      box = jnp.where(chosen, box, first)
    first = box
  other = jnp.roll(real, 1)
  first = jnp.where((other > 0)[:, None, None], first, 1.0)
  mixed_image = first[..., None] * image + (1 - first[..., None]) * jnp.roll(image, 1, 0)
  return mixed_image, first.mean((1, 2))


def boxes(key: jax.Array, side: jax.Array, height: int, width: int) -> jax.Array:
  """[B, H, W], 1 in a box around a random centre, whose sides are `side` [B] times the image's."""
  inside = []
  for number, key in zip((height, width), jax.random.split(key)):
    centre = jax.random.uniform(key, side.shape, maxval=number)
    places = jnp.arange(number) + 0.5
    inside.append(jnp.abs(places - centre[:, None]) < side[:, None] * number / 2)
  return (inside[0][:, :, None] & inside[1][:, None, :]).astype(jnp.float32)
