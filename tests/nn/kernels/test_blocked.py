"""Attention in blocks against the reference: every feature, gradient, dropped weight and byte."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import masks
from jtx.nn.attend import attend
from jtx.nn.bias import PairBias
from jtx.nn.encodings import relative_buckets
from jtx.nn.kernels import blocked, choose, reference
from jtx.nn.masks import CAUSAL, FULL, Global, Prefix, Rows, window
from jtx.parallel import sharding

B, N, H, HV = 2, 4, 8, 6
MASKS = {"full": FULL, "causal": CAUSAL, "window": window(3, 2),
         "joined": window(4, 4) & masks.Window(right=2) | window(1, 1),
         "prefix": CAUSAL | Prefix(), "global": window(1, 1) | Global()}
BIASES = ("none", "shared_array", "array", "function", "function_without_params")
FACTORS = dict(mask=tuple(MASKS), segments=(False, True), pairs=(False, True), bias=BIASES,
               soft_cap=(None, 2.0), dropout=(0.0, 0.3), kv_heads=(4, 2, 1),
               # Of one block, of several, and of no multiple of one.
               lengths=((6, 6), (16, 16), (11, 13), (8, 21), (21, 7)))
CASES = [dict(zip(FACTORS, case)) for case in (
    ("full", False, False, "none", None, 0.0, 4, (6, 6)),
    ("global", True, True, "function", 2.0, 0.3, 2, (11, 13)),
    ("joined", True, False, "shared_array", None, 0.3, 1, (21, 7)),
    ("prefix", False, True, "array", 2.0, 0.0, 4, (16, 16)))]


def drawn(count, seed=0):
  """Cases in which every value of a factor meets every value of another, then random ones."""
  random = np.random.default_rng(seed)
  draw = lambda: {name: values[random.integers(len(values))] for name, values in FACTORS.items()}
  missing = {((a, x), (b, y)) for a, b in itertools.combinations(FACTORS, 2)
             for x in FACTORS[a] for y in FACTORS[b]}
  pairs = lambda case: missing & set(itertools.combinations(case.items(), 2))
  cases = []
  while missing:
    cases.append(max((draw() for _ in range(40)), key=lambda case: len(pairs(case))))
    missing -= pairs(cases[-1])
  return (cases + [draw() for _ in range(count)])[:max(count, len(cases))]


def distances(q, k, params):
  """A number and a table a head, as ALiBi and T5 have them."""
  buckets = relative_buckets(k - q, num_buckets=8, max_distance=16, bidirectional=True)
  return params["table"][buckets] - params["slope"] * jnp.abs(k - q)


def nearness(q, k, params):
  return -jnp.log1p(1.0 * jnp.abs(k - q))


def normal(random, *shape):
  return jnp.asarray(random.normal(size=shape), jnp.float32)


def arguments(case, seed=0):
  """What is differentiated, the other options, and a cotangent of the output."""
  random, (T, S) = np.random.default_rng(seed), case["lengths"]
  draw = functools.partial(normal, random)
  rows = Rows()
  if case["segments"]:
    ids = lambda n: jnp.asarray(np.sort(random.integers(0, 4, (B, n)), 1))
    rows = rows._replace(q_segments=ids(T), k_segments=ids(S))
  if case["mask"] in ("prefix", "global"):
    flags = lambda n: {case["mask"]: jnp.asarray(random.random((B, n)) < 0.2)}
    rows = rows._replace(q_flags=flags(T), k_flags=flags(S))
  if case["pairs"]:
    rows = rows._replace(pairs=jnp.asarray(random.random((B, T, S)) < 0.7))
  # Positions restart in a row, as those of packed ones do.
  at = lambda n: jnp.stack([jnp.arange(n), jnp.arange(n) % 7])
  bias = {"none": lambda: None, "shared_array": lambda: draw(1, N, T, S),
          "array": lambda: draw(B, N, T, S),
          "function": lambda: PairBias(distances, {"slope": draw(N), "table": draw(N, 8)},
                                       at(T), at(S)),
          "function_without_params": lambda: PairBias(nearness, {}, at(T), at(S))}[case["bias"]]()
  options = dict(mask=MASKS[case["mask"]], rows=rows, scale=None, soft_cap=case["soft_cap"],
                 dropout_rate=case["dropout"], dropout_key=jax.random.key(seed))
  return (draw(B, T, N, H), draw(B, S, case["kv_heads"], H), draw(B, S, case["kv_heads"], HV),
          bias), options, draw(B, T, N, HV)


def plain(q, k, v, bias, **options):
  bias = bias.materialize() if isinstance(bias, PairBias) else bias
  return reference.attend(q, k, v, bias=bias, q_index=None, k_index=None, score="dot",
                          score_vector=None, return_weights=False, **options)


def in_blocks(q, k, v, bias, block=8, **options):
  return blocked.attend(q, k, v, bias=bias, block=block, **options)


def both_ways(run, arrays, cotangent):
  """The output, and gradients of all floating-point arrays."""
  leaves, tree = jax.tree.flatten(arrays)
  floats = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]

  def of_floats(given):
    given = iter(given)
    return run(*jax.tree.unflatten(
        tree, [next(given) if is_float else x for x, is_float in zip(leaves, floats)]))

  @jax.jit
  def go(given):
    out, way_back = jax.vjp(of_floats, given)
    return out, way_back(cotangent)[0]
  return jax.device_get(go([x for x, is_float in zip(leaves, floats) if is_float]))


def check(found, expected, tolerance=1e-5):
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, atol=tolerance * max(np.abs(b).max(), 1.0), rtol=0)


def compare(case):
  arrays, options, cotangent = arguments(case)
  found, expected = (both_ways(functools.partial(how, **options), arrays, cotangent)
                     for how in (in_blocks, plain))
  check(found, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['mask']}-{case['bias']}")
def test_equals_the_reference_forward_and_backward(case):
  compare(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", drawn(60), ids=lambda case: "-".join(map(str, case.values())))
def test_a_covering_set_equals_the_reference(case):
  compare(case)


def test_drops_the_weights_that_the_reference_drops():
  """Equal weights and values that name their keys: the output is 0 where a weight is dropped."""
  T, S = 13, 19
  q, k = jnp.zeros((B, T, N, H)), jnp.zeros((B, S, N, H))
  v = jnp.broadcast_to(jnp.eye(S)[:, None], (B, S, N, S))
  options = dict(mask=FULL, rows=Rows(), scale=None, soft_cap=None, dropout_rate=0.4,
                 dropout_key=jax.random.key(7))
  found, expected = (jax.jit(functools.partial(how, bias=None, **options))(q, k, v)
                     for how in (in_blocks, plain))
  np.testing.assert_array_equal(found == 0, expected == 0)
  assert 0.3 < (found == 0).mean() < 0.5
  check(found, expected, 1e-6)


def test_packed_documents_are_as_each_alone():
  random = np.random.default_rng(1)
  lengths = 10, 5, 9
  ids = jnp.asarray(np.repeat([1, 2, 3, 0], [*lengths, 3])[None])
  T = ids.shape[1]
  arrays, cotangent = [normal(random, 1, T, N, H) for _ in range(3)], normal(random, 1, T, N, H)
  options = dict(mask=CAUSAL, scale=None, soft_cap=None, dropout_rate=0.0, dropout_key=None,
                 bias=None)
  packed = both_ways(functools.partial(
      blocked.attend, rows=Rows(q_segments=ids, k_segments=ids), block=4, **options),
      arrays, cotangent)
  first = 0
  for length in lengths:
    part = lambda x: x[:, first:first + length]
    alone = both_ways(functools.partial(blocked.attend, rows=Rows(), block=16, **options),
                      list(map(part, arrays)), part(cotangent))
    check(jax.tree.map(part, packed), alone, 1e-6)
    first += length
  for x in jax.tree.leaves(packed):
    np.testing.assert_array_equal(x[:, first:], 0)


@pytest.mark.parametrize("mask,ids", [
    (window(3, 3), None), (FULL, [1] * 8 + [2] * 8 + [0] * 8)], ids=["window", "segments"])
def test_leaves_out_blocks_without_a_pair(mask, ids):
  """Values that are no numbers, all of the last block, reach only the queries that look there."""
  random = np.random.default_rng(2)
  q, k, v, cotangent = (normal(random, 1, 24, N, H) for _ in range(4))
  ids = None if ids is None else jnp.asarray([ids])
  run = lambda v: both_ways(functools.partial(
      in_blocks, bias=None, mask=mask, rows=Rows(q_segments=ids, k_segments=ids), scale=None,
      soft_cap=None, dropout_rate=0.0, dropout_key=None), (q, k, v), cotangent)
  found, (d_q, d_k, d_v) = run(v.at[:, 16:].set(np.nan))
  expected, (d_q_there, d_k_there, d_v_there) = run(v)
  # The second block's queries look into the last where there is a window.
  queries, keys = (8, 0) if ids is None else (16, 16)
  for a, b, count in ((found, expected, queries), (d_q, d_q_there, queries),
                      (d_k, d_k_there, keys), (d_v, d_v_there, keys)):
    np.testing.assert_array_equal(a[:, :count], b[:, :count])
  assert np.isnan(found).any() == (ids is None)


def test_memory_is_linear_in_the_length():
  """16,384 tokens and 12 heads, whose logits are 12 GB: forward and backward are within 1.5."""
  T = 16384
  shape = jax.ShapeDtypeStruct((1, T, 12, 64), jnp.float32)

  def both(q, k, v, params, cotangent):
    at = jnp.arange(T)[None]
    out, way_back = jax.vjp(lambda q, k, v, params: attend(
        q, k, v, bias=PairBias(distances, params, at, at), mask=window(6000, 6000),
        dropout_rate=0.1, dropout_key=jax.random.key(0)), q, k, v, params)
    return out, way_back(cotangent)

  params = {"slope": jax.ShapeDtypeStruct((12,), jnp.float32),
            "table": jax.ShapeDtypeStruct((12, 8), jnp.float32)}
  compiled = jax.jit(both).lower(shape, shape, shape, params, shape).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 1.5e9


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [
    {"data": 2, "fsdp": 2, "tensor": 2, "context": 1},
    {"data": 1, "fsdp": 1, "tensor": 2, "context": 4}], ids=["rows", "length"])
def test_each_device_has_its_rows_heads_and_queries(mesh):
  """52 queries on four devices: parts of 13, which begin inside of the mask's blocks of 7."""
  case = dict(mask="causal", segments=False, pairs=False, bias="function", soft_cap=None,
              dropout=0.3, kv_heads=2, lengths=(52, 52))
  (q, k, v, _), options, cotangent = arguments(case)
  double = lambda x: jnp.concatenate([x, x[::-1]])
  params = {"slope": jnp.linspace(0.0, 1.0, N), "table": jnp.ones((N, 8))}
  at = jnp.broadcast_to(jnp.arange(52), (2 * B, 52))

  @jax.jit
  def both(q, k, v, params, cotangent):
    out, way_back = jax.vjp(lambda q, k, v, params: in_blocks(
        q, k, v, PairBias(distances, params, at, at), **options), q, k, v, params)
    return out, way_back(cotangent)

  q, k, v, cotangent = map(double, (q, k, v, cotangent))
  expected = jax.device_get(both(q, k, v, params, cotangent))
  mesh = sharding.make_mesh(mesh)
  with jax.set_mesh(mesh):
    place = lambda x, *names: jax.device_put(x, jax.NamedSharding(mesh, sharding.spec(
        names, x.shape, dict(mesh.shape))))
    split = lambda x, heads: place(x, "batch", "length", heads, None)
    given = (split(q, "heads"), split(k, "kv_heads"), split(v, "kv_heads"),
             {name: place(x, "heads", *[None] * (x.ndim - 1)) for name, x in params.items()},
             split(cotangent, "heads"))
    compiled = both.lower(*given).compile()
    check(jax.device_get(compiled(*given)), expected)
  sizes, text = dict(mesh.shape), compiled.as_text()
  rows, heads = 2 * B // (sizes["data"] * sizes["fsdp"]), N // sizes["tensor"]
  products = {math.prod(map(int, shape.split(",")))
              for shape in re.findall(r"f32\[([\d,]+)\]\S* dot", text)}
  # Those of a tile are of the device's own rows, heads and block of queries, and of 8 keys or H.
  assert rows * heads * (7 if sizes["context"] > 1 else 8) * 8 in products
  assert max(products) == rows * heads * 8 * 8
  # Of the sum of keys' gradients a device gets its own part.
  assert ("reduce-scatter" in text) == (sizes["context"] > 1)
  if sizes["context"] == 1:
    for sent in ("all-gather", "all-to-all", "collective-permute"):
      assert sent not in text


def test_is_taken_where_logits_are_large():
  here = choose.Request(mask=FULL, segments=False, score="dot", weights=False, indexed=False,
                        shared_bias=False, queries=2048, keys=2048)
  assert choose.choose("auto", here) is choose.KERNELS["blocked"]
  for change in (dict(queries=2047), dict(keys=1024), dict(score="additive"), dict(weights=True),
                 dict(indexed=True)):
    assert choose.choose("auto", here._replace(**change)) is choose.KERNELS["xla"]
  assert choose.choose("blocked", here._replace(queries=7)) is choose.KERNELS["blocked"]


@pytest.mark.slow
def test_is_the_same_through_attend_and_a_switch_of_masks():
  arrays, options, cotangent = arguments(CASES[1])
  several = dict(options, mask=(FULL, options["mask"]), kind=jnp.int32(1))
  found, expected = (both_ways(lambda q, k, v, bias, kernel=kernel: attend(
      q, k, v, bias=bias, kernel=kernel, **several), arrays, cotangent)
      for kernel in ("blocked", "xla"))
  check(found, expected)
