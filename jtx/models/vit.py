"""Vision transformers, by config: ViT, DeiT, DeiT III, hybrids, and MAE's encoder and decoder.

An image becomes a row of tokens: first those of the prefix ([CLS], a distillation token,
registers), then its patches row by row. Tokens are numbered so, also where MAE leaves most out.
"""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.image_head import ImageHead, ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig, MaeDecoder
from jtx.models.patches import ImageConfig, split
from jtx.models.resnet import Resnet, ResnetConfig
from jtx.nn import layers
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig, Context
from jtx.nn.dropout import Dropout
from jtx.nn.grid_positions import Grid, GridPosition, LearnedGrid
from jtx.nn.lora import Adapted
from jtx.nn.numerics import spread
from jtx.nn.positions import Places
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Pixels


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridStackConfig(StackConfig):
  """A stack whose positions are those of a grid of patches."""
  position: GridPosition = LearnedGrid()  # of the patches in their grid


VIT_STACK = GridStackConfig(
    width=768, num_layers=12,
    block=BlockConfig(
        attention=AttentionConfig(num_heads=12, biases=PROJECTIONS), dropout=0.0,
        ffn=layers.FfnConfig(dim=3072, activation="gelu"), norm=layers.NormConfig(position="pre")))


class Vit(Adapted):
  """Images to hidden states, and these to what the head makes of them.

  Batch keys: `image` [B, H, W, C], bytes, or floats that are normalised. A model with a mask token
  takes `image_masked` [B, N], too, where patches are hidden.
  """
  image: ImageConfig = ImageConfig()
  patch_size: Pixels = 16  # pixels; of a hybrid, places of the stem's output
  stack: GridStackConfig = VIT_STACK  # the layers
  prefix: PrefixConfig = PrefixConfig()
  stem: ResnetConfig = ResnetConfig()  # without stages: the image itself
  patch_bias: bool = True  # of the patches' projection
  embed_norm: bool = False  # of the layers' input (CLIP)
  mask_token: bool = False  # a vector that stands for hidden patches (BEiT, DINOv2)
  head: ImageHeadConfig = ImageHeadConfig()  # for a task
  decoder: DecoderConfig = DecoderConfig()
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, block = layers.compute_dtype(self.dtype), self.stack.block
    std, width = block.init_std or 0.02, self.stack.width
    if self.stem.stages:
      self.resnet = Resnet(self.stem, dtype)
    self.patches = layers.Dense((width,), ("patch", "patch", "channels", "embed"), num_in=3,
                                use_bias=self.patch_bias, init_std=block.init_std, dtype=dtype)
    token = lambda name, *shape: layers.param(self, name, nn.initializers.normal(std),
                                              (*shape, width), ("prefix", "embed"))
    prefix = self.prefix
    self.prefix_tokens = (*([token("cls_token", 1)] if prefix.cls else []),
                          *([token("distillation_token", 1)] if prefix.distillation else []),
                          *([token("registers", prefix.registers)] if prefix.registers else []))
    if self.mask_token:
      self.mask_embedding = token("mask_token", 1)
    self.position_params = self.bound.embed_params(self)
    if self.embed_norm:
      self.input_norm = block.norm.make(None)
    self.dropout = Dropout(block.dropout)
    self.encoder = Stack(self.bound, dtype=dtype)
    if self.head.task != "none":
      self.task_head = ImageHead(self.head, block, self.prefix, dtype)
    if self.decoder.num_layers:
      self.mae_decoder = MaeDecoder(self.decoder, self.stack, self.grid,
                                    outputs=self.patch_values, dtype=dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    if self.image.size % (self.stem.stride * self.patch_size):
      raise ConfigError(f"image.size={self.image.size} is not a multiple of the"
                        f" {self.stem.stride * self.patch_size} pixels of a patch (patch_size="
                        f"{self.patch_size}" + (f", stem of stride {self.stem.stride})"
                                                if self.stem.stages else ")"))
    if "first" in self.head.pool and self.head.task != "none" and not self.prefix.cls:
      raise ConfigError(f"head.pool={self.head.pool!r} takes the [CLS] token, and prefix.cls=False;"
                        " use 'mean' or 'attention'")
    if self.head.norm and not self.stack.final_norm:
      raise ConfigError("stack.final_norm=False: head.norm=True takes the norm of the last layer"
                        " away anyway; leave it True")
    if self.head.distilled and not (self.prefix.cls and self.prefix.distillation):
      raise ConfigError("head.distilled=True needs prefix.cls=True and prefix.distillation=True")
    if self.decoder.num_layers and (self.stem.stages or self.stack.position_at != "stem"):
      raise ConfigError("decoder.num_layers: MAE's decoder needs patches of the image itself, so no"
                        " stem.stages, and position_at='stem'")

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {"encoder": self.bound}

  @property
  def bound(self) -> StackConfig:
    """The stack, with its positions bound to the grid of patches."""
    stack = dataclasses.replace(self.stack, position=self.stack.position.bind(self.grid))
    if self.head.norm and stack.block.norm.position != "post":
      stack = dataclasses.replace(stack, final_norm=False)
    return stack

  @property
  def heads(self) -> frozenset[str]:
    return frozenset(({"mae"} if self.decoder.num_layers else set())
                     | ({"distilled"} if self.head.distilled else set())
                     | ({"projected"} if self.head.projection else set())
                     | {self.head.task} - {"none"})

  @property
  def longest(self) -> int | None:
    return self.grid.tokens

  def example(self) -> Batch:
    image = self.image
    return {"image": jnp.zeros((1, image.size, image.size, image.channels), jnp.uint8)}

  @property
  def grid(self) -> Grid:
    side = self.image.size // (self.stem.stride * self.patch_size)
    return Grid(side, side, self.prefix.number, self.prefix.registers)

  @property
  def patch_values(self) -> int:
    """Numbers of a patch of the image."""
    return self.patch_size**2 * self.image.channels

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, P + N, D] of the last layer, N patches behind P tokens of the prefix."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.head.task != "none":
        self.outputs(hidden)
      if self.decoder.num_layers:
        self.reconstruct(batch, jnp.zeros((hidden.shape[0], self.grid.tokens - self.grid.prefix)))
    return hidden

  def outputs(self, hidden: jax.Array, train: bool = False) -> jax.Array:
    """The head's outputs for hidden states; see `ImageHead`."""
    return self.task_head(hidden, train)

  def scores(self, batch: Batch, train: bool = False) -> jax.Array:
    """From images to the scores [B, heads, C] of [CLS], and of the distillation token if any."""
    return self.outputs(self(batch, train), train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From images to float32 [B, 1, outputs]; a mean over heads."""
    del num_texts
    return self.scores(batch, train).mean(1, keepdims=True)

  def features(self, batch: Batch) -> jax.Array:
    """The head's input, float32 [B, D]; without a head, the mean of the patches."""
    hidden = self(batch)
    if self.head.task == "none":
      return hidden[:, self.prefix.number:].mean(1).astype(jnp.float32)
    return self.task_head(hidden, features=True)

  def patch_features(self, batch: Batch) -> jax.Array:
    """The last layer's states of the patches in their grid, float32 [B, H, W, D]."""
    return self.grid.of_patches(self(batch))

  def hidden_states(self, batch: Batch) -> jax.Array:
    """[layers + 1, B, T, D]: the embeddings, then every layer's output (the last one normed)."""
    x, _ = self.embed(batch, train=False)
    last, out = self.run(batch, return_hidden=True)
    return jnp.concatenate([x[None], out.hidden[:-1], last[None]])

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, [layers, B, N, T, S], for pictures."""
    _, out = self.run(batch, return_weights=True)
    return {"encoder": jnp.concatenate([w["self"] for w in out.weights])}

  def run(self, batch: Batch, train: bool = False, kept: jax.Array | None = None, **returns: bool):
    """The stack's outputs; `kept` [B, K] are the patches that it sees, None is all."""
    x, positions = self.embed(batch, train, kept)
    return self.encoder(x, Context(Places(positions), train=train, **returns,
                                   embed_params=self.bound.shared(self.position_params)))

  def embed(self, batch: Batch, train: bool,
            kept: jax.Array | None = None) -> tuple[jax.Array, jax.Array]:
    """The stack's input [B, T, D], and the numbers [B, T] of its tokens."""
    prefix, number = self.prefix.number, self.grid.tokens
    x = self.embed_patches(batch["image"])
    if self.mask_token and "image_masked" in batch:
      mask = spread(self.mask_embedding, x.shape, x.dtype)
      x = jnp.where(batch["image_masked"][..., None], mask, x)
    positions = jnp.broadcast_to(jnp.arange(number), (x.shape[0], number))
    tokens = [spread(t, (x.shape[0], *t.shape), x.dtype) for t in self.prefix_tokens]
    x = jnp.concatenate([*tokens, x], 1)
    x = self.bound.embed(x, Places(positions), self.position_params)
    x = self.input_norm(x) if self.embed_norm else x
    if kept is not None:
      kept = jnp.concatenate([positions[:, :prefix], prefix + kept], 1)
      x = jnp.take_along_axis(x, kept[..., None], 1)
      positions = kept
    return constrain(self.dropout(x, train), "batch", "residual", None), positions

  def embed_patches(self, image: jax.Array) -> jax.Array:
    """[B, H, W, C] to [B, N, D].

    Raises:
      ConfigError: the image is not of the size or channels of the config.
    """
    config = self.image
    config.check(image)
    if self.stem.stages:
      return self.patches(split(self.resnet(config.normalize(image)), self.patch_size))
    return self.patches(config.patches(image, self.patch_size))

  def reconstruct(self, batch: Batch, noise: jax.Array,
                  train: bool = False) -> tuple[jax.Array, jax.Array]:
    """The pixels of all patches, from the few that the encoder sees (MAE, section 3).

    Args:
      batch: with images.
      noise: [B, N]; the patches of the smallest numbers are seen.
      train: dropout on.

    Returns:
      float32 [B, N, values of a patch], and [B, N], 1 for patches that were not seen.
    """
    number = noise.shape[1]
    kept = int(number * (1 - self.decoder.masked))
    order = jnp.argsort(noise, axis=1)
    restore = jnp.argsort(order, axis=1)
    hidden, _ = self.run(batch, train, order[:, :kept])
    return self.mae_decoder(hidden, restore, train), (restore >= kept).astype(jnp.float32)

  def pixels(self, batch: Batch) -> jax.Array:
    """The normalised values of all patches, float32 [B, N, values of a patch]."""
    patches = self.image.patches(batch["image"], self.patch_size)
    return patches.reshape(*patches.shape[:2], -1).astype(jnp.float32)
