"""The states that predict masked tokens: the last layer's, or those of an enhanced mask decoder."""

import dataclasses
from typing import Any

import flax.linen as nn
import jax

from jtx.errors import ConfigError
from jtx.nn import layers, mask_decoder
from jtx.parallel.sharding import Batch, constrain
from jtx.ranges import SizeOrNone


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedConfig:
  """The fields of what predicts masked tokens, beside those that follow from the layers."""
  use_bias: bool | None = None  # of the transform; None: as the feed-forward sub-layers
  # Positions that an enhanced mask decoder adds before it predicts (DeBERTa); 0: there is none
  positions: SizeOrNone = 0

  def table(self, encoder: Any) -> jax.Array | None:
    """The decoder's positions [positions, D], a parameter of an `Encoder`.

    Raises:
      ConfigError: the encoder predicts no masked tokens, or its layers can't decode.
    """
    if self != MaskedConfig() and not encoder.mlm:
      raise ConfigError(f"masked.use_bias={self.use_bias} and masked.positions={self.positions} go"
                        " with mlm=True")
    if not self.positions:
      return None
    mask_decoder.check(encoder.stack)
    std = encoder.stack.block.init_std or 0.02
    return layers.param(encoder, "decoder_positions", nn.initializers.normal(std),
                        (self.positions, encoder.stack.width), ("positions", "embed"))


def decoded(encoder: Any, batch: Batch, train: bool) -> tuple[jax.Array, jax.Array]:
  """`Encoder.masked_states` of a bound encoder."""
  number, positions = encoder.masked.positions, batch["text_positions"]
  if not number:
    hidden = encoder(batch, train)
    return hidden, hidden
  if positions.shape[1] > number:
    raise ConfigError(f"masked.positions={number} is too short for rows of {positions.shape[1]}"
                      " tokens")
  x, ctx = encoder.inputs(batch, train, return_hidden=True)
  hidden, out = encoder.encoder(x, ctx)
  before = out.hidden[-2] if encoder.stack.num_layers > 1 else x
  table = constrain(encoder.decoder_positions, None, None)
  queries = before + table[positions].astype(before.dtype)
  return hidden, mask_decoder.decode(encoder.encoder, queries, before, ctx)
