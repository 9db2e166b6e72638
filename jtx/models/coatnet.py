"""CoAtNet: stages of convolutions, then of attention, on ever fewer places (Dai et al. 2021).

A stem of convolutions is followed by stages, each on half as many rows and columns as the one
before it. A stage is of MBConv bottlenecks (C) or of transformer layers with a bias for every
offset of rows and columns (T); equations 3 and 4 and table 3 of the paper.

Two things are not as the paper has them. Norms are layer norms of a place's channels where it has
batch norms: these would make an example's result depend on the others of its batch, and need
averages that a step carries beside the parameters. And a stage of attention pools and projects its
input once, before its first layer, where the paper does so on both branches of that layer.
"""

import dataclasses
import itertools
import operator
from typing import Annotated

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.image_head import ImageHead, ImageHeadConfig, PrefixConfig
from jtx.models.patches import ImageConfig
from jtx.nn import layers
from jtx.nn.activations import activate
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig, Context
from jtx.nn.grid_kinds import RelativeBias
from jtx.nn.grid_positions import Grid, GridPosition
from jtx.nn.lora import Adapted
from jtx.nn.mbconv import Conv, MbConv, MbConvConfig, max_pool
from jtx.nn.positions import Places
from jtx.nn.residual import ResidualConfig
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Layers, Positive, Rate, Size, Within

KINDS = ("C", "T")  # of stages


