"""Losses and gradients of masked tokens on meshes whose devices share a row's length.

The number of slots, 5, is one that no mesh divides, and neither is the size of the vocabulary.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.models.encoder import BERT_STACK
from jtx.models.masked import MaskedConfig
from jtx.models.text_head import HeadConfig
from jtx.models.xlnet import Xlnet
from jtx.nn.transformer_xl import TransformerXl
from jtx.objectives.distill import Distill
from jtx.objectives.distilled import Distilled
from jtx.objectives.electra import ReplacedTokens
from jtx.objectives.mlm import Mlm
from jtx.objectives.plm import Plm
from jtx.objectives.sums import even_slots
from jtx.objectives.terms import Soft
from jtx.parallel import sharding
from tests.helpers import block, encoder, one_fast_row
from tests.models.test_contract import drawn
from tests.objectives import test_electra

V, B, T, K = 23, 4, 16, 5
ENCODER = encoder(vocab_size=V, width=8, num_layers=2, mlm=True, block=block(
    BERT_STACK.block, num_heads=2, ffn_dim=12, dropout=0.1))
PAIRS = ENCODER.clone(head=HeadConfig(task="next_sentence", transform="tanh"))
DECODED = ENCODER.clone(masked=MaskedConfig(positions=T))
XLNET = Xlnet(vocab_size=V, plm=True, stack=encoder(
    vocab_size=V, width=8, num_layers=2, position=TransformerXl(),
    block=block(num_heads=2, ffn_dim=12, dropout=0.1)).stack)
ELECTRA = test_electra.MODEL
TAUGHT = Distill(teacher="folder").taught_by(ENCODER)
SOFT = Distilled(Mlm(), (Soft(),), teacher="folder", model=ENCODER)
CASES = {"mlm": (ENCODER, Mlm()), "pairs": (PAIRS, Mlm(pairs=True)), "decoder": (DECODED, Mlm()),
         "electra": (ELECTRA, ReplacedTokens()), "taught": (ENCODER, TAUGHT),
         "soft": (ENCODER, SOFT), "plm": (XLNET, Plm())}
MESHES = {"context": dict(context=4), "both": dict(tensor=2, context=2),
          "fsdp": dict(fsdp=2, tensor=2, context=2), "tensor": dict(data=2, tensor=2)}


def batch():
  draws = np.random.default_rng(0)
  segments = np.where(np.arange(T) < 12, 1, 2) * np.ones((B, 1), int)
  at = np.stack([draws.permutation(np.arange(1, T))[:K] for _ in range(B)])
  labels = draws.integers(1, V, (B, K))
  labels[1, 3:] = -1
  arrays = {"text": draws.integers(1, V, (B, T)), "text_segment_ids": segments,
            "text_positions": np.broadcast_to(np.arange(T), (B, T)), "text_types": segments - 1,
            "mlm_positions": np.where(labels < 0, 0, at), "mlm_labels": labels}
  return {name: jnp.asarray(x, jnp.int32) for name, x in arrays.items()}


@pytest.mark.parametrize("case, mesh", one_fast_row(
    ("mlm", "both"), ("plm", "both"), ("electra", "both"), ("pairs", "fsdp"), ("decoder", "tensor"),
    ("decoder", "both"), ("taught", "fsdp"), ("soft", "both"), ("mlm", "context"),
    ("electra", "context")))
def test_losses_and_gradients_are_those_of_one_device(case, mesh):
  (model, objective), sizes = CASES[case], MESHES[mesh]
  teacher = {}
  if case in ("taught", "soft"):
    teacher = {"teacher": jax.tree.map(jnp.flip, drawn(ENCODER))}
  params, rows = drawn(model), batch()
  if case == "pairs":
    rows["label"] = rows["text"][:, :2] % 2

  def loss(params, rows):
    sums = objective(model, params, rows, train=True, rngs={"dropout": jax.random.key(3)},
                     **teacher)
    return sum(value / weight for name, (value, weight) in sums.items() if "loss" in name), sums

  gradient = jax.value_and_grad(loss, has_aux=True)
  alone = jax.jit(gradient)(params, rows)
  m = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1) | sizes,
                         jax.devices()[:np.prod(list(sizes.values()))])
  place = jax.sharding.NamedSharding(m, jax.sharding.PartitionSpec())
  with jax.set_mesh(m):
    found = jax.jit(gradient, out_shardings=place)(
        jax.device_put(params, place), jax.device_put(rows, sharding.batch_sharding(m)))
  assert not any(np.isnan(x).any() for x in jax.tree.leaves(alone))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * max(np.abs(b).max(), 1e-2))


def test_slots_that_devices_add_are_empty():
  rows = batch()
  assert even_slots(rows) is rows and even_slots({"text": rows["text"]}).keys() == {"text"}
  with jax.set_mesh(sharding.make_mesh(dict.fromkeys(sharding.AXES, 1) | MESHES["both"],
                                       jax.devices()[:4])):
    more = even_slots(rows)
    assert even_slots(more) is more
  assert more["mlm_labels"].shape == more["mlm_positions"].shape == (B, 8)
  for key, value in (("mlm_labels", -1), ("mlm_positions", 0)):
    np.testing.assert_array_equal(more[key][:, :K], rows[key])
    np.testing.assert_array_equal(more[key][:, K:], value)
