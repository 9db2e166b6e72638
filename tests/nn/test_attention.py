"""Attention against a float64 NumPy reference of loops, forward and gradient.

The reference's gradient is analytic: for weights w, cotangent g and values v of a query,
dw_s = g . v_s, dlogit_s = w_s (dw_s - sum_r w_r dw_r), and the chain rule from there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.attached import Attached
from jtx.nn.kernels import choose as kernels_of
from jtx.nn import masks
from jtx.nn.attend import attend
from jtx.nn.attention import PROJECTIONS, Attention, AttentionConfig, LayerKind
from jtx.nn.layers import NormConfig
from jtx.nn.masks import CAUSAL, FULL, Global, Prefix, Rows
from jtx.nn.positions import Places, Position, Sinusoidal
from jtx.nn.rope import Rope
from jtx.parallel.sharding import unbox

B, T, N, H, HV = 2, 6, 4, 4, 3
PREFIX = np.array([2, 4])
GLOBAL = np.array([[0, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 1]], bool)
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0], [1, 2, 2, 3, 0, 0]])
PADDING = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])

# name -> mask, and its definition for query t and key s of row b
MASKS = {
    "full": (FULL, lambda b, t, s: True),
    "causal": (CAUSAL, lambda b, t, s: s <= t),
    "window": (masks.window(2, 1), lambda b, t, s: -2 <= s - t <= 1),
    "window_left": (masks.window(2, 0), lambda b, t, s: t - 2 <= s <= t),
    "window_right": (masks.Window(right=2), lambda b, t, s: s <= t + 2),
    "prefix": (CAUSAL | Prefix(), lambda b, t, s: s <= t or s < PREFIX[b]),
    "global": (masks.window(1, 1) | Global(),
               lambda b, t, s: abs(t - s) <= 1 or GLOBAL[b, t] or GLOBAL[b, s]),
    "causal_global": ((masks.window(1, 0) | Global()) & CAUSAL,
                      lambda b, t, s: s <= t and (t - s <= 1 or GLOBAL[b, t] or GLOBAL[b, s])),
    # Queries more than one place behind the prefix have nothing to attend to.
    "empty": (masks.window(1, 0) & Prefix(), lambda b, t, s: t - 1 <= s <= t and s < PREFIX[b]),
}
FLAGS = {"prefix": jnp.arange(T) < PREFIX[:, None], "global": jnp.array(GLOBAL)}
ROWS = Rows(q_flags=FLAGS, k_flags=FLAGS)


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def inputs(kv_heads, keys=T):
  """q, k, v, and a cotangent of the output."""
  return (normal(0, B, T, N, H), normal(1, B, keys, kv_heads, H), normal(2, B, keys, kv_heads, HV),
          normal(3, B, T, N, HV))


def reference(q, k, v, g, allowed, bias=None, scale=H**-0.5, vector=None, soft_cap=None):
  """The output, the weights, and gradients by name, a query and a head at a time."""
  q, k, v, g = (np.asarray(x, np.float64) for x in (q, k, v, g))
  (batch, queries, heads, _), keys = q.shape, k.shape[1]
  group = heads // k.shape[2]
  out = np.zeros((batch, queries, heads, v.shape[-1]))
  weights = np.zeros((batch, heads, queries, keys))
  grads = {"q": np.zeros_like(q), "k": np.zeros_like(k), "v": np.zeros_like(v),
           "bias": np.zeros_like(weights), "vector": np.zeros((heads, q.shape[-1]))}
  for b, t, n in np.ndindex(batch, queries, heads):
    seen = [s for s in range(keys) if allowed[b, t, s]]
    if not seen:
      continue
    x, ks, vs = q[b, t, n], k[b, seen, n // group], v[b, seen, n // group]
    hidden = np.tanh(x + ks)
    logits = ks @ x * scale if vector is None else hidden @ vector[n]
    slope = 1.0  # of what is made of a product
    if soft_cap is not None:
      slope = 1 - np.tanh(logits / soft_cap)**2
      logits = soft_cap * np.tanh(logits / soft_cap)
    if bias is not None:
      logits = logits + bias[b, n, t, seen]
    w = np.exp(logits - logits.max())
    w /= w.sum()
    out[b, t, n], weights[b, n, t, seen] = w @ vs, w
    dw = vs @ g[b, t, n]
    dlogit = w * (dw - w @ dw)
    grads["bias"][b, n, t, seen] = dlogit
    dlogit = dlogit * slope
    if vector is None:
      dk, dq = scale * np.outer(dlogit, x), scale * dlogit @ ks
    else:
      dk = dlogit[:, None] * vector[n] * (1 - hidden**2)
      dq = dk.sum(0)
      grads["vector"][n] += dlogit @ hidden
    grads["q"][b, t, n] += dq
    grads["k"][b, seen, n // group] += dk
    grads["v"][b, seen, n // group] += np.outer(w, g[b, t, n])
  return out, weights, grads


def definition(allows, segments=None):
  """Pairs [B, T, S] that a mask's definition and segments allow."""
  return np.array([[[
      bool(allows(b, t, s))
      and (segments is None or segments[b, t] == segments[b, s] != 0)
      for s in range(T)] for t in range(T)] for b in range(B)])


