"""The objective of masked tokens, and of pairs, against float64 NumPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.models.encoder import BERT_STACK
from jtx.models.text_head import HeadConfig
from jtx.objectives import OBJECTIVES
from jtx.objectives.mlm import Mlm
from jtx.parallel import sharding
from tests.helpers import block, encoder
from tests.models.test_encoder import drawn, packed

V, D, T, K = 31, 12, 16, 5
BLOCK = block(BERT_STACK.block, num_heads=3, ffn_dim=20, norm_eps=1e-5)
MODEL = encoder(vocab_size=V, width=D, num_layers=1, block=BLOCK, mlm=True)
PAIRS = MODEL.clone(head=HeadConfig(task="next_sentence", transform="tanh"))
# Two texts in a row, one, one that has a text but no masked token, and a row of padding.
TEXTS = [((3, 7, 1, 20, 6), (9, 2, 2, 30)), ((5, 6, 7, 8, 9, 10, 11),), ((4, 4),), ()]
PLACES = [(1, 3, 6, 8), (0, 2, 3, 4, 6), (), ()]
LABELS = [(2, 30, 9, 0), (5, 12, 8, 7, 11), (), ()]  # the right tokens
PAIR_LABELS = [(1, 0), (1,), (0,), ()]


def batch_of(pairs, slots=K, empty=0):
  """The rows above; `empty` is the place that slots without a token name."""
  rows = [packed(*texts, length=T) for texts in TEXTS]
  batch = {k: np.concatenate([row[k] for row in rows]) for k in rows[0]}
  batch["mlm_positions"] = np.full((4, slots), empty, np.int32)
  batch["mlm_labels"] = np.full((4, slots), -1, np.int32)
  for r, (places, labels) in enumerate(zip(PLACES, LABELS)):
    batch["mlm_positions"][r, :len(places)] = places
    batch["mlm_labels"][r, :len(labels)] = labels
  if pairs:
    batch["label"] = np.full((4, 3), 7 * (empty > 0), np.int32)  # anything, where there is no text
    for r, labels in enumerate(PAIR_LABELS):
      batch["label"][r, :len(labels)] = labels
  return batch


@pytest.fixture(scope="module", params=[False, True], ids=["alone", "pairs"])
def case(request):
  model = PAIRS if request.param else MODEL
  batch = batch_of(request.param)
  return model, drawn(model, batch), batch


@pytest.fixture(scope="module")
def pairs():
  batch = batch_of(True)
  return drawn(PAIRS, batch), batch


@functools.partial(jax.jit, static_argnums=0)
def sums_of(model, params, batch):
  return Mlm()(model, params, batch, train=False)


def log_softmax(x):
  x = np.asarray(x, np.float64)
  x = x - x.max(-1, keepdims=True)
  return x - np.log(np.exp(x).sum(-1, keepdims=True))


def check(pair, values):
  assert float(pair[1]) == len(values)
  np.testing.assert_allclose(float(pair[0]), np.sum(values, dtype=np.float64), rtol=2e-5)


def dense(p, x):
  return x @ p["kernel"].astype(np.float64) + p["bias"].astype(np.float64)


def test_sums_are_those_of_numpy(case):
  """The heads in float64, from the encoder's hidden states."""
  model, params, batch = case
  hidden = np.asarray(model.apply({"params": params}, batch), np.float64)
  head = params["mlm_head"]
  x = dense(head["transform"]["dense"], hidden)
  x = x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))) / 2  # GELU
  norm = head["transform"]["norm"]
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
  x = x * norm["scale"] + norm["bias"]
  logits = x @ params["embed"]["embedding"].astype(np.float64).T + head["bias"]
  hidden_tokens = [(r, t, y) for r in range(4) for t, y in zip(PLACES[r], LABELS[r])]
  assert len(hidden_tokens) == 9
  sums = sums_of(model, params, batch)
  check(sums["loss"], [-log_softmax(logits[r, t])[y] for r, t, y in hidden_tokens])
  check(sums["accuracy"], [logits[r, t].argmax() == y for r, t, y in hidden_tokens])
  weights = Mlm().weights(batch)
  assert float(weights["loss"]) == 9
  if "label" not in batch:
    assert sums.keys() == {"loss", "accuracy"} and weights.keys() == {"loss"}
    return
  first = [(0, 0, 1), (0, 5, 0), (1, 0, 1), (2, 0, 0)]  # each text's first token and label
  head = params["task_head"]
  scores = [dense(head["output"], np.tanh(dense(head["transform"]["dense"], hidden[r, t])))
            for r, t, _ in first]
  check(sums["pair_loss"], [-log_softmax(s)[y] for s, (*_, y) in zip(scores, first)])
  check(sums["pair_accuracy"], [s.argmax() == y for s, (*_, y) in zip(scores, first)])
  assert sums.keys() == {"loss", "accuracy", "pair_loss", "pair_accuracy"}
  assert weights.keys() == {"loss", "pair_loss"} and float(weights["pair_loss"]) == 4


