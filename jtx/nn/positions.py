"""Position encodings: pure functions, and the four hooks by which a model uses one.

A `Position` may act in four places: `embed` adds to the token embeddings, `add` to the
inputs of queries and keys but not of values (DETR), `rotate` turns queries and keys, and
`bias` adds to the attention logits. Positions are integers [..., T] that restart in every
segment of a packed row; `first_position` shifts them where a published model counts so.
"""

import dataclasses
import math
from typing import Callable, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError
from jtx.nn.layers import param

# ---------------------------------------------------------------------- pure functions

def sinusoidal(positions: jax.Array, dim: int, *, layout: str = "interleaved",
               inclusive: bool = False, base: float = 10_000.0) -> jax.Array:
  """Sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017, section 3.5).

  Args:
    positions: [..., T].
    dim: D, even.
    layout: "interleaved" is the paper's sin, cos, sin, cos, ...; "concatenated" is all
      sines, then all cosines.
    inclusive: the log-timescale is divided by D/2 - 1 instead of D/2, so that the last
      wavelength is exactly 2 pi base (tensor2tensor, OpenNMT).
    base: ratio of the longest to the shortest wavelength.

  Returns:
    [..., T, D] float32.
  """
  if dim % 2:
    raise ConfigError(f"sinusoidal positions need an even width, not {dim}")
  half = dim // 2
  # In float64: a float32 power is off by 1e-7, which position 10,000 turns into 1e-3.
  frequency = np.float64(base) ** (-np.arange(half) / max(half - 1 if inclusive else half, 1))
  angle = positions[..., None].astype(jnp.float32) * jnp.asarray(frequency, jnp.float32)
  if layout == "interleaved":
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], -1).reshape(*angle.shape[:-1], dim)
  if layout == "concatenated":
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
  raise ConfigError(f"position.layout={layout!r}: valid are 'interleaved' and 'concatenated'")


def sinusoidal_2d(coordinates: jax.Array, dim: int, *, base: float = 10_000.0) -> jax.Array:
  """The first half of D encodes the row, the second the column (MAE; He et al. 2021).

  Args:
    coordinates: [..., T, 2] (row, column).
    dim: D, divisible by 4.
    base: as in `sinusoidal`.

  Returns:
    [..., T, D] float32, each half laid out as sines then cosines.
  """
  if dim % 4:
    raise ConfigError(f"2-D sinusoidal positions need a width divisible by 4, not {dim}")
  return jnp.concatenate([
      sinusoidal(coordinates[..., i], dim // 2, layout="concatenated", base=base) for i in (0, 1)
  ], -1)


def grid(height: int, width: int) -> jax.Array:
  """Coordinates [height * width, 2] of a grid of patches, row by row."""
  rows, columns = jnp.meshgrid(jnp.arange(height), jnp.arange(width), indexing="ij")
  return jnp.stack([rows.reshape(-1), columns.reshape(-1)], -1)


def rope_frequencies(dim: int, base: float, ntk_scale: float = 1.0) -> jax.Array:
  """Radians a position turns each of dim / 2 pairs by: [H/2] float32. Args as in `rope`."""
  if dim % 2:
    raise ConfigError(f"RoPE needs an even head width, not {dim}")
  if ntk_scale != 1.0 and dim > 2:
    base = base * ntk_scale ** (dim / (dim - 2))
  return jnp.asarray(np.float64(base) ** (-np.arange(0, dim, 2) / dim), jnp.float32)


def rope(x: jax.Array, positions: jax.Array, *, base: float = 10_000.0, pairing: str = "half",
         linear_scale: float = 1.0, ntk_scale: float = 1.0) -> jax.Array:
  """Rotates pairs of dimensions by position times frequency (RoFormer; Su et al. 2021).

  Args:
    x: queries or keys [B, T, N, H], H even.
    positions: [T] or [B, T].
    base: of the geometric frequencies.
    pairing: "interleaved" pairs (2i, 2i + 1) (the paper, Llama's reference code); "half"
      pairs (i, i + H/2) (GPT-NeoX, Hugging Face).
    linear_scale: positions are divided by it (position interpolation; Chen et al. 2023).
    ntk_scale: s multiplies the base by s^(H / (H - 2)) (NTK-aware scaling), which keeps
      the highest frequency and stretches the lowest by s.

  Returns:
    [B, T, N, H] of x's dtype; computed in float32.
  """
  frequencies = rope_frequencies(x.shape[-1], base, ntk_scale)
  return turn(x, positions[..., None].astype(jnp.float32) / linear_scale * frequencies, pairing)


def turn(x: jax.Array, angle: jax.Array, pairing: str) -> jax.Array:
  """x [B, T, N, H] with its pairs of dimensions rotated by angles [T or B, T, H/2], in float32."""
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
  return out.astype(x.dtype)


def alibi_slopes(num_heads: int) -> np.ndarray:
  """Head slopes [N], 2^(-8 i / N) for a power of two (Press et al. 2021, section 3).

  Other head counts take the sequence of the power of two below, then every other slope
  of the one above, as the authors' code does.
  """
  power = 2 ** math.floor(math.log2(num_heads))
  slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
  if power < num_heads:
    above = 2.0 ** (-8.0 * np.arange(1, 2 * power + 1) / (2 * power))
    slopes = np.concatenate([slopes, above[::2][:num_heads - power]])
  return slopes.astype(np.float32)


def relative_buckets(distance: jax.Array, *, num_buckets: int, max_distance: int,
                     bidirectional: bool) -> jax.Array:
  """T5's bucket of key position minus query position (Raffel et al. 2020, section 2.1).

  Half of the buckets (of a direction) are for single distances, the others grow
  logarithmically up to `max_distance`; all beyond share the last. Without
  `bidirectional`, keys after the query share bucket 0.
  """
  offset = 0
  if bidirectional:
    num_buckets //= 2
    offset = jnp.where(distance > 0, num_buckets, 0)
    distance = jnp.abs(distance)
  else:
    distance = jnp.maximum(-distance, 0)
  exact = num_buckets // 2
  log = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact)
  far = exact + (log / math.log(max_distance / exact) * (num_buckets - exact)).astype(jnp.int32)
  return offset + jnp.where(distance < exact, distance, jnp.minimum(far, num_buckets - 1))


