"""Text encoders, by config: BERT, RoBERTa, ALBERT, ModernBERT, DeBERTa and their like."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.models import filling
from jtx.models.contract import flags_of
from jtx.models.features import FeatureConfig, Features
from jtx.models.global_tokens import GlobalConfig
from jtx.models.heads import heads_of
from jtx.models.masked import MaskedConfig, decoded
from jtx.models.text_head import Head, HeadConfig, MlmHead
from jtx.nn import layers
from jtx.nn.attention import PROJECTIONS, AttentionConfig
from jtx.nn.block import BlockConfig, Context
from jtx.nn.dropout import Dropout
from jtx.nn.lora import Adapted
from jtx.nn.positions import Learned, Places
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Size, SizeOrNone

BERT_STACK = StackConfig(
    width=768, num_layers=12, position=Learned(),
    block=BlockConfig(
        attention=AttentionConfig(num_heads=12, biases=PROJECTIONS, dropout=0.1), init_std=0.02,
        ffn=layers.FfnConfig(dim=3072, activation="gelu"), norm=layers.NormConfig(eps=1e-12)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingConfig:
  """The fields of an encoder's embeddings."""
  types: SizeOrNone = 2  # token types; 0: none
  width: Size | None = None  # None is the stack's (ALBERT has less)
  norm: bool = True  # of their sum
  scale: bool = False  # times sqrt(width)
  # The token that fills a row up to the longest, as a part of its text (SigLIP); None fills none
  pad_id: SizeOrNone | None = None