def test_accuracy_counts_what_is_predicted(case):
  model, params, batch = case
  hidden = model.apply({"params": params}, batch)
  best = np.asarray(model.apply({"params": params}, hidden, method="mlm_logits")).argmax(-1)
  batch = dict(batch, mlm_labels=np.where(
      batch["mlm_labels"] >= 0, np.take_along_axis(best, batch["mlm_positions"], 1), -1))
  assert [float(x) for x in sums_of(model, params, batch)["accuracy"]] == [9, 9]
  batch["mlm_labels"][0, 1] = (batch["mlm_labels"][0, 1] + 1) % V
  assert [float(x) for x in sums_of(model, params, batch)["accuracy"]] == [8, 9]


def test_scores_are_computed_at_hidden_tokens_only(case):
  model, params, batch = case
  program = str(jax.make_jaxpr(lambda p: sums_of(model, p, batch))(params))
  assert f"f32[4,{K},{V}]" in program and f"f32[4,{T},{V}]" not in program


@functools.partial(jax.jit, static_argnums=0)
def gradients(model, params, batch, divisors):
  """Of the loss that training makes of the sums; see `train.train_step`."""
  def loss(params):
    sums = sums_of(model, params, batch)
    return sum(sums[k][0] / jnp.maximum(d, 1) for k, d in divisors.items())
  return jax.grad(loss)(params)


def whole_gradients(model, params, batch):
  return gradients(model, params, batch, Mlm().weights(batch))


def assert_close(a, b, tolerance=1e-6):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=tolerance), a, b)


def test_empty_slots_count_nothing(pairs):
  """Not where they point, nor how many there are, nor the labels of texts that are not there."""
  params, batch = pairs
  expected = sums_of(PAIRS, params, batch)
  elsewhere, more = batch_of(True, empty=T - 1), batch_of(True, K + 4, 2)
  assert_close(sums_of(PAIRS, params, elsewhere), expected)
  assert_close(sums_of(PAIRS, params, more), expected)
  assert_close(whole_gradients(PAIRS, params, elsewhere), whole_gradients(PAIRS, params, batch))
  more["mlm_labels"][3, 0] = 5  # a slot that is not empty does count
  assert float(sums_of(PAIRS, params, more)["loss"][1]) == 10


def test_a_batch_without_hidden_tokens_has_zero_loss_and_gradient():
  batch = batch_of(False)
  batch["mlm_labels"][:] = -1
  params = drawn(MODEL, batch)
  assert [float(x) for x in sums_of(MODEL, params, batch)["loss"]] == [0, 0]
  assert float(Mlm().weights(batch)["loss"]) == 0
  for x in jax.tree.leaves(whole_gradients(MODEL, params, batch)):
    assert not np.asarray(x).any()


