"""Permutation language modelling: probabilities, what a prediction depends on, and orders."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.data.ops.permute import Permute
from jtx.data.ops.sentences import SPECIAL
from jtx.models.xlnet import Xlnet, stream_pairs
from jtx.nn.transformer_xl import TransformerXl
from jtx.objectives.plm import Plm, seen_in_order
from jtx.parallel import sharding
from tests.helpers import block, encoder
from tests.models.test_contract import drawn


def model(vocab_size):
  return Xlnet(vocab_size=vocab_size, plm=True, stack=encoder(
      vocab_size=vocab_size, width=8, num_layers=2, position=TransformerXl(),
      block=block(num_heads=2, ffn_dim=12, dropout=0.0, activation="gelu")).stack)


def rows(text):
  text = jnp.asarray(text)
  return {"text": text, "text_segment_ids": jnp.ones_like(text),
          "text_positions": jnp.broadcast_to(jnp.arange(text.shape[1]), text.shape)}


def test_probabilities_of_all_texts_add_up_to_1_in_every_order():
  V, T = 3, 4
  texts, orders = (np.array(list(x)) for x in (
      itertools.product(range(V), repeat=T), itertools.permutations(range(T))))
  texts, orders = np.tile(texts, (len(orders), 1)), np.repeat(orders, len(texts), 0)
  params, labels = drawn(model(V)), np.take_along_axis(texts, orders, 1)

  @jax.jit
  def log_probabilities(params):
    seen = seen_in_order(orders, jnp.ones_like(orders, bool), T)
    scores = model(V).apply({"params": params}, rows(texts) | {"text_pairs": seen},
                            jnp.asarray(orders), method="predicted")
    return jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], -1).sum((1, 2))

  probabilities = np.exp(np.float64(log_probabilities(params))).reshape(24, 81)
  np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
  # Orders are other factors of other models: that all add up is not that all are alike.
  assert np.abs(probabilities - probabilities[0]).max(1)[1:].min() > 1e-3


def test_the_loss_is_that_of_the_predicted_tokens_and_empty_slots_change_nothing():
  V = 11
  params, objective = drawn(model(V)), Plm()
  batch = rows([[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]) | {
      "mlm_positions": jnp.array([[3, 1, 0], [2, 0, 0]]),
      "mlm_labels": jnp.array([[8, 6, -1], [3, -1, -1]])}
  seen = seen_in_order(batch["mlm_positions"], batch["mlm_labels"] >= 0, 5)
  assert seen[0].astype(int).tolist() == [
      [1, 0, 1, 0, 1], [1, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 0, 1, 0, 1], [1, 0, 1, 0, 1]]
  sums, scores = jax.jit(lambda params: (
      objective(model(V), params, batch, train=False),
      model(V).apply({"params": params}, batch | {"text_pairs": seen}, batch["mlm_positions"],
                     method="predicted")))(params)
  nll = -np.float64(jax.nn.log_softmax(scores))
  expected = nll[0, 0, 8] + nll[0, 1, 6] + nll[1, 0, 3]
  assert float(sums["loss"][0]) == pytest.approx(expected, rel=1e-5)
  assert float(sums["loss"][1]) == float(objective.weights(batch)["loss"]) == 3


def test_a_prediction_depends_on_what_is_before_it_in_the_order_and_on_nothing_else():
  """Of 6 tokens 3 are predicted: places 4, 1, 3. Gradients of each query by each token."""
  T, order = 6, [4, 1, 3]
  m = model(T)
  params, at = drawn(m), jnp.array([order])
  batch = rows([range(T)])
  batch |= {"text_pairs": seen_in_order(at, jnp.ones_like(at, bool), T)}

  def queries(table):
    tree = {**params, "embed": {"embedding": table}}
    content, of_queries = m.apply({"params": tree}, batch, at, method="streams")
    return jnp.concatenate([content, of_queries], 1)[0].sum(-1)

  moved = np.abs(jax.jit(jax.jacrev(queries))(params["embed"]["embedding"])).max(-1) > 0
  assert moved[T:].astype(int).tolist() == [  # by token
      [1, 0, 1, 0, 0, 1], [1, 0, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1]]
  # Content is its own, and what is not predicted sees no token that is.
  assert moved[:T].astype(int).tolist() == [
      [1, 0, 1, 0, 0, 1], [1, 1, 1, 0, 1, 1], [1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 1, 1],
      [1, 0, 1, 0, 1, 1], [1, 0, 1, 0, 0, 1]]


def test_a_query_that_sees_nothing_attends_to_nothing():
  """What the first of all tokens may be does not depend on the text, and is a number."""
  m = model(7)
  at, T = jnp.array([[2, 0, 1], [2, 0, 1]]), 3
  seen = seen_in_order(at, jnp.ones_like(at, bool), T)
  content, queries = [[1, 0, 1], [1, 1, 1], [0, 0, 1]], [[0, 0, 0], [0, 0, 1], [1, 0, 1]]
  np.testing.assert_array_equal(stream_pairs(seen, at), [content + queries] * 2)
  scores = jax.jit(lambda p: m.apply(
      {"params": p}, rows([[1, 2, 3], [4, 5, 6]]) | {"text_pairs": seen}, at,
      method="predicted"))(drawn(m))
  assert np.isfinite(scores).all()
  np.testing.assert_array_equal(scores[0, 0], scores[1, 0])
  assert np.abs(scores[0, 1] - scores[1, 1]).max() > 1e-3


def drawn_rows(op, length=60, special=(0, 20, 59), rows=200):
  marks = np.zeros((rows, length), np.uint8)
  marks[:, list(special)] = SPECIAL
  segments = np.ones((rows, length), np.int32)
  segments[:, -5:] = 0
  text = np.tile(np.arange(length, dtype=np.int32) + 100, (rows, 1))
  batch = {"text": text, "text_marks": marks, "text_segment_ids": segments}
  return op.bind({}).alter(batch, [np.random.default_rng(r) for r in range(rows)])


@pytest.mark.parametrize("op", [Permute(), Permute(max_span=0), Permute(rate=1.0),
                                Permute(rate=0.7, max_span=2), Permute(slots=4)], ids=str)
def test_places_are_chosen_once_and_are_no_special_tokens(op):
  batch = drawn_rows(op)
  assert "text_marks" not in batch and batch["text"][0].tolist() == list(range(100, 160))
  number = min(round(op.rate * 53), op.slots or 60)  # of 55 tokens 2 are special
  for at, labels in zip(batch["mlm_positions"], batch["mlm_labels"]):
    real = at[labels >= 0]
    assert len(set(real)) == len(real) == number
    assert not {0, 20} & set(real) and max(real) < 55
    assert (labels[labels >= 0] == real + 100).all()
  orders = batch["mlm_positions"][:, 0] < batch["mlm_positions"][:, 1]
  assert 60 < orders.sum() < 140  # any order, not that of the text


def test_spans_are_of_up_to_so_many_tokens_and_everywhere():
  free = np.setdiff1d(np.arange(55), (0, 20))
  batch = drawn_rows(Permute(rate=0.2, max_span=3))
  chosen = np.sort(np.searchsorted(free, np.where(
      batch["mlm_labels"] >= 0, batch["mlm_positions"], 99)), 1)[:, :11]
  together = (np.diff(chosen) == 1).mean()
  assert 0.4 < together < 0.6  # of spans of 1, 2 or 3 the half of tokens goes on from another
  one_by_one = drawn_rows(Permute(rate=0.2, max_span=1))["mlm_positions"]
  assert 0 <= (np.diff(np.sort(one_by_one[:, :11], 1)) == 1).mean() < 0.1
  counts = np.bincount(chosen.ravel(), minlength=53)
  assert counts.min() > 10 and counts.max() < 90


@pytest.mark.parametrize("axes", [dict(data=2, context=2), dict(context=4),
                                  dict(tensor=2, context=2)])
def test_loss_and_gradients_are_the_same_on_any_mesh(axes):
  """Of packed rows, whose streams together are as long as no number of devices divides."""
  random, m, T = np.random.default_rng(3), model(11), 8
  text = random.integers(11, size=(4, T))
  at = np.stack([random.permutation(T)[:3] for _ in text])
  batch = rows(text) | {
      "text_segment_ids": jnp.asarray([[1] * 3 + [2] * 5] * 4),
      "text_positions": jnp.asarray([[0, 1, 2, 0, 1, 2, 3, 4]] * 4),
      "mlm_positions": jnp.asarray(at), "mlm_labels": jnp.asarray(np.take_along_axis(text, at, 1))}
  params = drawn(m)
  gradient = jax.value_and_grad(lambda params, batch: Plm()(
      m, params, batch, train=False)["loss"][0])
  alone = jax.jit(gradient)(params, batch)
  mesh = sharding.make_mesh(dict(data=1, fsdp=1, tensor=1, context=1) | axes, jax.devices()[:4])
  with jax.set_mesh(mesh):
    found = jax.jit(gradient)(params, jax.device_put(batch, sharding.batch_sharding(mesh)))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
