"""Two towers, an encoder of images and one of texts, whose vectors are compared: CLIP and SigLIP.

Radford et al. 2021, section 2; Zhai et al. 2023, section 3. A vision transformer's pooled vector
and the vector of a text's last token go to one space, in which an image lies near its captions.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.encoder import EmbeddingConfig, Encoder
from jtx.models.image_head import ONE_VECTOR, ImageHeadConfig, PrefixConfig
from jtx.models.text_head import HeadConfig
from jtx.models.vit import VIT_STACK, GridStackConfig, ImageConfig, Vit
from jtx.nn import layers
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig
from jtx.nn.lora import Adapted
from jtx.nn.positions import Learned
from jtx.nn.stack import StackConfig
from jtx.parallel.sharding import Batch
from jtx.ranges import Pixels, Size, SizeOrNone

IMAGE, TEXT = "image_tower", "text_tower"  # in the parameter tree
SHORTEST = 1e-12  # a vector that is stretched to length 1; what padding has stays zeros
TEXT_STACK = StackConfig(
    width=512, num_layers=12, causal=True, position=Learned(max_length=77),
    block=BlockConfig(
        attention=AttentionConfig(num_heads=8, biases=PROJECTIONS), dropout=0.0,
        ffn=layers.FfnConfig(dim=2048, activation="gelu"), norm=layers.NormConfig(position="pre")))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TowerConfig:
  """The fields of the encoder of images beside its layers; the defaults are CLIP's."""
  cls: bool = True  # a token before the patches, which stands for the whole image
  pool: str = "first"  # that token, "mean" of the patches, or "attention" (SigLIP)
  embed_norm: bool = True  # of the layers' input
  patch_bias: bool = False  # of the patches' projection

  def __post_init__(self):
    if self.pool not in ONE_VECTOR:
      raise ConfigError(f"tower.pool={self.pool!r}: valid are {', '.join(ONE_VECTOR)}")
    if self.pool == "first" and not self.cls:
      raise ConfigError("tower.pool='first' is the token of tower.cls, which is False; use 'mean'"
                        " or 'attention'")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProjectionConfig:
  """The fields of the linear maps from pooled vectors to the space that both towers share."""
  width: Size = 512  # of that space
  image: bool = True  # False: an image's pooled vector itself, which is that wide (SigLIP)
  bias: bool = False  # of the maps


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarityConfig:
  """The fields of the score of an image and a text: exp(s) x cosine, and a bias where it has one.

  CLIP starts from s = ln(1 / 0.07), SigLIP from ln 10 and a bias of -10.
  """
  log_scale: float = 2.6592  # what s starts from
  biased: bool = False  # scores have a bias
  bias: float = 0.0  # what it starts from

  def __post_init__(self):
    if self.bias and not self.biased:
      raise ConfigError(f"similarity.bias={self.bias} goes with similarity.biased=True")


