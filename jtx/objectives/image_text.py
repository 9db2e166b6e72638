"""Contrastive losses of images and their texts: CLIP's softmax, and SigLIP's sigmoid.

Radford et al. 2021, section 2.3 and figure 3; Zhai et al. 2023, sections 3.1 and 3.2.
"""

import dataclasses
import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.objectives.chunks import chunked
from jtx.objectives.sums import Batch, Sums, weighted_sums
from jtx.ranges import NotNegative, SizeOrNone

LOSSES = ("softmax", "sigmoid")
HIDDEN = -1e30  # the score of what is not there, whose softmax is 0


def compare(rows: jax.Array, own: jax.Array, weights: jax.Array, others: jax.Array,
            real: jax.Array, scale: jax.Array, bias: jax.Array, loss: str):
  """Losses of rows against the whole batch on the other side.

  Args:
    rows: vectors [..., W] of length 1.
    own: [...] int, which of the others belongs to each.
    weights: [...], 0 for padding.
    others: vectors [B, W].
    real: [B], whether they are there; padding is no negative.
    scale: of the cosines.
    bias: of the scores.
    loss: of `LOSSES`. "softmax" is -ln p(own); "sigmoid" is -sum_j ln sigmoid(z_j score_j), where
      z_j is 1 for its own and -1 for all others.

  Returns:
    The weighted sums of the losses and of hits, whether its own has the highest score.
  """
  cosines = jnp.einsum("...w,bw->...b", rows, others, precision=jax.lax.Precision.HIGHEST)
  scores = scale * cosines + bias
  is_own = own[..., None] == jnp.arange(others.shape[0])
  if loss == "softmax":
    scores = jnp.where(real > 0, scores, HIDDEN)
    losses = jax.nn.logsumexp(scores, -1) - jnp.sum(jnp.where(is_own, scores, 0), -1)
  else:
    losses = -jnp.sum(jax.nn.log_sigmoid(jnp.where(is_own, scores, -scores)) * (real > 0), -1)
  best = jnp.where(real > 0, cosines, HIDDEN).argmax(-1)
  hits = jax.lax.stop_gradient((best == own).astype(jnp.float32))
  return jnp.sum(losses * weights), jnp.sum(hits * weights)


@jax.custom_vjp
def limited(log_scale: jax.Array, most: float) -> jax.Array:
  """exp(log_scale), at most `most`; there, no gradient is left that would raise it.

  CLIP clips the parameter itself after each step (Radford et al. 2021, section 2.5).
  """
  return jnp.minimum(jnp.exp(log_scale), most)


def _limited(log_scale, most):
  value = limited(log_scale, most)
  return value, (value, jnp.exp(log_scale) >= most)


def _limited_gradient(kept, gradient):
  value, at_limit = kept
  rises = at_limit & (gradient < 0)  # a step goes against the gradient
  return jnp.where(rises, 0.0, gradient * value), None


limited.defvjp(_limited, _limited_gradient)


@dataclasses.dataclass(frozen=True)
class ImageText:
  """The loss of each image and its text against all others of the batch, a mean over images.

  Batches have `image [B, H, W, C]`, the text of each in `text [B, T]`, and `real [B, 1]`; or
  several of them a row, as `TwoTowers` has it. With "softmax" it is the mean of two
  cross-entropies, of the texts of an image and of the images of a text; with "sigmoid" the sum over
  all texts of binary ones. The batch is the global one, on any mesh; with `optim.accumulate` it is
  one of the parts. A text that two images of a batch share counts as another's at each of them, as
  in the papers.
  """
  loss: str = "softmax"  # of `LOSSES`
  chunk: SizeOrNone = 0  # images, or texts, that are compared at a time, about; 0 is all
  max_scale: NotNegative = 100.0  # of the cosines (CLIP); 0 is no limit

  unit = "images"  # what the loss is a mean of
  heads = frozenset({"image_text"})  # of the model
  keys = ("image", "text", "real")  # of a batch

  def __post_init__(self):
    if self.loss not in LOSSES:
      raise ConfigError(f"objective.loss={self.loss!r}: {nearest(self.loss, LOSSES)}")

  def weights(self, batch: Batch):
    """The divisor of each loss term's sum: here, images."""
    return {"loss": batch["real"].astype(jnp.float32).sum()}

  def model_inputs(self, batch: Batch) -> Batch:
    return batch

  def __call__(self, model: nn.Module, params, batch: Batch, *, train: bool, rngs=None) -> Sums:
    """Sums over images of `loss`, `image_accuracy` and `text_accuracy`, and the `scale`.

    The accuracies are the shares of images whose text, and of texts whose image, has the highest
    score in the batch.
    """
    vectors = lambda module, batch: (*module.vectors(batch, train), *module.scale_and_bias())
    images, texts, log_scale, bias = model.apply({"params": params}, batch, rngs=rngs,
                                                 method=vectors)
    scale = limited(log_scale, self.max_scale or math.inf)
    real = batch["real"].reshape(-1).astype(jnp.float32)
    side = functools.partial(self.side, real=real, scale=scale, bias=bias)
    loss, of_images = side(images, texts)
    other, of_texts = side(texts, images)
    if self.loss == "softmax":
      loss = (loss + other) / 2
    number = real.sum()
    told = weighted_sums(jnp.ones(()), scale=jax.lax.stop_gradient(scale))
    return {"loss": (loss, number), "image_accuracy": (of_images, number),
            "text_accuracy": (of_texts, number), **told}

  def side(self, rows: jax.Array, others: jax.Array, *, real: jax.Array, scale: jax.Array,
           bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sums of `compare` for vectors [B, W], of which `chunk` are compared at a time."""
    own = jnp.arange(len(rows))
    sums = functools.partial(compare, others=others, real=real, scale=scale, bias=bias,
                             loss=self.loss)
    if not self.chunk or self.chunk >= len(rows):
      return sums(rows, own, real)
    # Strided, so that each part has rows of every device.
    parts = next(n for n in range(-(-len(rows) // self.chunk), len(rows) + 1)
                 if len(rows) % n == 0)
    split = lambda x: x.reshape(-1, parts, *x.shape[1:])
    return chunked(lambda *part: sums(*part), split(rows), split(own), split(real),
                   len(rows) // parts)
