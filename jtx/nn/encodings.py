"""Position encodings as pure functions: sinusoids, ALiBi's slopes, buckets, resized tables."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jtx.errors import ConfigError


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


def distance_rows(distance: jax.Array, *, span: int, max_distance: int) -> jax.Array:
  """The row of DeBERTa's table for query position minus key position, 0 to 2 span - 1.

  Rows are for single distances; with a `max_distance`, only up to half of the span, beyond which
  they grow logarithmically (He et al. 2021, version 2). What is further away has the last ones.
  """
  if not max_distance:
    return jnp.clip(distance + span, 0, 2 * span - 1)
  rows = jnp.asarray(np.clip(log_buckets(max_distance, span) + span, 0, 2 * span - 1))
  return rows[jnp.clip(distance, -max_distance, max_distance) + max_distance]


def log_buckets(max_distance: int, num_buckets: int) -> np.ndarray:
  """The buckets [2 max_distance + 1] of distances from -max_distance to max_distance, int32."""
  # In float64, of NumPy: XLA's float32 would round some up to the next.
  distance, exact = np.arange(-max_distance, max_distance + 1), num_buckets // 2
  far = np.log(np.maximum(np.abs(distance), exact) / exact) / np.log((max_distance - 1) / exact)
  far = np.ceil(far * (exact - 1)).astype(np.int32) + exact
  near = np.abs(distance) <= exact
  return np.where(near, distance, np.sign(distance) * far).astype(np.int32)


def resize(table: jax.Array, length: int) -> jax.Array:
  """A learned table [T, D] interpolated linearly to [length, D]; both ends are kept."""
  old = table.shape[0]
  at = np.linspace(0, old - 1, length)
  low = np.clip(np.floor(at).astype(int), 0, max(old - 2, 0))
  part = jnp.asarray(at - low, table.dtype)[:, None]
  return table[low] * (1 - part) + table[np.minimum(low + 1, old - 1)] * part


def resize_grid(table: jax.Array, old: tuple[int, int], new: tuple[int, int], *,
                antialias: bool = False) -> jax.Array:
  """A learned grid [h * w, D] interpolated bicubically to [h' * w', D] (ViT, section 3.2).

  The kernel is Keys' with a = -0.75, half-pixel centres, no antialiasing, edges repeated:
  the one of PyTorch's `interpolate`, with which published checkpoints are resized. With `antialias`
  it is PyTorch's other one: a = -0.5, as wide as a new place, nothing beyond the edges.
  """
  if table.shape[0] != old[0] * old[1]:
    raise ValueError(f"a table of {table.shape[0]} positions is no grid of {old[0]} x {old[1]}")
  x = table.reshape(*old, -1)
  if antialias:
    return jax.image.resize(x, (*new, x.shape[-1]), "cubic").reshape(new[0] * new[1], -1)
  rows, columns = (jnp.asarray(_cubic_matrix(o, n), table.dtype) for o, n in zip(old, new))
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