@dataclasses.dataclass(frozen=True, kw_only=True)
class StemConfig:
  """The fields of the first convolutions, of 3 x 3 places each."""
  num_layers: Layers = 2  # convolutions
  width: Size = 64  # channels
  stride: Size = 2  # of the first one


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagesConfig:
  """The fields of the stages; the defaults are CoAtNet-0's."""
  kinds: str = "CCTT"  # a letter a stage: C is convolutions, T attention
  num_layers: tuple[Layers, ...] = (2, 3, 5, 2)  # of each stage
  widths: tuple[Size, ...] = (96, 192, 384, 768)  # channels of each stage
  strides: tuple[Size, ...] = (2, 2, 2, 2)  # by which each stage divides height and width

  def __post_init__(self):
    if not self.kinds or set(self.kinds) - set(KINDS):
      raise ConfigError(f"stages.kinds={self.kinds!r} is not a row of C and T, such as 'CCTT'")
    if "TC" in self.kinds:
      raise ConfigError(f"stages.kinds={self.kinds!r}: stages of convolutions (C) come before those"
                        " of attention (T)")
    for name in ("num_layers", "widths", "strides"):
      if len(getattr(self, name)) != len(self.kinds):
        raise ConfigError(f"stages.{name}={getattr(self, name)} must have a number for each of the"
                          f" {len(self.kinds)} stages of stages.kinds={self.kinds!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayersConfig:
  """The fields of the transformer layers of all stages of attention."""
  head_dim: Size = 32  # width of a head; it divides the stages' widths
  expansion: Size = 4  # hidden width of feed-forward sub-layers to the stage's
  position: GridPosition = RelativeBias(per_layer=True)  # of the stage's places; by name
  dropout: Rate = 0.0  # of each sub-layer's output
  kernel: str = "auto"  # of attention; see nn/kernels/choose.py
  remat: str = "auto"  # of jtx/nn/stack.py
  unroll: Annotated[int, Within("[-1, 4096]")] = 1  # layers unrolled; -1 all, 0 all to train on CPU


class CoAtNet(Adapted):
  """Images to hidden states, and these to what the head makes of them.

  Batch keys: `image` [B, H, W, C], bytes, or floats that are normalised.
  """
  image: ImageConfig = ImageConfig()
  stem: StemConfig = StemConfig()
  stages: StagesConfig = StagesConfig()
  convolution: MbConvConfig = MbConvConfig()  # of the stages of convolutions
  attention: LayersConfig = LayersConfig()  # of those of attention
  norm: layers.NormConfig = layers.NormConfig(position="pre")
  drop_path: Rate = 0.0  # share of examples that skip a layer in training; it grows with the depth
  init_std: Positive | None = None  # of the kernels; None is Glorot uniform
  head: ImageHeadConfig = ImageHeadConfig(pool="mean")  # for a task
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    self.check()
    dtype, stages = layers.compute_dtype(self.dtype), self.stages
    stem, norm = self.stem, self.norm.make
    self.stem_conv = [Conv(stem.width, stride=1 if i else stem.stride, dtype=dtype)
                      for i in range(stem.num_layers)]
    self.stem_norm = [norm(None) for _ in range(stem.num_layers - 1)]
    for i, (kind, number, width) in enumerate(zip(stages.kinds, stages.num_layers, stages.widths)):
      if kind == "C":
        stage = [MbConv(self.convolution, width, stride=1 if j else stages.strides[i],
                        norm=self.norm, init_std=self.init_std, dtype=dtype)
                 for j in range(number)]
      else:
        setattr(self, f"stage_{i}_input", layers.Dense(
            (width,), ("embed", "mlp"), init_std=self.init_std, dtype=dtype))
        stage = Stack(self.stacks[f"stage_{i}"], dtype=dtype, below=sum(stages.num_layers[:i]),
                      of=sum(stages.num_layers))
      setattr(self, f"stage_{i}", stage)
    if not (self.head.norm and self.head.task != "none"):
      self.final_norm = norm(None)
    if self.head.task != "none":
      self.task_head = ImageHead(self.head, self.block(stages.widths[-1]), PrefixConfig(cls=False),
                                 dtype)

  def check(self) -> None:
    """Raises ConfigError where fields do not fit together."""
    if self.image.size % self.stride:
      raise ConfigError(f"image.size={self.image.size} is not a multiple of {self.stride}, the"
                        " product of stem.stride and stages.strides")
    if self.norm.position != "pre" or not self.norm.attention:
      raise ConfigError("norm: a CoAtNet has norm.position='pre' and norm.attention=True")
    if self.head.task != "none" and ("first" in self.head.pool or self.head.distilled):
      raise ConfigError(f"head.pool={self.head.pool!r} and head.distilled={self.head.distilled}: a"
                        " CoAtNet has no tokens before the patches; use head.pool='mean' or"
                        " 'attention', and head.distilled=False")
    for width in (w for k, w in zip(self.stages.kinds, self.stages.widths) if k == "T"):
      if width % self.attention.head_dim:
        raise ConfigError(f"stages.widths={self.stages.widths}: attention.head_dim="
                          f"{self.attention.head_dim} does not divide {width}")

  @property
  def stride(self) -> int:
    """Pixels on a side of the image to a place of the last stage."""
    return self.strides[-1]

  @property
  def strides(self) -> tuple[int, ...]:
    """Pixels on a side of the image to a place of each stage."""
    return tuple(itertools.accumulate(self.stages.strides, operator.mul,
                                      initial=self.stem.stride))[1:]

  def grid_of(self, stage: int) -> Grid:
    """The places of a stage."""
    side = self.image.size // self.strides[stage]
    return Grid(side, side)

  @property
  def grid(self) -> Grid:
    return self.grid_of(len(self.stages.kinds) - 1)

  def block(self, width: int) -> BlockConfig:
    """A layer of a stage of attention."""
    c = self.attention
    return BlockConfig(
        attention=AttentionConfig(num_heads=max(width // c.head_dim, 1), head_dim=c.head_dim,
                                  biases=PROJECTIONS, kernel=c.kernel),
        ffn=layers.FfnConfig(dim=c.expansion * width, activation="gelu"), norm=self.norm,
        residual=ResidualConfig(drop_path=self.drop_path), dropout=c.dropout,
        init_std=self.init_std)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    c, stages = self.attention, self.stages
    return {f"stage_{i}": StackConfig(
        width=stages.widths[i], num_layers=stages.num_layers[i],
        block=self.block(stages.widths[i]), position=c.position.bind(self.grid_of(i)),
        final_norm=False, remat=c.remat, unroll=c.unroll)
            for i, kind in enumerate(stages.kinds) if kind == "T"}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset(({"projected"} if self.head.projection else set())
                     | {self.head.task} - {"none"})

  @property
  def longest(self) -> int | None:
    return self.grid.tokens

  def example(self) -> Batch:
    image = self.image
    return {"image": jnp.zeros((1, image.size, image.size, image.channels), jnp.uint8)}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, N, D] of the N places of the last stage, row by row."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing() and self.head.task != "none":
      self.outputs(hidden)
    return hidden

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    """The last stage's places [B, N, D], normed, and of each stage of attention its `Outputs`."""
    self.image.check(batch["image"])
    x, outputs = self.image.normalize(batch["image"]), {}
    for i, conv in enumerate(self.stem_conv):
      x = conv(x)
      if i < len(self.stem_norm):
        x = activate(self.convolution.activation, self.stem_norm[i](x))
    x = constrain(x, "batch", None, None, None)
    for i, kind in enumerate(self.stages.kinds):
      if kind == "C":
        skipped = ResidualConfig(drop_path=self.drop_path).skipped(
            sum(self.stages.num_layers[:i]), self.stages.num_layers[i], sum(self.stages.num_layers))
        for j, layer in enumerate(getattr(self, f"stage_{i}")):
          x = layer(x, train, None if skipped is None else skipped[j])
      else:
        x, outputs[f"stage_{i}"] = self.attend(i, x, train, **returns)
    x = x.reshape(x.shape[0], -1, x.shape[-1])
    return (self.final_norm(x) if hasattr(self, "final_norm") else x), outputs

  def attend(self, stage: int, x: jax.Array, train: bool, **returns: bool):
    """A stage of attention, from [B, H, W, C] to [B, H / stride, W / stride, D]; its `Outputs`."""
    x = getattr(self, f"stage_{stage}_input")(max_pool(x, self.stages.strides[stage]))
    shape = x.shape
    x = x.reshape(shape[0], -1, shape[-1])
    places = Places(jnp.arange(x.shape[1])[None])
    x, outputs = getattr(self, f"stage_{stage}")(x, Context(places, train=train, **returns))
    return x.reshape(shape), outputs

  def outputs(self, hidden: jax.Array, train: bool = False) -> jax.Array:
    """The head's outputs for hidden states; see `ImageHead`."""
    return self.task_head(hidden, train)

  def scores(self, batch: Batch, train: bool = False) -> jax.Array:
    """From images to the scores [B, 1, C]."""
    return self.outputs(self(batch, train), train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From images to float32 [B, 1, outputs]."""
    del num_texts
    return self.scores(batch, train)

  def features(self, batch: Batch) -> jax.Array:
    """The head's input, float32 [B, D]; without a head, the mean of the places."""
    hidden = self(batch)
    if self.head.task == "none":
      return hidden.mean(1).astype(jnp.float32)
    return self.task_head(hidden, features=True)

  def patch_features(self, batch: Batch) -> jax.Array:
    """The last stage's places, float32 [B, H, W, D]."""
    return self.grid.of_patches(self(batch))

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers by stage, each [layers, B, N, T, T], for pictures."""
    _, outputs = self.run(batch, return_weights=True)
    return {name: jnp.concatenate([w["self"] for w in out.weights])
            for name, out in outputs.items()}