def close(actual, desired, tol=2e-6):
  np.testing.assert_allclose(np.asarray(actual, np.float64), desired, rtol=tol, atol=tol)


def check(allowed, kv_heads, bias=None, vector=None, scale=None, soft_cap=None, **kwargs):
  """Output, weights and all gradients of `attend` against the reference."""
  q, k, v, g = inputs(kv_heads)
  arguments = {"q": q, "k": k, "v": v, "bias": bias, "vector": vector}
  arguments = {n: jnp.asarray(x, jnp.float32) for n, x in arguments.items() if x is not None}

  def run(a):
    return attend(a["q"], a["k"], a["v"], bias=a.get("bias"), score_vector=a.get("vector"),
                  score="dot" if vector is None else "additive", scale=scale,
                  soft_cap=soft_cap, return_weights=True, **kwargs)

  (out, weights), pull = jax.vjp(run, arguments)
  (grads,) = pull((jnp.asarray(g, jnp.float32), jnp.zeros_like(weights)))
  full_bias = None if bias is None else np.broadcast_to(bias, (B, N, T, T))
  ref_out, ref_weights, ref_grads = reference(q, k, v, g, allowed, full_bias,
                                              H**-0.5 if scale is None else scale, vector, soft_cap)
  close(out, ref_out)
  close(weights, ref_weights)
  if bias is not None and bias.shape[0] == 1:
    ref_grads["bias"] = ref_grads["bias"].sum(0, keepdims=True)
  for name in arguments:
    close(grads[name], ref_grads[name], 5e-6)
  empty = ~allowed.any(-1)
  assert (np.asarray(out)[empty] == 0).all() and (np.asarray(grads["q"])[empty] == 0).all()


@pytest.mark.parametrize("kv_heads", [4, 2, 1], ids=["mha", "gqa", "mqa"])
@pytest.mark.parametrize("segments", [None, SEGMENTS, PADDING], ids=["", "packed", "padded"])
@pytest.mark.parametrize("name", MASKS)
def test_reference(name, segments, kv_heads):
  mask, allows = MASKS[name]
  rows = ROWS
  if segments is not None:
    rows = ROWS._replace(q_segments=jnp.array(segments), k_segments=jnp.array(segments))
  check(definition(allows, segments), kv_heads, mask=mask, rows=rows)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("name", ["full", "causal", "empty"])
def test_additive_scores(name, kv_heads):
  mask, allows = MASKS[name]
  check(definition(allows), kv_heads, mask=mask, rows=ROWS, vector=normal(5, N, H))


@pytest.mark.parametrize("rows_of_bias", [1, B])
def test_bias(rows_of_bias):
  check(definition(MASKS["causal"][1]), 2, mask=CAUSAL, bias=normal(4, rows_of_bias, N, T, T))


def test_scale():
  check(definition(MASKS["window"][1]), 2, mask=MASKS["window"][0], scale=0.7)


@pytest.mark.parametrize("bias", [None, normal(4, B, N, T, T)], ids=["", "bias"])
def test_soft_cap(bias):
  check(definition(MASKS["causal"][1]), 2, mask=CAUSAL, bias=bias, scale=2.0, soft_cap=1.5)


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["", "packed"])
def test_explicit_pairs(segments):
  pairs = np.random.default_rng(6).random((B, T, T)) < 0.5
  rows = Rows(pairs=jnp.array(pairs))
  if segments is not None:
    rows = rows._replace(q_segments=jnp.array(segments), k_segments=jnp.array(segments))
  check(definition(lambda b, t, s: s <= t and pairs[b, t, s], segments), 2, mask=CAUSAL, rows=rows)


