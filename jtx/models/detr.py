"""DETR: a convolutional backbone and an encoder-decoder that detects objects as a set.

Carion et al. 2020 (End-to-End Object Detection with Transformers). An image becomes a map of
features by the backbone; the encoder's tokens are its places, row by row. The decoder has a fixed
number of queries, which all are decoded at once, and each of which becomes a class and a box.
"""

import dataclasses
import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.backbone import Backbone, BackboneConfig
from jtx.models.box_head import BoxHead, BoxHeadConfig
from jtx.models.patches import PixelConfig
from jtx.nn import layers
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig, Context, Memory
from jtx.nn.encodings import sinusoidal
from jtx.nn.attached import Given
from jtx.nn.lora import Adapted
from jtx.nn.positions import Places, Position
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Positive, Size

IMAGENET = PixelConfig(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
STACK = StackConfig(
    width=256, num_layers=6,
    block=BlockConfig(attention=AttentionConfig(num_heads=8, biases=PROJECTIONS),
                      ffn=layers.FfnConfig(dim=2048), norm=layers.NormConfig(eps=1e-5)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacesConfig:
  """The positions of the image's places and of the queries (section 4.2 and table 3)."""
  kind: Literal["sine", "learned", "none"] = "sine"  # of the image's places: D / 2 for row, column
  # Added to the inputs of queries and keys in each layer; or once, to the encoder's input
  at: Literal["attention", "input"] = "attention"
  in_encoder: bool = True  # False: only the keys of the decoder's cross-attention have them
  # Queries' vectors: at each attention of the decoder; or its input, which then is not zeros
  queries_at: Literal["attention", "input"] = "attention"
  base: Positive = 10_000.0  # of "sine": ratio of the longest to the shortest wavelength
  max_side: Size = 50  # of "learned": rows, and columns, that have a vector

  def __post_init__(self):
    default = type(self)
    of_kind = {"none": ("at", "in_encoder", "base", "max_side"), "sine": ("max_side",),
               "learned": ("base",)}
    for name in of_kind[self.kind]:
      if getattr(self, name) != getattr(default, name):
        raise ConfigError(f"places.{name}={getattr(self, name)!r} has no meaning with"
                          f" places.kind={self.kind!r}")
    if self.at == "input" and not self.in_encoder:
      raise ConfigError("places.at='input' adds positions to the encoder's input, so"
                        " places.in_encoder=False would leave them out; set one of the two")


class Detr(Adapted):
  """Images to hidden states of queries, and these to classes and boxes.

  Batch keys: `image` [B, H, W, C], bytes, or floats that are normalised; `size` [B, 2], height and
  width in pixels of the picture at the top left of each, the rest being padding. Without `size`
  there is no padding.
  """
  image: PixelConfig = IMAGENET
  backbone: BackboneConfig = BackboneConfig()  # the image to features
  encoder: StackConfig = STACK  # the layers that read the features
  decoder: StackConfig = STACK  # the layers of the queries
  places: PlacesConfig = PlacesConfig()  # positions
  num_queries: Size = 100  # Q, the most objects that an image may have
  head: BoxHeadConfig = BoxHeadConfig()
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, width, c = layers.compute_dtype(self.dtype), self.encoder.width, self.places
    self.body = Backbone(self.backbone, dtype, name="backbone")
    self.projection = layers.Dense((width,), ("channels", "embed"), dtype=dtype)
    if c.kind == "learned":
      self.tables = [
          layers.param(self, name, nn.initializers.uniform(1.0), (c.max_side, width // 2),
                       ("positions", "embed")) for name in ("row_embedding", "column_embedding")]
    self.queries = layers.param(self, "query_embedding", nn.initializers.normal(1.0),
                                (self.num_queries, width), ("positions", "embed"))
    stacks = self.stacks
    self.encoder_stack = Stack(stacks["encoder"], dtype=dtype, name="encoder")
    self.decoder_stack = Stack(stacks["decoder"], cross=True, dtype=dtype, name="decoder")
    self.decoder_norm = self.decoder.block.norm.make(None)
    if self.head.task != "none":
      self.task_head = BoxHead(self.head, dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    if self.encoder.width != self.decoder.width:
      raise ConfigError(f"encoder.width={self.encoder.width} and decoder.width="
                        f"{self.decoder.width} must be one: queries and the image's places meet")
    if self.encoder.width % 4:
      raise ConfigError(f"encoder.width={self.encoder.width} must be divisible by 4: a quarter each"
                        " is for sines and cosines of rows and columns")
    if not self.decoder.final_norm:
      raise ConfigError("decoder.final_norm=False: a detr has one norm behind each of the decoder's"
                        " layers; leave it True")
    for name in ("encoder", "decoder"):
      stack = getattr(self, name)
      if type(stack.position) is not Position:
        raise ConfigError(f"{name}.position must be 'none': a detr's positions are those of"
                          " model.places")
      if stack.causal or stack.flags or stack.windowed:
        raise ConfigError(f"{name}.causal and {name}.pattern: all places of a detr see all others;"
                          " leave them False and ('global',)")

  @property
  def stacks(self) -> dict[str, StackConfig]:
    encoder = dataclasses.replace(self.encoder, position=Given())
    decoder = dataclasses.replace(self.decoder, position=Given(cross=True))
    if decoder.block.norm.position != "post":  # `decoder_norm` is behind all layers
      decoder = dataclasses.replace(decoder, final_norm=False)
    return {"encoder": encoder, "decoder": decoder}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({self.head.task} - {"none"})

  @property
  def longest(self) -> int | None:
    return None

  def example(self) -> Batch:
    side = self.backbone.stride
    return {"image": jnp.zeros((1, side, side, self.image.channels), jnp.uint8),
            "size": jnp.full((1, 2), side, jnp.int32)}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, Q, D] of the decoder's last layer."""
    hidden = self.hidden_states(batch, train)
    if self.is_initializing() and self.head.task != "none":
      self.task_head(hidden)
    return hidden[-1]

  def boxes(self, batch: Batch, train: bool = False) -> dict[str, jax.Array]:
    """The classes and boxes of all queries, after each of the decoder's L layers.

    Returns:
      `logits` [L, B, Q, C + 1], of which the last class is "no object", and `boxes` [L, B, Q, 4]:
      centre x, centre y, width and height, relative to the picture without its padding. The last
      layer's are the prediction.
    """
    return self.task_head(self.hidden_states(batch, train))

  def hidden_states(self, batch: Batch, train: bool = False) -> jax.Array:
    """[L, B, Q, D]: the output of each of the decoder's layers, all by one norm (appendix A.4)."""
    memory, _ = self.encode(batch, train)
    _, out = self.decode(memory, train, return_hidden=True)
    return self.decoder_norm(out.hidden)

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, each [layers, B, N, query, key], for pictures."""
    memory, encoder = self.encode(batch, return_weights=True)
    _, decoder = self.decode(memory, return_weights=True)
    joined = lambda out, name: jnp.concatenate([w[name] for w in out.weights])
    return {"encoder": joined(encoder, "self"), "decoder": joined(decoder, "self"),
            "cross": joined(decoder, "cross")}

  def encode(self, batch: Batch, train: bool = False, **returns: bool):
    """The memory of the decoder, and an `Outputs` of the encoder's stack."""
    features, sizes = self.features(batch)
    B, h, w, _ = features.shape
    x = self.projection(features.reshape(B, h * w, -1))
    segments = _inside(sizes, h, w).reshape(B, h * w).astype(jnp.int32)
    vectors, attached = self.vectors(sizes, h, w), self.places.at == "attention"
    if vectors is not None and not attached:
      x += vectors.astype(x.dtype)
    numbers = jnp.broadcast_to(jnp.arange(h * w), (B, h * w))
    places = Places(numbers, vectors=vectors if attached else None)
    own = places if self.places.in_encoder else Places(numbers)
    x, out = self.encoder_stack(constrain(x, "batch", "residual", None), Context(
        own, segments, train=train, **returns))
    return Memory(x, segments, places), out

  def decode(self, memory: Memory, train: bool = False, **returns: bool):
    """The output [B, Q, D] of the decoder's stack, and its `Outputs`."""
    shape = memory.states.shape[0], *self.queries.shape
    queries = jnp.broadcast_to(self.queries, shape)
    x, attached = jnp.zeros_like(queries), self.places.queries_at == "attention"
    numbers = jnp.broadcast_to(jnp.arange(shape[1]), shape[:2])
    places = Places(numbers, vectors=queries if attached else None)
    x = (x if attached else queries).astype(memory.states.dtype)
    return self.decoder_stack(constrain(x, "batch", "residual", None), Context(
        places, jnp.ones(shape[:2], jnp.int32), memory=memory, train=train, **returns))

  def features(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """The backbone's features [B, h, w, F], and how many of rows and columns are valid, [B, 2]."""
    image = self.image.normalize(batch["image"])
    B, H, W, _ = image.shape
    sizes = batch["size"] if "size" in batch else jnp.full((B, 2), jnp.array([H, W]))
    features = self.body(jnp.where(_inside(sizes, H, W)[..., None], image, 0))
    # A place is valid where the first of its pixels is.
    valid = [(jnp.arange(n) * N // n < size[:, None]).sum(-1)
             for n, N, size in zip(features.shape[1:3], (H, W), sizes.T)]
    return features, jnp.stack(valid, -1)

  def vectors(self, sizes: jax.Array, h: int, w: int) -> jax.Array | None:
    """The positions [B, h * w, D] of the image's places, given how many are valid, [B, 2].

    Raises:
      ConfigError: there are more rows or columns than have a vector.
    """
    c, D, B = self.places, self.encoder.width, sizes.shape[0]
    if c.kind == "none":
      return None
    if c.kind == "learned":
      if max(h, w) > c.max_side:
        raise ConfigError(f"places.max_side={c.max_side}: the image has {h} x {w} places; set it to"
                          f" {max(h, w)} or more")
      rows, columns = (jnp.broadcast_to(table[:n], (B, n, D // 2))
                       for table, n in zip(self.tables, (h, w)))
      parts = columns[:, None], rows[:, :, None]
    else:
      # 1, 2, ... over the number of the last valid one, times 2 pi.
      part = lambda n, number: sinusoidal(
          2 * math.pi * jnp.arange(1, n + 1) / (number[:, None] + 1e-6), D // 2, base=c.base)
      parts = part(h, sizes[:, 0])[:, :, None], part(w, sizes[:, 1])[:, None]
    parts = [jnp.broadcast_to(p, (B, h, w, D // 2)) for p in parts]
    return jnp.concatenate(parts, -1).reshape(B, h * w, D)


def _inside(sizes: jax.Array, height: int, width: int) -> jax.Array:
  """[B, height, width]: whether a place is within the sizes [B, 2] of pictures at the top left."""
  rows, columns = jnp.arange(height) < sizes[:, :1], jnp.arange(width) < sizes[:, 1:]
  return rows[:, :, None] & columns[:, None]
