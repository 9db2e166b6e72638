"""The fused kernel's programs against the reference in float64: forward, gradients, on any mesh."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.attend import attend
from jtx.nn.bias import OfPositions, PairBias
from jtx.nn.kernels import blocks, fused, plans
from jtx.nn.kernels import choose as kernels_of
from jtx.nn.kernels.tile import Variant
from jtx.nn.masks import CAUSAL, FULL, Global, Prefix, Rows, window
from jtx.nn.relative import Alibi, T5Bias
from jtx.parallel import sharding

B = 2
MASKS = {"full": FULL, "causal": CAUSAL, "window": window(5, 3),
         "joined": window(9, 9) & masks.Window(right=3) | window(2, 2),
         "prefix": CAUSAL | Prefix(), "global": window(3, 3) | Global()}
BIASES = ("none", "alibi", "t5", "own", "shared_array", "array")
# Rows that are one block, several, and no multiple of one: blocks have 16 here.
LENGTHS = ((16, 16), (13, 13), (40, 40), (12, 40), (40, 24), (33, 16))
# Heads of queries and of keys, and their widths.
HEADS = ((2, 2), (4, 2), (4, 1))
WIDTHS = ((16, 16), (64, 64), (24, 16), (128, 128), (80, 48), (256, 256))
FACTORS = dict(mask=tuple(MASKS), segments=(False, True), pairs=(False, True), bias=BIASES,
               soft_cap=(None, 2.0), dropout=(0.0, 0.3), lengths=LENGTHS, heads=HEADS,
               widths=WIDTHS, platform=("tpu", "gpu"))


def covering(seed, wanted=0):
  """Cases in which every two values of two factors meet, and then random ones up to `wanted`."""
  random = np.random.default_rng(seed)
  draw = lambda: {name: values[random.integers(len(values))] for name, values in FACTORS.items()}
  key = lambda case, names: tuple((name, case[name]) for name in names)
  couples = list(itertools.combinations(FACTORS, 2))
  missing = {tuple(zip(names, values)) for names in couples
             for values in itertools.product(*(FACTORS[name] for name in names))}
  cases = []
  while missing:
    best = max((draw() for _ in range(30)),
               key=lambda case: sum(key(case, names) in missing for names in couples))
    missing -= {key(best, names) for names in couples}
    cases.append(best)
  return cases + [draw() for _ in range(wanted - len(cases))]


class Own:
  """A bias with a number and a table a head, as somebody might write it."""

  def __call__(self, q, k, params):
    distance = jnp.abs(k - q)
    return params["table"][jnp.minimum(distance, 4)] - params["rate"] * jnp.log1p(1.0 * distance)


OWN = Own()


def arguments(case, seed=0):
  """Arrays of a case, float32, and what is not differentiated."""
  random = np.random.default_rng(seed)
  (T, S), (N, K), (H, Hv) = case["lengths"], case["heads"], case["widths"]
  normal = lambda *shape: random.normal(size=shape).astype(np.float32)
  arrays = {"q": normal(B, T, N, H), "k": normal(B, S, K, H), "v": normal(B, S, K, Hv)}
  rows = Rows()
  if case["segments"]:
    ids = lambda n: jnp.asarray(np.sort(random.integers(0, 4, (B, n)), 1))
    q_ids = ids(T)
    rows = rows._replace(q_segments=q_ids, k_segments=q_ids if S == T else ids(S))
  if case["mask"] in ("prefix", "global"):
    flags = lambda n: {name: jnp.asarray(random.random((B, n)) < 0.2)
                       for name in ("prefix", "global")}
    rows = rows._replace(q_flags=flags(T), k_flags=flags(S))
  if case["pairs"]:
    rows = rows._replace(pairs=jnp.asarray(random.random((B, T, S)) < 0.7))
  if case["bias"] == "t5":
    arrays["table"] = normal(8, N)
  elif case["bias"] == "own":
    arrays |= {"table": normal(N, 5), "rate": normal(N)}
  elif case["bias"] != "none" and case["bias"] != "alibi":
    arrays["bias"] = normal(1 if case["bias"] == "shared_array" else B, N, T, S)
  return arrays, rows, normal(B, T, N, Hv)


def bias_of(case, arrays):
  (T, S), N = case["lengths"], case["heads"][0]
  # Positions restart, as those of packed rows do.
  q_at, k_at = (jnp.stack([jnp.arange(n), jnp.arange(n) % 7]) for n in (T, S))
  if case["bias"] == "t5":
    position = T5Bias(num_buckets=8, max_distance=20)
    params = position.head_params({"position_bias": arrays["table"]}, N)
    return PairBias(OfPositions(position, True), params, q_at, k_at)
  if case["bias"] == "alibi":
    return PairBias(OfPositions(Alibi(), False), Alibi().head_params({}, N), q_at, k_at)
  if case["bias"] == "own":
    return PairBias(OWN, {name: arrays[name] for name in ("table", "rate")}, q_at, k_at)
  return arrays.get("bias")


def both_ways(case, arrays, rows, gradient, how):
  def run(arrays):
    bias = bias_of(case, arrays)
    options = dict(mask=MASKS[case["mask"]], rows=rows, bias=bias, scale=None,
                   soft_cap=case["soft_cap"], dropout_rate=case["dropout"],
                   dropout_key=jax.random.key(3))
    return how(arrays["q"], arrays["k"], arrays["v"], **options)

  out, way_back = jax.vjp(run, arrays)
  return out, way_back(gradient.astype(out.dtype))[0]


def small_blocks(monkeypatch, platform, size=16):
  monkeypatch.setattr(plans, "BLOCKS", (size, size // 2))
  monkeypatch.setattr(plans, "GPU_BLOCK", size)
  monkeypatch.setattr(plans, "WHOLE", 16)
  monkeypatch.setattr(plans, "FILL", size / 8)
  monkeypatch.setattr(fused, "platform", lambda: platform)


def check(case, monkeypatch, tolerance=2e-5):
  small_blocks(monkeypatch, case["platform"])
  arrays, rows, gradient = arguments(case)
  found = jax.jit(functools.partial(
      both_ways, case, rows=rows, gradient=gradient,
      how=functools.partial(fused.attend, interpret=True)))(arrays)
  with jax.enable_x64(True):
    wide = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    expected = jax.jit(functools.partial(
        both_ways, case, rows=rows, gradient=gradient.astype(np.float64),
        how=functools.partial(attend, kernel="xla")))(wide)
    expected = jax.device_get(expected)
  for a, b in zip(jax.tree.leaves(jax.device_get(found)), jax.tree.leaves(expected), strict=True):
    assert np.abs(a - b).max() <= tolerance * max(np.abs(b).max(), 1e-3)


FAST = (
    dict(mask="full", segments=True, pairs=False, bias="none", soft_cap=None, dropout=0.3,
         lengths=(16, 16), heads=(2, 2), widths=(64, 64), platform="tpu"),
    dict(mask="global", segments=True, pairs=False, bias="own", soft_cap=2.0, dropout=0.3,
         lengths=(40, 40), heads=(4, 2), widths=(16, 16), platform="tpu"),
    dict(mask="causal", segments=False, pairs=False, bias="shared_array", soft_cap=None,
         dropout=0.0, lengths=(40, 24), heads=(4, 1), widths=(24, 16), platform="tpu"),
    dict(mask="window", segments=True, pairs=False, bias="t5", soft_cap=None, dropout=0.3,
         lengths=(33, 16), heads=(4, 2), widths=(16, 16), platform="gpu"),
)


@pytest.mark.parametrize("case", FAST, ids=lambda case: "-".join(map(str, case.values())))
def test_reference(case, monkeypatch):
  check(case, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("case", [
    FAST[0] | dict(heads=(3, 3), bias="own"),
    FAST[1] | dict(heads=(6, 3), widths=(64, 64), bias="shared_array")], ids=["own", "grouped"])
def test_an_odd_number_of_heads_is_filled_up(case, monkeypatch):
  """No part of 3 heads of 64 fills the 128 lanes: a fourth of zeros does."""
  monkeypatch.setattr(plans, "MOST_HEADS", 2)
  (T, S), (N, K), (H, Hv) = case["lengths"], case["heads"], case["widths"]
  assert plans.even_heads("tpu", q=(B, T, N, H), k=(B, S, K, H), v=(B, S, K, Hv)) == 4
  check(case, monkeypatch)


def test_heads_that_fill_registers_stay_as_they_are():
  shapes = lambda N, K, H: dict(q=(1, 8, N, H), k=(1, 8, K, H), v=(1, 8, K, H))
  even = lambda kind, *sizes: plans.even_heads(kind, **shapes(*sizes))
  assert even("tpu", 25, 25, 64) == 26 and even("gpu", 25, 25, 64) == 25
  assert even("tpu", 20, 20, 80) == 24 and even("tpu", 40, 8, 128) == 8
  assert even("tpu", 12, 12, 64) == 12 and even("tpu", 3, 3, 64) == 3 and even("tpu", 1, 1, 64) == 1


def check_all(cases, monkeypatch):
  for case in cases:
    try:
      check(case, monkeypatch)
    except AssertionError as e:
      raise AssertionError(case) from e


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))
def test_covering_set(part, monkeypatch):
  check_all(covering(0)[part::5], monkeypatch)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(10))
def test_further_cases(part, monkeypatch):
  check_all(covering(0, 200)[len(covering(0)):][part::10], monkeypatch)


def test_the_covering_set_covers():
  cases = covering(0)
  for a, b in itertools.combinations(FACTORS, 2):
    assert len({(case[a], case[b]) for case in cases}) == len(FACTORS[a]) * len(FACTORS[b])
  more = covering(0, 200)
  assert len(more) == 200 and more[:len(cases)] == cases


def test_dropout_has_the_bits_of_the_reference(monkeypatch):
  """With values that are one-hot the output is the weights, of which the dropped ones are 0."""
  small_blocks(monkeypatch, "tpu")
  T = 40
  q = k = jnp.zeros((B, T, 4, 16))
  v = jnp.broadcast_to(jnp.eye(T)[:, None], (B, T, 4, T))
  options = dict(mask=FULL, rows=Rows(), bias=None, scale=None, soft_cap=None, dropout_rate=0.4,
                 dropout_key=jax.random.key(5))
  ours = np.asarray(fused.attend(q, k, v, **options, interpret=True))
  theirs = np.asarray(attend(q, k, v, **options, kernel="xla"))
  np.testing.assert_array_equal(ours == 0, theirs == 0)
  assert 0.3 < (ours == 0).mean() < 0.5


# A device's rows, heads or queries; and more devices than there are heads of keys.
@pytest.mark.parametrize("sizes, case", [
    ((2, 1, 2, 2), FAST[0] | {"lengths": (64, 64), "dropout": 0.3}),
    ((1, 2, 2, 2), FAST[1] | {"lengths": (64, 64)}),
    ((2, 1, 4, 1), FAST[2] | {"lengths": (64, 64), "pairs": True}),
    ((2, 1, 2, 2), FAST[2] | {"lengths": (48, 48), "heads": (4, 2)}),  # inside of a mask's block
    ((1, 1, 1, 8), FAST[0] | {"lengths": (512, 512), "widths": (16, 16), "bias": "t5"})],
    ids=str)
def test_every_device_on_its_part(sizes, case, monkeypatch):
  arrays, rows, gradient = arguments(case)
  small_blocks(monkeypatch, case["platform"], 16 if sizes[3] < 8 else 64)
  run = functools.partial(both_ways, case, rows=rows, gradient=gradient)
  with jax.set_mesh(sharding.make_mesh(dict(zip(("data", "fsdp", "tensor", "context"), sizes)))):
    found = jax.device_get(jax.jit(functools.partial(
        run, how=functools.partial(fused.attend, interpret=True)))(arrays))
  expected = jax.jit(functools.partial(
      run, how=functools.partial(attend, kernel="xla")))(arrays)
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    assert np.abs(a - b).max() <= 2e-5 * np.abs(b).max()


def test_what_is_gathered_and_what_a_switch_makes_is_not_kept(monkeypatch):
  """The way back has a device's part of q, k, v and the output, and the sums of the softmax."""
  there = kernels_of.KERNELS["fused"]
  run = functools.partial(fused.attend, interpret=True)
  monkeypatch.setitem(kernels_of.KERNELS, "fused", there._replace(run=run, platforms=None))
  mesh = sharding.make_mesh({"context": 8})
  place = jax.NamedSharding(mesh, jax.P(None, "context"))
  q, k, v = (jax.device_put(jnp.ones((1, 1024, 2, 64)), place) for _ in range(3))

  run = functools.partial(attend, mask=(FULL, window(20, 10)), kernel="fused")
  way_back = lambda kind, *qkv: jax.vjp(lambda *qkv: run(*qkv, kind=kind), *qkv)[1]
  with jax.set_mesh(mesh):
    arrays = jax.tree.leaves(jax.jit(way_back)(jnp.int32(1), q, k, v))
  part = q.nbytes / 8
  assert 4 * part < sum(x.addressable_shards[0].data.nbytes for x in arrays) < 4.2 * part