def resize(table: jax.Array, length: int) -> jax.Array:
  """A learned table [T, D] interpolated linearly to [length, D]; both ends are kept."""
  old = table.shape[0]
  at = np.linspace(0, old - 1, length)
  low = np.clip(np.floor(at).astype(int), 0, max(old - 2, 0))
  part = jnp.asarray(at - low, table.dtype)[:, None]
  return table[low] * (1 - part) + table[np.minimum(low + 1, old - 1)] * part


def resize_grid(table: jax.Array, old: tuple[int, int], new: tuple[int, int]) -> jax.Array:
  """A learned grid [h * w, D] interpolated bicubically to [h' * w', D] (ViT, section 3.2).

  The kernel is Keys' with a = -0.75, half-pixel centres, no antialiasing, edges repeated:
  the one of PyTorch's `interpolate`, with which published checkpoints are resized.
  """
  if table.shape[0] != old[0] * old[1]:
    raise ValueError(f"a table of {table.shape[0]} positions is no grid of {old[0]} x {old[1]}")
  rows, columns = (jnp.asarray(_cubic_matrix(o, n), table.dtype) for o, n in zip(old, new))
  x = table.reshape(*old, -1)
  return jnp.einsum("ih,jw,hwd->ijd", rows, columns, x).reshape(new[0] * new[1], -1)


def _cubic_matrix(old: int, new: int, a: float = -0.75) -> np.ndarray:
  """[new, old] weights of cubic interpolation (Keys 1981)."""
  at = (np.arange(new) + 0.5) * old / new - 0.5
  base = np.floor(at).astype(int)
  weights = np.zeros((new, old))
  for tap in range(-1, 3):
    t = np.abs(at - (base + tap))
    near = (a + 2) * t**3 - (a + 3) * t**2 + 1
    far = a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a
    column = np.clip(base + tap, 0, old - 1)
    np.add.at(weights, (np.arange(new), column), np.where(t <= 1, near, far))
  return weights


# ------------------------------------------------------------------------------- hooks

class Table(NamedTuple):
  """The parameter of a position encoding."""
  shape: tuple[int, ...]
  init: float | Callable[..., jax.Array]  # standard deviation, or an initializer
  axes: tuple[str, ...]  # logical names; the optimiser leaves one of "fixed_positions" as it is

  def make(self, module: nn.Module, name: str) -> jax.Array:
    init = self.init if callable(self.init) else nn.initializers.normal(self.init)
    return param(module, name, init, self.shape, self.axes)


@dataclasses.dataclass(frozen=True)
class Position:
  """No position information; the base of all encodings, whose hooks do nothing."""

  @staticmethod
  def registry() -> dict[str, Callable[..., "Position"]]:
    return POSITIONS

  def embedding_table(self, width: int) -> Table | None:
    """The parameter that `embed` needs, if any; the model owns it."""
    return None

  def bias_table(self, num_heads: int) -> Table | None:
    """The parameter that `bias` needs, if any; a stack owns it and its layers share it."""
    return None

  @property
  def limit(self) -> int | None:
    """How many positions it can encode; None is any number."""
    return None

  def check_length(self, length: int) -> None:
    """Raises ConfigError where positions 0 to length - 1 are more than it can encode."""

  def embed(self, x: jax.Array, positions: jax.Array, table: jax.Array | None) -> jax.Array:
    """Token embeddings [B, T, D], with positions [B, T] added."""
    return x

  def add(self, x: jax.Array, positions: jax.Array) -> jax.Array:
    """The input [B, T, D] of queries and keys, with positions [B, T] added."""
    return x

  def rotate(self, x: jax.Array, positions: jax.Array,
             local: jax.Array | bool = False) -> jax.Array:
    """Queries or keys [B, T, N, H], turned by positions [B, T]; `local`: of a local layer."""
    return x

  def bias(self, q: jax.Array, k: jax.Array, q_positions: jax.Array, k_positions: jax.Array,
           table: jax.Array | None, causal: bool) -> jax.Array | None:
    """What to add to the logits of q [B, T, N, H] and k [B, S, K, H]: [B, N, T, S] or None."""
    return None


