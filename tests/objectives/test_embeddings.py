"""Losses of sentence embeddings: float64 NumPy, duplicates, packing, dropout views, devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.objectives.contrastive import Contrastive, LateInteraction
from jtx.objectives.cosine import Cosine
from jtx.objectives.embeddings import fingerprints
from jtx.parallel import sharding
from tests.objectives.test_texts import POSITIONS, SEGMENTS, TEXTS, Fixed, check, log_softmax


def fields(number):
  """A batch of `number` fields; its rows have two texts, one and none."""
  batch = {"matched": np.zeros((3, 2), np.int32)}
  for i in range(number):
    ids = np.random.default_rng(i).integers(1, 99, SEGMENTS.shape)
    batch |= {f"each_{i}": ids * (SEGMENTS > 0), f"each_{i}_segment_ids": SEGMENTS,
              f"each_{i}_positions": POSITIONS, f"each_{i}_types": SEGMENTS * 0}
  return batch


def outputs_of(number):
  """The head's outputs [F * 3, 2, D], with zeros where there is no text."""
  x = np.random.default_rng(number).normal(size=(number, 3, 2, 5)).astype(np.float32)
  x[:, 1, 1] = x[:, 2] = 0
  unit = x.astype(np.float64) / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-9)
  return x.reshape(-1, 2, 5), [np.stack([unit[f][t] for t in TEXTS]) for f in range(number)]


def run(objective, outputs, batch):
  sums = jax.jit(lambda x, batch: objective(Fixed(x), {}, batch, train=False))(outputs, batch)
  return jax.tree.map(float, sums)


def test_a_text_finds_its_pair_among_those_of_the_batch():
  """With two hard negatives each."""
  outputs, (a, *others) = outputs_of(4)
  batch = fields(4)
  logits = a @ np.concatenate(others).T / 0.3
  out = run(Contrastive(0.3), outputs, batch)
  check(out["loss"], -np.diagonal(log_softmax(logits)))
  check(out["accuracy"], logits.argmax(-1) == np.arange(3))
  check(out["similarity"], (a * others[0]).sum(-1))
  back = log_softmax((others[0] @ a.T) / 0.3)
  check(run(Contrastive(0.3, symmetric=True), outputs, batch)["loss"],
        -(np.diagonal(log_softmax(logits)) + np.diagonal(back)) / 2)
  assert float(Contrastive().weights(batch)["loss"]) == 3


def test_texts_that_are_a_texts_pair_are_no_negatives_of_it():
  outputs, (a, b) = outputs_of(2)
  batch = fields(2)
  batch["each_1"] = batch["each_1"].copy()
  batch["each_1"][1, :2] = batch["each_1"][0, 3:5]  # the second and third pair are of one text
  logits = a @ b.T / 0.05
  logits[1, 2] = logits[2, 1] = -np.inf
  check(run(Contrastive(), outputs, batch)["loss"], -np.diagonal(log_softmax(logits)))


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_text_finds_its_pair_by_the_vectors_of_tokens(symmetric):
  """With a hard negative each; the vectors of padding count for nothing."""
  x = np.random.default_rng(3).normal(size=(3, *SEGMENTS.shape, 5)).astype(np.float32)
  batch = fields(3)
  unit = x.astype(np.float64) / np.linalg.norm(x, axis=-1, keepdims=True)
  of = lambda field: [unit[field, row][SEGMENTS[row] == text + 1] for row, text in TEXTS]
  scores = np.array([[(a @ b.T).max(1).sum() for b in of(1) + of(2)] for a in of(0)])
  out = run(LateInteraction(0.7, symmetric=symmetric), x.reshape(-1, *x.shape[2:]), batch)
  loss = -np.diagonal(log_softmax(scores / 0.7))
  if symmetric:
    loss = (loss - np.diagonal(log_softmax(scores[:, :3].T / 0.7))) / 2
  check(out["loss"], loss)
  check(out["similarity"], np.diagonal(scores))
  check(out["accuracy"], scores.argmax(-1) == np.arange(3))


