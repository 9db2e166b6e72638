"""The loss of a set of boxes: float64 NumPy, padding, accumulation and meshes."""

import functools

import jax
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from jtx.objectives.boxes import generalized_iou
from jtx.objectives.contract import units_of
from jtx.objectives.detection import CostConfig, Detection
from jtx.parallel import sharding

RNG = np.random.default_rng(0)
L, B, Q, N, C = 2, 8, 6, 4, 3
NUMBER = np.array([2, 0, 4, 1, 3, 0, 1, 2])
CLASSES = np.where(np.arange(N) < NUMBER[:, None], RNG.integers(C, size=(B, N)), -1)
BOXES = np.where(CLASSES[..., None] >= 0, RNG.uniform(0.1, 0.9, (B, N, 4)), 0).astype(np.float32)
FOUND = {"logits": 2 * RNG.normal(size=(L, B, Q, C + 1)).astype(np.float32),
         "boxes": RNG.uniform(0.1, 0.9, (L, B, Q, 4)).astype(np.float32)}
BATCH = {"image": np.zeros((B, 8, 8, 3), np.float32), "size": np.full((B, 2), 8, np.int32),
         "boxes": BOXES, "box_classes": CLASSES.astype(np.int32)}
GIOU = np.asarray(jax.jit(generalized_iou)(FOUND["boxes"], BOXES))
OBJECTIVE = Detection(num_queries=Q)


class Fixed:
  """A model whose parameters are what it says of every batch."""

  def apply(self, variables, batch, train, rngs, method):
    assert method == "boxes" and set(batch) == {"image", "size"}
    return variables["params"]


@functools.partial(jax.jit, static_argnums=0)
def sums_and_weights(objective, batch, found):
  return objective(Fixed(), found, batch, train=False), objective.weights(batch)


def expected(objective=OBJECTIVE, rows=range(B)):
  """The three terms, each its sum over its divisor, by loops in float64."""
  terms, boxes = np.zeros(3), max(sum(NUMBER[b] for b in rows), 1)
  for layer in range(L):
    total = weight = 0
    for b in rows:
      logits = FOUND["logits"][layer, b].astype(np.float64)
      log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
      own, truth = FOUND["boxes"][layer, b].astype(np.float64), BOXES[b, :NUMBER[b]]
      l1 = np.abs(own[:, None] - truth).sum(-1)
      giou = GIOU[layer, b].astype(np.float64)[:, :NUMBER[b]]
      c = objective.cost
      cost = c.l1 * l1 - c.classes * np.exp(log_p)[:, CLASSES[b, :NUMBER[b]]] - c.giou * giou
      queries, objects = linear_sum_assignment(cost)
      target = np.full(Q, C)
      target[queries] = CLASSES[b, objects]
      weights = np.where(target == C, objective.no_object, 1)
      total -= (weights * log_p[np.arange(Q), target]).sum()
      weight += weights.sum()
      terms[1] += objective.l1 * l1[queries, objects].sum() / boxes
      terms[2] += objective.giou * (1 - giou[queries, objects]).sum() / boxes
    terms[0] += total / weight
  return terms


def terms(objective, batch):
  sums, weights = sums_and_weights(objective, batch, FOUND)
  assert set(weights) == {"loss", "l1_loss", "giou_loss"}
  return np.array([float(sums[key][0] / weights[key]) for key in ("loss", "l1_loss", "giou_loss")])


OTHER = Detection(1.0, 4.0, 0.5, CostConfig(3.0, 1.0, 0.5), num_queries=Q)


@pytest.mark.parametrize("objective", [OBJECTIVE, OTHER], ids=["", "other"])
def test_the_loss_is_that_of_the_paper(objective):
  np.testing.assert_allclose(terms(objective, BATCH), expected(objective), rtol=1e-5)


def test_rows_of_padding_count_for_nothing():
  real = (np.arange(B) < 5).astype(np.int32)[:, None]
  np.testing.assert_allclose(terms(OBJECTIVE, BATCH | {"real": real}), expected(rows=range(5)),
                             rtol=1e-5)


