"""ELECTRA (Clark et al. 2020): an encoder that is trained to find what a small generator replaced.

The generator is a masked language model with the encoder's embeddings: tokens, positions, types and
their norm. What a run of it leaves is the encoder alone, see `discriminator`. The encoder of
DeBERTaV3 (He et al. 2021) may have token embeddings of its own.
"""

import dataclasses
from typing import Any, Mapping

import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.models.contract import flags_of
from jtx.models.encoder import Encoder
from jtx.models.text_head import MlmHead
from jtx.nn import layers
from jtx.nn.block import Context
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import Layers, Size

PARTS = ("generator_projection", "generator_layers", "generator_head", "difference")


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
  """The sizes of the generator, whose layers are of the encoder's kind; defaults are of Small."""
  num_layers: Layers = 12  # depth
  width: Size = 64  # of its hidden states
  num_heads: Size = 1  # of its attention
  ffn_dim: Size = 256  # hidden width of its feed-forward sub-layers

  def stack(self, encoder: StackConfig) -> StackConfig:
    """Its layers.

    Raises:
      ConfigError: the encoder's positions are not added at the stem, where both share them.
    """
    if encoder.position_at != "stem":
      raise ConfigError(f"stack.position_at={encoder.position_at!r}: a generator shares the"
                        " embeddings' positions, which are added at the 'stem'")
    block = encoder.block
    attention = dataclasses.replace(block.attention, num_heads=self.num_heads, num_kv_heads=None,
                                    head_dim=None, v_head_dim=None)
    ffn = dataclasses.replace(block.ffn, dim=self.ffn_dim)
    return dataclasses.replace(
        encoder, width=self.width, num_layers=self.num_layers,
        block=dataclasses.replace(block, attention=attention, ffn=ffn))


class Electra(Encoder):
  """An `Encoder` and a generator beside it; batches are the encoder's."""
  generator: GeneratorConfig = GeneratorConfig()
  # The encoder's token embeddings are the generator's, without a gradient, and a difference
  # (He et al. 2021, DeBERTaV3, section 3.2).
  disentangled: bool = False

  def setup(self):
    if self.mlm or self.features.layers:
      raise ConfigError("mlm and features are of model.name='encoder'; the generator of 'electra'"
                        " predicts masked tokens")
    super().setup()
    stack, dtype = self.generator.stack(self.stack), layers.compute_dtype(self.dtype)
    width = self.embedding.width or self.stack.width
    if width != stack.width:
      self.generator_projection = layers.Dense((stack.width,), ("factors", "embed"),
                                               init_std=stack.block.init_std, dtype=dtype)
    if self.disentangled:
      self.difference = layers.Embed(self.vocab_size, width, 0.0, dtype)
      self.input_embed = lambda tokens: (
          jax.lax.stop_gradient(self.embed(tokens)) + self.difference(tokens))
    self.generator_layers = Stack(stack, dtype=dtype)
    self.generator_head = MlmHead(self.vocab_size, width, stack.block, dtype)

  @property
  def stacks(self) -> dict[str, StackConfig]:
    return super().stacks | {"generator_layers": self.generator.stack(self.stack)}

  @property
  def heads(self) -> frozenset[str]:
    return super().heads | {"generator"}

  def __call__(self, batch: Batch, train: bool = False) -> jax.Array:
    """Hidden states [B, T, D] of the encoder's last layer."""
    if self.is_initializing():
      self.generated(batch, jnp.zeros_like(batch["text"]))
    return super().__call__(batch, train)

  def attention_weights(self, batch: Batch) -> dict[str, jax.Array]:
    """Weights of all layers of both stacks, [layers, B, N, T, S], for pictures."""
    _, out = self.run_generator(batch, return_weights=True)
    own = jnp.concatenate([w["self"] for w in out.weights])
    return super().attention_weights(batch) | {"generator_layers": own}

  def run_generator(self, batch: Batch, train: bool = False, **returns: bool):
    stack, places = self.generator.stack(self.stack), self.places(batch)
    x = self.embed_tokens(batch, places, train, wide=False)
    if x.shape[-1] != stack.width:
      x = self.generator_projection(x)
    ctx = Context(places, batch["text_segment_ids"], flags_of(batch, "text", stack, places),
                  batch.get("text_pairs"), train=train, **returns)
    return self.generator_layers(constrain(x, "batch", "residual", None), ctx)

  def generated(self, batch: Batch, at: jax.Array, train: bool = False) -> jax.Array:
    """The generator's scores float32 [B, K, V] at places [B, K] of the rows."""
    hidden, _ = self.run_generator(batch, train)
    hidden = jnp.take_along_axis(hidden, at[..., None], 1)
    return self.generator_head(constrain(hidden, "batch", "length", None), self.embed)


def encoder_of(model: Any) -> Any:
  """Of an `Electra` the encoder, whose parameters have the same paths; any other model as it is."""
  if not isinstance(model, Electra):
    return model
  return Encoder(**{f.name: getattr(model, f.name) for f in dataclasses.fields(Encoder)
                    if f.init and f.name not in ("parent", "name")})


def discriminator(model: Any, params: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
  """Of an `Electra` the encoder and its parameters; any other model as it is."""
  if not isinstance(model, Electra):
    return model, params
  own = {name: x for name, x in params.items() if name not in PARTS}
  if model.disentangled:
    own["embed"] = jax.tree.map(jnp.add, params["embed"], params["difference"])
  return encoder_of(model), own
