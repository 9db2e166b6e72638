"""Stacks against their layers applied one by one, and against themselves scanned otherwise."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import masks
from jtx.nn.attached import Attached
from jtx.nn.attention import Attention, AttentionConfig, LayerKind
from jtx.nn.block import Block, BlockConfig, Context, Memory, ResidualConfig
from jtx.nn.layers import NORM_POSITIONS, FeedForward, FfnConfig, LayerNorm, NormConfig
from jtx.nn.kept import REMAT
from jtx.nn.kinds import kind_mask, kind_of
from jtx.nn.masks import CAUSAL, FULL, KINDS, Global, Prefix
from jtx.nn.positions import Places, Position, Sinusoidal, Sizes
from jtx.nn.residual import skip_examples
from jtx.nn.relative import T5Bias
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import Segment, Stack, StackConfig
from jtx.parallel.sharding import logical_axes, unbox
from tests import helpers
from tests.helpers import one_fast

B, T, S, D = 2, 6, 4, 8
BLOCK = helpers.block(num_heads=2, num_kv_heads=1, ffn_dim=12, dropout=0.0, norm_position="pre")
POSITIONS = jnp.broadcast_to(jnp.arange(T), (B, T))


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


X, MEMORY = normal(0, B, T, D), normal(1, B, S, D)


def context(cross=False, **fields):
  if cross:
    segments = jnp.array([[1, 1, 1, 0], [1, 1, 2, 2]])
    fields |= {"memory": Memory(MEMORY, segments, fields.pop("memory_places", None)),
               "segments": jnp.array([[1, 1, 1, 1, 1, 0], [1, 1, 1, 2, 2, 2]])}
  return Context(Places(POSITIONS), **fields)


def init(module, ctx):
  """Random parameters, none of them zeros or ones."""
  boxed = shapes_of(lambda: module.init(jax.random.key(0), X, ctx))["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  numbers = [np.random.default_rng(i).normal(size=x.shape) / 2 for i, x in enumerate(leaves)]
  return jax.device_put(tree.unflatten([np.float32(x) for x in numbers]))


def close(actual, desired, tol=1e-5):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), actual, desired)


def stack(num_layers=3, block=BLOCK, cross=False, **fields):
  return Stack(StackConfig(num_layers=num_layers, block=block, width=D, **fields), cross=cross)


def value_and_grads(module, params, ctx):
  def loss(params, x):
    return jnp.sin(module.apply({"params": params}, x, ctx)[0]).sum()
  return jax.jit(jax.value_and_grad(loss, (0, 1)))(params, X)


# --------------------------------------------------------------------------- one layer


@pytest.mark.parametrize("norm_position", NORM_POSITIONS)
def test_norm_placement(norm_position):
  block = Block(helpers.block(BLOCK, norm_position=norm_position), (LayerKind(FULL),))
  params = init(block, context())

  def norm(name, x):
    return LayerNorm().apply({"params": params[name]}, x)

  def sublayer(name, x):
    if name == "ffn":
      return FeedForward(FfnConfig(dim=12)).apply({"params": params["ffn"]}, x)
    return Attention(AttentionConfig(num_heads=2, num_kv_heads=1)).apply(
        {"params": params["attention"]}, x, x, places=Places(POSITIONS))[0]

  x = X
  for name in ("attention", "ffn"):
    match norm_position:
      case "post":
        x = norm(f"{name}_norm", x + sublayer(name, x))
      case "pre":
        x = x + sublayer(name, norm(f"{name}_norm", x))
      case "output":
        x = x + norm(f"{name}_norm_out", sublayer(name, x))
      case "sandwich":
        x = x + norm(f"{name}_norm_out", sublayer(name, norm(f"{name}_norm", x)))
  close(block.apply({"params": params}, X, context())[0], x)


@pytest.mark.parametrize("parallel", ["shared_norm", "own_norms"])
def test_sublayers_side_by_side(parallel):
  """x + attention(norm(x)) + feed-forward(norm(x)), with layer scale of each."""
  config = dataclasses.replace(BLOCK, parallel=parallel, residual=ResidualConfig(layer_scale=0.1))
  block = Block(config, (LayerKind(FULL),))
  params = init(block, context())
  norms = {name for name in params if name.endswith("_norm")}
  assert norms == {"attention_norm"} | ({"ffn_norm"} if parallel == "own_norms" else set())
  norm = lambda name: LayerNorm().apply({"params": params[name]}, X)
  attention = Attention(BLOCK.attention).apply(
      {"params": params["attention"]}, *2 * [norm("attention_norm")], places=Places(POSITIONS))[0]
  ffn = FeedForward(BLOCK.ffn).apply(
      {"params": params["ffn"]}, norm("ffn_norm" if "ffn_norm" in params else "attention_norm"))
  close(block.apply({"params": params}, X, context())[0],
        X + params["attention_scale"] * attention + params["ffn_scale"] * ffn)


@pytest.mark.parametrize("parallel", ["shared_norm", "own_norms"])
@pytest.mark.parametrize("norm", [NormConfig(position="post"), NormConfig(position="sandwich"),
                                  NormConfig(position="pre", attention=False)])
def test_parallel_sublayers_are_pre_norm(norm, parallel):
  with pytest.raises(ConfigError, match=f"block.parallel='{parallel}' goes with norm.posit"):
    BlockConfig(parallel=parallel, norm=norm)


def test_parallel_sublayers_have_no_place_for_cross_attention():
  config = dataclasses.replace(BLOCK, parallel="own_norms")
  with pytest.raises(ConfigError, match="block.parallel='own_norms' has no place for cross-att"):
    stack(1, config, cross=True).init(jax.random.key(0), X, context(cross=True))


def test_unknown_norm_position():
  with pytest.raises(ConfigError, match="norm.position='middle': valid are post, pre, sandwich"):
    NormConfig(position="middle")


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


def test_dropout_is_of_a_sublayer_and_not_of_what_goes_around_it():
  block = Block(helpers.block(BLOCK, dropout=0.5), (LayerKind(FULL),))
  params = init(block, context())
  params["ffn"]["out"] = jax.tree.map(jnp.zeros_like, params["ffn"]["out"])
  added = block.apply({"params": params}, X, context())[0] - X
  key = {"dropout": jax.random.key(0)}
  trained = block.apply({"params": params}, X, context(train=True), rngs=key)[0] - X
  kept = np.abs(trained) > 1e-6
  close(trained, np.where(kept, 2 * added, 0))
  assert 0.3 < kept.mean() < 0.7


def test_drop_path():
  residual = ResidualConfig(drop_path=0.2)
  np.testing.assert_allclose(residual.skipped(0, 5, 5), [0, 0.05, 0.1, 0.15, 0.2], rtol=1e-6)
  np.testing.assert_allclose(residual.skipped(3, 2, 5), [0.15, 0.2], rtol=1e-6)
  np.testing.assert_allclose(
      dataclasses.replace(residual, uniform=True).skipped(3, 2, 5), 0.2, rtol=1e-6)
  assert ResidualConfig().skipped(0, 2, 2) is None and not residual.skipped(0, 1, 1).any()
  # Whole examples are at 0, and what is kept is as much larger.
  y = skip_examples(jnp.ones((4000, 2, 3)), jnp.float32(0.2), jax.random.key(0))
  kept = np.asarray(y)[:, 0, 0] > 0
  np.testing.assert_allclose(y, np.broadcast_to(kept[:, None, None] / 0.8, y.shape), rtol=1e-6)
  assert kept.mean() == pytest.approx(0.8, abs=0.02)


# -------------------------------------------------------------------------- the stack


def by_hand(module, params, ctx):
  """The same layers without a scan: each a Block of its own with one mask."""
  c, segments = module.config, module.segments or module.config.segments
  tables = c.position.stack_tables(Sizes(D, 2, D // 2))
  ctx = ctx.replace(places=ctx.places.replace(causal=c.causal),
                    params={name: params[name] for name in tables})
  x = X
  for i, segment in enumerate(segments):
    stacked = params["layers" if len(segments) == 1 else f"layers_{i}"]
    for depth in range(segment.num_layers):
      kind = segment.pattern[depth % len(segment.pattern)]
      mask = kind_mask(kind, causal=c.causal, window=c.window)
      layer = Block(segment.block, (LayerKind(mask, kind_of(kind)[0].windowed),), c.position,
                    module.cross)
      x, *_ = layer.apply({"params": jax.tree.map(lambda p: p[depth], stacked)}, x, ctx)
  if "final_norm" in params:
    x = LayerNorm().apply({"params": params["final_norm"]}, x)
  return x


FLAGS = {"prefix": jnp.arange(T) < jnp.array([[2], [3]]), "global": jnp.eye(B, T, dtype=bool)}
ROWS = dict(flags=FLAGS)


@pytest.mark.parametrize("pattern, causal, cross, position, rows", [
    (("global", "local"), False, False, Rope(local_base=3.0), {}),
    (("global", "local"), True, True, T5Bias(), {}),
    (("local", "local", "global"), True, False, Rope(), {}),
    (("prefix", "local:2", "global_tokens"), True, False, Position(), ROWS),
])
def test_one_scan_is_its_layers_by_hand(pattern, causal, cross, position, rows):
  module = stack(4, pattern=pattern, causal=causal, cross=cross, position=position, window=1)
  ctx = context(cross, **rows)
  params = init(module, ctx)
  out = jax.jit(lambda p: module.apply({"params": p}, X, ctx)[0])(params)
  close(out, by_hand(module, params, ctx))
  # The pattern matters: its mirror image is another function of the same parameters.
  other = dataclasses.replace(module.config, pattern=tuple(reversed(pattern)))
  assert np.abs(out - by_hand(module.clone(config=other), params, ctx)).max() > 1e-3


@pytest.mark.parametrize("last", ["pre", "post"])
def test_segments_run_in_order(last):
  blocks = BLOCK, helpers.block(BLOCK, ffn_dim=4, norm_position=last)
  config = StackConfig(width=D, position=Rope(), pattern=("local",), window=1)
  module = Stack(config, segments=(Segment(blocks[0], 2, ("local",)), Segment(blocks[1], 1)))
  ctx = context()
  params = init(module, ctx)
  assert set(params) == {"layers_0", "layers_1"} | ({"final_norm"} if last == "pre" else set())
  assert params["layers_0"]["ffn"]["in"]["kernel"].shape == (2, D, 12)
  assert params["layers_1"]["ffn"]["in"]["kernel"].shape == (1, D, 4)
  close(module.apply({"params": params}, X, ctx)[0], by_hand(module, params, ctx))


def test_drop_path_grows_over_all_segments(monkeypatch):
  places = []
  monkeypatch.setattr(ResidualConfig, "skipped", lambda self, *place: places.append(place))
  block = dataclasses.replace(BLOCK, norm=NormConfig(position="pre", attention=False))
  jax.eval_shape(lambda: stack(3, block).init(jax.random.key(0), X, context()))
  assert places == [(0, 1, 3), (1, 2, 3)]


def test_explicit_pairs_are_those_of_a_mask():
  pairs = np.random.default_rng(3).random((B, T, T)) < 0.5
  module = stack(2, position=Rope())
  params = init(module, context())
  run = lambda module, **fields: module.apply({"params": params}, X, context(**fields))[0]
  causal = stack(2, position=Rope(), causal=True)
  triangle = jnp.broadcast_to(np.tri(T, dtype=bool), (B, T, T))
  close(run(module, pairs=triangle), run(causal))
  close(run(causal, pairs=jnp.array(pairs)), run(module, pairs=jnp.array(pairs) & triangle))
  assert np.abs(run(causal, pairs=jnp.array(pairs)) - run(causal)).max() > 1e-3


@pytest.mark.parametrize("cross", [False, True])
def test_positions_of_a_memory_act_in_cross_attention_where_they_are_to(cross):
  """As if they stood in the inputs of queries and keys, and not in those of values."""
  module = stack(1, BLOCK, cross=True, position=Attached(cross=cross))
  far = Places(jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]]))
  ctx = context(cross=True, memory_places=far)
  params = init(module, ctx)
  layer = jax.tree.map(lambda p: p[0], params["layers"])
  norm = lambda name, x: LayerNorm().apply({"params": layer[name]}, x)
  at = lambda x, places: Sinusoidal().embed(x, places, {}) - x
  near = Places(POSITIONS)

  def attention(name, x, source, source_places, rows, positions):
    """With the positions in the biases of queries and keys, one for every place."""
    p = layer[name]
    project = lambda part, y: np.einsum("btd,dnh->btnh", y, p[part]["kernel"])
    q = project("query", x + at(x, near) * positions)
    k = project("key", source + at(source, source_places) * positions)
    k, v = (np.repeat(y, 2, 2) for y in (k, project("value", source)))
    allowed = np.asarray(masks.materialize(FULL, T, source.shape[1], rows))
    logits = np.where(allowed, np.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(D // 2), -1e30)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights = np.where(allowed, weights / weights.sum(-1, keepdims=True), 0)
    return np.einsum("bnts,bsnh,nhd->btd", weights, v, p["out"]["kernel"])

  x = X + attention("attention", *2 * [norm("attention_norm", X)], near, ctx.rows, 1)
  x += attention("cross_attention", norm("cross_attention_norm", x), MEMORY, far, ctx.cross_rows,
                 int(cross))
  x += FeedForward(BLOCK.ffn).apply({"params": layer["ffn"]}, norm("ffn_norm", x))
  close(module.apply({"params": params}, X, ctx)[0],
        LayerNorm().apply({"params": params["final_norm"]}, x), 1e-4)


def test_flags_that_a_batch_lacks():
  module = stack(1, pattern=("prefix",), causal=True)
  assert module.config.flags == ("prefix",)
  with pytest.raises(ConfigError, match="needs the flag 'prefix' of every token"):
    module.init(jax.random.key(0), X, context(flags={"global": FLAGS["global"]}))


def test_a_prefix_has_both_directions_of_relative_positions():
  """Where all is prefix, a causal stack is one that is not, with the same table of biases."""
  whole = {"prefix": jnp.ones((B, T), bool)}
  causal = stack(2, pattern=("prefix",), causal=True, position=T5Bias(num_buckets=8))
  params = init(causal, context(flags=whole))
  run = lambda module, **fields: module.apply({"params": params}, X, context(**fields))[0]
  close(run(causal, flags=whole), run(stack(2, position=T5Bias(num_buckets=8))))


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


def test_unrolled_layers_are_drawn_in_a_loop():
  """Unrolled, the program that draws many layers takes an accelerator's compiler a minute."""
  lines = [jax.jit(stack(5, unroll=unroll).init).lower(
      jax.random.key(0), X, context()).as_text().count("\n") for unroll in (1, -1)]
  assert lines[0] == lines[1]