def test_images_without_boxes():
  none = BATCH | {"box_classes": np.full((B, N), -1, np.int32)}
  log_p = np.asarray(jax.nn.log_softmax(FOUND["logits"]))[..., -1]
  np.testing.assert_allclose(terms(OBJECTIVE, none), [-log_p.mean((1, 2)).sum(), 0, 0], rtol=1e-5)
  sums, _ = sums_and_weights(OBJECTIVE, none, FOUND)
  assert float(sums["accuracy"][1]) == float(sums["iou"][1]) == 0


@pytest.mark.parametrize("number, objects", [(8, True), (5, True), (5, False)])
def test_what_a_run_counts_are_images(number, objects):
  batch = BATCH | {"real": (np.arange(B) < number).astype(np.int32)[:, None]}
  if not objects:
    batch |= {"box_classes": np.full((B, N), -1, np.int32)}
  sums, _ = sums_and_weights(OBJECTIVE, batch, FOUND)
  logged = jax.tree.map(lambda x: 1000 * x, sums)  # of a thousand batches
  assert units_of(OBJECTIVE, logged) == 1000 * number


def test_metrics_are_of_the_objects_after_the_last_layer():
  said = np.full((L, B, Q, C + 1), -5.0, np.float32)
  said[..., -1] = 5
  boxes = np.full((L, B, Q, 4), 0.01, np.float32)
  for b in range(B):  # the queries from the last on have the objects, but for one of another class
    for n in range(NUMBER[b]):
      said[1, b, Q - 1 - n, (CLASSES[b, n] + (b == 0 and n == 0)) % C] = 9
      boxes[1, b, Q - 1 - n] = BOXES[b, n]
  sums, _ = sums_and_weights(OBJECTIVE, BATCH, {"logits": said, "boxes": boxes})
  sums = {key: tuple(map(float, pair)) for key, pair in sums.items()}
  assert sums["accuracy"] == (NUMBER.sum() - 1, NUMBER.sum())
  assert sums["iou"] == pytest.approx((NUMBER.sum(), NUMBER.sum()), rel=1e-5)


def test_a_run_that_diverges_is_told_of_and_not_waited_for():
  none = {key: np.full_like(x, np.nan) for key, x in FOUND.items()}
  assert np.isnan(float(sums_and_weights(OBJECTIVE, BATCH, none)[0]["loss"][0]))


@pytest.mark.slow
def test_parts_of_a_batch_and_meshes_give_the_same_gradient():
  """8 images: at once, in two strided parts, and on 8 devices, of which each matches its own."""
  divisors = OBJECTIVE.weights(BATCH)

  @jax.jit
  def gradient(found, part):
    loss = lambda found: sum(OBJECTIVE(Fixed(), found, part, train=False)[key][0] / w
                             for key, w in divisors.items())
    return jax.value_and_grad(loss)(found)

  loss, whole = gradient(FOUND, BATCH)
  assert float(loss) == pytest.approx(expected().sum(), rel=1e-5)
  halves = [gradient({key: x[:, i::2] for key, x in FOUND.items()},
                     {key: x[i::2] for key, x in BATCH.items()}) for i in range(2)]
  assert float(sum(half for half, _ in halves)) == pytest.approx(float(loss), rel=1e-5)
  close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
  for key, x in whole.items():
    close(np.stack([half[key] for _, half in halves], 2).reshape(x.shape), x)
  mesh = sharding.make_mesh({"data": 4, "fsdp": 2})
  rows = sharding.batch_sharding(mesh)
  layers = jax.NamedSharding(mesh, jax.P(None, *rows.spec))
  with jax.set_mesh(mesh):
    spread = jax.device_put((FOUND, BATCH), (dict.fromkeys(FOUND, layers), rows))
    split, of_mesh = gradient(*spread)
  assert float(split) == pytest.approx(float(loss), rel=1e-5)
  jax.tree.map(close, of_mesh, whole)