def test_cross_attention_of_another_length():
  q, k, v, g = inputs(2, keys=9)
  out = attend(*(jnp.asarray(x, jnp.float32) for x in (q, k, v)))
  close(out, reference(q, k, v, g, np.ones((B, T, 9), bool))[0])


def test_large_logits_do_not_overflow():
  q, k, v, g = inputs(4)
  out = attend(*(jnp.asarray(x, jnp.float32) for x in (100 * q, 100 * k, v)), mask=CAUSAL)
  close(out, reference(100 * q, 100 * k, v, g, definition(MASKS["causal"][1]))[0], 1e-3)


def test_bfloat16_has_a_float32_softmax():
  q, k, v, g = inputs(2)
  low = [jnp.asarray(x, jnp.bfloat16) for x in (q, k, v)]
  out, weights = attend(*low, mask=CAUSAL, return_weights=True)
  exact = reference(*(np.asarray(x, np.float64) for x in low), g, definition(MASKS["causal"][1]))
  assert out.dtype == jnp.bfloat16 and weights.dtype == jnp.float32
  close(weights, exact[1])
  close(out, exact[0], 2e-2)


@pytest.mark.parametrize("name", ["causal", "window", "window_left", "prefix"])
def test_indices_are_the_places_of_queries_and_keys(name):
  q, k, v, _ = (jnp.asarray(x, jnp.float32) for x in inputs(2))
  mask = MASKS[name][0]
  whole = attend(q, k, v, mask=mask, rows=ROWS)
  one = jax.jit(lambda q, index: attend(q, k, v, mask=mask, rows=ROWS, q_index=index))
  for t in range(T):
    close(one(q[:, t:t + 1], jnp.array([t])), whole[:, t:t + 1])
  some = jnp.array([4, 1])
  close(attend(q[:, some], k, v, mask=mask, rows=ROWS, q_index=some), whole[:, some])
  turned = jnp.arange(k.shape[1])[::-1]
  rows = ROWS._replace(k_flags={name: flags[:, turned] for name, flags in FLAGS.items()})
  close(attend(q, k[:, turned], v[:, turned], mask=mask, rows=rows, k_index=turned), whole)


class TestDropout:
  """Dropout of the weights."""

  q, k, v, g = (jnp.asarray(x, jnp.float32) for x in inputs(2))

  def attend(self, rate, key, **kwargs):
    return attend(self.q, self.k, self.v, mask=CAUSAL, dropout_rate=rate, dropout_key=key, **kwargs)

  def test_expectation_is_the_result_without(self):
    keys = jax.random.split(jax.random.key(0), 4000)
    draws = np.asarray(jax.jit(jax.vmap(lambda key: self.attend(0.3, key)))(keys), np.float64)
    error = draws.std(0) / len(keys)**0.5
    assert (np.abs(draws.mean(0) - self.attend(0.0, None)) < 5 * error + 1e-6).all()

  def test_weights_are_dropped_or_scaled(self):
    _, plain = self.attend(0.0, None, return_weights=True)
    out, weights = self.attend(0.25, jax.random.key(1), return_weights=True)
    kept = np.asarray(weights) != 0
    close(np.asarray(weights)[kept], np.asarray(plain)[kept] / 0.75)
    possible = np.asarray(plain) > 0
    assert 0.6 < kept[possible].mean() < 0.9
    # The weights returned are those that the values were summed with.
    values = np.repeat(np.asarray(self.v), 2, axis=2)
    close(out, np.einsum("bnts,bsnh->btnh", np.asarray(weights, np.float64), values))

  def test_a_key_decides(self):
    a, b = jax.random.split(jax.random.key(2))
    np.testing.assert_array_equal(self.attend(0.5, a), self.attend(0.5, a))
    assert not np.array_equal(self.attend(0.5, a), self.attend(0.5, b))

  def test_rate_zero_is_none(self):
    key = jax.random.key(3)
    np.testing.assert_array_equal(self.attend(0.0, key), self.attend(0.0, None))
    np.testing.assert_array_equal(self.attend(0.9, None), self.attend(0.0, None))


