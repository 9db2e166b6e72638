"""Frozen features: the layers taken, how they are combined, and what is trained."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.features import FeatureConfig, Features
from jtx.models.text_head import HeadConfig
from jtx.parallel.sharding import unbox
from tests.helpers import encoder
from tests.models.test_encoder import BLOCK, D, V, batch_of, close, drawn, packed

MODEL = encoder(vocab_size=V, width=D, num_layers=3, block=BLOCK,
                features=FeatureConfig((-1,)), head=HeadConfig(task="tags", outputs=4, pool="none"))
A, B = [3, 5, 7, 2], [9, 4, 6]


def with_features(*args, **kwargs):
  return dataclasses.replace(MODEL, features=FeatureConfig(*args, **kwargs))


@pytest.mark.parametrize("layers, combine, expected", [
    ((0,), "concat", lambda h: h[0]),
    ((-2,), "concat", lambda h: h[2]),
    ((1, 2, 3), "concat", lambda h: np.concatenate([h[1], h[2], h[3]], -1)),
    ((1, -1), "sum", lambda h: 0.25 * h[1] + 0.75 * h[3]),
    ((1, -1), "scalar_mix", lambda h: 3 * (0.25 * h[1] + 0.75 * h[3])),
])
def test_layers_and_their_combination(layers, combine, expected):
  model = with_features(layers, combine, lstm_layers=0)
  batch = batch_of(A, B)
  params = drawn(model, batch)
  if combine != "concat":
    params["extractor"]["weights"] = np.log([1.0, 3.0]).astype(np.float32)
  if combine == "scalar_mix":
    params["extractor"]["scale"] = np.float32(3)
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
    (lambda: FeatureConfig((1,), "mean"),
     "features.combine='mean': valid are concat, sum, scalar_mix"),
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
