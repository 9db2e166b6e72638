"""Hidden states of an encoder as fixed features of another network.

Devlin et al. 2019, section 5.3; Peters et al. 2018, equation 1, of ELMo.
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError
from jtx.nn import layers
from jtx.nn.numerics import scaled
from jtx.nn.recurrent import CellConfig, Recurrent
from jtx.ranges import LayersOrNone

COMBINATIONS = ("concat", "sum", "scalar_mix")


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
  """Features for a head, of an encoder that is not trained; without `layers` it is trained.

  A weighted sum has a softmax of learnt weights over the layers. On the features stand
  `lstm_layers` bidirectional LSTMs of half the encoder's width in each direction.
  """
  layers: tuple[int, ...] = ()  # 0 is the embeddings, 1 the first layer, -1 the last
  # Of several layers; or a weighted "sum"; or "scalar_mix", that sum times a learnt number (ELMo)
  combine: str = "concat"
  lstm_layers: LayersOrNone = 2  # bidirectional LSTMs on the features; 0 is none

  def __post_init__(self):
    if self.combine not in COMBINATIONS:
      raise ConfigError(f"features.combine={self.combine!r}: valid are {', '.join(COMBINATIONS)}")
    if self.lstm_layers < 0:
      raise ConfigError(f"features.lstm_layers={self.lstm_layers} must not be negative")
    off = self if self.layers else FeatureConfig
    if (self.combine, self.lstm_layers) != (off.combine, off.lstm_layers):
      raise ConfigError("features.combine and features.lstm_layers go with features.layers")

  def check(self, encoder: Any) -> None:
    """Raises ConfigError where an `Encoder` has no head for them, is trained, or lacks a layer."""
    if encoder.head.task == "none":
      raise ConfigError(f"features.layers={self.layers} are for a head, and head.task is 'none'")
    if encoder.lora.rank:
      raise ConfigError("features.layers are of an encoder as it is; leave lora.rank 0")
    self.check_layers(encoder.stack.num_layers)

  def check_layers(self, num_layers: int) -> None:
    """Raises ConfigError where a layer does not exist."""
    for i in self.layers:
      if not -num_layers - 1 <= i <= num_layers:
        raise ConfigError(f"features.layers={self.layers}: there is no {i}; the embeddings are 0"
                          f" and the layers 1 to {num_layers}, or from the end -1 to {-num_layers}")


class Features(nn.Module):
  """Chosen hidden states, combined, through LSTMs."""
  config: FeatureConfig
  dtype: jnp.dtype = jnp.float32

  @nn.compact
  def __call__(self, states: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """[layers + 1, B, T, D] to [B, T, D'], D' = D behind an LSTM or a sum.

    The network that made the states is not trained: no gradient reaches it.
    """
    c, width = self.config, states.shape[-1]
    states = jax.lax.stop_gradient(states[jnp.array(c.layers)])
    if c.combine in ("sum", "scalar_mix"):
      weights = layers.param(self, "weights", nn.initializers.zeros, (len(c.layers),), ("states",))
      x = jnp.einsum("l,lbtd->btd", nn.softmax(weights).astype(states.dtype), states)
      if c.combine == "scalar_mix":
        x = scaled(x, layers.param(self, "scale", nn.initializers.ones, (), ()))
    else:
      x = jnp.moveaxis(states, 0, 2).reshape(*states.shape[1:3], -1)
    for i in range(c.lstm_layers):
      part = lambda way, i=i, x=x: Recurrent(
          CellConfig(), x.shape[-1], width // 2, reverse=way == "backward", dtype=self.dtype,
          name=f"{way}_{i}")
      x = jnp.concatenate([part(way)(x, segment_ids)[0].hidden.astype(self.dtype)
                           for way in ("forward", "backward")], -1)
    return x
