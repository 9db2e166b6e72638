"""Losses of images and texts: the formulas in float64, chunks, meshes, padding and the limit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.two_towers import normed
from jtx.objectives.image_text import LOSSES, ImageText, limited
from jtx.parallel import sharding
from tests.helpers import one_fast

B, W, SCALE, BIAS = 16, 6, 7.0, -3.0
REAL = np.arange(B) < 13


def vectors(seed):
  return normed(jnp.asarray(np.random.default_rng(seed).normal(size=(B, W)), jnp.float32))


IMAGES, TEXTS = vectors(0), vectors(1)


class Given:
  """A model whose parameters are the vectors of a batch."""

  def apply(self, variables, batch, *, rngs, method):
    del rngs, method
    return variables["params"]


def loss(objective, params, real=REAL):
  batch = {"real": jnp.asarray(real[:, None], jnp.int32)}
  sums = objective(Given(), params, batch, train=True)
  return sums["loss"][0] / objective.weights(batch)["loss"], sums


PARAMS = IMAGES, TEXTS, jnp.log(SCALE), jnp.float32(BIAS)


def expected(kind):
  """In float64, of the images that are there."""
  images, texts = (np.asarray(x, np.float64)[REAL] for x in (IMAGES, TEXTS))
  scores = SCALE * images @ texts.T + BIAS
  own = np.eye(len(scores), dtype=bool)
  if kind == "sigmoid":
    return np.logaddexp(0, np.where(own, -scores, scores)).sum() / len(scores)
  nll = lambda s: np.log(np.exp(s).sum(1)) - s.diagonal()
  return (nll(scores) + nll(scores.T)).mean() / 2


@pytest.mark.parametrize("kind", LOSSES)
def test_the_loss_is_the_papers(kind):
  value, sums = loss(ImageText(loss=kind), PARAMS)
  assert abs(value - expected(kind)) < 1e-6 * expected(kind)
  cosines = np.asarray(IMAGES @ TEXTS.T)[:, REAL][REAL]
  right = np.arange(len(cosines))
  for name, found in (("image", cosines.argmax(1)), ("text", cosines.argmax(0))):
    hits, number = sums[f"{name}_accuracy"]
    assert (int(hits), int(number)) == ((found == right).sum(), REAL.sum())
  assert abs(sums["scale"][0] - SCALE) < 1e-5


@pytest.mark.parametrize("kind", one_fast(*LOSSES))
def test_chunks_and_meshes_change_nothing(kind):
  """Loss and gradients: of 16 rows at once, 4 at a time, 5 (so 4), and over eight devices."""
  def run(chunk, mesh=None):
    params = PARAMS
    if mesh is not None:
      rows = sharding.batch_sharding(mesh)
      params = *(jax.device_put(x, rows) for x in params[:2]), *params[2:]
    step = jax.jit(jax.value_and_grad(
        lambda params: loss(ImageText(loss=kind, chunk=chunk), params)[0]))
    return jax.tree.map(np.asarray, step(params))

  whole = run(0)
  largest = max(abs(x).max() for x in jax.tree.leaves(whole))
  differs = lambda other: max(jax.tree.leaves(jax.tree.map(
      lambda a, b: abs(a - b).max() / largest, whole, other)))
  assert differs(run(4)) < 1e-6 and differs(run(5)) < 1e-6
  mesh = sharding.make_mesh({"data": 4, "fsdp": 2})
  assert differs(run(0, mesh)) < 1e-6 and differs(run(4, mesh)) < 1e-6


def test_padding_is_no_negative():
  run = jax.jit(jax.value_and_grad(lambda params: loss(ImageText(), params)[0]))
  other = jnp.where(REAL[:, None], TEXTS, vectors(2))
  value, (of_images, of_texts, *_) = run((IMAGES, other, *PARAMS[2:]))
  assert value == run(PARAMS)[0]
  assert not of_images[~REAL].any() and not of_texts[~REAL].any() and of_texts[REAL].any()


def test_the_scale_has_a_limit_that_it_can_leave():
  at_limit, slope = jnp.log(200.0), jax.grad(lambda s, sign: sign * limited(s, 100.0))
  assert limited(at_limit, 100.0) == 100 and abs(limited(jnp.log(7.0), 100.0) - 7) < 1e-5
  assert slope(at_limit, -1.0) == 0 and slope(at_limit, 1.0) == 100
  assert abs(slope(jnp.log(7.0), -1.0) + 7) < 1e-5
  objective = functools.partial(loss, params=(IMAGES, TEXTS, at_limit, jnp.float32(0)))
  limits = {0.0: 200, 100.0: 100}
  assert {most: round(float(objective(ImageText(max_scale=most))[1]["scale"][0]))
          for most in limits} == limits


def test_an_unknown_loss():
  with pytest.raises(ConfigError, match="objective.loss='softmin': did you mean 'softmax'"):
    ImageText(loss="softmin")
