"""Augmentation: RandAugment, 3-Augment, colour jitter and random erasing."""

import numpy as np
from PIL import Image
import pytest

from jtx.data.ops import augment
from jtx.data.ops.augment import POLICY, ColorJitter, RandAugment, RandomErasing, ThreeAugment
from jtx.data.ops.image import random_box
from tests.data.ops.pictures import array, generators, grey_of, inside, noise, places, same, smooth
from tests.helpers import assert_share, chi_square

# ------------------------------------------------------------------------- randaugment


STRENGTHS = (0.3, 0.9, 1.0, -0.3, -1.0)


def policy(name, strength, image):
  return array(POLICY[name](image, strength))


def test_the_policy_has_the_fourteen_operations():
  assert sorted(POLICY) == sorted((
      "identity autocontrast equalize rotate solarize color posterize contrast brightness sharpness"
      " shear_x shear_y translate_x translate_y").split())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", sorted(POLICY))
def test_strength_0_changes_nothing_but_by_two_operations(name, channels):
  image = Image.fromarray(np.asarray(noise(40, 30, channels)) // 2 + 20)
  assert (POLICY[name](image, 0.0).tobytes() == image.tobytes()) == (
      name not in ("autocontrast", "equalize"))
  for strength in STRENGTHS:
    result = POLICY[name](image, strength)
    assert (result.mode, result.size) == (image.mode, image.size)


@pytest.mark.parametrize("s", STRENGTHS)
def test_operations_on_single_values(s):
  image, pixels = noise(40, 30), array(noise(40, 30))
  np.testing.assert_array_equal(policy("identity", s, image), pixels)
  threshold = {0.3: 179, 0.9: 26, 1.0: 0}[abs(s)]  # 256 * 0.7 = 179.2, 256 * 0.1 = 25.6
  np.testing.assert_array_equal(policy("solarize", s, image),
                                np.where(pixels >= threshold, 255 - pixels, pixels))
  lost = {0.3: 1, 0.9: 4, 1.0: 4}[abs(s)]  # bits, of 1.2, 3.6 and 4
  np.testing.assert_array_equal(policy("posterize", s, image), pixels >> lost << lost)


def blended(first, second, factor):
  return np.clip(first + factor * (second - first), 0, 255)


@pytest.mark.parametrize("s", STRENGTHS)
def test_operations_that_go_away_from_another_image(s):
  image, pixels = noise(40, 30), array(noise(40, 30))
  grey = grey_of(pixels)
  factor = 1 + 0.9 * s
  smoothed = pixels.copy()
  total = sum(pixels[y:28 + y, x:38 + x] * (5 if x == y == 1 else 1)
              for y in range(3) for x in range(3))
  smoothed[1:-1, 1:-1] = np.round(total / 13)
  for name, other in (("brightness", np.zeros_like(pixels)), ("color", grey[..., None]),
                      ("contrast", np.full_like(pixels, round(grey.mean()))),
                      ("sharpness", smoothed)):
    error = np.abs(policy(name, s, image) - blended(other, pixels, factor))
    assert error.max() <= 2, name  # a rounded smooth pixel is off by one, and is taken twice
    assert np.abs(policy(name, s, image) - pixels).mean() > 5, name


def test_autocontrast_and_equalize_spread_values():
  image = Image.fromarray(np.asarray(noise(40, 30)) // 3 + np.array([0, 40, 170], np.uint8))
  pixels = array(image)
  low, high = pixels.min((0, 1)), pixels.max((0, 1))
  assert np.abs(policy("autocontrast", 1, image) - (pixels - low) * 255 / (high - low)).max() <= 1
  equalized = policy("equalize", 1, image)
  for c in range(3):
    counts = np.bincount(pixels[..., c].ravel(), minlength=256)
    below = np.cumsum(counts) - counts  # pixels of lower values
    step = (1200 - counts[np.flatnonzero(counts)[-1]]) // 255
    table = np.minimum((step // 2 + below) // step, 255)
    np.testing.assert_array_equal(equalized[..., c], table[pixels[..., c]])


@pytest.mark.parametrize("s, x, y", [(1.0, 45, 30), (-1.0, -45, -30), (0.5, 23, 15),
                                     (-0.1, -5, -3)])
def test_translation_is_by_whole_pixels(s, x, y):
  """150 / 331 of 100 columns are 45.3, of 67 rows 30.4: to the right and down, if positive."""
  image, pixels = noise(100, 67), array(noise(100, 67))
  moved = np.full_like(pixels, 128)
  moved[:, max(x, 0):100 + min(x, 0)] = pixels[:, max(-x, 0):100 + min(-x, 0)]
  np.testing.assert_array_equal(policy("translate_x", s, image), moved)
  moved = np.full_like(pixels, 128)
  moved[max(y, 0):67 + min(y, 0)] = pixels[max(-y, 0):67 + min(-y, 0)]
  np.testing.assert_array_equal(policy("translate_y", s, image), moved)


@pytest.mark.parametrize("s", STRENGTHS)
def test_shear_and_rotation_take_pixels_from_where_they_should(s):
  image = places(120, 90)
  y, x = np.mgrid[:90, :120] + 0.5
  angle = np.radians(30 * s)  # counter-clockwise
  dx, dy = x - 60, y - 45
  sources = {"shear_x": (x + 0.3 * s * y, y), "shear_y": (x, y + 0.3 * s * x),
             "rotate": (60 + np.cos(angle) * dx - np.sin(angle) * dy,
                        45 + np.sin(angle) * dx + np.cos(angle) * dy)}
  for name, (from_x, from_y) in sources.items():
    result = policy(name, s, image)
    within = inside(from_x, 0, 121, 1) & inside(from_y, 0, 91, 1)
    assert within.mean() > 0.4
    assert np.abs(result[..., 0] - (from_x - 0.5))[within].max() <= 1, name
    assert np.abs(result[..., 1] - (from_y - 0.5))[within].max() <= 1, name
    outside = (from_x < -1) | (from_x > 121) | (from_y < -1) | (from_y > 91)
    assert outside.sum() > 100 and (result[outside] == 128).all()


def test_randaugment_draws_operations_evenly(monkeypatch):
  calls = []
  record = lambda name: lambda image, strength: calls.append((name, strength)) or image
  monkeypatch.setattr(augment, "POLICY", {name: record(name) for name in POLICY})
  image = noise(4, 4)
  for generator in generators(1400):
    RandAugment(num_ops=3, magnitude=7.0).apply(image, generator)
  assert len(calls) == 3 * 1400
  names = sorted(POLICY)
  counts = np.bincount([names.index(name) for name, _ in calls], minlength=14)
  assert chi_square(counts) < 3
  assert {abs(s) for _, s in calls} == {0.7}
  assert_share(sum(s > 0 for _, s in calls), len(calls), 0.5)
  # Both are drawn apart from one another, and so are the operations of one image.
  assert chi_square([sum(s > 0 for name, s in calls if name == n) for n in names]) < 3
  pairs = [(names.index(a[0]), names.index(b[0])) for a, b in zip(calls[::3], calls[1::3])]
  assert_share(sum(a == b for a, b in pairs), len(pairs), 1 / 14)


def test_randaugment_is_the_operations_one_after_the_other():
  image = noise(20, 20)
  made = {tuple(np.asarray(RandAugment(2, 5.0).apply(image, g)).ravel()) for g in generators(60)}
  strengths = (0.5, -0.5)
  possible = {tuple(np.asarray(second(first(image, s), t)).ravel()) for first in POLICY.values()
              for second in POLICY.values() for s in strengths for t in strengths}
  assert made <= possible and len(made) > 30


# ------------------------------------------------------------------- colours and erasing


def test_three_augment_takes_one_of_three():
  image, pixels = smooth(40, 30), array(smooth(40, 30))
  grey = grey_of(pixels)[..., None].repeat(3, -1)
  solarized = np.where(pixels >= 128, 255 - pixels, pixels)
  counts, blurs = [0, 0, 0], []
  for generator in generators(900):
    result = array(ThreeAugment(jitter=0.0).apply(image, generator))
    kinds = [np.array_equal(result, grey), np.array_equal(result, solarized)]
    if not any(kinds):
      blurs.append(result)
      assert np.abs(result.mean((0, 1)) - pixels.mean((0, 1))).max() < 1
      kinds.append(True)
    counts[kinds.index(True)] += 1
  for count in counts:
    assert_share(count, 900, 1 / 3)
  rough = lambda x: np.abs(np.diff(x, axis=0)).mean() + np.abs(np.diff(x, axis=1)).mean()
  roughness = np.array([rough(b) for b in blurs]) / rough(pixels)
  assert roughness.max() <= 1.01 and len(set(roughness)) > 100


def test_the_blur_has_radii_from_a_tenth_to_two(monkeypatch):
  radii = []
  blur = augment.ImageFilter.GaussianBlur
  monkeypatch.setattr(augment.ImageFilter, "GaussianBlur", lambda r: radii.append(r) or blur(r))
  for generator in generators(1500):
    ThreeAugment(jitter=0.0).apply(noise(3, 3), generator)
  assert chi_square(np.histogram(radii, 10, (0.1, 2.0))[0]) < 3
  assert min(radii) >= 0.1 and max(radii) <= 2.0


def test_three_augment_jitters_as_color_jitter():
  """A grey picture stays grey, so that the jitter is all that is left of one choice."""
  values = []
  for generator in generators(1200):
    result = np.unique(array(ThreeAugment(jitter=0.3).apply(
        Image.new("RGB", (4, 4), (100,) * 3), generator)))
    assert len(result) == 1
    values.append(int(result[0]))
  # Brightness is 70 to 130, and contrast leaves an even picture as it is.
  assert min(values) in (70, 71) and max(values) in (129, 130)
  assert abs(np.mean(values) - 100) < 1 + 3 * 60 / np.sqrt(12 * len(values))


@pytest.mark.parametrize("most, low, high", [(0.4, 0.6, 1.4), (0.9, 0.1, 1.9), (1.5, 0.0, 2.5)])
def test_brightness_has_uniform_factors(most, low, high):
  image = Image.new("RGB", (2, 2), (100,) * 3)
  op = ColorJitter(brightness=most, contrast=0.0, saturation=0.0)
  values = np.array([array(op.apply(image, g))[0, 0, 0] for g in generators(1500)])
  assert chi_square(np.histogram(values, 10, (100 * low - 0.5, 100 * high + 0.5))[0]) < 3


@pytest.mark.parametrize("key, other", [("contrast", "mean"), ("saturation", "grey")])
def test_contrast_and_saturation_go_away_from_grey(key, other):
  image, pixels = noise(12, 10), array(noise(12, 10))
  grey = grey_of(pixels)[..., None]
  goal = np.full_like(grey, round(grey.mean())) if other == "mean" else grey
  op = ColorJitter(**{**dict.fromkeys(("brightness", "contrast", "saturation"), 0.0), key: 0.5})
  factors = []
  for generator in generators(300):
    result = array(op.apply(image, generator))
    free = (result > 0) & (result < 255) & (np.abs(pixels - goal) > 40)
    factor = ((result - goal)[free] / (pixels - goal)[free]).mean()
    assert np.abs(result - blended(goal, pixels, factor)).max() <= 1.5
    factors.append(factor)
  assert 0.48 < min(factors) < 0.55 and 1.45 < max(factors) < 1.52
  assert abs(np.mean(factors) - 1) < 0.01 + 3 / np.sqrt(12 * 300)


def test_the_order_of_jitter_is_random():
  """With one factor each, six orders make different images."""
  class Fixed:
    def __init__(self, order):
      self.order = np.array(order)
    def permutation(self, number):
      return self.order
    def uniform(self, low, high):
      return high
  op, image = ColorJitter(0.9, 0.8, 0.7), Image.fromarray(np.asarray(noise(9, 9)) // 2)
  orders = [(a, b, 3 - a - b) for a in range(3) for b in range(3) if a != b]
  assert len({op.apply(image, Fixed(order)).tobytes() for order in orders}) > 3
  seen = [tuple(g.permutation(3)) for g in generators(1200)]
  assert chi_square([seen.count(order) for order in orders]) < 3


@pytest.mark.parametrize("channels", [1, 3])
def test_random_erasing_fills_a_box_with_random_pixels(channels):
  op = RandomErasing(probability=1.0)
  image, pixels = noise(64, 48, channels, seed=9), array(noise(64, 48, channels, seed=9))
  filled = []
  for seed in range(40):
    generator = np.random.default_rng(seed)
    generator.random()
    left, top, right, bottom = random_box(64, 48, op.area, op.ratio, generator)
    result = array(op.apply(image, np.random.default_rng(seed)))
    box = np.zeros((48, 64), bool)
    box[top:bottom, left:right] = True
    np.testing.assert_array_equal(result[~box], pixels[~box])
    filled.append(result[box].ravel())
    assert (result[box] != pixels[box]).mean() > 0.95
  assert chi_square(np.bincount(np.concatenate(filled), minlength=256)) < 3
  np.testing.assert_array_equal(array(image), pixels)  # the image given is not written to


def test_random_erasing_happens_with_its_probability():
  image = noise(16, 16)
  erased = sum(not same(RandomErasing(0.25).apply(image, g), image) for g in generators(2000))
  assert_share(erased, 2000, 0.25)
  strip = noise(64, 1)
  op = RandomErasing(1.0, area=(0.3, 0.3), ratio=(0.3, 0.3))
  assert same(op.apply(strip, np.random.default_rng(0)), strip)  # no box of that shape fits