@dataclasses.dataclass(frozen=True)
class Sinusoidal(Position):
  layout: Literal["interleaved", "concatenated"] = "interleaved"
  inclusive: bool = False
  base: float = 10_000.0
  first_position: int = 0

  def embed(self, x, positions, table):
    table = sinusoidal(positions + self.first_position, x.shape[-1], layout=self.layout,
                       inclusive=self.inclusive, base=self.base)
    return x + table.astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Attached(Sinusoidal):
  """Sinusoids added to the inputs of queries and keys in every layer (DETR, appendix A.4)."""

  def embed(self, x, positions, table):
    return x

  def add(self, x, positions):
    return Sinusoidal.embed(self, x, positions, None)


@dataclasses.dataclass(frozen=True)
class Learned(Position):
  """A trained vector for each position.

  With `init` "sincos" it starts from sinusoids of standard deviation `init_std`, by which places
  that are close are alike from the first step on.
  """
  max_length: int = 512
  init: Literal["normal", "sincos"] = "normal"
  init_std: float = 0.02
  first_position: int = 0

  def embedding_table(self, width):
    def sincos(key, shape, dtype):
      waves = sinusoidal(jnp.arange(shape[0]), shape[1], layout="concatenated")
      return (math.sqrt(2.0) * self.init_std * waves).astype(dtype)

    return Table((self.max_length, width), sincos if self.init == "sincos" else self.init_std,
                 ("positions", "embed"))

  def embed(self, x, positions, table):
    self.check_length(x.shape[1])
    return x + table[positions + self.first_position].astype(x.dtype)

  @property
  def limit(self):
    return self.max_length - self.first_position

  def check_length(self, length):
    if length > self.limit:
      raise ConfigError(f"position.max_length={self.max_length} is too short for rows of {length}"
                        f" tokens from position {self.first_position} on")


@dataclasses.dataclass(frozen=True)
class Rope(Position):
  base: float = 10_000.0
  pairing: Literal["half", "interleaved"] = "half"
  linear_scale: float = 1.0
  ntk_scale: float = 1.0
  local_base: float | None = None  # of local layers (ModernBERT; Warner et al. 2024); None is base

  def rotate(self, x, positions, local=False):
    frequencies = rope_frequencies(x.shape[-1], self.base, self.ntk_scale)
    if self.local_base is not None:
      of_local = rope_frequencies(x.shape[-1], self.local_base, self.ntk_scale)
      frequencies = jnp.where(local, of_local, frequencies)
    angle = positions[..., None].astype(jnp.float32) / self.linear_scale * frequencies
    return turn(x, angle, self.pairing)


@dataclasses.dataclass(frozen=True)
class Alibi(Position):
  """Press et al. 2021; keys after the query, where a mask allows them, count their distance too."""

  def bias(self, q, k, q_positions, k_positions, table, causal):
    distance = jnp.abs(k_positions[:, None, :] - q_positions[:, :, None])  # [B, T, S]
    return -alibi_slopes(q.shape[2])[:, None, None] * distance[:, None]


@dataclasses.dataclass(frozen=True)
class T5Bias(Position):
  num_buckets: int = 32
  max_distance: int = 128
  init_std: float = 0.02

  def __post_init__(self):
    if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
      raise ConfigError(f"position.num_buckets={self.num_buckets} must be a multiple of 4, and"
                        f" max_distance={self.max_distance} more than half of it")

  def bias_table(self, num_heads):
    return Table((self.num_buckets, num_heads), self.init_std, ("buckets", "heads"))

  def bias(self, q, k, q_positions, k_positions, table, causal):
    distance = k_positions[:, None, :] - q_positions[:, :, None]
    buckets = relative_buckets(distance, num_buckets=self.num_buckets,
                               max_distance=self.max_distance, bidirectional=not causal)
    return jnp.moveaxis(table[buckets], -1, 1)


POSITIONS: dict[str, Callable[..., Position]] = {
    "none": Position,
    "sinusoidal": Sinusoidal,
    "attached": Attached,
    "learned": Learned,
    "rope": Rope,
    "alibi": Alibi,
    "t5": T5Bias,
}
