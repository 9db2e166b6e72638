"""Properties of the fused kernel on drawn cases: the reference in float64, and rules of masks."""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn.attend import attend
from jtx.nn.kernels import blocks, fused, plans
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import Rows, Window, materialize

CHEAP = settings(max_examples=60, deadline=None, derandomize=True)
DEAR = settings(max_examples=12, deadline=None, derandomize=True)  # each compiles programs
H = 16


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
  with pytest.MonkeyPatch.context() as patch:
    for name, value in dict(BLOCKS=(16, 8), WHOLE=8, FILL=2, GPU_BLOCK=16).items():
      patch.setattr(plans, name, value)
    yield


@st.composite
def any_mask(draw, joined=2):
  """Windows, open or closed to either side, joined in any way."""
  if joined and draw(st.booleans()):
    a, b = draw(any_mask(joined - 1)), draw(any_mask(joined - 1))
    return a & b if draw(st.booleans()) else a | b
  side = st.none() | st.integers(0, 20)
  return Window(draw(side), draw(side))


def pairs_of(mask, T, S):
  allowed = materialize(mask, T, S)
  return np.ones((T, S), bool) if allowed is None else np.broadcast_to(allowed, (T, S))


def plan_of(mask, T, S, rows=1):
  variant = Variant(mask, 1.0, num_queries=T, num_keys=S)
  shape = lambda length: (rows, length, 1, H)
  return variant, plans.make_plan("tpu", False, variant, q=shape(T), k=shape(S), v=shape(S),
                                   itemsize=2)


# ------------------------------------------------------------------------------- what is passed by


@pytest.mark.slow
@given(any_mask(), st.integers(1, 80), st.integers(1, 80))
@CHEAP
def test_the_most_keys_are_those_of_the_whole_mask(mask, T, S):
  assert blocks.most_keys(mask, T, S) == pairs_of(mask, T, S).sum(1).max()


@pytest.mark.slow
@given(any_mask(), st.integers(9, 80), st.integers(9, 80), st.data())
@CHEAP
def test_no_pair_is_passed_by_and_no_hidden_one_taken_for_seen(mask, T, S, data):
  """On the device that has the queries from `first` on, too."""
  first = data.draw(st.integers(0, T - 9))
  variant, plan = plan_of(mask, T, S)
  plan = plan._replace(q_blocks=-(-(T - first) // plan.q_block))
  work = plans.work(variant._replace(padded=plan.k_block * plan.k_blocks > S), plan, Rows(), first)
  if work is None:
    assert plan.q_blocks == plan.k_blocks == 1
    return
  states, of_queries, of_keys = map(np.asarray, work)
  allowed = pairs_of(mask, T, S)[first:]
  for i in range(plan.q_blocks):
    for j in range(plan.k_blocks):
      block = allowed[i * plan.q_block:(i + 1) * plan.q_block,
                      j * plan.k_block:(j + 1) * plan.k_block]
      if block.any():
        assert states[0, i, j] != blocks.EMPTY
        assert of_queries[0, 0, i] <= j < of_queries[0, 1, i]
        assert of_keys[0, 0, j] <= i < of_keys[0, 1, j]
      if states[0, i, j] == blocks.WHOLE:
        assert block.all() and (j + 1) * plan.k_block <= S


# ------------------------------------------------------------------------------- what is computed


def arrays_of(seed, T, S):
  random = np.random.default_rng(seed)
  normal = lambda *shape: random.normal(size=shape).astype(np.float32)
  ids = lambda length: jnp.asarray(np.sort(random.integers(0, 3, (1, length)), 1), jnp.int32)
  q_ids = ids(T)
  rows = Rows(q_segments=q_ids, k_segments=q_ids if S == T else ids(S))
  return {"q": normal(1, T, 2, H), "k": normal(1, S, 1, H), "v": normal(1, S, 1, H)}, rows


def both_ways(arrays, how, rows, mask, rate):
  run = lambda x: how(x["q"], x["k"], x["v"], mask=mask, rows=rows, bias=None, scale=None,
                      soft_cap=None, dropout_rate=rate, dropout_key=jax.random.key(1))
  out, way_back = jax.vjp(run, arrays)
  return out, way_back(jnp.cos(out))[0]


def fused_of(platform):
  def run(*args, **options):
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(fused, "platform", lambda: platform)
      return fused.attend(*args, **options, interpret=True)
  return run


@pytest.mark.slow
@given(any_mask(), st.integers(1, 40), st.integers(1, 40), st.booleans(),
       st.sampled_from([0.0, 0.4]), st.sampled_from(["tpu", "gpu"]), st.integers(0, 99))
@DEAR
def test_any_joined_windows_are_the_references(mask, T, S, segments, rate, platform, seed):
  arrays, rows = arrays_of(seed, T, S)
  options = dict(mask=mask, rows=rows if segments else Rows(), rate=rate)
  found = jax.jit(functools.partial(both_ways, how=fused_of(platform), **options))(arrays)
  with jax.enable_x64(True):
    wide = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    expected = jax.device_get(jax.jit(functools.partial(
        both_ways, how=functools.partial(attend, kernel="xla"), **options))(wide))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert np.abs(np.asarray(a) - b).max() <= 2e-5 * max(np.abs(b).max(), 1e-3)


@pytest.mark.slow
@given(any_mask(), st.integers(2, 40), st.integers(0, 99))
@DEAR
def test_texts_that_share_a_row_do_not_see_each_other(mask, T, seed):
  """Other numbers in the second text change no bit of the first, nor of its gradients."""
  arrays, _ = arrays_of(seed, T, T)
  own = T // 2
  ids = jnp.where(jnp.arange(T) < own, 1, 2)[None]
  run = jax.jit(functools.partial(both_ways, how=fused_of("tpu"), mask=mask, rate=0.0,
                                  rows=Rows(q_segments=ids, k_segments=ids)))
  other = {name: np.where(np.arange(T)[:, None, None] < own, x, 3 * x[:, ::-1])
           for name, x in arrays.items()}
  for a, b in zip(jax.tree.leaves(run(arrays)), jax.tree.leaves(run(other)), strict=True):
    np.testing.assert_array_equal(a[:, :own], b[:, :own])
