"""Text encoders, by config: BERT, RoBERTa, ALBERT, DistilBERT, ModernBERT and their like.

Heads turn hidden states into what a task needs. All of them are one module: pool the tokens
of a text (or not), transform, project. The pooler of BERT is the transform of its head.
"""

import dataclasses
from typing import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.models.features import FeatureConfig, Features
from jtx.nn import layers
from jtx.nn.attention import Context
from jtx.nn.block import BlockConfig
from jtx.nn.dropout import Dropout
from jtx.nn.positions import Learned, Position
from jtx.nn.stack import Segment, Stack
from jtx.parallel.sharding import constrain

Batch = Mapping[str, jax.Array]

# What the outputs of a head are.
TASKS = (
    "none",  # there is no head
    "embedding",  # the pooled vector itself
    "classes",  # a score a class, or one number
    "tags",  # a score a tag, for every token
    "span",  # scores of a span's start and its end, for every token
    "choice",  # one score: of several texts, the highest is the answer
    "next_sentence",  # class 0: the second text follows the first; 1: it is a random one
    "sentence_order",  # class 0: the texts are in order; 1: they are swapped (ALBERT)
)
BY_TOKEN = ("tags", "span")
POOLS = ("first", "mean", "none")
OUTPUTS = {"span": 2, "choice": 1, "next_sentence": 2, "sentence_order": 2}
BERT_BLOCK = BlockConfig(num_heads=12, attention_bias=True, ffn_dim=3072, activation="gelu",
                         norm_eps=1e-12, attention_dropout=0.1, init_std=0.02)


@dataclasses.dataclass(frozen=True)
class HeadConfig:
  """The fields of a head. `transform` names the activation of a dense layer after pooling."""
  task: str = "none"
  outputs: int | None = None  # classes or tags; other tasks have a number of their own
  pool: str = "first"  # token of a text, "mean" of its tokens, or "none": every token
  transform: str = "none"  # tanh is the pooler of BERT
  norm: bool = False  # after the transform
  use_bias: bool = True  # of the transform
  dropout: float = 0.1  # before the outputs

  def __post_init__(self):
    if self.task not in TASKS:
      raise ConfigError(f"head.task={self.task!r}: {nearest(self.task, TASKS)}")
    if self.pool not in POOLS:
      raise ConfigError(f"head.pool={self.pool!r}: {nearest(self.pool, POOLS)}")
    by_token = self.task in BY_TOKEN
    if self.task != "none" and by_token != (self.pool == "none"):
      raise ConfigError(f"head.task={self.task!r} needs head.pool="
                        + ("'none'" if by_token else "'first' or 'mean'")
                        + f", not {self.pool!r}")
    if self.task in OUTPUTS and self.outputs not in (None, OUTPUTS[self.task]):
      raise ConfigError(f"head.outputs={self.outputs}: a head for {self.task!r} has"
                        f" {OUTPUTS[self.task]}; leave it unset")
    if self.task in ("none", "embedding") and self.outputs is not None:
      raise ConfigError(f"head.outputs={self.outputs}: head.task={self.task!r} has none")
    if self.norm and self.transform == "none":
      raise ConfigError("head.norm=True goes with a head.transform")


class Head(nn.Module):
  """Pools, transforms and projects."""
  config: HeadConfig
  block: BlockConfig  # for the kind of its norm
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
               train: bool = False) -> jax.Array:
    """Hidden states to the head's float32 outputs.

    Args:
      hidden: [B, T, D].
      batch: with `text_segment_ids [B, T]` and `text_positions [B, T]`.
      num_texts: S, texts in a row.
      train: dropout on.

    Returns:
      [B, S, outputs], or [B, T, outputs] where tokens are not pooled; the outputs of an
      "embedding" are the D of the transform.
    """
    c = self.config
    x = hidden if c.pool == "none" else pool(
        c.pool, hidden, batch["text_segment_ids"], batch["text_positions"], num_texts)
    if c.transform != "none":
      x = Transform(hidden.shape[-1], c.transform, c.norm, c.use_bias, self.block, self.dtype,
                    name="transform")(x)
    if c.task == "embedding":
      return x.astype(jnp.float32)
    x = Dropout(c.dropout)(x, train)
    outputs = OUTPUTS.get(c.task, c.outputs)
    if outputs is None:
      raise ConfigError(f"head.outputs must be set: head.task={c.task!r}")
    x = layers.Dense((outputs,), ("embed", "outputs"), init_std=self.block.init_std,
                     dtype=self.dtype, name="output")(x)
    return x.astype(jnp.float32)


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
    x = layers.activate(self.activation, x)
    return self.block.make_norm("norm")(x) if self.norm else x


def pool(kind: str, hidden: jax.Array, segment_ids: jax.Array, positions: jax.Array,
         num_texts: int) -> jax.Array:
  """The first token or the mean of each text of a row: [B, T, D] to [B, S, D].

  Texts that a row does not have are zeros.
  """
  chosen = segment_ids[:, None] == jnp.arange(1, num_texts + 1)[:, None]  # [B, S, T]
  if kind == "first":
    chosen &= positions[:, None] == 0
  chosen = chosen.astype(jnp.float32)
  total = jnp.einsum("bst,btd->bsd", chosen, hidden.astype(jnp.float32))
  return (total / jnp.maximum(chosen.sum(-1, keepdims=True), 1)).astype(hidden.dtype)


class MlmHead(nn.Module):
  """Scores of every token of the vocabulary: a transform, the tied embedding and a bias.

  Devlin et al. 2019; the transform is the authors' code's.
  """
  vocab_size: int
  features: int  # the embedding's width
  block: BlockConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, hidden: jax.Array, embed: layers.Embed) -> jax.Array:  # [..., D] -> [..., V]
    x = Transform(self.features, self.block.activation, True, self.block.use_bias, self.block,
                  self.dtype, name="transform")(hidden)
    bias = layers.param(self, "bias", nn.initializers.zeros, (self.vocab_size,), ("vocab",))
    return embed.attend(x).astype(jnp.float32) + bias