def test_each_loss_trains_its_own_head_and_the_trunk(pairs):
  params, batch = pairs
  weights = Mlm().weights(batch)

  def trained(divisors):
    g = gradients(PAIRS, params, batch, divisors)
    assert np.abs(g["encoder"]["layers"]["attention"]["value"]["kernel"]).max() > 1e-4
    return {head for head in ("mlm_head", "task_head")
            if all(np.abs(x).max() > 1e-6 for x in jax.tree.leaves(g[head]))}

  assert trained(weights) == {"mlm_head", "task_head"}
  assert trained(dict(weights, pair_loss=np.float32(1e20))) == {"mlm_head"}
  assert trained(dict(weights, loss=np.float32(1e20))) == {"task_head"}


@pytest.mark.slow
def test_parts_of_a_batch_add_up_to_the_whole(pairs):
  """As accumulation takes them: masked tokens are not spread evenly over the parts."""
  params, batch = pairs
  divisors = Mlm().weights(batch)
  parts = [{k: v[rows] for k, v in batch.items()} for rows in ([0, 2], [1, 3])]
  counts = [Mlm().weights(part) for part in parts]
  assert {k: sum(float(c[k]) for c in counts) for k in divisors} == {
      k: float(d) for k, d in divisors.items()}
  assert float(counts[0]["loss"]) != float(counts[1]["loss"])
  add = lambda *trees: jax.tree.map(lambda *x: sum(x), *trees)
  assert_close(add(*(sums_of(PAIRS, params, part) for part in parts)),
               sums_of(PAIRS, params, batch))
  assert_close(add(*(gradients(PAIRS, params, part, divisors) for part in parts)),
               whole_gradients(PAIRS, params, batch))


@pytest.mark.slow
def test_packed_texts_have_the_loss_of_texts_alone(pairs):
  params, batch = pairs
  alone = {k: np.zeros((2, *v.shape[1:]), v.dtype) for k, v in batch.items()}
  alone["mlm_labels"][:] = -1
  for r, (text, places, labels, label) in enumerate(zip(
      TEXTS[0], ((1, 3), (1, 3)), ((2, 30), (9, 0)), PAIR_LABELS[0])):
    row = packed(text, length=T)
    for key in row:
      alone[key][r] = row[key][0]
    alone["mlm_positions"][r, :2], alone["mlm_labels"][r, :2] = places, labels
    alone["label"][r, 0] = label
  together = {k: v[:1] for k, v in batch.items()}
  assert_close(sums_of(PAIRS, params, together), sums_of(PAIRS, params, alone), 1e-4)


def test_dropout_is_on_in_training(pairs):
  params, batch = pairs
  loss = jax.jit(lambda seed: Mlm()(
      PAIRS, params, batch, train=True, rngs={"dropout": jax.random.key(seed)})["loss"][0])
  run = lambda seed: float(loss(seed))
  assert run(0) == run(0) != run(1)
  assert abs(run(0) - float(sums_of(PAIRS, params, batch)["loss"][0])) > 1e-3


def test_mlm_is_registered_and_reads_the_batch_as_it_is():
  batch = batch_of(True)
  assert OBJECTIVES["mlm"] is Mlm and Mlm().model_inputs(batch) is batch


def test_every_device_of_a_context_has_its_share_of_the_scores(case):
  model, params, batch = case
  sizes = dict(data=1, fsdp=1, tensor=1, context=4)
  with jax.set_mesh(sharding.make_mesh(sizes, jax.devices()[:4])):
    program = sums_of.lower(model, params, batch).compile()
  text = program.as_text()
  assert f"f32[4,{-(-K // 4)},{V}]" in text and f"f32[4,{K},{V}]" not in text
  for name, (value, weight) in sums_of(model, params, batch).items():
    found, found_weight = program(params, batch)[name]
    assert found_weight == weight
    np.testing.assert_allclose(found, value, rtol=1e-5)
