"""The enhanced mask decoder of DeBERTa against a float64 twin of the whole encoder."""

import math

import jax
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.masked import MaskedConfig
from jtx.nn.disentangled import Disentangled
from jtx.nn.shapes import shapes_of
from jtx.objectives.mlm import Mlm
from jtx.parallel.sharding import unbox
from tests.helpers import block, encoder

V, D, N, H, T, SPAN, EPS = 13, 8, 2, 4, 7, 3, 1e-3
MODEL = encoder(
    vocab_size=V, width=D, num_layers=3, num_token_types=0, mlm=True,
    position=Disentangled(SPAN, 0, shared=False, norm=False),
    block=block(num_heads=N, ffn_dim=12, attention_bias=True, norm_eps=EPS, norm_position="post",
                activation="gelu", dropout=0.0)).clone(masked=MaskedConfig(positions=9))
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, V, (2, T)).astype(np.int32)
SEGMENTS = (np.arange(T) < np.array([[T], [T - 3]])).astype(np.int32)
BATCH = {"text": TOKENS, "text_segment_ids": SEGMENTS,
         "text_positions": np.broadcast_to(np.arange(T, dtype=np.int32), (2, T)),
         "mlm_positions": np.array([[1, 4], [2, 0]], np.int32),
         "mlm_labels": np.array([[3, 5], [7, -1]], np.int32)}


@pytest.fixture(name="params", scope="module")
def make_params():
  shapes = unbox(shapes_of(MODEL.init, jax.random.key(0), BATCH)["params"])
  random = np.random.default_rng(1)
  return jax.tree.map(lambda x: random.normal(0, 0.5, x.shape).astype(np.float32), shapes)


def normed(x, p):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS) * p["scale"] + p["bias"]


def gelu(x):
  return 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))


def dense(x, p, letters="...d,de->...e"):
  return np.einsum(letters, x, p["kernel"]) + p["bias"]


def layer(p, distances, x, source):
  """Queries x and keys and values of a source, both [B, T, D]."""
  a = p["attention"]
  heads = "btd,dnh->btnh"
  q, k, v = dense(x, a["query"], heads), dense(source, a["key"], heads), dense(
      source, a["value"], heads)
  far_k = np.einsum("rd,dnh->rnh", distances, a["position_key"])
  far_q = np.einsum("rd,dnh->rnh", distances, a["position_query"]) + a["position_query_bias"]
  row = np.clip(np.arange(T)[:, None] - np.arange(T) + SPAN, 0, 2 * SPAN - 1)
  logits = np.einsum("btnh,bsnh->bnts", q, k)
  logits += np.einsum("btnh,tsnh->bnts", q, far_k[row]) + np.einsum(
      "bsnh,tsnh->bnts", k, far_q[row])
  logits = np.where(SEGMENTS[:, None, None] > 0, logits / np.sqrt(3 * H), -np.inf)
  weights = np.exp(logits - logits.max(-1, keepdims=True))
  weights /= weights.sum(-1, keepdims=True)
  out = dense(np.einsum("bnts,bsnh->btnh", weights, v), a["out"], "btnh,nhd->btd")
  x = normed(x + out, p["attention_norm"])
  return normed(x + dense(gelu(dense(x, p["ffn"]["in"])), p["ffn"]["out"]), p["ffn_norm"])


def twin(params):
  """Hidden states of the last layer, and the scores of every token."""
  p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
  layers = [jax.tree.map(lambda x: x[i], p["encoder"]["layers"]) for i in range(3)]
  states = [normed(p["embed"]["embedding"][TOKENS], p["embed_norm"])]
  run = lambda i, x, source: layer(layers[i], p["encoder"]["distances"], x, source)
  for i in range(3):
    states.append(run(i, states[-1], states[-1]))
  source = states[-2]
  x = source + p["decoder_positions"][:T]
  for _ in range(2):
    x = run(2, x, source)
  head = p["mlm_head"]
  x = normed(gelu(dense(x, head["transform"]["dense"])), head["transform"]["norm"])
  return states[-1], x @ p["embed"]["embedding"].T + head["bias"]


def test_masked_tokens_are_predicted_by_the_last_layer_run_twice_more(params):
  def run(m, batch):
    hidden, states = m.masked_states(batch)
    return hidden, m.mlm_logits(states)

  hidden, scores = jax.jit(lambda p: MODEL.apply({"params": p}, BATCH, method=run))(params)
  their_hidden, their_scores = twin(params)
  real = SEGMENTS > 0
  for ours, theirs in ((hidden, their_hidden), (scores, their_scores)):
    np.testing.assert_allclose(np.asarray(ours)[real], theirs[real], rtol=0,
                               atol=5e-6 * abs(theirs[real]).max())


@pytest.mark.slow
def test_the_objective_trains_the_positions_of_masked_tokens(params):
  """And its loss is the twin's."""
  def loss(params):
    sums = Mlm()(MODEL, params, BATCH, train=False)
    return sums["loss"][0] / sums["loss"][1]

  value, gradient = jax.jit(jax.value_and_grad(loss))(params)
  scores = twin(params)[1]
  chosen = np.stack([scores[0, 1], scores[0, 4], scores[1, 2]])
  log_p = chosen - np.log(np.exp(chosen).sum(-1, keepdims=True))
  np.testing.assert_allclose(value, -log_p[np.arange(3), [3, 5, 7]].mean(), rtol=1e-5)
  moved = np.abs(gradient["decoder_positions"]).max(-1) > 1e-6
  assert moved.tolist() == [p in (1, 2, 4) for p in range(9)]


def test_a_row_that_is_too_long():
  model = MODEL.clone(masked=MaskedConfig(positions=5))
  assert model.longest == 5
  with pytest.raises(ConfigError, match="masked.positions=5 is too short for rows of 7 tokens"):
    jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), BATCH, method="masked_states"))