class Encoder(nn.Module):
  """Tokens to hidden states, and these to what the heads make of them.

  Batch keys, all int32 [B, T]: `text`; `text_segment_ids`, 0 for padding, by which several
  texts share a row; `text_positions`; and, with token types, `text_types` (all 0 if absent).
  """
  vocab_size: int
  width: int = 768
  num_layers: int = 12
  block: BlockConfig = BERT_BLOCK  # attention_norm=False is of the first layer (ModernBERT)
  position: Position = Learned()
  num_token_types: int = 2  # 0: none
  embedding_width: int | None = None  # None is width (ALBERT has less)
  share_layers: bool = False  # one set of parameters for all layers (ALBERT)
  pattern: tuple[str, ...] = ("global",)  # kinds of layers, cycled over the depth
  window: int = 0  # of local layers, places to each side
  causal: bool = False  # sees the tokens before only (the left-to-right ablation of BERT)
  mlm: bool = False  # has a masked language model's head
  features: FeatureConfig = FeatureConfig()  # that the head reads, of an encoder as it is
  head: HeadConfig = HeadConfig()
  unroll: int = 1
  remat: str = "none"
  dtype: str = "auto"

  def setup(self):
    dtype = layers.compute_dtype(self.dtype)
    width = self.embedding_width or self.width
    std = self.block.init_std or 0.02
    self.embed = layers.Embed(self.vocab_size, width, std, dtype)
    if self.num_token_types:
      self.type_table = layers.param(self, "type_embedding", nn.initializers.normal(std),
                                     (self.num_token_types, width), ("types", "embed"))
    if table := self.position.embedding_table(width):
      self.position_table = table.make(self, "position_embedding")
    self.embed_norm = self.block.make_norm(None)
    self.dropout = Dropout(self.block.dropout)
    if width != self.width:
      self.embed_projection = layers.Dense((self.width,), ("factors", "embed"),
                                           init_std=self.block.init_std, dtype=dtype)
    self.encoder = Stack(self.segments(), self.position, causal=self.causal, window=self.window,
                         share=self.share_layers, unroll=self.unroll, remat=self.remat,
                         dtype=dtype)
    if self.mlm:
      self.mlm_head = MlmHead(self.vocab_size, width, self.block, dtype)
    if self.features.layers:
      self.features.check(self.num_layers)
      self.extractor = Features(self.features, dtype)
    if self.head.task != "none":
      self.task_head = Head(self.head, self.block, dtype)

  @property
  def heads(self) -> tuple[bool, str]:
    """Whether it has the head of its pretraining, and the task of its other head."""
    return self.mlm, self.head.task

  def example(self) -> Batch:
    """The smallest batch."""
    keys = ("text", "text_segment_ids", "text_positions")
    return {key: jnp.zeros((1, 1), jnp.int32) for key in keys}

  def segments(self) -> tuple[Segment, ...]:
    """The layers; the first stands alone where it has no norm before its attention."""
    if self.block.attention_norm:
      return (Segment(self.block, self.num_layers, self.pattern),)
    rest = dataclasses.replace(self.block, attention_norm=True)
    turned = self.pattern[1:] + self.pattern[:1]
    first = Segment(self.block, 1, self.pattern[:1])
    if self.num_layers == 1:
      return (first,)
    return first, Segment(rest, self.num_layers - 1, turned)

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.mlm:
        self.mlm_logits(hidden)
      if self.head.task != "none":
        self.outputs(self.extract(batch) if self.features.layers else hidden, batch)
    return hidden

  def mlm_logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] to float32 [..., V]."""
    return self.mlm_head(hidden, self.embed)

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """What the head makes of hidden states; see `Head`."""
    return self.task_head(hidden, batch, num_texts, train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From tokens to the head's outputs."""
    hidden = self.extract(batch) if self.features.layers else self(batch, train)
    return self.outputs(hidden, batch, num_texts, train)

  def extract(self, batch: Batch) -> jax.Array:
    """The features [B, T, D'] of an encoder that is not trained; see `FeatureConfig`."""
    return self.extractor(self.hidden_states(batch), batch["text_segment_ids"])

  def hidden_states(self, batch: Batch) -> jax.Array:
    """[layers + 1, B, T, D]: the embeddings, then every layer's output (the last one normed)."""
    x = self.embed_tokens(batch, train=False)
    last, out = self.run(batch, return_hidden=True)
    return jnp.concatenate([x[None], out.hidden[:-1], last[None]])

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, [layers, B, N, T, S], for pictures."""
    _, out = self.run(batch, return_weights=True)
    return {"encoder": jnp.concatenate([w["self"] for w in out.weights])}

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    ctx = Context(batch["text_positions"], batch["text_segment_ids"], train=train, **returns)
    return self.encoder(self.embed_tokens(batch, train), ctx)

  def embed_tokens(self, batch: Batch, train: bool) -> jax.Array:
    """The input [B, T, D] of the stack."""
    x = self.embed(batch["text"])
    if self.num_token_types:
      types = batch.get("text_types", jnp.zeros_like(batch["text"]))
      x += self.type_table[types].astype(x.dtype)
    has_table = self.position.embedding_table(x.shape[-1]) is not None
    x = self.position.embed(x, batch["text_positions"], self.position_table if has_table else None)
    x = self.dropout(self.embed_norm(x), train)
    if x.shape[-1] != self.width:
      x = self.embed_projection(x)
    return constrain(x, "batch", "length", None)