@pytest.mark.parametrize("platform", ["tpu", "gpu"])
def test_rows_from_32_on_are_worth_it(platform, monkeypatch):
  """What MAE's encoder sees of an image are 50 places."""
  monkeypatch.setattr(kernels_of, "platform", lambda: platform)
  request = kernels_of.Request(
      mask=FULL, segments=False, score="dot", weights=False, indexed=False, shared_bias=False,
      queries=32, keys=32)
  for queries, name in ((31, "xla"), (32, "fused"), (50, "fused")):
    chosen = kernels_of.choose("auto", request._replace(queries=queries, keys=queries))
    assert chosen is kernels_of.KERNELS[name]


def test_blocks_of_masks():
  whole, some, none = blocks.WHOLE, blocks.PARTIAL, blocks.EMPTY
  find = lambda mask: blocks.blocks(mask, 6, 6, 2, 2).tolist()
  assert find(FULL) == [[whole] * 3] * 3
  assert find(CAUSAL) == [[some, none, none], [whole, some, none], [whole, whole, some]]
  assert find(window(0, 0)) == [[some, none, none], [none, some, none], [none, none, some]]
  # What varies from row to row is known by its other half alone.
  assert find(CAUSAL | Prefix()) == [[some] * 3, [whole, some, some], [whole, whole, some]]
  assert find(CAUSAL & Global()) == [[some, none, none], [some, some, none], [some, some, some]]


