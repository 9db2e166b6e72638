"""Two towers: rows of several images and texts have the vectors of rows of one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import clip
from jtx.config import build
from jtx.errors import ConfigError
from jtx.models import MODELS
from jtx.objectives.image_text import ImageText
from jtx.parallel import sharding
from jtx.parallel.sharding import unbox
from tests.helpers import moved, one_fast

LENGTHS = (3, 5, 2, 4, 6)  # of texts
ROWS = ((0, 1, 2), (3,), (4,), ())  # which of them share a row
B, S, T = len(ROWS), 3, 12


@functools.cache
def made(argument="tiny"):
  """A model with random parameters, and five pairs, one a row."""
  c = clip.get_config(argument)
  c.model.vocab_size = 50
  model = build(MODELS, c.model, what="model")
  params = moved(unbox(model.init(jax.random.key(0), model.example())["params"]))
  random, size = np.random.default_rng(0), model.image.size
  places = np.arange(T)
  there = places < np.array(LENGTHS)[:, None]
  return model, params, {
      "image": random.integers(0, 255, (5, size, size, 1), np.uint8),
      "text": np.where(there, random.integers(3, 50, there.shape), 0).astype(np.int32),
      "text_segment_ids": there.astype(np.int32),
      "text_positions": np.where(there, places, 0).astype(np.int32),
      "real": np.ones((5, 1), np.int32)}


def packed(batch):
  """The pairs of a batch in rows of several."""
  result = {key: np.zeros((B, *((S,) if key == "image" else ()), *batch[key].shape[1:]),
                          batch[key].dtype) for key in batch}
  result["real"] = np.zeros((B, S), np.int32)
  for row, pairs in enumerate(ROWS):
    at = 0
    for segment, i in enumerate(pairs):
      place, own = slice(at, at + LENGTHS[i]), slice(LENGTHS[i])
      result["image"][row, segment] = batch["image"][i]
      for key in ("text", "text_positions"):
        result[key][row, place] = batch[key][i, own]
      result["text_segment_ids"][row, place] = segment + 1
      result["real"][row, segment], at = 1, place.stop
  return result


def test_rows_of_several_pairs_have_the_vectors_of_each():
  model, params, batch = made()
  rows = packed(batch)
  alone, together = (model.apply({"params": params}, x, method="vectors") for x in (batch, rows))
  real = rows["real"].reshape(-1) > 0
  for one, several in zip(alone, together):
    assert several.shape == (B * S, one.shape[1])
    np.testing.assert_allclose(several[real], one, atol=2e-6)


@pytest.mark.parametrize("devices", one_fast(2, 1))
def test_rows_of_several_pairs_have_the_loss_of_all(devices):
  """And its gradients, on several devices as on one."""
  model, params, batch = made()

  def run(batch, mesh):
    rows = sharding.batch_sharding(mesh)
    batch = {key: jax.device_put(x, rows) for key, x in batch.items()}
    objective = ImageText()

    def loss(params):
      sums = objective(model, params, batch, train=True)
      return sums["loss"][0] / objective.weights(batch)["loss"], sums["text_accuracy"]

    return jax.tree.map(np.asarray, jax.jit(jax.value_and_grad(loss, has_aux=True))(params))

  mesh = lambda n: sharding.make_mesh({"data": n}, jax.devices()[:n])
  (alone, (hits, number)), of_alone = run(batch, mesh(1))
  (together, counts), gradients = run(packed(batch), mesh(devices))
  assert abs(alone - together) < 1e-5 and counts == (hits, number) and number == 5
  largest = max(abs(x).max() for x in jax.tree.leaves(of_alone))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * largest), of_alone,
               gradients)


def test_texts_that_fill_their_rows_share_none():
  model, params, batch = made("small_siglip,tiny")
  with pytest.raises(ConfigError, match="fills a row as a part of its text, and rows here have up"
                     " to 3 texts"):
    model.apply({"params": params}, packed(batch), method="vectors")
  with pytest.raises(ConfigError, match="pack=2: texts of small_siglip fill their rows"):
    clip.get_config("small_siglip,pack=2")
  with pytest.raises(ConfigError, match="pack=0: must be 1 or more"):
    clip.get_config("pack=0")
  with pytest.raises(ConfigError, match="pack=3: a batch of 64 examples can.t be made of rows"):
    clip.get_config("pack=3")


def test_a_batch_of_packed_rows_has_as_many_pairs():
  alone, together = (clip.get_config(f"batch=32,{more}") for more in ("", "pack=4"))
  assert (alone.batch_size, together.batch_size) == (32, 8) and alone.optim.lr == together.optim.lr
  assert jnp.isclose(alone.optim.lr, 2e-3 * 0.5**0.5)
