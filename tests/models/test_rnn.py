"""Recurrent networks over texts: prompts in shared rows, and what does not fit together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import classify
from jtx.errors import ConfigError
from jtx.models.rnn import Rnn
from jtx.models.rnn_encdec import RnnEmbeddingConfig
from jtx.nn.recurrent import CellConfig, RecurrentConfig
from jtx.nn.shapes import shapes_of
from tests.models.test_contract import drawn

V, D = 11, 6
LSTM = RecurrentConfig(dim=7, num_layers=2, cell=CellConfig(projection=D), residual=True)
MODEL = Rnn(vocab_size=V, recurrent=LSTM, lm=True,
            embedding=RnnEmbeddingConfig(width=D, tie=("output",)))


@pytest.mark.slow
def test_prompts_share_rows_and_go_on_as_the_full_pass_does():
  params = {"params": drawn(MODEL)}
  rows = jnp.array([[1, 5, 6, 9], [1, 8, 1, 0]])  # three prompts, of which two share a row
  starts, lengths = jnp.array([0, 4, 6]), jnp.array([4, 2, 1])
  logits, state = jax.jit(lambda: MODEL.apply(
      params, {}, 1, 2, rows, lengths, None, starts, method="start"))()
  tokens = jnp.array([3, 4, 7])
  stepped, _ = jax.jit(lambda state: MODEL.apply(
      params, tokens, state, jnp.array(1), method="step"))(state)
  whole = jnp.array([[1, 5, 6, 9, 3], [1, 8, 4, 0, 0], [1, 7, 0, 0, 0]])
  batch = {"text": whole, "text_segment_ids": (whole > 0).astype(int), "text_positions": whole * 0}
  full = jax.jit(lambda: MODEL.apply(params, MODEL.apply(params, batch), method="logits"))()
  for i, n in enumerate(lengths):
    np.testing.assert_allclose(logits[i], full[i, n - 1], atol=1e-5)
    np.testing.assert_allclose(stepped[i], full[i, n], atol=1e-5)


@pytest.mark.parametrize("fields, message", [
    (dict(recurrent=RecurrentConfig(bidirectional=True)), "a layer that reads backward has seen"),
    (dict(embedding=RnnEmbeddingConfig(width=D, tie=("source",))), "there is no source"),
    (dict(embedding=RnnEmbeddingConfig(width=5, tie=("output",))), "embedding.width=5 to be"),
    (dict(lm=False), "needs lm=True"),
])
def test_refusals(fields, message):
  model = MODEL.clone(**fields)
  with pytest.raises(ConfigError, match=message):
    shapes_of(model.init, jax.random.key(0), model.example())


def test_configs_of_tasks_take_recurrent_models():
  model = classify.get_config("model=lstm_2048,lm=0.5").model
  assert (model.name, model.lm, model.recurrent.dim, model.head.pool) == ("rnn", True, 2048, "last")
  for arg, what in (("features=last", "features is of encoders, and the model is a recurrent"),
                    ("freeze=1", "freeze and decay are of one stack of layers, and the model is")):
    with pytest.raises(ConfigError, match=what):
      classify.get_config(f"model=bilstm,{arg}")