def test_the_most_keys_that_a_query_sees():
  find = lambda mask, T=600, S=600: blocks.most_keys(mask, T, S)
  assert find(FULL) == find(CAUSAL) == 600 and find(window(5, 3)) == 9
  assert find(window(5, 0), 600, 4) == 4
  assert find(window(5, 3) | CAUSAL) == 600 and find(window(700, 3) & window(2, 2)) == 5
  # What varies from row to row may be all; global tokens are few, of which windows are not aware.
  assert find(Prefix() | window(2, 2)) == find(Global() | CAUSAL) == find(Global()) == 600
  assert find(window(2, 2) | Global()) == find(Global() & window(2, 2)) == 5


VARIANT = Variant(FULL, 1.0, num_queries=8192, num_keys=8192)


@pytest.mark.parametrize("mask, rows, sides", [
    (FULL, 1, (512, 512)), (CAUSAL, 1, (512, 512)), (window(64, 64), 1, (128, 128)),
    (window(256, 256), 1, (256, 256)), (window(2048, 2048), 1, (512, 512)),
    (window(64, 64) | Global(), 1, (512, 512)),  # any block may have a global token
    (window(64, 64), 32, (256, 256)), (window(64, 64), 256, (512, 512))])  # states of all rows
def test_narrow_windows_have_small_blocks(mask, rows, sides):
  shape = rows, 8192, 12, 64
  plan = plans.make_plan("tpu", False, VARIANT._replace(mask=mask), q=shape, k=shape, v=shape,
                         itemsize=2)
  assert (plan.q_block, plan.k_block) == sides
  assert plan.q_block * plan.q_blocks == plan.k_block * plan.k_blocks == 8192
  gpu = plans.make_plan("gpu", False, VARIANT._replace(mask=mask), q=shape, k=shape, v=shape,
                         itemsize=2)
  assert gpu.q_block == gpu.k_block == plans.GPU_BLOCK