@pytest.mark.parametrize("share, drawn, dropped", [
    (False, [0.5401972, -0.12914632], [-0.24000594, 0.21509355, 1.740773]),
    (True, [-0.48210746, 0.4509979], [1.6641366, -0.8189242, 0.16853487])])
def test_a_seed_draws_what_it_has_ever_drawn(share, drawn, dropped):
  """Else a run that an earlier version began would go on with other dropout."""
  module = stack(num_layers=2, block=helpers.block(BLOCK, dropout=0.5), share=share)
  params = unbox(module.init(jax.random.key(0), X, context())["params"])
  kernel = params["layers"]["attention"]["query"]["kernel"]
  close(np.ravel(kernel)[[0, -1]], np.array(drawn), 1e-6)
  out, _ = module.apply({"params": params}, X, context(train=True),
                        rngs={"dropout": jax.random.key(1)})
  close(out[0, 0, :3], np.array(dropped), 1e-5)


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
  block = helpers.block(BLOCK, attention_dropout=0.5)
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
  shared = stack(2, block=block, share=True)
  _, out = shared.apply({"params": init(shared, context())}, X, ctx,
                        rngs={"dropout": jax.random.key(0)})
  kept = np.asarray(out.weights[0]["self"]) != 0
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


def test_layers_are_unrolled_by_themselves_in_training_on_a_cpu_alone(monkeypatch):
  params = init(stack(3), context())
  for where, train, number in (("cpu", True, 3), ("cpu", False, 1), ("tpu", True, 1)):
    monkeypatch.setattr("jtx.nn.stack.platform", lambda where=where: where)
    ctx = context(train=train)
    program = jax.make_jaxpr(lambda params, ctx=ctx: stack(3, unroll=0).apply(
        {"params": params}, X, ctx, rngs={"dropout": jax.random.key(1)})[0])(params)
    assert f"unroll={number}" in str(program), (where, train)