class TestKernels:
  """Which kernel runs, and what is refused."""

  q, k, v, _ = (jnp.asarray(x, jnp.float32) for x in inputs(2))

  @pytest.fixture
  def kernels(self, monkeypatch):
    """A registry whose first kernel does only causal masks, and returns the queries' mean."""
    fast = kernels_of.Kernel(lambda q, k, v, mask, rows: q.mean(), None,
                             lambda r, platform: r.mask == CAUSAL)
    monkeypatch.setattr(kernels_of, "KERNELS", {"fast": fast, **kernels_of.KERNELS})

  def test_auto_takes_the_first_that_supports_the_request(self, kernels):
    close(attend(self.q, self.k, self.v, mask=CAUSAL), self.q.mean())
    plain = attend(self.q, self.k, self.v, kernel="xla")
    np.testing.assert_array_equal(attend(self.q, self.k, self.v), plain)

  def test_a_named_kernel_that_does_not_support_the_request(self, kernels):
    with pytest.raises(ConfigError, match="kernel='fast' does not support"):
      attend(self.q, self.k, self.v, kernel="fast")

  def test_a_kernel_that_does_not_take_what_it_is_said_to_support(self, kernels):
    with pytest.raises(TypeError, match="does not take scale, which its `supports` let in"):
      attend(self.q, self.k, self.v, mask=CAUSAL, scale=2.0)

  def test_another_platform_is_passed_over(self, kernels):
    kernels_of.KERNELS["fast"] = kernels_of.KERNELS["fast"]._replace(platforms=("tpu",))
    assert attend(self.q, self.k, self.v, mask=CAUSAL).shape == (B, T, N, HV)

  def test_unknown_kernel(self):
    with pytest.raises(ConfigError, match="did you mean 'xla'"):
      attend(self.q, self.k, self.v, kernel="xlaa")

  def test_unknown_score(self):
    with pytest.raises(ConfigError, match="'dot' and 'additive'"):
      attend(self.q, self.k, self.v, score="cosine")

  def test_score_and_vector_belong_together(self):
    with pytest.raises(ConfigError, match="score_vector"):
      attend(self.q, self.k, self.v, score="additive")
    with pytest.raises(ConfigError, match="score_vector"):
      attend(self.q, self.k, self.v, score_vector=jnp.ones((N, H)))

  def test_heads_that_do_not_divide(self):
    with pytest.raises(ConfigError, match="num_kv_heads=3 does not divide num_heads=4"):
      attend(self.q, jnp.zeros((B, T, 3, H)), jnp.zeros((B, T, 3, HV)))


# ------------------------------------------------------------------------------ module

WIDTH = 12


def call(method, variables, x, source, position=Position(), **options):
  """Calls `module.init` or `module.apply` on one causal layer."""
  places = Places(jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]), causal=True)
  return method(variables, x, source, places=places, kinds=(LayerKind(CAUSAL),), position=position,
                return_weights=True, **options)


def random_params(module, x, source):
  boxed = jax.eval_shape(lambda key: call(module.init, key, x, source), jax.random.key(0))["params"]
  return jax.tree.map(lambda p: normal(p.ndim, *p.shape).astype(np.float32), unbox(boxed))


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_module_is_its_formula(score):
  module = Attention(AttentionConfig(num_heads=N, num_kv_heads=2, head_dim=5, v_head_dim=3,
                                     biases=PROJECTIONS, score=score))
  x, source = (jnp.asarray(normal(i, B, T, WIDTH), jnp.float32) for i in (7, 8))
  params = random_params(module, x, source)
  out, projected, weights = call(module.apply, {"params": params}, x, source)
  q, k, v = (
      np.einsum("btd,dnh->btnh", np.asarray(y, np.float64), params[n]["kernel"]) + params[n]["bias"]
      for n, y in [("query", x), ("key", source), ("value", source)])
  assert q.shape == (B, T, N, 5) and k.shape == (B, T, 2, 5) and v.shape == (B, T, 2, 3)
  allowed = definition(MASKS["causal"][1])
  ref, ref_weights, _ = reference(q, k, v, np.zeros((B, T, N, 3)), allowed, scale=5**-0.5,
                                  vector=params["score"] if score == "additive" else None)
  ref = np.einsum("btnh,nhd->btd", ref, params["out"]["kernel"]) + params["out"]["bias"]
  close(out, ref, 2e-4)
  close(weights, ref_weights, 1e-4)
  close(projected.key, k, 1e-5)
  close(projected.value, v, 1e-5)


