"""The state of decoding: who wrote what in a hypothesis' past, step by step and by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn.cache import Slots, empty, new_state, read, write
from jtx.nn.stack import StackConfig
from tests.helpers import block


@pytest.fixture
def state():
  """Two hypotheses for each of two sources, whose prompts of 2 and 1 tokens are written."""
  config = StackConfig(width=4, num_layers=1, block=block(num_heads=1, ffn_dim=4))
  return new_state(empty(config, 2, 2, 4, jnp.float32), 2, jnp.array([2, 1]), prompt=2)


def of_hypotheses(state):
  return np.asarray(state.ancestors).tolist()


def test_hypotheses_go_on_from_others(state):
  assert of_hypotheses(state) == [[[0, 0, -1, -1]] * 2, [[0, -1, -1, -1]] * 2]
  state = state.wrote(2)  # each for itself, behind the longest prompt
  assert of_hypotheses(state) == [[[0, 0, 0, -1], [0, 0, 1, -1]], [[0, -1, 0, -1], [0, -1, 1, -1]]]
  state = state.reorder(jnp.array([1, 1, 3, 2]))
  assert of_hypotheses(state) == [[[0, 0, 1, -1]] * 2, [[0, -1, 1, -1], [0, -1, 0, -1]]]


def test_new_room_is_nobodys_past(state):
  grown = state.grow(6)  # the last of the prompt is the first of 6
  assert of_hypotheses(grown)[1] == [[0] + 6 * [-1]] * 2
  assert grown.cache[0][0].key.shape == (2, 1, 7 * 2, 4)
  assert of_hypotheses(grown.grow(3)) == of_hypotheses(grown)


def test_new_tokens_see_their_own_past_at_their_own_places(state):
  slots, places = state.wrote(2).slots(jnp.array(2), 1, 2)
  assert places.tolist() == [[2], [2], [1], [1]]  # the shorter prompt goes on at once
  assert slots.index.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 1, 1, 1, 2, 2]]
  x, o = True, False  # the slot of the first hypothesis, then the second's
  assert slots.pairs.tolist() == [[[x, o, x, o, x, o, o, o], [x, o, x, o, o, x, o, o]],
                                  [[x, o, o, o, x, o, o, o], [x, o, o, o, o, x, o, o]]]
  taken = state.take(jnp.array([1]))
  assert of_hypotheses(taken) == of_hypotheses(state)[1:] and taken.lengths.tolist() == [1]


@pytest.mark.parametrize("layer", [None, 1])
def test_what_is_written_is_read(layer):
  """Prompts for the first hypothesis, of rows that two share, and a token of each hypothesis."""
  new = np.random.default_rng(0).normal(size=(8, 1, 1, 4)).astype(np.float32)
  prompts = jnp.array([[2, 3], [0, 1]])
  cache = jnp.zeros((*([] if layer is None else [3]), 2, 1, 4 * 2, 4))
  cache = write(cache, new[:4].reshape(1, 4, 1, 4), layer, Slots(jnp.array(0), 2, prompts=prompts))
  cache = write(cache, new[4:], layer, Slots(jnp.array(2), 2))
  found = np.asarray(read(cache, layer)).reshape(2, 4, 2, 4)  # sources, slots, hypotheses
  expected = np.zeros_like(found)
  expected[0, :2, 0], expected[1, :2, 0] = new[2:4, 0, 0], new[:2, 0, 0]
  expected[:, 2] = new[4:].reshape(2, 2, 4)
  np.testing.assert_array_equal(found, expected)
  assert layer is None or not cache[0].any() and not cache[2].any()
