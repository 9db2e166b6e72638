"""Heads of vision transformers: pooling, scores of classes, or an embedding."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.models.heads import TASKS, check_threshold
from jtx.nn import layers
from jtx.nn.activations import activate
from jtx.nn.attention import Attention
from jtx.nn.block import BlockConfig
from jtx.nn.dropout import Dropout
from jtx.nn.numerics import spread
from jtx.nn.positions import Places
from jtx.ranges import Fraction, Rate, Size, SizeOrNone

IMAGE_TASKS = ("none", "embedding", "classes", "multi_label")  # of `heads.TASKS`
ONE_VECTOR = ("first", "mean", "attention")  # poolings to the width of the layers
POOLS = (*ONE_VECTOR, "first_mean")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixConfig:
  """The tokens before the patches, in this order."""
  cls: bool = True  # [CLS], which stands for the whole image
  distillation: bool = False  # DeiT (Touvron et al. 2020)
  registers: SizeOrNone = 0  # Darcet et al. 2023; they have no position of their own in the grid

  @property
  def number(self) -> int:
    return self.cls + self.distillation + self.registers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageHeadConfig:
  """The fields of an image model's head."""
  task: str = "none"  # "classes", "multi_label": a score each; "embedding": the pooled vector
  outputs: Size | None = None  # classes
  # "first" token, "mean" of the patches, "attention" (Zhai et al. 2021), or "first_mean", the first
  # two one behind the other (DINOv2)
  pool: str = "first"
  norm: bool = False  # after pooling; the layers then have none at their end
  transform: str = "none"  # activation of a dense layer; tanh is of ViT's pretraining
  projection: SizeOrNone = 0  # of an "embedding": width of a linear map of it (CLIP); 0 is none
  distilled: bool = False  # scores of the distillation token too; the answer is their mean
  dropout: Rate = 0.0  # before the outputs
  zero: bool = False  # outputs start from zeros, as ViT's fine-tuning has it
  threshold: Fraction = 0.5  # of "multi_label": the probability from which on a label is predicted

  def __post_init__(self):
    if self.task not in IMAGE_TASKS:
      raise ConfigError(f"head.task={self.task!r}: {nearest(self.task, IMAGE_TASKS)}")
    if self.pool not in POOLS:
      raise ConfigError(f"head.pool={self.pool!r}: {nearest(self.pool, POOLS)}")
    check_threshold(self.task, self.threshold)
    if self.projection and self.task != "embedding":
      raise ConfigError(f"head.projection={self.projection} goes with head.task='embedding', not"
                        f" {self.task!r}")
    if not TASKS[self.task].labelled and (self.outputs is not None or self.distilled):
      raise ConfigError(f"head.outputs and head.distilled go with head.task='classes', not"
                        f" {self.task!r}")


class ImageHead(nn.Module):
  """Pools, norms, transforms and projects."""
  config: ImageHeadConfig
  block: BlockConfig
  prefix: PrefixConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, train: bool = False, features: bool = False) -> jax.Array:
    """Hidden states [B, T, D] to float32 [B, heads, outputs]; an "embedding" has D or
    `projection`.

    With `features` it is what the outputs of [CLS] are made of, [B, D].
    """
    c = self.config
    x = self.pool(hidden, train)
    if c.norm:
      x = self.block.norm.make("norm")(x)
    if c.transform != "none":
      dense = layers.Dense((x.shape[-1],), ("embed", "transform"), init_std=self.block.init_std,
                           dtype=self.dtype, name="transform")
      x = activate(c.transform, dense(x))
    if c.projection:
      x = layers.Dense((c.projection,), ("embed", "transform"), use_bias=False,
                       init_std=self.block.init_std, dtype=self.dtype, name="projection")(x)
    if features:
      return x.astype(jnp.float32)
    if c.task == "embedding":
      return x[:, None].astype(jnp.float32)
    if c.outputs is None:
      raise ConfigError(f"head.outputs must be set: head.task={c.task!r}")
    named = {"output": x}
    if c.distilled:
      named["distillation_output"] = hidden[:, 1]
    std = 0.0 if c.zero else self.block.init_std
    return jnp.stack([
        layers.Dense((c.outputs,), ("embed", "outputs"), init_std=std, dtype=self.dtype,
                     name=name)(Dropout(c.dropout)(value, train))
        for name, value in named.items()], 1).astype(jnp.float32)

  def pool(self, hidden: jax.Array, train: bool) -> jax.Array:
    """[B, T, D] to [B, D], or [B, 2 D] of two poolings."""
    if self.config.pool == "attention":
      return AttentionPool(self.block, self.dtype, name="pool")(hidden, train)
    first, mean = hidden[:, 0], hidden[:, self.prefix.number:].mean(1)
    return {"first": first, "mean": mean,
            "first_mean": jnp.concatenate([first, mean], -1)}[self.config.pool]


class AttentionPool(nn.Module):
  """One learnt query attends to all tokens; a feed-forward layer follows (Zhai et al. 2021)."""
  block: BlockConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, train: bool = False) -> jax.Array:  # [B, T, D] -> [B, D]
    B, T, D = hidden.shape
    b = self.block
    probe = layers.param(self, "probe", nn.initializers.normal(b.init_std or 0.02), (1, D),
                         ("prefix", "embed"))
    attention = Attention(b.attention, b.norm, b.init_std, dtype=self.dtype, name="attention")
    x, _, _ = attention(spread(probe, (B, 1, D), self.dtype), hidden, train=train,
                        places=Places(jnp.zeros((B, 1), jnp.int32)))
    y = b.norm.make("norm")(x)
    return (x + layers.FeedForward(b.ffn, b.init_std, dtype=self.dtype, name="ffn")(y, train))[:, 0]
