"""A published decoder says what it was published to say."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.inference.decode import Ends, Sample
from jtx.inference.generate import generate
from tests.models import llama2c

pytestmark = pytest.mark.skipif("JTX_TEST_DATA" not in os.environ,
                                reason="JTX_TEST_DATA names no folder with golden/stories260K")


def test_greedy_tokens_and_their_log_probabilities():
  (model, params), expected = llama2c.load(), llama2c.expected()
  ids, log_probs = expected["greedy_ids_incl_bos"], expected["numpy_f64_greedy_logprobs"]
  out = generate(model, Sample(temperature=0.0), len(log_probs), Ends((2,), 0), params=params,
                 batch={}, prompt=jnp.array([[llama2c.BOS]]))
  text = [llama2c.BOS, *out.tokens[0, 0].tolist()]
  assert text[:len(ids)] == ids
  T = len(ids) - 1
  batch = {"text": jnp.array([ids[:-1]]), "text_segment_ids": jnp.ones((1, T), jnp.int32),
           "text_positions": jnp.arange(T)[None]}
  logits = jax.jit(lambda p: model.apply(
      {"params": p}, batch, method=lambda m, b: m.logits(m(b))))(params)
  found = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits))[0],
                             np.array(ids[1:])[:, None], 1)[:, 0]
  np.testing.assert_allclose(found, log_probs[:T], atol=1e-5)
  np.testing.assert_allclose(logits[0, 0, :8], expected["numpy_f64_first_step_logits_first8"],
                             atol=2e-5)
