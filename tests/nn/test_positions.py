"""Position encodings against closed forms and independent implementations."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import encodings, rope
from jtx.nn.attached import Attached
from jtx.nn.positions import Learned, Places, Sinusoidal, Sizes
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.rope import Rope

few = settings(max_examples=25, deadline=None)
PLACES = st.integers(0, 2000)


def close(actual, desired, tol=1e-6):
  np.testing.assert_allclose(np.asarray(actual, np.float64), desired, rtol=tol, atol=tol)


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


# -------------------------------------------------------------------------- sinusoidal


@pytest.mark.parametrize("dim, inclusive, base", [(8, False, 1e4), (6, True, 1e4), (2, True, 1e4),
                                                  (8, False, 100.0)])
def test_sinusoidal_closed_form(dim, inclusive, base):
  table = np.asarray(encodings.sinusoidal(jnp.arange(50), dim, inclusive=inclusive, base=base))
  for pos in range(50):
    for i in range(dim // 2):
      exponent = i / max(dim // 2 - 1, 1) if inclusive else 2 * i / dim
      angle = pos / base**exponent
      close(table[pos, 2 * i:2 * i + 2], [math.sin(angle), math.cos(angle)], 1e-5)


def test_the_last_inclusive_wavelength_is_the_base():
  table = encodings.sinusoidal(jnp.arange(2000), 10, layout="concatenated", inclusive=True,
                               base=1000.0)
  close(table[:, 4], np.sin(np.arange(2000) / 1000), 1e-6)


def test_layouts_are_permutations_of_each_other():
  interleaved, concatenated = (
      encodings.sinusoidal(jnp.arange(9), 12, layout=layout)
      for layout in ("interleaved", "concatenated"))
  order = np.r_[0:12:2, 1:12:2]
  np.testing.assert_array_equal(interleaved[:, order], concatenated)


@few
@given(PLACES, st.integers(0, 500), st.booleans())
def test_a_shift_is_linear(pos, k, inclusive):
  dim = 8
  options = dict(layout="concatenated", inclusive=inclusive)
  shift = np.asarray(encodings.sinusoidal(jnp.array([k]), dim, **options), np.float64)[0]
  sin, cos = np.diag(shift[:4]), np.diag(shift[4:])
  move = np.block([[cos, sin], [-sin, cos]])
  table = encodings.sinusoidal(jnp.array([pos, pos + k]), dim, **options)
  before, after = np.asarray(table, np.float64)
  close(move @ before, after, 1e-3)  # angles of up to 2,500 in float32


@few
@given(PLACES, PLACES, st.integers(0, 100))
def test_inner_products_depend_on_the_difference(m, n, k):
  a, b, c, d = np.asarray(encodings.sinusoidal(jnp.array([m, n, m + k, n + k]), 16), np.float64)
  close(a @ b, c @ d, 3e-3)
  exact = sum(math.cos((m - n) / 10_000**(i / 8)) for i in range(8))
  close(a @ b, exact, 3e-3)


def test_sinusoidal_2d():
  table = np.asarray(encodings.sinusoidal_2d(encodings.grid(3, 5), 8)).reshape(3, 5, 8)
  line = lambda n: np.asarray(encodings.sinusoidal(jnp.arange(n), 4, layout="concatenated"))
  for i, j in np.ndindex(3, 5):
    close(table[i, j], np.concatenate([line(3)[i], line(5)[j]]))


@pytest.mark.parametrize("call, message", [
    (lambda: encodings.sinusoidal(jnp.arange(3), 5), "even width, not 5"),
    (lambda: encodings.sinusoidal(jnp.arange(3), 4, layout="mixed"), "position.layout='mixed'"),
    (lambda: encodings.sinusoidal_2d(encodings.grid(2, 2), 6), "divisible by 4, not 6"),
    (lambda: rope.rope(jnp.zeros((1, 1, 1, 3)), jnp.arange(1)), "even head width, not 3"),
    (lambda: rope.rope(jnp.zeros((1, 1, 1, 4)), jnp.arange(1), pairing="x"), "pairing='x'"),
    (lambda: T5Bias(num_buckets=6), "num_buckets=6 must be a multiple of 4"),
    (lambda: T5Bias(num_buckets=32, max_distance=16), "max_distance=16 more than half"),
    (lambda: Learned(max_length=6, first_position=2).check_length(5),
     "max_length=6 is too short for texts of 5 tokens from position 2 on"),
])
def test_errors(call, message):
  with pytest.raises(ConfigError, match=message):
    call()


def test_learned_positions_of_rows_longer_than_their_table():
  """What is within it counts, and not the row; a text beyond it has no vector, and no gradient."""
  learned, table = Learned(max_length=5, first_position=2), jnp.arange(10.0).reshape(5, 2)
  positions = jnp.array([[0, 1, 2, 0, 1, 0, 0, 0], [0, 1, 2, 3, 4, 5, 0, 0]])
  embed = lambda table: learned.embed(jnp.zeros((2, 8, 2)), Places(positions),
                                      {"position_embedding": table})
  got = np.asarray(embed(table))
  np.testing.assert_array_equal(got[0], np.asarray(table)[np.array(positions[0]) + 2])
  assert np.isnan(got[1, 3:6]).all() and np.isfinite(got[1, [0, 1, 2, 6, 7]]).all()
  seen = lambda table: jnp.where(positions[..., None] < 3, embed(table), 0).sum()
  gradient = jax.grad(seen)(table)
  np.testing.assert_array_equal(gradient[:, 0], [0, 0, 8, 3, 2])


def test_learned_positions_start_from_sinusoids():
  learned = Learned(max_length=50, init="sincos", init_std=0.02)
  table = learned.model_tables(64)["position_embedding"]
  values = np.asarray(table.init(jax.random.key(0), table.shape, jnp.float32))
  angles = np.arange(50)[:, None] * 10_000.0 ** (-np.arange(32) / 32)
  expected = 0.02 * np.sqrt(2) * np.concatenate([np.sin(angles), np.cos(angles)], 1)
  np.testing.assert_allclose(values, expected, atol=1e-7)
  assert np.sqrt((values**2).mean()) == pytest.approx(0.02)


# -------------------------------------------------------------------------------- rope


def turned(x, place, **options):
  """x [H] turned to `place`."""
  x = jnp.asarray(x, jnp.float32)[None, None, None]
  return np.asarray(rope.rope(x, jnp.array([place]), **options), np.float64)[0, 0, 0]


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_rope_is_a_complex_rotation(pairing):
  x, dim, place = normal(0, 8), 8, 13
  pairs = [(i, i + 4) if pairing == "half" else (2 * i, 2 * i + 1) for i in range(4)]
  y = turned(x, place, pairing=pairing)
  for i, (a, b) in enumerate(pairs):
    z = complex(x[a], x[b]) * np.exp(1j * place * 10_000**(-2 * i / dim))
    close([y[a], y[b]], [z.real, z.imag], 1e-5)


@few
@given(PLACES, PLACES, st.integers(0, 500), st.sampled_from(["half", "interleaved"]))
def test_rope_scores_are_relative_and_norms_kept(m, n, k, pairing):
  q, key = normal(1, 8), normal(2, 8)
  score = turned(q, m, pairing=pairing) @ turned(key, n, pairing=pairing)
  shifted = turned(q, m + k, pairing=pairing) @ turned(key, n + k, pairing=pairing)
  close(score, shifted, 3e-3)
  close(np.linalg.norm(turned(q, m, pairing=pairing)), np.linalg.norm(q), 1e-5)


def test_pairings_agree_after_a_permutation():
  order = np.r_[0:8:2, 1:8:2]
  x = normal(3, 8)
  close(turned(x, 77, pairing="interleaved")[order], turned(x[order], 77, pairing="half"))


def test_linear_scaling_divides_positions():
  x = normal(4, 8)
  close(turned(x, 12, scaling=rope.Linear(factor=4.0)), turned(x, 3))


def test_ntk_scaling_keeps_the_highest_frequency_and_stretches_the_lowest():
  dim, scale, place = 8, 3.0, 5
  one = np.zeros(dim)
  one[[0, 3]] = 1  # the first elements of the fastest and the slowest pair
  y = turned(one, place, scaling=rope.Ntk(factor=scale))
  slowest = 10_000**(-(dim - 2) / dim)
  close(y[[0, 4]], [math.cos(place), math.sin(place)])
  close(y[[3, 7]], [math.cos(place * slowest / scale), math.sin(place * slowest / scale)])
  close(y, turned(one, place, base=10_000 * scale**(dim / (dim - 2))))


def test_rope_positions_of_every_row():
  x = jnp.asarray(normal(5, 2, 3, 2, 4), jnp.float32)
  places = jnp.array([[0, 1, 2], [0, 1, 0]])
  y = rope.rope(x, places)
  for b in range(2):
    close(y[b], np.asarray(rope.rope(x[b:b + 1], places[b]))[0])


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_a_fraction_of_a_head_turns(pairing):
  """The first part of it, with frequencies as if it were the whole (GPT-NeoX)."""
  x, place = normal(13, 12), 9
  y = np.asarray(Rope(fraction=0.5, pairing=pairing).rotate(
      jnp.asarray(x, jnp.float32)[None, None, None], Places(jnp.array([[place]])), {}))[0, 0, 0]
  for i, (a, b) in enumerate([(j, j + 3) if pairing == "half" else (2 * j, 2 * j + 1)
                              for j in range(3)]):
    z = complex(x[a], x[b]) * np.exp(1j * place * 10_000**(-2 * i / 6))
    close([y[a], y[b]], [z.real, z.imag], 1e-5)
  np.testing.assert_array_equal(y[6:], x[6:].astype(np.float32))


def frequencies(dim, base, scaling):
  """Those of a scaling, as NumPy takes them."""
  return np.asarray(rope.rope_frequencies(dim, base, scaling), np.float64)


def test_linear_and_ntk_frequencies():
  dim, base, factor = 16, 500.0, 3.0
  plain = [1 / base**(2 * i / dim) for i in range(dim // 2)]
  close(frequencies(dim, base, rope.Scaling()), plain)
  close(frequencies(dim, base, rope.Linear(factor=factor)), np.array(plain) / factor)
  # The dynamic NTK of Hugging Face at `factor` times the trained length has this base.
  raised = base * factor**(dim / (dim - 2))
  close(frequencies(dim, base, rope.Ntk(factor=factor)),
        [1 / raised**(2 * i / dim) for i in range(dim // 2)])
  close(frequencies(2, base, rope.Ntk(factor=factor)), [1])


def llama3_frequency(f, factor, low, high, length):
  """One frequency, after Meta's `apply_scaling` of Llama 3.1."""
  wavelength = 2 * math.pi / f
  if wavelength < length / high:
    return f
  if wavelength > length / low:
    return f / factor
  smooth = (length / wavelength - low) / (high - low)
  return (1 - smooth) * f / factor + smooth * f


