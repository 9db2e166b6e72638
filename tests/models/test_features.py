"""Frozen features: the LSTM against its equations, the layers taken, and what is trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.features import FeatureConfig, Features, Lstm
from jtx.models.text_head import HeadConfig
from jtx.parallel.sharding import unbox
from tests.helpers import encoder
from tests.models.test_encoder import BLOCK, D, V, batch_of, close, drawn, packed

MODEL = encoder(vocab_size=V, width=D, num_layers=3, block=BLOCK,
                features=FeatureConfig((-1,)), head=HeadConfig(task="tags", outputs=4, pool="none"))
A, B = [3, 5, 7, 2], [9, 4, 6]


def with_features(*args, **kwargs):
  return dataclasses.replace(MODEL, features=FeatureConfig(*args, **kwargs))


def lstm(x, p):
  """Float64 recurrence of one text [T, D]."""
  sigmoid = lambda a: 1 / (1 + np.exp(-a))
  H = p["recurrent"].shape[0]
  hidden, cell, out = np.zeros(H), np.zeros(H), []
  for row in np.asarray(x, np.float64):
    gates = np.einsum("d,dgh->gh", row, p["input"]["kernel"]) + p["input"]["bias"]
    gates += (hidden @ np.asarray(p["recurrent"], np.float64)).reshape(4, H)
    i, f, g, o = gates
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    hidden = sigmoid(o) * np.tanh(cell)
    out.append(hidden)
  return np.array(out)


@pytest.mark.parametrize("reverse", [False, True])
def test_lstm_is_its_recurrence_in_every_segment(reverse):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(2, 7, 5)).astype(np.float32)
  segments = np.array([[1, 1, 1, 2, 2, 0, 0], [0, 1, 1, 1, 1, 1, 2]])
  module = Lstm(6, reverse)
  shapes = unbox(jax.eval_shape(module.init, jax.random.key(0), x, segments))["params"]
  p = jax.tree.map(lambda s: rng.normal(0, 0.7, s.shape).astype(np.float32), shapes)
  y = module.apply({"params": p}, x, segments)
  turn = (lambda a: a[::-1]) if reverse else (lambda a: a)
  for row, start, stop in ((0, 0, 3), (0, 3, 5), (1, 1, 6), (1, 6, 7)):
    close(y[row, start:stop], turn(lstm(turn(x[row, start:stop]), p)), 1e-6)


@pytest.mark.parametrize("layers, combine, expected", [
    ((0,), "concat", lambda h: h[0]),
    ((-2,), "concat", lambda h: h[2]),
    ((1, 2, 3), "concat", lambda h: np.concatenate([h[1], h[2], h[3]], -1)),
    ((1, -1), "sum", lambda h: 0.25 * h[1] + 0.75 * h[3]),
])
def test_layers_and_their_combination(layers, combine, expected):
  model = with_features(layers, combine, lstm_layers=0)
  batch = batch_of(A, B)
  params = drawn(model, batch)
  if combine == "sum":
    params["extractor"]["weights"] = np.log([1.0, 3.0]).astype(np.float32)
  states = model.apply({"params": params}, batch, method="hidden_states")
  features = expected(np.asarray(states))
  close(model.apply({"params": params}, batch, method="extract"), features)
  extract = lambda states: Features(model.features).apply(
      {"params": params.get("extractor", {})}, states, batch["text_segment_ids"]).sum()
  assert not jax.grad(extract)(states).any()
  out = model.apply({"params": params}, batch, method="predict")
  head = params["task_head"]["output"]
  close(out, features @ head["kernel"] + head["bias"], 1e-4)


def test_packed_texts_equal_texts_alone():
  params = drawn(MODEL, batch_of(A, B))
  alone = MODEL.apply({"params": params}, batch_of(A, B), method="predict")
  together = MODEL.apply({"params": params}, packed(A, B), method="predict")[0]
  close(together[:4], alone[0, :4])
  close(together[4:7], alone[1, :3])


@pytest.mark.slow
def test_no_gradient_and_no_dropout_in_the_encoder():
  batch = batch_of(A, B)
  params = drawn(MODEL, batch)
  predict = lambda p, seed: MODEL.apply({"params": p}, batch, 1, True, method="predict",
                                        rngs={"dropout": jax.random.key(seed)})
  grads = jax.grad(lambda p: jnp.sum(predict(p, 0) ** 2))(params)
  trained = {name for name, g in grads.items() if any(np.any(x) for x in jax.tree.leaves(g))}
  assert trained == {"extractor", "task_head"}
  without = dataclasses.replace(MODEL, head=dataclasses.replace(MODEL.head, dropout=0.0))
  train, test = (without.apply({"params": params}, batch, 1, train, method="predict",
                               rngs={"dropout": jax.random.key(1)}) for train in (True, False))
  np.testing.assert_array_equal(train, test)


@pytest.mark.parametrize("make, message", [
    (lambda: FeatureConfig((1,), "mean"), "features.combine='mean': valid are concat, sum"),
    (lambda: FeatureConfig((1,), lstm_layers=-1), "features.lstm_layers=-1 must not be negative"),
    (lambda: drawn(with_features((4,)), batch_of(A)), "there is no 4; the embeddings are 0 and the"
     " layers 1 to 3"),
    (lambda: drawn(with_features((-5,)), batch_of(A)), "there is no -5"),
])
def test_refusals(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


@pytest.mark.slow
def test_width_behind_two_lstms():
  states = jnp.zeros((4, 2, 5, D))
  module = Features(FeatureConfig((-1, 0)))
  y, _ = module.init_with_output(jax.random.key(0), states, jnp.ones((2, 5), int))
  assert y.shape == (2, 5, D)