class TwoTowers(Adapted):
  """Images and texts to vectors of one space.

  Batch keys: `image [B, H, W, C]`, as `Vit` has it, and `text`, `text_segment_ids`,
  `text_positions`, all int32 [B, T], one text a row. Methods need those of their own tower only.
  With `image [B, S, H, W, C]` and `real [B, S]` a row has up to S images and texts, by their
  segments; no text attends to another. Their vectors are those of B * S, row after row.
  """
  vocab_size: Size  # V, tokens; unset, the tokenizer's
  image: ImageConfig = ImageConfig()
  patch_size: Pixels = 16  # pixels
  image_stack: GridStackConfig = VIT_STACK  # the layers that read images
  tower: TowerConfig = TowerConfig()
  text_stack: StackConfig = TEXT_STACK  # the layers that read texts, whose last token is taken
  projection: ProjectionConfig = ProjectionConfig()
  # The token that fills a row up to `longest`, as a part of its text (SigLIP); None fills none
  pad_id: SizeOrNone | None = None
  similarity: SimilarityConfig = SimilarityConfig()
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    dtype, p = layers.compute_dtype(self.dtype), self.projection
    if not p.image and p.width != self.image_stack.width:
      raise ConfigError(f"projection.image=False needs projection.width={p.width} to be"
                        f" image_stack.width={self.image_stack.width}")
    self.image_tower = image_tower(self)
    self.text_tower = Encoder(
        vocab_size=self.vocab_size, stack=self.text_stack, dtype=self.dtype,
        embedding=EmbeddingConfig(types=0, norm=False, pad_id=self.pad_id),
        head=HeadConfig(task="embedding", pool="last"))
    # The standard deviation is the authors' code's.
    project = lambda width: layers.Dense((p.width,), ("embed", "transform"), use_bias=p.bias,
                                         init_std=width**-0.5, dtype=dtype)
    if p.image:
      self.image_projection = project(self.image_stack.width)
    self.text_projection = project(self.text_stack.width)
    number = lambda name, value: layers.param(self, name, nn.initializers.constant(value), (), ())
    self.log_scale = number("logit_scale", self.similarity.log_scale)
    if self.similarity.biased:
      self.bias = number("logit_bias", self.similarity.bias)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {f"{IMAGE}/encoder": self.image_stack, f"{TEXT}/encoder": self.text_stack}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"image_text"})

  @property
  def longest(self) -> int | None:
    return self.text_stack.position.limit

  def example(self) -> Batch:
    image, texts = self.image, ("text", "text_segment_ids", "text_positions")
    return {"image": jnp.zeros((1, image.size, image.size, image.channels), jnp.uint8),
            **{key: jnp.zeros((1, 1), jnp.int32) for key in texts}}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the texts; those of images are `image_states`."""
    if self.is_initializing():  # creates the parameters that a call does not use
      self.embed_images(batch)
      self.embed_texts(batch)
    return self.text_tower(batch, train)

  def image_states(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, P + N, D] of images."""
    return self.image_tower(batch, train)

  @property
  def head(self) -> ImageHeadConfig:
    """Of images, as tools for models of images ask for it: their vectors are its outputs."""
    return ImageHeadConfig(task="embedding", pool=self.tower.pool)

  def features(self, batch: Batch) -> jax.Array:
    """`embed_images`."""
    return self.embed_images(batch)

  def patch_features(self, batch: Batch) -> jax.Array:
    """As `Vit.patch_features`, of the encoder of images."""
    return self.image_tower.patch_features(batch)

  def embed_images(self, batch: Batch, train: bool = False) -> jax.Array:
    """The vectors of images, float32 [B, W] of length 1; [B * S, W] of rows of several."""
    image = batch["image"]
    batch = {**batch, "image": image.reshape(-1, *image.shape[-3:])}
    x = self.image_tower.predict(batch, train=train)[:, 0]
    return normed(self.image_projection(x) if self.projection.image else x)

  def embed_texts(self, batch: Batch, train: bool = False) -> jax.Array:
    """The vectors of texts, float32 [B, W] of length 1; [B * S, W] of rows of several."""
    number = batch["real"].shape[1] if "real" in batch else 1
    pooled = self.text_tower.predict(batch, number, train)
    return normed(self.text_projection(pooled.reshape(-1, pooled.shape[-1])))

  def vectors(self, batch: Batch, train: bool = False) -> tuple[jax.Array, jax.Array]:
    """`embed_images` and `embed_texts` of a batch that has both."""
    return self.embed_images(batch, train), self.embed_texts(batch, train)

  def scale_and_bias(self) -> tuple[jax.Array, jax.Array]:
    """The logarithm s of the scores' scale, and their bias, which is 0 where there is none."""
    return self.log_scale, self.bias if self.similarity.biased else jnp.zeros(())

  def scores(self, images: jax.Array, texts: jax.Array) -> jax.Array:
    """Vectors [B, W] and [S, W] to the float32 score [B, S] of each pair."""
    log_scale, bias = self.scale_and_bias()
    return jnp.exp(log_scale) * cosines(images, texts) + bias

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers of both towers, each [layers, B, N, T, T], for pictures."""
    return {f"{name}/{stack}": weights
            for name, tower in ((IMAGE, self.image_tower), (TEXT, self.text_tower))
            for stack, weights in tower.attention_weights(batch).items()}


def image_tower(model: TwoTowers) -> Vit:
  """The encoder of images of a model, bound or not."""
  tower = model.tower
  return Vit(image=model.image, patch_size=model.patch_size, stack=model.image_stack,
             prefix=PrefixConfig(cls=tower.cls), patch_bias=tower.patch_bias, dtype=model.dtype,
             embed_norm=tower.embed_norm, head=ImageHeadConfig(task="embedding", pool=tower.pool))


def of_images(model: Any, params: Any) -> tuple[Any, Any]:
  """Of two towers the encoder of images and its parameters; any other model as it is."""
  return (image_tower(model), params[IMAGE]) if isinstance(model, TwoTowers) else (model, params)


def normed(x: jax.Array) -> jax.Array:
  """Vectors [..., W] as float32 of length 1."""
  x = x.astype(jnp.float32)
  return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), SHORTEST**2))


def cosines(images: jax.Array, texts: jax.Array) -> jax.Array:
  """Products [B, S] of vectors [B, W] and [S, W]; a scale makes their errors large, so in full."""
  return jnp.einsum("bw,sw->bs", images, texts, precision=jax.lax.Precision.HIGHEST)
