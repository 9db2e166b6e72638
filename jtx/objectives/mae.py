"""Masked autoencoding: the pixels of masked patches are predicted (He et al. 2021, MAE)."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.objectives.sums import Batch, Sums, weighted_sums


@dataclasses.dataclass(frozen=True)
class Mae:
  """The mean squared error of the pixels of masked patches; batches have `image` and `real`.

  Without training, as in an evaluation, the patches that are masked follow from an image's pixels:
  they are the same every time, in any batch. Whether each patch's pixels are normalised is the
  model's `decoder.normalize`.
  """

  unit = "images"  # what the loss is a mean of
  heads = frozenset({"mae"})  # of the model
  keys = ("image", "real")  # of a batch

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, images."""
    return {"loss": batch["real"].astype(jnp.float32).sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over images of `loss`.

    Raises:
      ConfigError: the model hides no patch.
    """
    if not model.decoder.masked:
      raise ConfigError("config.model.decoder.masked=0.0: objective 'mae' predicts the patches that"
                        " are hidden, of which there are none; hide a share of them, such as 0.75")
    patches = model.grid.height * model.grid.width
    if train:
      key = jax.random.fold_in(rngs["dropout"], 1)
      noise = jax.random.uniform(key, (batch["image"].shape[0], patches))
    else:
      noise = own_noise(batch["image"], patches)
    predicted, hidden = model.apply({"params": params}, batch, noise, train, rngs=rngs,
                                    method="reconstruct")
    target = model.apply({"params": params}, batch, method="pixels")
    if model.decoder.normalize:
      target = normalized(target)
    error = jnp.square(predicted - target).mean(-1)  # [B, N]
    loss = (error * hidden).sum(-1) / hidden.sum(-1)
    return weighted_sums(batch["real"][:, 0].astype(jnp.float32), loss=loss)


def own_noise(images: jax.Array, patches: int) -> jax.Array:
  """Uniform numbers [B, patches] that follow from the pixels of each image [H, W, C] alone.

  The seed is a sum modulo 2^32, which is the same in any order, and so on any mesh.
  """
  flat = images.reshape(images.shape[0], -1)
  if flat.dtype != jnp.uint8:
    flat = jax.lax.bitcast_convert_type(flat.astype(jnp.float32), jnp.uint32)
  places = jnp.arange(flat.shape[1], dtype=jnp.uint32)
  odd = places * jnp.uint32(0x3C6EF372) + 1  # a number for each place, of 2 / the golden ratio
  seeds = (flat.astype(jnp.uint32) * odd).sum(-1, dtype=jnp.uint32)
  return jax.vmap(lambda seed: jax.random.uniform(jax.random.key(seed), (patches,)))(seeds)


def normalized(patches: jax.Array) -> jax.Array:
  """Patches [..., n] with mean 0 and variance 1 (of a sample, plus 1e-6)."""
  return (patches - patches.mean(-1, keepdims=True)) / jnp.sqrt(
      patches.var(-1, keepdims=True, ddof=1) + 1e-6)
