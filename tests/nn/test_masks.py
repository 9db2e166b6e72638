"""Masks against their definitions, pair by pair, and the algebra of `&` and `|`."""

from hypothesis import given, settings
from hypothesis import strategies as st
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.kinds import kind_mask
from jtx.nn.masks import CAUSAL, FULL, And, Global, Or, Prefix, Rows, Window

T, S, B = 5, 7, 2
PREFIX = np.array([0, 3])
Q_GLOBAL = np.array([[0, 0, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
K_GLOBAL = np.array([[0, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]], bool)


def prefix_flags(lengths, places):
  return {"prefix": jnp.arange(places) < jnp.asarray(lengths)[:, None]}


ROWS = Rows(q_flags={"global": jnp.array(Q_GLOBAL), **prefix_flags(PREFIX, T)},
            k_flags={"global": jnp.array(K_GLOBAL), **prefix_flags(PREFIX, S)})

SIDES = st.none() | st.integers(0, 7)
LEAVES = st.builds(Window, SIDES, SIDES) | st.just(Prefix()) | st.just(Global())
MASKS = st.recursive(
    LEAVES, lambda m: st.builds(And, m, m) | st.builds(Or, m, m), max_leaves=5)
few = settings(max_examples=40, deadline=None)


def allows(mask, b: int, q: int, k: int) -> bool:
  """The definition of `mask` for one pair of one row."""
  match mask:
    case Window(left, right):
      return (left is None or q - k <= left) and (right is None or k - q <= right)
    case Prefix():
      return k < PREFIX[b]
    case Global():
      return bool(Q_GLOBAL[b, q] or K_GLOBAL[b, k])
    case And(x, y):
      return allows(x, b, q, k) and allows(y, b, q, k)
    case Or(x, y):
      return allows(x, b, q, k) or allows(y, b, q, k)
  raise AssertionError(mask)


def definition(mask) -> np.ndarray:
  return np.array([[[allows(mask, b, q, k) for k in range(S)] for q in range(T)] for b in range(B)])


def matrix(mask, **kwargs) -> np.ndarray:
  """`mask` materialised, [B, T, S]."""
  allowed = masks.materialize(mask, T, S, ROWS, **kwargs)
  if allowed is None:
    return np.ones((B, T, S), bool)
  return np.array(jnp.broadcast_to(allowed, (B, 1, T, S)))[:, 0]


@few
@given(MASKS)
def test_any_composition_is_its_definition(mask):
  np.testing.assert_array_equal(matrix(mask), definition(mask))


@few
@given(MASKS, MASKS, MASKS)
def test_algebra(a, b, c):
  same = lambda x, y: np.testing.assert_array_equal(matrix(x), matrix(y))
  same(a & b, b & a)
  same(a | b, b | a)
  same(a & (b | c), (a & b) | (a & c))
  same(a | (a & b), a)
  same(a & FULL, a)
  np.testing.assert_array_equal(matrix(a | FULL), True)


@given(st.integers(0, 7), st.integers(0, 7))
@few
def test_window_is_the_meeting_of_its_sides(left, right):
  sides = Window(left=left) & Window(right=right)
  np.testing.assert_array_equal(matrix(masks.window(left, right)), matrix(sides))


def test_matrices_by_hand():
  x, o = True, False
  np.testing.assert_array_equal(masks.materialize(CAUSAL, 3, 3), [[x, o, o], [x, x, o], [x, x, x]])
  np.testing.assert_array_equal(
      masks.materialize(masks.window(1, 0), 4, 4),
      [[x, o, o, o], [x, x, o, o], [o, x, x, o], [o, o, x, x]])
  np.testing.assert_array_equal(
      masks.materialize(masks.window(0, 1), 3, 3), [[x, x, o], [o, x, x], [o, o, x]])
  flags = prefix_flags([2], 3)
  prefix = masks.materialize(CAUSAL | Prefix(), 3, 3, Rows(q_flags=flags, k_flags=flags))
  np.testing.assert_array_equal(prefix[0, 0], [[x, x, o], [x, x, o], [x, x, x]])


def test_segments_hide_other_segments_and_padding():
  rows = Rows(jnp.array([[1, 1, 2, 0]]), jnp.array([[1, 2, 2, 0]]))
  allowed = masks.materialize(FULL, 4, 4, rows)[0, 0].astype(int)
  np.testing.assert_array_equal(allowed, [[1, 0, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
  # One hypothesis of a source that is padded: no segments of queries, any key that is a token.
  allowed = masks.materialize(FULL, 1, 4, Rows(None, rows.k_segments))[0, 0, 0].astype(int)
  np.testing.assert_array_equal(allowed, [1, 1, 1, 0])


def test_segments_meet_the_mask():
  segments = jnp.array([[1, 1, 2, 2]])
  allowed = masks.materialize(CAUSAL, 4, 4, Rows(segments, segments))[0, 0].astype(int)
  np.testing.assert_array_equal(allowed, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]])


@pytest.mark.parametrize("mask", [CAUSAL, masks.window(2, 1), CAUSAL | Prefix()])
@pytest.mark.parametrize("start", [1, 3])
def test_indices_choose_queries_and_keys(mask, start):
  flags = prefix_flags([2], S)
  rows = Rows(q_flags=flags, k_flags=flags)
  whole = masks.materialize(mask, S, S, rows)
  part = masks.materialize(mask, 2, S, rows, start + jnp.arange(2))
  np.testing.assert_array_equal(part, whole[..., start:start + 2, :])
  keys = jnp.array([2, 0, 2])
  of_keys = rows._replace(k_flags={"prefix": flags["prefix"][:, keys]})
  part = masks.materialize(mask, S, 3, of_keys, k_index=keys)
  np.testing.assert_array_equal(part, whole[..., keys])


@pytest.mark.parametrize("mask", [FULL, CAUSAL])
def test_pairs_meet_the_mask(mask):
  pairs = jnp.array([[[1, 0], [1, 1]], [[1, 1], [0, 1]]], bool)
  allowed = masks.materialize(mask, 2, 2, Rows(pairs=pairs))
  both = np.asarray(pairs)[:, None] & (np.tri(2, dtype=bool) if mask == CAUSAL else True)
  np.testing.assert_array_equal(allowed, both)


def test_full_is_no_matrix_at_all():
  assert masks.materialize(FULL, T, S) is None


def test_masks_compare_and_hash_by_structure():
  assert CAUSAL | Prefix() == CAUSAL | Prefix()
  assert len({CAUSAL & Global(), CAUSAL & Global(), Global() & CAUSAL}) == 2


@pytest.mark.parametrize("mask, needs", [(Prefix(), "prefix"), (Global(), "global")])
def test_what_a_mask_needs_is_named(mask, needs):
  with pytest.raises(ConfigError, match=f"needs the flag '{needs}' of every token"):
    masks.materialize(CAUSAL & mask, T, S)


def test_a_kind_says_which_flags_its_mask_needs():
  for causal in (False, True):
    for name, kind in masks.KINDS.items():
      mask = kind_mask(name, causal=causal, window=1)
      flags = {flag: jnp.zeros((1, 3), bool) for flag in kind.flags}
      masks.materialize(mask, 3, 3, Rows(q_flags=flags, k_flags=flags))
      for flag in flags:
        fewer = {f: x for f, x in flags.items() if f != flag}
        with pytest.raises(ConfigError, match=f"needs the flag '{flag}'"):
          masks.materialize(mask, 3, 3, Rows(q_flags=fewer, k_flags=fewer))


def test_negative_window():
  with pytest.raises(ValueError, match="0 or more places"):
    Window(-1, 0)