def test_fields_may_have_rows_of_lengths_of_their_own():
  """Short queries are not run as long as the texts: the model runs once for each length."""
  table = np.random.default_rng(4).normal(size=(99, 5)).astype(np.float32)
  shapes = []

  def tokens(batch):
    shapes.append(batch["text"].shape)
    return table[batch["text"]]

  def pooled(batch):
    own = batch["text_segment_ids"][:, None] == np.arange(1, 3)[:, None]
    return jnp.einsum("bst,btd->bsd", own.astype(jnp.float32), tokens(batch))

  alike, longer = fields(3), {}
  for key, x in alike.items():
    longer[key] = np.pad(x, ((0, 0), (0, 4))) if key.startswith(("each_1", "each_2")) else x
  for objective, outputs in ((Contrastive(), pooled), (LateInteraction(), tokens)):
    expected, found = (objective(Fixed(outputs), {}, batch, train=False)
                       for batch in (alike, longer))
    for name, (total, weight) in found.items():
      assert weight == 3
      np.testing.assert_allclose(total, expected[name][0], rtol=1e-5)
  assert shapes == [(9, 6), (3, 6), (6, 10)] * 2
  assert Contrastive().model_inputs(longer)["text"].shape == (9, 10)


def test_fingerprints_are_of_tokens_in_their_order():
  rows = np.array([[5, 6, 5, 6, 0, 0], [6, 5, 7, 7, 7, 0], [5, 6, 5, 6, 6, 5]])
  segments = np.array([[1, 1, 2, 2, 0, 0], [1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 2, 2]])
  positions = np.array([[0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 0, 1]])
  x = np.asarray(jax.jit(fingerprints, static_argnums=1)({
      "text": rows, "text_segment_ids": segments, "text_positions": positions}, 2))
  assert x[0, 0] == x[0, 1] and x[1, 0] == x[2, 1]
  assert len({*x.ravel().tolist()}) == 4  # 56, 65, 777 and 5656


def test_the_cosine_is_the_label():
  outputs, (a, b) = outputs_of(2)
  labels = np.array([[0.5, 1.0], [0.0, 9.0], [9.0, 9.0]], np.float32)
  out = run(Cosine(), outputs, {**fields(2), "label": labels})
  check(out["loss"], [((x * y).sum() - labels[t]) ** 2 for x, y, t in zip(a, b, TEXTS)])
  with pytest.raises(ConfigError, match="'cosine' compares two texts, and data.ops make 3"):
    Cosine().model_inputs(fields(3))


class Bag:
  """The mean of a text's rows of a table, through dropout."""

  def apply(self, variables, batch, num_texts, train, rngs=None, method=None):
    x = jnp.mean(variables["params"][batch["text"]], 1)
    if train:
      x *= jax.random.bernoulli(rngs["dropout"], 0.8, x.shape)
    return jnp.where(batch["text_segment_ids"][:, :1] > 0, x, 0)[:, None]


@pytest.mark.slow
def test_two_dropout_masks_of_a_text_and_the_same_loss_on_all_devices():
  """SimCSE: without dropout the views are one. A row without a text leaves the gradient finite."""
  ids = np.random.default_rng(1).integers(1, 13, (16, 4))
  segments = np.ones((16, 4), np.int32)
  segments[3] = ids[3] = 0
  field = {"": ids, "_segment_ids": segments, "_positions": np.tile(np.arange(4), (16, 1))}
  batch = {f"each_{i}{key}": x for i in range(2) for key, x in field.items()}
  batch |= {"matched": np.zeros((16, 1), np.int32)}
  table = jax.random.normal(jax.random.key(0), (13, 8))

  def loss(table, batch, train):
    sums = Contrastive()(Bag(), table, batch, train=train, rngs={"dropout": jax.random.key(5)})
    return sums["loss"][0] / sums["loss"][1], sums

  _, sums = loss(table, batch, False)
  assert float(sums["loss"][1]) == 15
  np.testing.assert_allclose(sums["similarity"][0], 15, rtol=1e-5)
  step = jax.jit(jax.value_and_grad(lambda *args: loss(*args, True), has_aux=True))
  mesh = sharding.make_mesh({"data": 8, "fsdp": 1, "tensor": 1, "context": 1}, jax.devices())
  rows = sharding.batch_sharding(mesh)
  spread = {key: jax.device_put(x, rows) for key, x in batch.items()}
  (one, sums), gradient = step(table, batch)
  (eight, _), other = step(table, spread)
  assert float(sums["similarity"][0]) < 14.5
  np.testing.assert_allclose(eight, one, rtol=1e-5)
  np.testing.assert_allclose(gradient, other, rtol=1e-4, atol=1e-6)
  assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0.01
