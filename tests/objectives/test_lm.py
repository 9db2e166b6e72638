"""The language-modelling loss against float64 NumPy, and what is predicted of a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.models.decoder import Decoder
from jtx.objectives.cross_entropy import cross_entropy
from jtx.objectives.lm import Lm, next_tokens
from jtx.parallel.sharding import make_mesh
from tests.helpers import block, decoder, one_fast
from tests.models.test_contract import drawn

V, D = 11, 8
LAYER = dict(num_heads=2, ffn_dim=12, norm_position="pre")
MODEL = decoder(vocab_size=V, width=D, num_layers=2, block=block(**LAYER))
PREFIX = MODEL.clone(stack=decoder(vocab_size=V, width=D, num_layers=2, block=block(**LAYER),
                                   pattern=("prefix",)).stack)
DOCUMENTS = [[5, 6, 9, 2, 8], [4, 7], [7, 3, 10, 1], [9]]


def rows(*groups, length=8, **flags):
  """A batch of rows, each of some of the DOCUMENTS by number; flags are lists a document each."""
  fields = {"text": DOCUMENTS, **flags}
  batch = {key: np.zeros((len(groups), length), np.int32)
           for key in (*fields, "text_segment_ids", "text_positions")}
  for r, group in enumerate(groups):
    at = 0
    for segment, number in enumerate(group, 1):
      n = len(DOCUMENTS[number])
      for key, values in fields.items():
        batch[key][r, at:at + n] = values[number]
      batch["text_segment_ids"][r, at:at + n] = segment
      batch["text_positions"][r, at:at + n] = np.arange(n)
      at += n
  return {key: jnp.asarray(value) for key, value in batch.items()}


PACKED, ALONE = rows((0, 1), (2, 3)), rows((0,), (1,), (2,), (3,))


@pytest.fixture(scope="module")
def params():
  return drawn(MODEL)


@functools.partial(jax.jit, static_argnums=(0, 1))
def sums(objective, model, params, batch):
  return objective(model, params, batch, train=False)


def expected_sums(model, params, batch, predicted, smoothing=0.0, z=0.0):
  """Sums in float64 over `predicted`, the (row, place) of tokens that are predicted."""
  logits = model.apply({"params": params}, batch, method=lambda m, b: m.logits(m(b)))
  logits, loss, nll, hits = np.asarray(logits, np.float64), 0.0, 0.0, 0
  for r, place in predicted:
    row, label = logits[r, place - 1], batch["text"][r, place]
    log_z = np.log(np.exp(row).sum())
    target = (1 - smoothing) * np.eye(V)[label] + smoothing / V
    loss += -(target * (row - log_z)).sum() + z * log_z**2
    nll += log_z - row[label]
    hits += row.argmax() == label
  return {"loss": loss, "nll": nll, "accuracy": hits}


def check(got, expected, number):
  assert got.keys() == expected.keys()
  for name, (total, weight) in got.items():
    assert weight == number
    np.testing.assert_allclose(total, expected[name], rtol=2e-5, err_msg=name)


# Of PACKED: all tokens but the first of each document.
LATER = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 6), (1, 1), (1, 2), (1, 3)]


@pytest.mark.parametrize("fields", one_fast(
    dict(smoothing=0.2, z=0.3), {}, dict(smoothing=0.2), dict(z=0.3)))
def test_sums_over_the_tokens_that_follow_one(params, fields):
  objective = Lm(label_smoothing=fields.get("smoothing", 0.0), z_loss=fields.get("z", 0.0))
  assert objective.weights(PACKED) == {"loss": 8}
  check(sums(objective, MODEL, params, PACKED),
        expected_sums(MODEL, params, PACKED, LATER, **fields), 8)


def test_the_z_loss_of_logits_by_hand():
  logits = jnp.log(jnp.array([1.0, 2.0, 5.0]))  # Z is 8
  loss, nll = cross_entropy(logits, jnp.array(1), 0.0, z_loss=0.5)
  np.testing.assert_allclose(nll, np.log(4), rtol=1e-6)
  np.testing.assert_allclose(loss, np.log(4) + 0.5 * np.log(8)**2, rtol=1e-6)


def test_what_is_predicted_by_hand():
  segments = jnp.array([[1, 1, 1, 2, 2, 0]])
  batch = {"text": jnp.array([[4, 5, 6, 7, 8, 9]]), "text_segment_ids": segments}
  np.testing.assert_array_equal(next_tokens(batch), [[5, 6, -1, 8, -1, -1]])
  answers = {**batch, "text_answers": jnp.array([[0, 0, 1, 1, 1, 1]], jnp.uint8)}
  np.testing.assert_array_equal(next_tokens(answers), [[-1, 6, -1, 8, -1, -1]])
  prefix = {**batch, "text_prefix": jnp.array([[1, 1, 0, 1, 0, 0]], jnp.uint8)}
  np.testing.assert_array_equal(next_tokens(prefix), [[-1, 6, -1, 8, -1, -1]])
  # Running text, whose last token predicts the first of another row.
  running = {**batch, "text_next": jnp.array([[5, 6, 3, -1, 2, 0]])}
  np.testing.assert_array_equal(next_tokens(running), [[5, 6, 3, -1, 2, -1]])
  both = {**running, "text_prefix": prefix["text_prefix"]}
  np.testing.assert_array_equal(next_tokens(both), [[-1, 6, 3, -1, 2, -1]])


def test_packed_documents_are_those_alone(params):
  packed, alone = (sums(Lm(z_loss=0.1), MODEL, params, batch) for batch in (PACKED, ALONE))
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)
  jax.tree.map(close, packed, alone)


def test_answers_only(params):
  flags = [[0, 0, 0, 1, 1], [0, 1], [1, 0, 0, 1], [1]]
  batch = rows((0, 1), (2, 3), text_answers=flags)
  predicted = [(0, 3), (0, 4), (0, 6), (1, 3)]
  assert Lm().weights(batch) == {"loss": 4}
  check(sums(Lm(), MODEL, params, batch), expected_sums(MODEL, params, batch, predicted), 4)


def test_a_prefix_is_seen_by_all_and_not_predicted(params):
  batch = rows((0, 1), (2, 3), text_prefix=[[1, 1, 1, 0, 0], [1, 0], [1, 1, 0, 0], [1]])
  predicted = [(0, 3), (0, 4), (0, 6), (1, 2), (1, 3)]
  got = sums(Lm(), PREFIX, params, batch)
  check(got, expected_sums(PREFIX, params, batch, predicted), 5)
  # The first token of a prefix sees its last, which it does not where layers are causal.
  changed = {**batch, "text": batch["text"].at[0, 2].set(3)}
  hidden = lambda model, batch: np.asarray(model.apply({"params": params}, batch))[0, 0]
  assert np.abs(hidden(PREFIX, batch) - hidden(PREFIX, changed)).max() > 1e-3
  np.testing.assert_array_equal(hidden(MODEL, batch), hidden(MODEL, changed))


@functools.partial(jax.jit, static_argnums=0)
def value_and_grads(objective, params, batch):
  def loss(params):
    out = objective(MODEL, params, batch, train=False)
    return out["loss"][0] / objective.weights(batch)["loss"], out
  return jax.value_and_grad(loss, has_aux=True)(params)


def close_grads(got, expected):
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
  jax.tree.map(close, got, expected)


@pytest.mark.parametrize("chunk", one_fast(3, 4, 100))
def test_chunks_change_nothing(params, chunk):
  fields = dict(label_smoothing=0.1, z_loss=0.2)
  close_grads(value_and_grads(Lm(**fields, logits_chunk=chunk), params, PACKED),
              value_and_grads(Lm(**fields), params, PACKED))


@pytest.mark.slow
def test_gradients_of_parts_add_up(params):
  """As `train_step` accumulates them: parts of other numbers of tokens over the whole divisor."""
  objective = Lm(z_loss=0.1)
  _, whole = value_and_grads(objective, params, PACKED)
  total = objective.weights(PACKED)["loss"]

  def part(r):
    of_row = jax.tree.map(lambda x: x[r:r + 1], PACKED)
    loss = lambda p: objective(MODEL, p, of_row, train=False)["loss"][0] / total
    return jax.grad(loss)(params)

  close_grads(jax.tree.map(jnp.add, part(0), part(1)), whole)


@pytest.mark.slow
def test_on_a_mesh(params):
  expected = value_and_grads(Lm(logits_chunk=3), params, PACKED)
  mesh = make_mesh({"data": 2, "fsdp": 1, "tensor": 1, "context": 1}, jax.devices()[:2])
  with jax.set_mesh(mesh):
    close_grads(value_and_grads(Lm(logits_chunk=3), params, PACKED), expected)


def test_an_empty_batch_is_zeros(params):
  data = {k: jnp.zeros_like(x) for k, x in PACKED.items()}
  assert all(s == 0 and w == 0 for s, w in sums(Lm(), MODEL, params, data).values())


def test_padding_has_no_influence(params):
  noise = {**PACKED, "text": jnp.where(PACKED["text_segment_ids"] == 0, 4, PACKED["text"])}
  plain, noisy = (sums(Lm(), MODEL, params, batch) for batch in (PACKED, noise))
  jax.tree.map(np.testing.assert_array_equal, noisy, plain)


def test_it_needs_scores_of_next_tokens():
  assert Lm.heads <= Decoder(vocab_size=V).heads
  assert not Lm.heads <= Decoder(vocab_size=V, lm=False).heads
