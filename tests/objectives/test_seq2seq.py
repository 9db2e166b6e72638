"""The sequence-to-sequence loss against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import numerics
from jtx.nn.shapes import shapes_of
from jtx.nn.shift import LAST
from jtx.objectives import cross_entropy as cross_entropy_of
from jtx.objectives.cross_entropy import cross_entropy, token_sums
from jtx.objectives.seq2seq import Seq2Seq, shift_right
from jtx.parallel.sharding import make_mesh, unbox
from jtx.train import flops
from tests.helpers import block, encdec, one_fast

V, B, S, T, BOS = 7, 2, 4, 6, 1


def normal(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_cross_entropy_is_against_the_smoothed_distribution(smoothing):
  logits, labels = 5 * normal(0, B, T, V), np.random.default_rng(1).integers(0, V, (B, T))
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  target = (1 - smoothing) * np.eye(V)[labels] + smoothing / V
  loss, nll = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(labels), smoothing)
  np.testing.assert_allclose(loss, -(target * log_p).sum(-1), rtol=1e-5, atol=2e-6)
  np.testing.assert_allclose(nll, -(np.eye(V)[labels] * log_p).sum(-1), rtol=1e-5, atol=2e-6)


def test_cross_entropy_of_large_logits():
  logits = jnp.array([[1e4, -1e4, 0.0]])
  loss, nll = cross_entropy(logits, jnp.array([0]), 0.0)
  np.testing.assert_array_equal([loss[0], nll[0]], 0.0)


def test_chunks_have_the_gradient_of_whatever_is_made_of_the_loss():
  hidden, kernel = (jnp.asarray(normal(i, *shape), jnp.float32)
                    for i, shape in enumerate([(B, T, 3), (3, V)]))
  labels = jnp.asarray(np.random.default_rng(1).integers(0, V, (B, T)))
  weights = jnp.ones((B, T)).at[1, 4:].set(0)

  def value(hidden, kernel, chunk):
    sums = token_sums(lambda x: x @ kernel, hidden, labels, weights, 0.1, chunk)
    return 3.0 * sums["loss"][0] / sums["loss"][1] + sums["nll"][0]

  grads = jax.jit(jax.value_and_grad(value, (0, 1)), static_argnums=2)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  jax.tree.map(close, grads(hidden, kernel, 5), grads(hidden, kernel, 0))


def test_shift_right_starts_every_segment():
  tokens = jnp.array([[5, 6, 2, 7, 2, 0], [8, 2, 0, 0, 0, 0]])
  segments = jnp.array([[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]])
  np.testing.assert_array_equal(shift_right(tokens, segments, BOS),
                                [[BOS, 5, 6, BOS, 7, 0], [BOS, 8, 0, 0, 0, 0]])
  np.testing.assert_array_equal(shift_right(tokens, segments, LAST),
                                [[2, 5, 6, 2, 7, 0], [2, 8, 0, 0, 0, 0]])
  np.testing.assert_array_equal(shift_right(tokens[:, 1:4], segments[:, 1:4], LAST),
                                [[2, 6, 7], [2, 0, 0]])


# ------------------------------------------------------------------------ with a model

MODEL = encdec(vocab_size=V, width=8, num_layers=1,
               block=block(num_heads=2, ffn_dim=8, dropout=0.5))


def batch():
  random = np.random.default_rng(2)
  field = lambda name, tokens, segments, positions: {
      name: jnp.asarray(tokens), f"{name}_segment_ids": jnp.array(segments),
      f"{name}_positions": jnp.array(positions)}
  return {
      **field("src", random.integers(2, V, (B, S)), [[1, 1, 2, 2], [1, 1, 1, 0]],
              [[0, 1, 0, 1], [0, 1, 2, 0]]),
      **field("tgt", random.integers(2, V, (B, T)), [[1, 1, 1, 2, 2, 0], [1, 1, 0, 0, 0, 0]],
              [[0, 1, 2, 0, 1, 0], [0, 1, 0, 0, 0, 0]]),
  }


@pytest.fixture(scope="module")
def params():
  inputs = Seq2Seq(BOS).model_inputs(batch())
  boxed = shapes_of(MODEL.init, jax.random.key(0), inputs)["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  return tree.unflatten([normal(i, *x.shape).astype(np.float32) for i, x in enumerate(leaves)])


def sums(objective, params, batch, train=False):
  rngs = {"dropout": jax.random.key(0)} if train else None
  return jax.jit(lambda p, b: objective(MODEL, p, b, train=train, rngs=rngs))(params, batch)


def test_sums_over_target_tokens(params):
  objective, data = Seq2Seq(BOS, label_smoothing=0.2), batch()
  hidden = MODEL.apply({"params": params}, objective.model_inputs(data))
  logits = np.asarray(MODEL.apply({"params": params}, hidden, method="logits"), np.float64)
  log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  labels, real = np.asarray(data["tgt"]), np.asarray(data["tgt_segment_ids"]) > 0
  target = 0.8 * np.eye(V)[labels] + 0.2 / V
  got = sums(objective, params, data)
  assert set(got) == {"loss", "nll", "accuracy"}
  assert all(weight == real.sum() == 7 for _, weight in got.values())
  np.testing.assert_allclose(got["loss"][0], -(target * log_p).sum(-1)[real].sum(), rtol=1e-5)
  nll = -(np.eye(V)[labels] * log_p).sum(-1)
  np.testing.assert_allclose(got["nll"][0], nll[real].sum(), rtol=1e-5)
  assert got["accuracy"][0] == (logits.argmax(-1) == labels)[real].sum()
  assert objective.weights(data) == {"loss": 7}


def value_and_grads(objective, params):
  """All sums, and the gradients of the loss, with dropout on."""
  def loss(params):
    out = objective(MODEL, params, batch(), train=True, rngs={"dropout": jax.random.key(0)})
    return out["loss"][0], out
  return jax.jit(jax.value_and_grad(loss, has_aux=True))(params)


@pytest.fixture(scope="module")
def unchunked(params):
  return value_and_grads(Seq2Seq(BOS), params)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [4, 3, 100])  # dividing 6 places, not, more than all
def test_chunks_change_nothing(params, unchunked, chunk):
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  jax.tree.map(close, value_and_grads(Seq2Seq(BOS, logits_chunk=chunk), params), unchunked)


@pytest.mark.slow
def test_chunks_on_a_mesh(params, unchunked):
  mesh = make_mesh({"data": 2, "fsdp": 1, "tensor": 1, "context": 1}, jax.devices()[:2])
  with jax.set_mesh(mesh):
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    jax.tree.map(close, value_and_grads(Seq2Seq(BOS, logits_chunk=4), params), unchunked)


def test_chunks_compute_logits_once(params):
  """Three products of tokens, width and vocabulary, not four: nothing is computed again."""
  def cost(chunk):
    return flops.count(lambda p: value_and_grads(Seq2Seq(BOS, logits_chunk=chunk), p), params)
  assert cost(4) == cost(0) > 3 * 2 * B * T * V * MODEL.decoder.width


@pytest.mark.parametrize("chunk", one_fast(3, 0))
def test_padding_has_no_influence(params, chunk):
  objective, data = Seq2Seq(BOS, logits_chunk=chunk), batch()
  noise = lambda name: jnp.where(data[f"{name}_segment_ids"] == 0, 4, data[name])
  run = jax.jit(jax.value_and_grad(lambda p, b: objective(MODEL, p, b, train=False)["loss"][0]))
  plain = run(params, data)
  noisy = run(params, {**data, "src": noise("src"), "tgt": noise("tgt")})
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
  jax.tree.map(close, noisy, plain)


def test_train_is_dropout(params):
  objective = Seq2Seq(BOS)
  evaluated, trained = (
      sums(objective, params, batch(), train)["loss"][0] for train in (False, True))
  assert abs(evaluated - trained) > 1e-3


def test_an_empty_batch_is_zeros(params):
  data = {k: jnp.zeros_like(x) for k, x in batch().items()}
  assert all(s == 0 and w == 0 for s, w in sums(Seq2Seq(BOS), params, data).values())


@pytest.mark.parametrize("smoothing, z_loss", [(0.0, 0.0), (0.1, 0.0), (0.2, 0.01)])
def test_cross_entropy_and_its_gradient_on_chips(smoothing, z_loss, monkeypatch):
  """Against the sums in float64, whose gradient is autodiff's."""
  monkeypatch.setattr(numerics, "platform", lambda: "tpu")
  random = np.random.default_rng(2)
  logits, labels = random.normal(0, 4, (3, 5, 70)), random.integers(0, 70, (3, 5))
  of_loss, of_nll = random.normal(size=(2, 3, 5))

  def expected(logits):
    log_p = jax.nn.log_softmax(logits)
    nll = -jnp.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    z = jnp.square(jax.nn.logsumexp(logits, -1))
    return (1 - smoothing) * nll - smoothing * log_p.mean(-1) + z_loss * z, nll

  def total(fn):
    return lambda logits: sum((a * b).sum() for a, b in zip(fn(logits), (of_loss, of_nll)))

  with jax.enable_x64(True):
    values, gradient = jax.device_get((expected(logits), jax.grad(total(expected))(logits)))
  found = lambda logits: cross_entropy(logits, jnp.asarray(labels), smoothing, z_loss)
  narrow = jnp.asarray(logits, jnp.float32)
  np.testing.assert_allclose(found(narrow), values, rtol=1e-5, atol=1e-5)
  np.testing.assert_allclose(jax.grad(total(found))(narrow), gradient, rtol=1e-5, atol=1e-6)


def test_a_vocabularys_sums_on_chips_are_those_of_classes(monkeypatch):
  random = np.random.default_rng(5)
  logits = jnp.asarray(random.normal(size=(3, 4, 50)), jnp.float32)
  labels, weights = random.integers(-1, 50, (3, 4)), np.ones((3, 4), np.float32)
  weights[labels < 0] = 0
  found = {}
  for platform in ("cpu", "tpu"):
    for module in (cross_entropy_of, numerics):
      monkeypatch.setattr(module, "platform", lambda: platform)
    found[platform] = cross_entropy_of.vocabulary_sums(logits, labels, weights)
  for name, (total, weight) in found["cpu"].items():
    np.testing.assert_allclose(found["tpu"][name], (total, weight), rtol=1e-5)
