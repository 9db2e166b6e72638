"""Stacks against their layers applied one by one, and against themselves scanned otherwise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.attention import Attention, Context, LayerKind
from jtx.nn.block import NORM_POSITIONS, Block, BlockConfig
from jtx.nn.layers import FeedForward, LayerNorm
from jtx.nn.masks import CAUSAL, FULL, Global, Prefix
from jtx.nn.positions import Position, Rope, T5Bias
from jtx.nn.stack import KINDS, REMAT, Segment, Stack, kind_mask
from jtx.parallel.sharding import logical_axes, unbox
from tests.helpers import one_fast

B, T, S, D = 2, 6, 4, 8
BLOCK = BlockConfig(num_heads=2, num_kv_heads=1, ffn_dim=12, dropout=0.0, norm_position="pre")
POSITIONS = jnp.broadcast_to(jnp.arange(T), (B, T))


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


X, MEMORY = normal(0, B, T, D), normal(1, B, S, D)


def context(cross=False, **fields):
  if cross:
    fields |= {"memory": MEMORY, "memory_segments": jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]]),
               "segments": jnp.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 2, 2, 2]])}
  return Context(POSITIONS, **fields)


def init(module, ctx):
  """Random parameters, none of them zeros or ones."""
  boxed = jax.eval_shape(lambda: module.init(jax.random.key(0), X, ctx))["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  return tree.unflatten([0.5 * normal(i, *x.shape) for i, x in enumerate(leaves)])


def close(actual, desired, tol=1e-5):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), actual, desired)


def stack(num_layers=3, pattern=("global",), block=BLOCK, **fields):
  return Stack((Segment(block, num_layers, pattern),), **fields)


def value_and_grads(module, params, ctx):
  def loss(params, x):
    return jnp.sin(module.apply({"params": params}, x, ctx)[0]).sum()
  return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, X)


# --------------------------------------------------------------------------- one layer


@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_norm_placement(norm_position):
  block = Block(dataclasses.replace(BLOCK, norm_position=norm_position), (LayerKind(FULL),))
  params = init(block, context())

  def norm(name, x):
    return LayerNorm().apply({"params": params[name]}, x)

  def sublayer(name, x):
    if name == "ffn":
      return FeedForward(12, "relu").apply({"params": params["ffn"]}, x)
    return Attention(2, num_kv_heads=1).apply(
        {"params": params["attention"]}, x, x, context(), kinds=(LayerKind(FULL),), kind=None,
        position=Position(), causal=False, rows=masks.Rows())[0]

  x = X
  for name in ("attention", "ffn"):
    match norm_position:
      case "post":
        x = norm(f"{name}_norm", x + sublayer(name, x))
      case "pre":
        x = x + sublayer(name, norm(f"{name}_norm", x))
      case "sandwich":
        x = x + norm(f"{name}_norm_out", sublayer(name, norm(f"{name}_norm", x)))
  close(block.apply({"params": params}, X, context())[0], x)


def test_unknown_norm_position():
  with pytest.raises(ConfigError, match="norm_position='middle': valid are post, pre, sandwich"):
    BlockConfig(norm_position="middle")


@pytest.mark.parametrize("kind, causal, mask", [
    ("global", False, FULL),
    ("global", True, CAUSAL),
    ("local", False, masks.window(3, 3)),
    ("local", True, masks.window(3, 0)),
    ("prefix", True, CAUSAL | Prefix()),
    ("global_tokens", False, masks.window(3, 3) | Global()),
    ("global_tokens", True, (masks.window(3, 0) | Global()) & CAUSAL),
])
def test_kinds_of_layers(kind, causal, mask):
  assert kind_mask(kind, causal=causal, window=3) == mask


def test_unknown_kind():
  assert "locals" not in KINDS
  with pytest.raises(ConfigError, match="unknown kind of layer 'locals'; did you mean 'local'"):
    kind_mask("locals", causal=False, window=1)


# -------------------------------------------------------------------------- the stack


def by_hand(module, params, ctx):
  """The same layers without a scan: each a Block of its own with one mask."""
  ctx = ctx.replace(bias_table=params.get("position_bias"))
  x = X
  for i, segment in enumerate(module.segments):
    stacked = params["layers" if len(module.segments) == 1 else f"layers_{i}"]
    for depth in range(segment.num_layers):
      kind = segment.pattern[depth % len(segment.pattern)]
      mask = kind_mask(kind, causal=module.causal, window=module.window)
      layer = Block(segment.block, (LayerKind(mask),), module.position, module.causal, module.cross)
      x, *_ = layer.apply({"params": jax.tree.map(lambda p: p[depth], stacked)}, x, ctx)
  if "final_norm" in params:
    x = LayerNorm().apply({"params": params["final_norm"]}, x)
  return x


ROWS = dict(prefix_length=jnp.array([2, 3]), global_tokens=jnp.eye(B, T, dtype=bool))


@pytest.mark.parametrize("pattern, causal, cross, position, rows", [
    (("global", "local"), False, False, Rope(), {}),
    (("global", "local"), True, True, T5Bias(), {}),
    (("local", "local", "global"), True, False, Rope(), {}),
    (("prefix", "local", "global_tokens"), True, False, Position(), ROWS),
])
def test_one_scan_is_its_layers_by_hand(pattern, causal, cross, position, rows):
  module = stack(4, pattern, causal=causal, cross=cross, position=position, window=1)
  ctx = context(cross, **rows)
  params = init(module, ctx)
  out = jax.jit(lambda p: module.apply({"params": p}, X, ctx)[0])(params)
  close(out, by_hand(module, params, ctx))
  # The pattern matters: its mirror image is another function of the same parameters.
  other = dataclasses.replace(module.segments[0], pattern=tuple(reversed(pattern)))
  assert np.abs(out - by_hand(module.clone(segments=(other,)), params, ctx)).max() > 1e-3


@pytest.mark.parametrize("last", ["pre", "post"])
def test_segments_run_in_order(last):
  blocks = BLOCK, dataclasses.replace(BLOCK, ffn_dim=4, norm_position=last)
  module = Stack((Segment(blocks[0], 2, ("local",)), Segment(blocks[1], 1)), Rope(), window=1)
  ctx = context()
  params = init(module, ctx)
  assert set(params) == {"layers_0", "layers_1"} | ({"final_norm"} if last == "pre" else set())
  assert params["layers_0"]["ffn"]["in"]["kernel"].shape == (2, D, 12)
  assert params["layers_1"]["ffn"]["in"]["kernel"].shape == (1, D, 4)
  close(module.apply({"params": params}, X, ctx)[0], by_hand(module, params, ctx))


VARIED = dict(num_layers=3, pattern=("global", "local"), causal=True, cross=True, position=T5Bias(),
              window=1)


@pytest.fixture(scope="module")
def scanned():
  """Parameters, and the value and gradients of the plain scan."""
  module, ctx = stack(**VARIED), context(cross=True)
  params = init(module, ctx)
  return params, ctx, value_and_grads(module, params, ctx)


@pytest.mark.parametrize("unroll", one_fast(2, -1, 7))
def test_unrolling_changes_nothing(scanned, unroll):
  params, ctx, expected = scanned
  close(value_and_grads(stack(**VARIED, unroll=unroll), params, ctx), expected)


@pytest.mark.parametrize("remat", one_fast(*sorted(set(REMAT) - {"none"})))
def test_rematerialisation_changes_nothing(scanned, remat):
  params, ctx, expected = scanned
  close(value_and_grads(stack(**VARIED, remat=remat), params, ctx), expected)


def test_parameters_do_not_depend_on_how_layers_are_scanned():
  ctx = context(cross=True)
  boxed = lambda **options: jax.eval_shape(
      lambda: stack(**{**VARIED, **options}).init(jax.random.key(0), X, ctx))["params"]
  plain = boxed()
  assert all(axes[0] == "layers" for axes in jax.tree.leaves(
      logical_axes(plain["layers"]), is_leaf=lambda x: isinstance(x, tuple)))
  for options in ({"unroll": -1}, {"remat": "full"}, {"pattern": ("local",)}):
    assert logical_axes(boxed(**options)) == logical_axes(plain)
    assert unbox(boxed(**options)) == unbox(plain)


@pytest.mark.slow
def test_initial_values_do_not_depend_on_unrolling_and_differ_by_layer():
  once, unrolled = (
      unbox(jax.jit(stack(2, unroll=unroll).init)(jax.random.key(0), X, context())["params"])
      for unroll in (1, -1))
  close(once, unrolled, 1e-7)
  kernel = once["layers"]["ffn"]["in"]["kernel"]
  assert np.abs(kernel[0] - kernel[1]).min() > 0


@pytest.mark.slow
def test_weights_of_every_layer():
  module, ctx = stack(**VARIED), context(cross=True, return_weights=True)
  params = init(module, ctx)
  weights, = module.apply({"params": params}, X, ctx)[1].weights
  assert weights["self"].shape == (3, B, 2, T, T) and weights["cross"].shape == (3, B, 2, T, S)
  real = np.asarray(ctx.segments) > 0
  for kind in ("self", "cross"):
    sums = np.asarray(weights[kind].sum(-1)).transpose(1, 3, 0, 2)
    np.testing.assert_allclose(sums[real], 1, atol=1e-5)
    assert (sums[~real] == 0).all()
  assert (np.triu(weights["self"], 1) == 0).all()
  assert (np.tril(weights["self"][1], -2) == 0).all()  # the second layer is local
  assert (np.tril(weights["self"][2], -2) > 0).any()


def test_dropout_differs_by_layer_and_key():
  block = dataclasses.replace(BLOCK, attention_dropout=0.5)
  module = stack(2, block=block)
  ctx = context(train=True, return_weights=True)
  params = init(stack(2), context())
  apply = jax.jit(lambda key: module.apply({"params": params}, X, ctx, rngs={"dropout": key}))
  run = lambda seed: apply(jax.random.key(seed))
  a, b, c = run(0), run(0), run(1)
  close(a[0], b[0], 0)
  assert np.abs(a[0] - c[0]).max() > 1e-3
  kept = np.asarray(a[1].weights[0]["self"]) != 0
  assert (kept[0] != kept[1]).any()
  close(module.apply({"params": params}, X, context())[0],
        stack(2).apply({"params": params}, X, context())[0], 0)


def test_unknown_remat_policy():
  with pytest.raises(ConfigError, match="remat='dot': did you mean 'dots'"):
    stack(remat="dot").init(jax.random.key(0), X, context())


def test_a_window_that_no_layer_has():
  with pytest.raises(ConfigError, match="window=2 is for layers of kind local or global_tokens"):
    stack(window=2).init(jax.random.key(0), X, context())


def test_local_layers_need_a_window():
  with pytest.raises(ConfigError, match="set window to 1 or more"):
    stack(pattern=("local",)).init(jax.random.key(0), X, context())
