"""A published trained translator gives its published log-probabilities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn.shapes import shapes_of
from jtx.objectives.seq2seq import shift_right
from tests.helpers import one_fast
from tests.models import ct2


def log_probs(items) -> list[np.ndarray]:
  """Log-probability of every target token, its end included, for a batch of `items`."""
  vocabulary = ct2.vocabulary("target")
  targets = [[vocabulary.index(t) for t in item["target"]] + [ct2.EOS] for item in items]
  batch = {**ct2.source_batch([item["source"] for item in items]), **ct2.field("tgt", targets)}
  batch["tgt_in"] = shift_right(batch["tgt"], batch["tgt_segment_ids"], ct2.BOS)
  model, params = ct2.load()
  hidden = model.apply({"params": params}, batch)
  log_p = jax.nn.log_softmax(model.apply({"params": params}, hidden, method="logits"))
  log_p = jnp.take_along_axis(log_p, batch["tgt"][..., None], -1)[..., 0]
  return [np.asarray(row[:len(target)]) for row, target in zip(log_p, targets)]


@pytest.mark.parametrize("index", one_fast(0, 1))
def test_published_log_probabilities(index):
  item = ct2.expected()["items"][index]
  (ours,) = log_probs([item])
  np.testing.assert_allclose(ours, item["token_log_probs_incl_eos"], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_padding_a_batch_changes_nothing():
  items = ct2.expected()["items"]
  for ours, item in zip(log_probs(items), items):
    np.testing.assert_allclose(ours, item["token_log_probs_incl_eos"], rtol=0, atol=1e-5)


def test_every_parameter_is_loaded():
  model, params = ct2.load()
  batch = {**ct2.source_batch([["آ"]]), **ct2.field("tgt", [[ct2.EOS]])}
  batch["tgt_in"] = batch["tgt"]
  init = shapes_of(model.init, jax.random.key(0), batch)["params"]
  ours = {jax.tree_util.keystr(k): x.shape for k, x in jax.tree_util.tree_leaves_with_path(params)}
  made = {jax.tree_util.keystr(k).removesuffix(".value"): x.shape
          for k, x in jax.tree_util.tree_leaves_with_path(init)}
  assert ours == made
