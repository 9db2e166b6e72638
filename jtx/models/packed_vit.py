"""Vision transformers of images of any shape, whose patches share rows of tokens.

Dehghani et al. 2023 (Patch n' Pack: NaViT). An image keeps its aspect ratio and, if it is not too
large, its resolution: it has as many patches as it needs, and several images stand in one row. No
token attends to another image's. SigLIP 2's NaFlex (Tschannen et al. 2025, section 2.4.2) has such
images, too, one a row.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.heads import heads_of
from jtx.models.patches import PixelConfig
from jtx.models.text_head import Head, HeadConfig
from jtx.models.vit import VIT_STACK, GridStackConfig
from jtx.nn import layers
from jtx.nn.block import Context
from jtx.nn.dropout import Dropout
from jtx.nn.grid_kinds import Learned2d
from jtx.nn.grid_positions import Grid
from jtx.nn.lora import Adapted
from jtx.nn.positions import Places
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Pixels, Size

PACKED_STACK = dataclasses.replace(VIT_STACK, position=Learned2d())
INPUTS = ("patch", "patch_places", "patch_segment_ids", "patch_positions", "real")


class PackedVit(Adapted):
  """Patches of images to hidden states, and these to what the head makes of each image.

  Batch keys, as `jtx.data.ops.patch_layout` makes them: `patch [B, T, size * size * C]`, bytes, or
  floats that are normalised; int32 `patch_places [B, T, 2]`, row and column in the image;
  `patch_segment_ids [B, T]`, 0 for padding, by which images share a row, and `patch_positions
  [B, T]`; and `real [B, S]`, whether a row has a first, second, ... image.
  """
  max_side: Size  # rows, and columns, of patches that an image may have; unset, the data's
  image: PixelConfig = PixelConfig()
  patch_size: Pixels = 16  # pixels
  stack: GridStackConfig = PACKED_STACK  # the layers
  head: HeadConfig = HeadConfig(pool="mean")  # for a task
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    dtype, block = layers.compute_dtype(self.dtype), self.stack.block
    if self.head.pool != "mean":
      raise ConfigError(f"head.pool={self.head.pool!r}: no token of an image stands for all of"
                        " model.name='packed_vit'; use 'mean'")
    if self.head.both_orders:
      raise ConfigError("head.both_orders is of pairs of texts, and model.name='packed_vit' takes"
                        " images")
    self.patches = layers.Dense((self.stack.width,), ("patch", "patch", "channels", "embed"),
                                num_in=3, init_std=block.init_std, dtype=dtype)
    self.position_params = self.bound.embed_params(self)
    self.dropout = Dropout(block.dropout)
    self.encoder = Stack(self.bound, dtype=dtype)
    if self.head.task != "none":
      self.task_head = Head(self.head, block, dtype)

  @property
  def grid(self) -> Grid:
    """The largest, by which places are numbered in all images."""
    return Grid(self.max_side, self.max_side)

  @property
  def bound(self) -> StackConfig:
    """The stack, with its positions bound to the grid."""
    return dataclasses.replace(self.stack, position=self.stack.position.bind(self.grid))

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {"encoder": self.bound}

  @property
  def heads(self) -> frozenset[str]:
    return heads_of(self.head.task, self.head.projection)

  @property
  def longest(self) -> int | None:
    return None

  def example(self) -> Batch:
    numbers = self.patch_size**2 * self.image.channels
    return {"patch": jnp.zeros((1, 1, numbers), jnp.uint8),
            "patch_places": jnp.zeros((1, 1, 2), jnp.int32),
            **{key: jnp.zeros((1, 1), jnp.int32) for key in INPUTS[2:]}}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing() and self.head.task != "none":
      self.outputs(hidden, batch)
    return hidden

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """The head's float32 outputs [B, S, outputs] for hidden states; `num_texts` is S."""
    names = {f"text_{name}": batch[f"patch_{name}"] for name in ("segment_ids", "positions")}
    return self.task_head(hidden, names, num_texts, train)

  def predict(self, batch: Batch, num_texts: int | None = None, train: bool = False) -> jax.Array:
    """From patches to the head's outputs [B, S, outputs]; None is S of `real`."""
    return self.outputs(self(batch, train), batch, num_texts or batch["real"].shape[1], train)

  def features(self, batch: Batch) -> jax.Array:
    """The mean of each image's patches after the last layer, float32 [B, S, D]."""
    of_image = batch["patch_segment_ids"][:, None] == 1 + jnp.arange(
        batch["real"].shape[1])[:, None]  # [B, S, T]
    weights = of_image / jnp.maximum(of_image.sum(-1, keepdims=True), 1)
    return jnp.einsum("bst,btd->bsd", weights, self(batch).astype(jnp.float32))

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, [layers, B, N, T, S], for pictures."""
    _, out = self.run(batch, return_weights=True)
    return {"encoder": jnp.concatenate([w["self"] for w in out.weights])}

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    """The stack's outputs."""
    patch, size, channels = batch["patch"], self.patch_size, self.image.channels
    if patch.shape[-1] != size**2 * channels:
      raise ConfigError(f"patches of {patch.shape[-1]} numbers do not fit patch_size={size} and"
                        f" image.channels={channels}, which are {size**2 * channels}")
    pixels = self.image.normalize(patch.reshape(*patch.shape[:2], size, size, channels))
    row, column = jnp.moveaxis(batch["patch_places"], -1, 0)
    places = Places(row * self.max_side + column)
    x = self.bound.embed(self.patches(pixels), places, self.position_params)
    x = constrain(self.dropout(x, train), "batch", "residual", None)
    return self.encoder(x, Context(places, batch["patch_segment_ids"], train=train, **returns,
                                   embed_params=self.bound.shared(self.position_params)))
