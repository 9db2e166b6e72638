"""Heads of text models: pooled or token-wise outputs for a task, and masked tokens."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.models.heads import EMBEDDINGS, TASKS, check_text_head
from jtx.models.pooling import POOLS, pool
from jtx.nn import layers
from jtx.nn.activations import activate
from jtx.nn.block import BlockConfig
from jtx.nn.dropout import Dropout
from jtx.nn.numerics import unit
from jtx.parallel.sharding import Batch
from jtx.ranges import Fraction, Rate, Size, SizeOrNone


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
  """The fields of a head. `transform` names the activation of a dense layer after pooling."""
  task: str = "none"  # of `TASKS` in jtx/models/heads.py; "none": there is no head
  outputs: Size | None = None  # classes or tags; other tasks have a number of their own
  pool: str = "first"  # token of a text, or "last", the one "before_last", "mean"; "none": all
  transform: str = "none"  # tanh is the pooler of BERT
  norm: bool = False  # after the transform
  use_bias: bool = True  # of the transform
  output_bias: bool = True  # of the outputs, and of the projection
  dropout: Rate = 0.1  # before the outputs
  threshold: Fraction = 0.5  # of "multi_label": the probability from which on a label is predicted
  # Pooled vectors of pairs and, behind, of the pairs swapped are added (GPT-1); None: as data is
  both_orders: bool | None = None
  projection: SizeOrNone = 0  # of embeddings: width of a linear map (CLIP, ColBERT); 0 is none
  normalize: bool = False  # of embeddings: vectors are scaled to length 1

  def __post_init__(self):
    if self.task not in TASKS:
      raise ConfigError(f"head.task={self.task!r}: {nearest(self.task, TASKS)}")
    if self.pool not in POOLS:
      raise ConfigError(f"head.pool={self.pool!r}: {nearest(self.pool, POOLS)}")
    task = TASKS[self.task]
    by_token = task.by_token
    if self.task != "none" and by_token != (self.pool == "none"):
      raise ConfigError(f"head.task={self.task!r} needs head.pool="
                        + ("'none'" if by_token else " or ".join(map(repr, POOLS[:-1])))
                        + f", not {self.pool!r}")
    if task.outputs is not None and self.outputs not in (None, task.outputs):
      raise ConfigError(f"head.outputs={self.outputs}: a head for {self.task!r} has"
                        f" {task.outputs}; leave it unset")
    if not task.scored and self.outputs is not None:
      raise ConfigError(f"head.outputs={self.outputs}: head.task={self.task!r} has none")
    check_text_head(self)


class Head(nn.Module):
  """Pools, transforms and projects; the pooler of BERT is the transform of its head."""
  config: HeadConfig
  block: BlockConfig  # for the kind of its norm
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
               train: bool = False) -> jax.Array:
    """Hidden states to the head's float32 outputs.

    Args:
      hidden: [B, T, D]; with `both_orders` [2 B, T, D], as all that comes with them.
      batch: with `text_segment_ids [B, T]` and `text_positions [B, T]`.
      num_texts: S, texts in a row.
      train: dropout on.

    Returns:
      [B, S, outputs], or [B, T, outputs] where tokens are not pooled; the outputs of
      embeddings are the D of the transform, or the projection.
    """
    c = self.config
    x = hidden if c.pool == "none" else pool(
        c.pool, hidden, batch["text_segment_ids"], batch["text_positions"], num_texts)
    x = sum(jnp.split(x, 2)) if c.both_orders else x
    if c.transform != "none":
      x = Transform(hidden.shape[-1], c.transform, norm=c.norm, use_bias=c.use_bias,
                    block=self.block, dtype=self.dtype, name="transform")(x)
    dense = lambda size, axis, name: layers.Dense(
        (size,), ("embed", axis), use_bias=c.output_bias, init_std=self.block.init_std,
        dtype=self.dtype, name=name)
    x = dense(c.projection, "transform", "projection")(x) if c.projection else x
    if c.task in EMBEDDINGS:
      x = x.astype(jnp.float32)
      return unit(x) if c.normalize else x
    x = Dropout(c.dropout)(x, train)
    outputs = TASKS[c.task].outputs or c.outputs
    if outputs is None:
      raise ConfigError(f"head.outputs must be set: head.task={c.task!r}")
    return dense(outputs, "outputs", "output")(x).astype(jnp.float32)


class Transform(nn.Module):
  """norm(activation(x W + b)), where `norm` asks for one."""
  features: int
  activation: str
  norm: bool
  use_bias: bool
  block: BlockConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:  # [..., D] -> [..., features]
    x = layers.Dense((self.features,), ("embed", "transform"), use_bias=self.use_bias,
                     init_std=self.block.init_std, dtype=self.dtype, name="dense")(x)
    x = activate(self.activation, x)
    return self.block.norm.make("norm")(x) if self.norm else x


class MlmHead(nn.Module):
  """Scores of every token of the vocabulary: a transform, the tied embedding and a bias.

  Devlin et al. 2019; the transform is the authors' code's.
  """
  vocab_size: int
  features: int  # the embedding's width
  block: BlockConfig
  dtype: jnp.dtype = jnp.float32
  use_bias: bool | None = None  # of the transform

  @nn.compact
  def __call__(self, hidden: jax.Array, embed: layers.Embed) -> jax.Array:  # [..., D] -> [..., V]
    ffn = self.block.ffn
    use_bias = ffn.bias if self.use_bias is None else self.use_bias
    x = Transform(self.features, ffn.activation, norm=True, use_bias=use_bias, block=self.block,
                  dtype=self.dtype, name="transform")(hidden)
    bias = layers.param(self, "bias", nn.initializers.zeros, (self.vocab_size,), ("vocab",))
    return embed.attend(x).astype(jnp.float32) + bias