def test_a_short_side_is_one_block_beside_small_ones():
  """A device's part of the queries, with all keys."""
  plan = plans.make_plan("tpu", False, VARIANT._replace(mask=window(64, 64)),
                         q=(1, 512, 12, 64), k=(1, 8192, 12, 64), v=(1, 8192, 12, 64), itemsize=2)
  assert (plan.q_block, plan.q_blocks, plan.k_block, plan.k_blocks) == (512, 1, 128, 64)


def test_programs_go_from_the_first_block_that_is_not_empty_to_the_last():
  states = jnp.array([[[0, 1, 2, 0], [0, 0, 0, 0], [1, 0, 0, 1]]])
  assert plans.spans(states, 2).tolist() == [[[1, 4, 0], [3, 0, 4]]]
  assert plans.spans(states, 1).tolist() == [[[2, 0, 0, 2], [3, 1, 1, 3]]]


def test_blocks_are_found_while_a_program_is_traced():
  @jax.jit
  def run(x):
    return x + blocks.blocks(window(1, 0) | window(0, 1), 8, 8, 4, 4).sum()
  assert run(0) == 4 * blocks.PARTIAL


def test_where_it_is_not_for():
  q = jnp.ones((1, 4, 2, 8))
  with pytest.raises(ConfigError, match="kernel='fused' is for tpu and gpu, and this is cpu"):
    attend(q, q, q, kernel="fused")
