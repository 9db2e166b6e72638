"""Rotary position embeddings (RoFormer; Su et al. 2021) and how they are scaled to longer texts."""

import dataclasses
import math
from typing import Callable, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError
from jtx.nn.kernels import rotary
from jtx.nn.positions import POSITIONS, Position
from jtx.parallel.sharding import platform
from jtx.ranges import Positive, Size, SomeShare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scaling:
  """No scaling; the base of those that make RoPE reach longer texts."""

  @staticmethod
  def registry() -> dict[str, Callable[..., "Scaling"]]:
    return SCALINGS

  def frequencies(self, dim: int, base: float) -> np.ndarray:
    """Radians that a position turns each of dim / 2 pairs by, [dim / 2] float64."""
    return np.float64(base) ** (-np.arange(0, dim, 2) / dim)

  @property
  def magnitude(self) -> float:
    """The factor of turned queries and keys."""
    return 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Linear(Scaling):
  """Positions are divided by `factor` (position interpolation; Chen et al. 2023)."""
  factor: Positive = 1.0  # that positions are divided by

  def frequencies(self, dim, base):
    return super().frequencies(dim, base) / self.factor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ntk(Scaling):
  """The base is multiplied by factor^(dim / (dim - 2)) (NTK-aware scaling).

  The highest frequency stays and the lowest is divided by `factor`.
  """
  factor: Positive = 1.0  # that the lowest frequency is divided by

  def frequencies(self, dim, base):
    return super().frequencies(dim, base * self.factor ** (dim / (dim - 2)) if dim > 2 else base)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Llama3(Scaling):
  """Llama 3.1's: low frequencies are divided by `factor`, high ones stay, others lie between.

  A frequency turns `original_length` / wavelength times over the original length: below
  `low` times it is low, above `high` times it is high.
  """
  factor: Positive = 8.0  # that low frequencies are divided by
  low: Positive = 1.0  # turns over the original length below which a frequency is low
  high: Positive = 4.0  # turns above which it is high
  original_length: Size = 8192  # tokens of the texts before scaling

  def frequencies(self, dim, base):
    f = super().frequencies(dim, base)
    turns = self.original_length * f / (2 * math.pi)
    share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
    return (1 - share) * f / self.factor + share * f


@dataclasses.dataclass(frozen=True, kw_only=True)
class Yarn(Scaling):
  """YaRN (Peng et al. 2023): interpolated and original frequencies, blended by a ramp.

  The ramp goes over the pairs from the one that turns `fast` times over the original length to
  the one that turns `slow` times (section 3.2). Queries and keys grow by 0.1 ln(factor) + 1
  (section 3.4), or by `attention` where it is set.
  """
  factor: Positive = 4.0  # that the lowest frequencies are divided by
  original_length: Size = 4096  # tokens of the texts before scaling
  fast: Positive = 32.0  # turns over the original length above which a frequency stays
  slow: Positive = 1.0  # turns below which it is divided by the factor
  attention: Positive | None = None  # factor of queries and keys; None is 0.1 ln(factor) + 1

  def frequencies(self, dim, base):
    f = super().frequencies(dim, base)
    pair = lambda turns: dim * math.log(self.original_length / (turns * 2 * math.pi)) / (
        2 * math.log(base))
    low = max(math.floor(pair(self.fast)), 0)
    high = min(math.ceil(pair(self.slow)), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0, 1)
    return ramp * f / self.factor + (1 - ramp) * f

  @property
  def magnitude(self):
    if self.attention is not None:
      return self.attention
    return 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0


SCALINGS: dict[str, Callable[..., Scaling]] = {
    "none": Scaling,
    "linear": Linear,
    "ntk": Ntk,
    "llama3": Llama3,
    "yarn": Yarn,
}


def rope_frequencies(dim: int, base: float, scaling: Scaling = Scaling()) -> jax.Array:
  """Radians that a position turns each of dim / 2 pairs by: [dim / 2] float32."""
  if dim % 2:
    raise ConfigError(f"RoPE needs an even head width, not {dim}")
  return jnp.asarray(scaling.frequencies(dim, base), jnp.float32)