@pytest.mark.parametrize("options", [{}, dict(factor=32.0, low=2.0, high=8.0, original_length=500)])
def test_llama3_frequencies(options):
  dim, base = 64, 500_000.0
  expected = [llama3_frequency(
      base**(-2 * i / dim), options.get("factor", 8.0), options.get("low", 1.0),
      options.get("high", 4.0), options.get("original_length", 8192)) for i in range(dim // 2)]
  close(frequencies(dim, base, rope.Llama3(**options)), expected, 1e-7)
  assert len({round(f * base**(2 * i / dim), 6) for i, f in enumerate(expected)}) > 3


def yarn_frequencies(dim, base, factor, length, fast, slow):
  """After the authors' `YaRNScaledRotaryEmbedding`: a mask of extrapolated frequencies."""
  correction = lambda turns: dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
  low, high = max(math.floor(correction(fast)), 0), min(math.ceil(correction(slow)), dim - 1)
  result = []
  for i in range(dim // 2):
    extrapolated = base**(-2 * i / dim)
    mask = 1 - min(max((i - low) / (high - low), 0), 1)
    result.append(extrapolated / factor * (1 - mask) + extrapolated * mask)
  return result


@pytest.mark.parametrize("options", [
    {}, dict(factor=16.0, original_length=1000, fast=20.0, slow=2.0)])
def test_yarn_frequencies(options):
  dim, base = 64, 10_000.0
  expected = yarn_frequencies(dim, base, options.get("factor", 4.0),
                              options.get("original_length", 4096), options.get("fast", 32.0),
                              options.get("slow", 1.0))
  close(frequencies(dim, base, rope.Yarn(**options)), expected, 1e-7)
  assert len({round(f * base**(2 * i / dim), 6) for i, f in enumerate(expected)}) > 3


@pytest.mark.parametrize("options, factor", [
    ({}, 0.1 * math.log(4) + 1), (dict(factor=40.0), 0.1 * math.log(40) + 1),
    (dict(factor=1.0), 1.0), (dict(attention=0.7), 0.7)])
def test_yarn_makes_queries_and_keys_longer(options, factor):
  x = normal(14, 8)
  longer = turned(x, 5, scaling=rope.Yarn(**options))
  close(np.linalg.norm(longer), factor * np.linalg.norm(x), 1e-5)


def test_local_layers_turn_by_a_base_of_their_own():
  x, at = jnp.asarray(normal(15, 1, 3, 2, 8), jnp.float32), jnp.array([[0, 5, 9]])
  scaling = rope.Linear(factor=2.0)
  position = Rope(base=1000.0, local_base=50.0, scaling=scaling)
  for local, base in ((False, 1000.0), (True, 50.0), (jnp.array(True), 50.0)):
    np.testing.assert_allclose(position.rotate(x, Places(at, local=local), {}),
                               rope.rope(x, at, base=base, scaling=scaling), atol=1e-6)


# --------------------------------------------------------------------------- alibi, t5


def test_alibi_slopes():
  close(encodings.alibi_slopes(8), [2.0**-i for i in range(1, 9)])
  close(encodings.alibi_slopes(2), [1 / 16, 1 / 256])
  # 12 heads: those of 8, then every other one of 16.
  close(encodings.alibi_slopes(12),
        [2.0**-i for i in range(1, 9)] + [2.0**-(i / 2) for i in (1, 3, 5, 7)])
  for heads in range(1, 33):
    assert len(set(encodings.alibi_slopes(heads))) == heads


def test_alibi_bias():
  q, k = jnp.zeros((1, 3, 2, 4)), jnp.zeros((1, 4, 1, 4))
  places = Places(jnp.array([[1, 2, 5]]), causal=True), Places(jnp.arange(4)[None])
  bias = np.asarray(
      Alibi().bias(q, k, *places, params={}, project=None, scale=0.5).materialize())
  for n, i, j in np.ndindex(2, 3, 4):
    close(bias[0, n, i, j], -2.0**(-4 * (n + 1)) * abs([1, 2, 5][i] - j))


def t5_bucket(distance, num_buckets, max_distance, bidirectional):
  """The bucket of one distance, after Hugging Face's `_relative_position_bucket`."""
  bucket = 0
  if bidirectional:
    num_buckets //= 2
    bucket += num_buckets * (distance > 0)
    distance = abs(distance)
  else:
    distance = -min(distance, 0)
  half = num_buckets // 2
  if distance < half:
    return bucket + distance
  growth = np.float32(math.log(distance / half)) / np.float32(math.log(max_distance / half))
  return bucket + min(half + int(growth * np.float32(num_buckets - half)), num_buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("num_buckets, max_distance", [(32, 128), (8, 20), (64, 1000)])
def test_t5_buckets(num_buckets, max_distance, bidirectional):
  # Right on a boundary the float32 logarithm decides, which no two libraries do alike.
  side = num_buckets // 2 if bidirectional else num_buckets
  half = side // 2
  edges = {half * (max_distance / half)**(i / (side - half)) for i in range(1, side - half)}
  distances = np.array([d for d in range(-2 * max_distance, 2 * max_distance)
                        if all(abs(abs(d) - e) > 1e-3 for e in edges)])
  ours = encodings.relative_buckets(jnp.array(distances), num_buckets=num_buckets,
                                    max_distance=max_distance, bidirectional=bidirectional)
  expected = [t5_bucket(int(d), num_buckets, max_distance, bidirectional) for d in distances]
  np.testing.assert_array_equal(ours, expected)
  unused = {side} if bidirectional else set()  # distance 0 to the right is distance 0
  assert set(expected) == set(range(num_buckets)) - unused


def test_t5_bias_reads_its_table():
  position, heads = T5Bias(num_buckets=8, max_distance=20), 3
  shape, _, axes = position.stack_tables(Sizes(12, heads, 4))["position_bias"]
  assert shape == (8, heads) and axes == ("buckets", "heads")
  table = normal(6, *shape).astype(np.float32)
  q, k = jnp.zeros((2, 3, heads, 4)), jnp.zeros((2, 5, heads, 4))
  places = jnp.array([[0, 1, 2], [7, 8, 30]]), jnp.arange(5)[None]
  for causal in (True, False):
    bias = np.asarray(position.bias(
        q, k, Places(places[0], causal=causal), Places(places[1]),
        params={"position_bias": jnp.asarray(table)}, project=None, scale=0.5).materialize())
    for b, n, i, j in np.ndindex(2, heads, 3, 5):
      bucket = t5_bucket(j - int(places[0][b, i]), 8, 20, not causal)
      assert bias[b, n, i, j] == table[bucket, n]
  own = T5Bias(num_buckets=8, max_distance=20, per_layer=True)  # UMT5
  assert own.stack_tables(Sizes(12, heads, 4)) == position.layer_tables(Sizes(12, heads, 4)) == {}
  assert own.layer_tables(Sizes(12, heads, 4))["bias"].shape == shape


# ------------------------------------------------------------------------------- hooks


def test_hooks_act_where_they_say():
  x = jnp.asarray(normal(7, 2, 3, 4), jnp.float32)
  at = jnp.array([[0, 1, 2], [0, 1, 0]])
  places = Places(at)
  table = encodings.sinusoidal(at + 1, 4, layout="concatenated")
  options = dict(layout="concatenated", first_position=1)
  np.testing.assert_array_equal(Sinusoidal(**options).embed(x, places, {}), x + table)
  np.testing.assert_array_equal(Sinusoidal(**options).add(x, places, {}), x)
  np.testing.assert_array_equal(Attached(**options).embed(x, places, {}), x)
  np.testing.assert_array_equal(Attached(**options).add(x, places, {}), x + table)
  learned = jnp.asarray(normal(8, 6, 4), jnp.float32)
  np.testing.assert_array_equal(
      Learned(max_length=6, first_position=2).embed(x, places, {"position_embedding": learned}),
      x + learned[at + 2])
  heads = x[:, :, None]
  for scaling in (rope.Linear(factor=2.0), rope.Ntk(factor=3.0)):
    options = dict(base=50.0, pairing="interleaved", scaling=scaling)
    np.testing.assert_array_equal(Rope(**options).rotate(heads, places, {}),
                                  rope.rope(heads, at, **options))


# ---------------------------------------------------------------------------- resizing


@pytest.mark.parametrize("old, new", [(2, 7), (7, 2), (5, 12), (12, 5)])
def test_resize_is_linear_interpolation_that_keeps_the_ends(old, new):
  table = normal(9, old, 3).astype(np.float32)
  resized = np.asarray(encodings.resize(jnp.asarray(table), new))
  np.testing.assert_array_equal(resized[[0, -1]], table[[0, -1]])
  at = np.linspace(0, old - 1, new)
  close(resized, np.stack([np.interp(at, np.arange(old), table[:, d]) for d in range(3)], 1), 1e-5)


def test_resize_to_the_same_length():
  table = jnp.asarray(normal(10, 7, 3), jnp.float32)
  np.testing.assert_array_equal(encodings.resize(table, 7), table)
  assert encodings.resize(table, 1).shape == (1, 3)
  np.testing.assert_array_equal(encodings.resize(table[:1], 4), jnp.tile(table[:1], (4, 1)))


def keys_kernel(t, a=-0.75):
  t = abs(t)
  if t <= 1:
    return (a + 2) * t**3 - (a + 3) * t**2 + 1
  return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


@pytest.mark.parametrize("old, new", [((4, 4), (7, 7)), ((5, 3), (2, 6)), ((6, 6), (3, 3))])
def test_resize_grid_is_cubic(old, new):
  table = normal(11, old[0] * old[1], 2)
  image = table.reshape(*old, 2)
  expected = np.zeros((*new, 2))
  for i, j in np.ndindex(*new):
    y, x = ((p + 0.5) * o / n - 0.5 for p, o, n in zip((i, j), old, new))
    for r in range(math.floor(y) - 1, math.floor(y) + 3):
      for c in range(math.floor(x) - 1, math.floor(x) + 3):
        value = image[min(max(r, 0), old[0] - 1), min(max(c, 0), old[1] - 1)]
        expected[i, j] += keys_kernel(y - r) * keys_kernel(x - c) * value
  close(encodings.resize_grid(jnp.asarray(table, jnp.float32), old, new),
        expected.reshape(-1, 2), 1e-5)


def test_resize_grid_to_the_same_size():
  table = jnp.asarray(normal(12, 15, 2), jnp.float32)
  close(encodings.resize_grid(table, (3, 5), (3, 5)), table)


def test_resize_grid_of_another_table():
  with pytest.raises(ValueError, match="15 positions is no grid of 4 x 4"):
    encodings.resize_grid(jnp.zeros((15, 2)), (4, 4), (2, 2))