def test_the_additive_score_starts_as_small_as_a_dot_product():
  module = Attention(AttentionConfig(num_heads=8, head_dim=64, score="additive"))
  score = lambda key: unbox(call(module.init, key, *2 * [jnp.zeros((1, 1, 2))])["params"]["score"])
  assert np.std(jax.jit(score)(jax.random.key(0))) == pytest.approx(64**-0.5, rel=0.1)


def test_shared_heads_are_repeated_heads():
  x = jnp.asarray(normal(7, B, T, WIDTH), jnp.float32)
  few, many = (Attention(AttentionConfig(num_heads=N, num_kv_heads=k, head_dim=4))
               for k in (2, None))
  params = random_params(few, x, x)
  repeated = {**params, **{n: {"kernel": jnp.repeat(params[n]["kernel"], 2, axis=1)}
                           for n in ("key", "value")}}
  grouped, full = (call(module.apply, {"params": p}, x, x, Rope())[0]
                   for module, p in ((few, params), (many, repeated)))
  close(grouped, full, 1e-4)


def test_a_width_that_heads_do_not_divide():
  with pytest.raises(ConfigError, match="num_heads=5 does not divide width=12; set head_dim"):
    random_params(Attention(AttentionConfig(num_heads=5)), *2 * [jnp.zeros((B, T, WIDTH))])


def by_hand(params, q, k, v, scale=None, soft_cap=None):
  """Causal attention behind projected q, k and v, in float64."""
  scale = q.shape[-1]**-0.5 if scale is None else scale
  out, _, _ = reference(q, k, v, np.zeros((*q.shape[:3], v.shape[-1])),
                        definition(MASKS["causal"][1]), scale=scale, soft_cap=soft_cap)
  return np.einsum("btnh,nhd->btd", out, params["out"]["kernel"]) + params["out"].get("bias", 0)


def project(params, x):
  """Queries, keys and values of x in float64."""
  return [np.einsum("btd,dnh->btnh", np.asarray(x, np.float64), params[name]["kernel"])
          + params[name].get("bias", 0) for name in ("query", "key", "value")]


@pytest.mark.parametrize("biases", [(), ("query", "value", "out"), ("key",)])
def test_each_projection_has_a_bias_where_it_is_named(biases):
  """Whisper's keys have none, and Qwen's output."""
  x = jnp.asarray(normal(7, B, T, WIDTH), jnp.float32)
  module = Attention(AttentionConfig(num_heads=N, biases=biases))
  params = random_params(module, x, x)
  assert {name for name in PROJECTIONS if "bias" in params[name]} == set(biases)
  close(call(module.apply, {"params": params}, x, x)[0], by_hand(params, *project(params, x)), 2e-4)


def test_scale_and_soft_cap_of_the_module():
  x = jnp.asarray(normal(7, B, T, WIDTH), jnp.float32)
  module = Attention(AttentionConfig(num_heads=N, scale=0.3, soft_cap=2.0))
  params = random_params(module, x, x)
  close(call(module.apply, {"params": params}, x, x)[0],
        by_hand(params, *project(params, x), scale=0.3, soft_cap=2.0), 2e-4)


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("over", ["head", "width"])
def test_normed_queries_and_keys(over, kind):
  """Before they are turned; of shared heads, too."""
  x = jnp.asarray(normal(7, B, T, WIDTH), jnp.float32)
  config = AttentionConfig(num_heads=N, num_kv_heads=2, head_dim=4, qk_norm=over)
  module = Attention(config, NormConfig(kind=kind, eps=0.1))
  params = random_params(module, x, x)
  q, k, v = project(params, x)

  def normed(name, y):
    flat = y if over == "head" else y.reshape(B, T, -1)
    p, mean = params[name], 0
    assert p["scale"].shape == flat.shape[-1:] and ("bias" in p) == (kind == "layernorm")
    if kind == "layernorm":
      mean = flat.mean(-1, keepdims=True)
    out = (flat - mean) / np.sqrt(((flat - mean)**2).mean(-1, keepdims=True) + 0.1)
    return (out * p["scale"] + p.get("bias", 0)).reshape(y.shape)

  turned = lambda y: Rope().rotate(y, Places(jnp.arange(T)[None].repeat(B, 0)), {})
  out = call(module.apply, {"params": params}, x, x, Rope())[0]
  q, k = (turned(jnp.asarray(normed(f"{name}_norm", y), jnp.float32))
          for name, y in (("query", q), ("key", k)))
  close(out, by_hand(params, q, k, v), 2e-4)