def rope(x: jax.Array, positions: jax.Array, *, base: float = 10_000.0, pairing: str = "half",
         scaling: Scaling = Scaling()) -> jax.Array:
  """Rotates pairs of dimensions by position times frequency (Su et al. 2021, section 3.2.2).

  Args:
    x: queries or keys [B, T, N, H], H even.
    positions: [T] or [B, T].
    base: of the geometric frequencies.
    pairing: "interleaved" pairs (2i, 2i + 1) (the paper, Llama's reference code); "half"
      pairs (i, i + H/2) (GPT-NeoX, Hugging Face).
    scaling: to longer texts.

  Returns:
    [B, T, N, H] of x's dtype; computed in float32.
  """
  frequencies = rope_frequencies(x.shape[-1], base, scaling)
  return turn(x, positions[..., None].astype(jnp.float32) * frequencies, pairing,
              scaling.magnitude)


def turn(x: jax.Array, angle: jax.Array, pairing: str,
         magnitude: float | jax.Array = 1.0) -> jax.Array:
  """x [B, T, N, H] with its pairs of dimensions rotated by angles [T or B, T, H/2], in float32.

  The result is multiplied by `magnitude`.
  """
  if pairing == "half" and platform() == "tpu" and rotary.supports(x.shape):
    return rotary.turn(x, angle.reshape(-1, *angle.shape[-2:]), magnitude)
  angle = angle[..., None, :]  # the same for every head
  cos, sin = jnp.cos(angle), jnp.sin(angle)
  y = x.astype(jnp.float32)
  if pairing == "half":
    a, b = jnp.split(y, 2, -1)
    out = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
  elif pairing == "interleaved":
    a, b = y[..., ::2], y[..., 1::2]
    out = jnp.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(y.shape)
  else:
    raise ConfigError(f"position.pairing={pairing!r}: valid are 'half' and 'interleaved'")
  if not isinstance(magnitude, float) or magnitude != 1.0:
    out *= magnitude
  return out.astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Rope(Position):
  """Pairs of a head's dimensions turn by position times frequency (Su et al. 2021, 3.2.2)."""
  base: Positive = 10_000.0  # frequencies are base^(-2 i / H), i < H / 2, H the width that turns
  pairing: Literal["half", "interleaved"] = "half"  # of dimensions i, i + H / 2; or of 2 i, 2 i + 1
  fraction: SomeShare = 1.0  # of a head's width that turns, from its start (GPT-NeoX has 0.25)
  scaling: Scaling = Scaling()  # to texts longer than those of pretraining
  # of local layers (ModernBERT; Warner et al. 2024); None is base
  local_base: Positive | None = None
  local_scaling: Scaling | None = None  # of local layers (Gemma 3 has none); None is scaling

  def check_kinds(self, windowed):
    if self.local_base is not None and not windowed:
      raise ConfigError(f"position.local_base={self.local_base} is for local layers, and pattern"
                        " has none; leave it unset")
    if self.local_scaling is not None and not windowed:
      raise ConfigError("position.local_scaling is for local layers, and pattern has none; leave it"
                        " unset")

  def rotate(self, x, places, params):
    dim = int(self.fraction * x.shape[-1])
    frequencies = rope_frequencies(dim, self.base, self.scaling)
    magnitude = self.scaling.magnitude
    if self.local_base is not None or self.local_scaling is not None:
      scaling = self.scaling if self.local_scaling is None else self.local_scaling
      of_local = rope_frequencies(dim, self.local_base or self.base, scaling)
      frequencies = jnp.where(places.local, of_local, frequencies)
      if scaling.magnitude != magnitude:
        magnitude = jnp.where(places.local, scaling.magnitude, magnitude)
    angle = places.positions[..., None].astype(jnp.float32) * frequencies
    turned = turn(x[..., :dim], angle, self.pairing, magnitude)
    return turned if dim == x.shape[-1] else jnp.concatenate([turned, x[..., dim:]], -1)


POSITIONS["rope"] = Rope