class Encoder(Adapted):
  """Tokens to hidden states, and these to what the heads make of them.

  Batch keys, all int32 [B, T]: `text`; `text_segment_ids`, 0 for padding, by which several
  texts share a row; `text_positions`; and with token types, `text_types` (all 0 if absent).
  `text_NAME`, if there, are flags that masks of the layers need, in place of
  `contract.FLAGS`, and `text_pairs` [B, T, T] says which tokens may attend to which.
  With `embedding.pad_id` a row is one text, and T of what comes out is `longest`.
  """
  vocab_size: Size  # V, tokens; unset, the tokenizer's
  stack: StackConfig = BERT_STACK  # the layers
  embedding: EmbeddingConfig = EmbeddingConfig()  # tokens to the layers' inputs
  globals: GlobalConfig = GlobalConfig()  # which tokens are global, to layers that have such
  mlm: bool = False  # has a masked language model's head
  masked: MaskedConfig = MaskedConfig()  # that head, where it is not as the layers are
  features: FeatureConfig = FeatureConfig()  # that the head reads, of an encoder as it is
  head: HeadConfig = HeadConfig()  # for a task
  dtype: str = "auto"  # of activations; "auto" is bfloat16, and float32 on a CPU

  def setup(self):
    dtype, block = layers.compute_dtype(self.dtype), self.stack.block
    self.globals.check(self.stack)
    filling.check(self)
    self.decoder_positions = self.masked.table(self)
    width = self.embedding.width or self.stack.width
    std = block.init_std or 0.02
    self.embed = self.input_embed = layers.Embed(self.vocab_size, width, std, dtype)
    if self.embedding.types:
      self.type_table = layers.param(self, "type_embedding", nn.initializers.normal(std),
                                     (self.embedding.types, width), ("types", "embed"))
    self.position_params = self.stack.embed_params(self, width)
    if self.embedding.norm:
      self.embed_norm = block.norm.make(None)
    self.dropout = Dropout(block.dropout)
    if width != self.stack.width:
      self.embed_projection = layers.Dense((self.stack.width,), ("factors", "embed"),
                                           init_std=block.init_std, dtype=dtype)
    self.encoder = Stack(self.stack, dtype=dtype)
    if self.mlm:
      self.mlm_head = MlmHead(self.vocab_size, width, block, dtype,
                              use_bias=self.masked.use_bias)
    if self.features.layers:
      self.features.check(self)
      self.extractor = Features(self.features, dtype)
    if self.head.task != "none":
      self.task_head = Head(self.head, block, dtype)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return {"encoder": self.stack}

  @property
  def heads(self) -> frozenset[str]:
    return frozenset({"mlm"} if self.mlm else ()) | heads_of(self.head.task, self.head.projection)

  @property
  def longest(self) -> int | None:
    return min(filter(None, (self.stack.position.limit, self.masked.positions)), default=None)

  def example(self) -> Batch:
    keys = ("text", "text_segment_ids", "text_positions")
    return {key: jnp.zeros((2 if self.head.both_orders else 1, 1), jnp.int32) for key in keys}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the last layer."""
    hidden, _ = self.run(batch, train)
    if self.is_initializing():  # creates the parameters that a call does not use
      if self.mlm:
        self.mlm_logits(hidden)
      if self.head.task != "none":
        self.outputs(self.extract(batch) if self.features.layers else hidden, batch)
    return hidden

  def masked_states(self, batch: Batch, train: bool = False) -> tuple[jax.Array, jax.Array]:
    """Hidden states of the last layer, and what `mlm_logits` is of, both [B, T, D]."""
    return decoded(self, batch, train)

  def mlm_logits(self, hidden: jax.Array) -> jax.Array:
    """[..., D] of `masked_states` to float32 [..., V]."""
    return self.mlm_head(hidden, self.embed)

  def outputs(self, hidden: jax.Array, batch: Batch, num_texts: int = 1,
              train: bool = False) -> jax.Array:
    """The head's outputs for hidden states; see `Head`."""
    return self.task_head(hidden, filling.filled(self, batch, num_texts), num_texts,
                          train)

  def predict(self, batch: Batch, num_texts: int = 1, train: bool = False) -> jax.Array:
    """From tokens to the head's outputs."""
    hidden = self.extract(batch) if self.features.layers else self(batch, train)
    return self.outputs(hidden, batch, num_texts, train)

  def extract(self, batch: Batch) -> jax.Array:
    """The features [B, T, D'] of an encoder that is not trained; see `FeatureConfig`."""
    return self.extractor(self.hidden_states(batch), batch["text_segment_ids"])

  def hidden_states(self, batch: Batch) -> jax.Array:
    """[layers + 1, B, T, D]: the embeddings, then every layer's output (the last one normed)."""
    batch = filling.filled(self, batch)
    x = self.embed_tokens(batch, self.places(batch), train=False)
    last, out = self.run(batch, return_hidden=True)
    return jnp.concatenate([x[None], out.hidden[:-1], last[None]])

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers, [layers, B, N, T, S], for pictures."""
    _, out = self.run(batch, return_weights=True)
    return {"encoder": jnp.concatenate([w["self"] for w in out.weights])}

  def run(self, batch: Batch, train: bool = False, **returns: bool):
    return self.encoder(*self.inputs(batch, train, **returns))

  def inputs(self, batch: Batch, train: bool, **returns: bool) -> tuple[jax.Array, Context]:
    """Those of the stack."""
    batch = filling.filled(self, batch)
    places, batch = self.places(batch), self.globals.flagged(batch)
    ctx = Context(places, batch["text_segment_ids"], flags_of(batch, "text", self.stack, places),
                  batch.get("text_pairs"), train=train, **returns,
                  embed_params=self.stack.shared(self.position_params))
    return self.embed_tokens(batch, places, train), ctx

  def places(self, batch: Batch) -> Places:
    return Places(batch["text_positions"],
                  batch.get("text_types", jnp.zeros_like(batch["text"])))

  def embed_tokens(self, batch: Batch, places: Places, train: bool, wide: bool = True) -> jax.Array:
    """The input [B, T, D] of the stack; where not `wide`, before its projection."""
    x = (self.input_embed if wide else self.embed)(batch["text"])
    if self.embedding.scale:
      x *= x.shape[-1] ** 0.5
    if self.embedding.types:
      x += constrain(self.type_table, None, None)[places.types].astype(x.dtype)
    x = self.stack.embed(x, places, self.position_params)
    if self.embedding.norm:
      x = self.embed_norm(x)
    x = self.dropout(x, train)
    if wide and x.shape[-1] != self.stack.width:
      x = self.embed_projection(x)
    return constrain(x, "batch", "residual", None)
