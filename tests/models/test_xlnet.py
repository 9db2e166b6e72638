"""XLNet's memory of rows before, and its fine-tuning; its streams are in test_plm.py."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import classify
from jtx import build
from jtx.errors import ConfigError
from jtx.models.xlnet import Xlnet
from jtx.nn.recurrence import remembered
from jtx.nn.transformer_xl import TransformerXl
from jtx.saved.folder import open_saved
from jtx.saved.pretrained import save_pretrained
from tests.helpers import block, encoder, one_fast
from tests.models.test_contract import drawn

V, T = 17, 5
BLOCK = block(num_heads=2, ffn_dim=12, dropout=0.0)
MODEL = Xlnet(vocab_size=V, stack=encoder(
    vocab_size=V, width=8, num_layers=2, position=TransformerXl(), block=BLOCK).stack)
TEXT = np.random.default_rng(0).integers(0, V, (2, 2 * T))


def rows(text):
  text = jnp.asarray(text)
  return {"text": text, "text_segment_ids": jnp.ones_like(text),
          "text_positions": jnp.broadcast_to(jnp.arange(text.shape[1]), text.shape)}


@pytest.mark.parametrize("length", one_fast(2, T))
def test_a_row_with_a_memory_is_the_end_of_a_longer_row(length):
  """The first half of which sees itself alone, and whose end, of that length, the second sees.

  Queries for tokens of the second half see it as well, by its places.
  """
  place = np.arange(2 * T)
  first, kept = place < T, place >= T - length
  pairs = np.where(first[:, None], first, kept)
  whole = rows(TEXT) | {"text_pairs": jnp.asarray(np.stack([pairs] * 2))}

  @jax.jit
  def run(params):
    apply = lambda *args, **more: MODEL.apply({"params": params}, *args, **more)
    _, memory = apply(rows(TEXT[:, :T]), length, method="remember")
    behind = rows(TEXT[:, T:])
    with_memory = behind | {"text_memory": memory}
    queries = (apply(with_memory | {"text_pairs": order[:, T:, T:]}, at, method="streams")[1],
               apply(whole | {"text_pairs": order}, at + T, method="streams")[1])
    return memory, apply(with_memory), apply(behind), apply(whole)[:, T:], queries

  order = jnp.asarray(np.stack([pairs & (first[:, None] | (place < place[:, None]))] * 2))
  at = jnp.array([[0, 2], [1, T - 1]])
  memory, ours, without, expected, queries = run(drawn(MODEL))
  assert memory.shape == (2, 2, length, 8)
  np.testing.assert_allclose(ours, expected, atol=1e-5)
  assert np.abs(ours - without).max() > 1e-2
  np.testing.assert_allclose(*queries, atol=1e-5)


def test_a_memory_is_the_last_inputs_and_has_no_gradient():
  states, inputs = jnp.zeros((2, 1, 3, 4)), jnp.ones((2, 1, 2, 4))
  kept = lambda length: np.asarray(remembered(inputs, states, length))[0, 0, :, 0].tolist()
  assert kept(1) == [1] and kept(4) == [0, 0, 1, 1] and kept(9) == [0, 0, 0, 1, 1]
  loss = lambda memory, params: MODEL.apply(
      {"params": params}, rows(TEXT[:, :T]) | {"text_memory": memory}).sum()
  assert not np.asarray(jax.jit(jax.grad(loss))(jnp.ones((2, 2, 3, 8)), drawn(MODEL))).any()


def test_a_memory_of_other_layers_is_refused():
  stack = encoder(vocab_size=V, width=8, num_layers=2, position=TransformerXl(),
                  block=block(BLOCK, norm_position="pre")).stack
  with pytest.raises(ConfigError, match="norm.position='pre': a memory is of layers that are all"):
    jax.eval_shape(MODEL.clone(stack=stack).init, jax.random.key(0),
                   rows(TEXT) | {"text_memory": jnp.zeros((2, 2, 3, 8))})


@pytest.mark.slow
def test_fine_tuning_goes_on_from_a_folder(tmp_path):
  """Of the same family, without the head of pretraining; layers are frozen by their own paths."""
  path, params = str(tmp_path / "model"), drawn(MODEL.clone(plm=True))
  save_pretrained(path, MODEL.clone(plm=True), params, format="jtx")
  c = classify.get_config(f"init={path},freeze=1")
  model, _ = build.make_model(c, {"vocab_size": V, "head.outputs": 3})
  assert type(model) is Xlnet and model.heads == {"classes"}
  assert model.stack == dataclasses.replace(MODEL.stack, unroll=c.model.stack.unroll)
  found, missing = open_saved(path).params_for(model)
  assert missing and all(name.startswith("task_head/") for name in missing)
  jax.tree.map(np.testing.assert_array_equal, found, {k: params[k] for k in found})
  assert dict(c.optim.lr_mults)["^encoder/layers/0/"] == 0.0
