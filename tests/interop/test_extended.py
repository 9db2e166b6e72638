"""Models with more tokens or longer texts: their parameters, outputs and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.interop.extended import lengthened, with_tokens
from jtx.models.global_tokens import GlobalConfig, of_text
from jtx.models.text_head import HeadConfig
from jtx.nn.positions import Learned
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from tests.helpers import block, encoder

BLOCK = block(num_heads=2, ffn_dim=12, attention_bias=True)
SIZE = dict(vocab_size=9, width=8, num_layers=2, block=BLOCK)
TOKENS = np.array([[4, 5, 2, 6, 7, 3]], np.int32)


def drawn(model):
  shapes = unbox(shapes_of(model.init, jax.random.key(0), model.example())["params"])
  random = np.random.default_rng(0)
  return jax.tree.map(lambda x: random.normal(size=x.shape).astype(np.float32), shapes)


def batch_of(tokens):
  ones = np.ones_like(tokens)
  return {"text": tokens, "text_segment_ids": ones, "text_positions": np.cumsum(ones, 1) - 1}


def logits(model, params, batch):
  return np.asarray(model.apply({"params": params}, batch, method=lambda m, b: m.mlm_logits(m(b))))


def test_a_new_token_is_the_mean_of_its_pieces():
  model = encoder(**SIZE, position=Learned(8), mlm=True)
  params = drawn(model)
  wider, new = with_tokens(model, params, 9, [(4, 5), (3, 3, 8)])
  assert wider.vocab_size == 11
  for path in (("embed", "embedding"), ("mlm_head", "bias")):
    old, more = (p[path[0]][path[1]] for p in (params, new))
    np.testing.assert_array_equal(more[:9], old)
    np.testing.assert_allclose(more[9:], [old[[4, 5]].mean(0), old[[3, 3, 8]].mean(0)], rtol=1e-6)
  batch = batch_of(TOKENS)
  np.testing.assert_array_equal(logits(wider, new, batch)[..., :9], logits(model, params, batch))


def test_rows_that_stood_for_nothing_are_taken():
  model = encoder(**SIZE, position=Learned(8), mlm=True)
  params = drawn(model)
  same, new = with_tokens(model, params, 7, [(1, 2)])
  assert same.vocab_size == 9
  old, more = (p["embed"]["embedding"] for p in (params, new))
  np.testing.assert_allclose(more[7], old[[1, 2]].mean(0), rtol=1e-6)
  np.testing.assert_array_equal(np.delete(more, 7, 0), np.delete(old, 7, 0))


def test_a_long_encoder_is_the_short_one_where_its_window_holds_a_text():
  """And its positions begin again behind those of the short one."""
  model = encoder(**SIZE, position=Learned(8, first_position=2), mlm=True)
  params = drawn(model)
  longer, new = lengthened(model, params, 15, 12, separator=3)
  assert longer.globals == GlobalConfig(tokens="none") and longer.stack.window == 6
  table, old = new["position_embedding"], params["position_embedding"]
  np.testing.assert_array_equal(table, old[[0, 1, *(2 + i % 6 for i in range(15))]])
  batch = batch_of(TOKENS)
  for flags in (None, np.array([[1, 0, 0, 1, 0, 0]])):
    own = batch if flags is None else {**batch, "text_global": flags}
    np.testing.assert_allclose(logits(longer, new, own), logits(model, params, batch), atol=2e-5)


def test_what_can_not_be_lengthened():
  model = encoder(**SIZE, position=Learned(8), head=HeadConfig(task="span", pool="none"))
  make = lambda **more: lengthened(
      model, drawn(model), **{"max_length": 16, "window": 4, "separator": 3} | more)
  assert make()[0].globals == GlobalConfig(tokens="first_text", separator=3)
  with pytest.raises(ConfigError, match="max_length=8 must be more than the 8 tokens"):
    make(max_length=8)
  with pytest.raises(ConfigError, match="window=5 must be an even number"):
    make(window=5)
  model = encoder(**SIZE, position=Rope())
  with pytest.raises(ConfigError, match="only an encoder with learned positions"):
    make()


def test_global_tokens_of_the_first_and_of_the_second_text():
  """Of rows of pairs with one separator and with two, packed and padded."""
  s = [0, 0, 1, 1, 0, 1, 0, 1, 0, 1, 0]
  positions = [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 0]
  run = lambda second: of_text(jnp.array([s], bool), jnp.array([positions]), second=second)
  # <s> A </s> </s> B </s>, then A </s> B </s>, then a token of a third text.
  assert run(False)[0].astype(int).tolist() == [1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1]
  assert run(True)[0].astype(int).tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 1, 1, 0]