def test_a_source_has_positions_of_its_own():
  """Sinusoids are added to queries by their places and to keys by theirs, and not to values."""
  x, source = (jnp.asarray(normal(i, B, T, WIDTH), jnp.float32) for i in (7, 8))
  module = Attention(AttentionConfig(num_heads=N))
  params = random_params(module, x, source)
  far = Places(jnp.array([[3, 1, 4, 1, 5, 9], [2, 7, 1, 8, 2, 8]]))
  out = call(module.apply, {"params": params}, x, source, Attached(cross=True),
             source_places=far)[0]
  near = Places(jnp.broadcast_to(jnp.arange(T), (B, T)))
  at = lambda y, places: Sinusoidal().embed(y, places, {})
  q, k, v = (project(params, y)[i] for i, y in enumerate((at(x, near), at(source, far), source)))
  close(out, by_hand(params, q, k, v), 2e-4)
  # Or both are turned.
  module = Attention(AttentionConfig(num_heads=N, head_dim=4))
  params = random_params(module, x, source)
  out = call(module.apply, {"params": params}, x, source, Rope(), source_places=far)[0]
  q, k, v = (project(params, y)[i] for i, y in enumerate((x, source, source)))
  turned = lambda y, places: Rope().rotate(jnp.asarray(y, jnp.float32), places, {})
  close(out, by_hand(params, turned(q, near), turned(k, far), v), 2e-4)


@pytest.mark.parametrize("fields, message", [
    (dict(biases=("keys",)), "did you mean 'key'"),
    (dict(qk_norm="heads"), "attention.qk_norm='heads'"),
    (dict(score="additive", scale=1.0), "go with attention.score='dot'"),
    (dict(score="additive", soft_cap=1.0), "go with attention.score='dot'"),
])
def test_fields_that_do_not_fit(fields, message):
  with pytest.raises(ConfigError, match=message):
    AttentionConfig(**fields)


def test_logits_begin_as_large_whatever_their_scale():
  """Queries of a fresh layer are smaller by as much as `scale` is larger than H^-0.5 (T5)."""
  x = jax.random.normal(jax.random.key(0), (2, 64, 32))
  places = Places(jnp.broadcast_to(jnp.arange(64), (2, 64)))

  def std(scale):
    config = AttentionConfig(num_heads=2, head_dim=16, scale=scale)
    variables = Attention(config).init(jax.random.key(1), x, x, places=places)
    params = unbox(variables["params"])
    return np.std(params["query"]["kernel"]), np.std(params["key"]["kernel"])

  plain, plain_key = std(None)
  for scale in (1.0, 0.5):
    query, key = std(scale)
    np.testing.assert_allclose(query * scale, plain * 16**-0.5, rtol=0.1)
    np.testing.assert_allclose(key, plain_key, rtol=1e-6)


@pytest.mark.parametrize("scale, kv_heads", [(None, 4), (1.0, 4), (None, 1), (None, 2)])
def test_aligned_keys_are_those_of_the_same_tokens(scale, kv_heads):
  """Every token attends to itself most, by far, before anything is learnt."""
  x = jax.random.normal(jax.random.key(0), (1, 64, 256))
  places = Places(jnp.arange(64)[None])
  config = AttentionConfig(num_heads=4, num_kv_heads=kv_heads, head_dim=64, scale=scale)

  def fresh(aligned):
    module = Attention(config, aligned=aligned)
    (_, _, weights), variables = module.init_with_output(
        jax.random.key(1), x, x, places=places, return_weights=True)
    return np.asarray(weights)[0], unbox(variables["params"])

  (weights, params), (plain, plain_params) = fresh(True), fresh(False)
  heads = list(range(0, 4, 4 // kv_heads))  # the first of each group
  for head in heads:
    assert np.diag(weights[head]).min() > 0.5 > 10 * np.diag(plain[head]).mean()
  q, k = (np.asarray(params[name]["kernel"]) for name in ("query", "key"))
  q = q[:, heads]
  np.testing.assert_allclose(k / np.std(k), q / np.std(q), rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(np.std(k), np.std(plain_params["key"]["kernel"]), rtol=0.05)
