"""The global order of examples: shuffled epochs, mixtures of sources, generators by name."""

import collections

import numpy as np
import pytest

from jtx.data import order
from jtx.data.order import Order, mixture_sizes
from jtx.errors import ConfigError
from tests.data.streams import PAD, ids_of, prepared_of, stream_of

# --------------------------------------------------------------------------------- mixtures


def test_order_has_exact_counts_every_epoch():
  order = Order([10, 30, 4], [14, 10, 20], 3)
  for epoch in range(6):
    examples = order.examples(44 * epoch, 44 * (epoch + 1))
    assert [((examples >= a) & (examples < b)).sum() for a, b in ((0, 10), (10, 40), (40, 44))] == (
        [14, 10, 20])


def test_a_source_is_gone_through_before_it_repeats():
  order = Order([10, 30, 4], [14, 10, 20], 3)
  examples = order.examples(0, 44 * 15)
  for low, size, count in ((0, 10, 14), (10, 30, 10), (40, 4, 20)):
    seen = collections.Counter(examples[(examples >= low) & (examples < low + size)].tolist())
    assert set(seen) == set(range(low, low + size))
    assert sum(seen.values()) == 15 * count
    assert max(seen.values()) - min(seen.values()) <= 1


def test_order_is_random_access_and_epochs_differ():
  order = Order([10, 30], [25, 15], 3)
  whole = order.examples(0, 200)
  for start, stop in ((0, 1), (39, 41), (35, 165), (40, 80), (199, 200)):
    part = Order([10, 30], [25, 15], 3).examples(start, stop)
    np.testing.assert_array_equal(part, whole[start:stop])
  assert len({tuple(whole[i:i + 40]) for i in range(0, 200, 40)}) == 5
  assert whole.tolist() != Order([10, 30], [25, 15], 4).examples(0, 200).tolist()


def test_sources_are_mixed_within_an_epoch_and_otherwise_in_the_next():
  first, second = Order([500, 500], [500, 500], 1).examples(0, 2000).reshape(2, 1000) < 500
  for half in (first[:500], first[500:], first == second):
    assert abs(half.mean() - 0.5) < 0.07  # three standard deviations of 500


def test_each_round_through_a_source_takes_another_order():
  order = Order([200, 1], [20, 180], 1)  # ten epochs are a round
  parts = [order.examples(200 * epoch, 200 * (epoch + 1)) for epoch in range(20)]
  drawn = [frozenset(part[part < 200].tolist()) for part in parts]
  assert frozenset(range(20)) not in drawn
  assert not set(drawn[:10]) & set(drawn[10:])
  # And so does every source.
  part = Order([200, 200], [20, 20], 1).examples(0, 40)
  assert set(part[part < 200]) != set(part[part >= 200] - 200)


def test_a_source_of_weight_zero_is_left_out():
  examples = Order([5, 5], [10, 0], 0).examples(0, 30)
  assert collections.Counter(examples.tolist()) == {i: 6 for i in range(5)}


def test_the_mixture_reaches_the_rows():
  prepared = prepared_of(20, 60, layout=PAD)
  counts = mixture_sizes(prepared.sizes, (3.0, 1.0), None)
  assert counts == [60, 20]
  stream = stream_of(prepared, PAD, counts=counts, window=80, batch_size=8)
  for epoch in range(3):
    ids = ids_of([stream.batch(step) for step in range(10 * epoch, 10 * (epoch + 1))])
    seen = collections.Counter(ids)
    assert [seen[i] for i in range(20)] == [3] * 20
    assert sum(seen[i] for i in range(20, 80)) == 20 and max(seen[i] for i in range(20, 80)) == 1


@pytest.mark.parametrize("sizes, weights, smoothing, expected", [
    ([10, 30], (), None, [10, 30]),
    ([10, 30], (), 1.0, [10, 30]),
    ([10, 30], (), 0.0, [20, 20]),
    ([10, 30], (1.0, 1.0), None, [20, 20]),
    ([10, 30], (0.25, 0.75), None, [10, 30]),
    ([10, 30], (0, 2), None, [0, 40]),
    ([1, 1, 1], (2, 1, 1), None, [1, 1, 1]),  # of 1.5, 0.75, 0.75 the largest remainders go up
    ([5], (), 0.3, [5]),
    # 1000^0.7 = 125.89, 100^0.7 = 25.12, 10^0.7 = 5.01: of 1110, 895.4, 178.7 and 35.7
    ([1000, 100, 10], (), 0.7, [895, 179, 36]),
])
def test_mixture_sizes(sizes, weights, smoothing, expected):
  assert mixture_sizes(sizes, weights, smoothing) == expected


@pytest.mark.parametrize("sizes, smoothing, limit, expected", [
    ([10, 30], None, 0, [10, 30]),
    ([10, 30], None, 20, [13, 27]),  # of 40, a third and two thirds
    ([10, 30], None, 5, [20, 20]),
    ([10, 30], 0.5, 20, [17, 23]),  # 3.162 and 4.472
    ([10, 30], None, 100, [10, 30]),
])
def test_sizes_have_a_limit(sizes, smoothing, limit, expected):
  """Raffel et al. 2020, section 3.5.2: min(e, K)^(1/T)."""
  assert mixture_sizes(sizes, (), smoothing, limit) == expected


def test_mixture_sizes_follow_the_smoothing_formula():
  sizes = [4_500_000, 200_000, 31_014, 7]
  for s in (0.1, 0.3, 0.5, 0.7, 0.99):
    counts = mixture_sizes(sizes, (), s)
    exact = np.array(sizes, float) ** s
    exact *= sum(sizes) / exact.sum()
    assert sum(counts) == sum(sizes)
    assert (np.abs(counts - exact) < 1).all()


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 1.0, 1.0), (-1.0, 2.0), (0.0, 0.0),
                                     (float("nan"), 1.0), (float("inf"), 1.0)])
def test_bad_weights(weights):
  with pytest.raises(ConfigError) as e:
    mixture_sizes([10, 30], weights, None)
  assert str(e.value) == (
      f"data.weights={weights}: needs a weight of 0 or more for each of the 2 sources")


@pytest.mark.parametrize("smoothing, limit", [(0.7, 0), (None, 5)])
def test_weights_exclude_sizes(smoothing, limit):
  with pytest.raises(ConfigError, match="data.weights excludes data.smoothing and data.size_limit"):
    mixture_sizes([10, 30], (1.0, 1.0), smoothing, limit)


# ------------------------------------------------------------------------------ preparation


def test_rng_is_a_function_of_the_seed_and_the_path():
  def draw(*args):
    return int(order.rng(*args).bit_generator.random_raw())
  assert draw(1, "window", 2) == draw(1, "window", 2) == 17990685520323583636
  paths = [(1, "window", 2), (2, "window", 2), (1, "epoch", 2), (1, "window", 3),
           (1, "window", 2, 1)]
  assert len({draw(*path) for path in paths}) == len(paths)
