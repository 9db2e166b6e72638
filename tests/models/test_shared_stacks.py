"""An encoder with the parameters of the decoder's layers equals one with copies of them."""

import dataclasses
import functools
import math
import re

from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.inference import decode, generate
from jtx.nn.mixture import ExpertsConfig
from jtx.nn.positions import Learned
from jtx.nn.relative import T5Bias
from jtx.nn.shapes import shapes_of
from jtx.objectives.seq2seq import Seq2Seq
from jtx.parallel import sharding
from jtx.parallel.sharding import unbox
from jtx.train.flops import count
from jtx.train.layer_sums import LOSS, sums_of
from tests.helpers import block, encdec, one_fast

V, BOS, OBJECTIVE = 11, 1, Seq2Seq(1)


def model(shared=True, **fields):
  layer = block(num_heads=2, ffn_dim=12, norm_position=fields.pop("norm_position", "pre"),
                dropout=fields.pop("dropout", 0.0))
  size = {"vocab_size": V, "width": 8, "num_layers": 3, "block": layer,
          "position": T5Bias(num_buckets=8, max_distance=8, init_std=0.5)}
  return encdec(**size | fields).clone(share_stacks=shared)


def batch(rows=2, length=6):
  draws = np.random.default_rng(1)
  one = lambda: {"": draws.integers(2, V, (rows, length)).astype(np.int32),
                 "_segment_ids": np.repeat([[1, 1, 1, 1, 2, 2]], rows, 0).astype(np.int32),
                 "_positions": np.repeat([[0, 1, 2, 3, 0, 1]], rows, 0).astype(np.int32)}
  return {f"{field}{key}": jnp.asarray(x) for field in ("src", "tgt") for key, x in one().items()}


BATCH = batch()
INPUTS = OBJECTIVE.model_inputs(BATCH)


def shapes(module):
  return unbox(shapes_of(module.init, jax.random.key(0), INPUTS))["params"]


def random(module):
  leaves, tree = jax.tree.flatten(shapes(module))
  draws = np.random.default_rng(0)
  return tree.unflatten([jnp.asarray(draws.normal(size=x.shape) / 2, jnp.float32) for x in leaves])


def copied(params):
  """The parameters of a model that shares nothing, with copies of the decoder's layers."""
  crossing = lambda path: any(part.startswith("cross_attention") for part in path)
  own = {path: x for path, x in flatten_dict(params["decoder"]).items() if not crossing(path)}
  encoder = {}
  for (*path, last), x in own.items():
    functools.reduce(lambda node, part: node.setdefault(part, {}), path, encoder)[last] = x
  return {**params, "encoder": encoder}


def close(actual, desired, tol=2e-5):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tol, atol=tol), actual, desired)


CASES = {
    "t5": {},
    "post": dict(norm_position="post", position=Learned(max_length=8), position_at="layers"),
    "sandwich": dict(norm_position="sandwich", share=True),
    "per_layer": dict(position=T5Bias(num_buckets=8, max_distance=8, per_layer=True)),
    "segments": dict(block=block(num_heads=2, ffn_dim=12, norm_position="pre", dropout=0.0,
                                 attention_norm=False)),
}


@pytest.mark.parametrize("case", one_fast(*CASES))
def test_it_equals_a_model_with_copies(case):
  """Also in the gradient, in which what is shared has the sum of both stacks'."""
  shared, apart = model(**CASES[case]), model(shared=False, **CASES[case])
  params = random(shared)
  copies = copied(params)
  assert jax.tree.map(jnp.shape, copies) == jax.tree.map(jnp.shape, shapes(apart))
  loss = lambda module: jax.jit(jax.value_and_grad(
      lambda p: OBJECTIVE(module, p, BATCH, train=True)["loss"][0]))
  value, gradient = loss(shared)(params)
  expected, of_copies = loss(apart)(copies)
  close(value, expected)
  encoder = flatten_dict(of_copies.pop("encoder"))
  added = flatten_dict(of_copies["decoder"])
  assert all(np.abs(x).max() > 0 for x in encoder.values())
  added |= {path: added[path] + x for path, x in encoder.items()}
  close(flatten_dict(gradient["decoder"]), added, 1e-4)
  close({k: v for k, v in gradient.items() if k != "decoder"},
        {k: v for k, v in of_copies.items() if k != "decoder"}, 1e-4)


def test_weights_and_decoding_equal_those_of_copies():
  shared, apart = model(), model(shared=False)
  params = random(shared)
  run = lambda module, p, method, *args: jax.jit(functools.partial(
      module.apply, method=method))({"params": p}, *args)
  found, expected = (run(m, p, "attention_weights", INPUTS)
                     for m, p in ((shared, params), (apart, copied(params))))
  assert set(found) == {"encoder", "decoder", "cross"}
  close(found, expected)
  # The encoder sees later tokens by the same table of biases, of which it reads other rows.
  assert np.triu(found["encoder"][0, 0, 0, :4, :4], 1)[0].max() > 0
  source = {key: x for key, x in BATCH.items() if key.startswith("src")}
  searched = [jax.jit(lambda p, m=m: generate.generate.__wrapped__(
      m, decode.Beam(beam=2, n_best=2), 5, decode.Ends((V - 1,), 0), params=p, batch=source,
      prompt=jnp.full((2, 1), BOS)))(p) for m, p in ((shared, params), (apart, copied(params)))]
  np.testing.assert_array_equal(searched[0].tokens, searched[1].tokens)
  close(searched[0].scores, searched[1].scores)


@pytest.mark.slow
@pytest.mark.parametrize("fields", [dict(unroll=-1), dict(remat="full"), dict(unroll=2),
                                    dict(remat="dots")], ids=str)
def test_a_loop_and_rematerialisation_change_nothing(fields):
  params = random(model(dropout=0.3))
  values = [jax.jit(jax.value_and_grad(lambda p, m=m: OBJECTIVE(
      m, p, BATCH, train=True, rngs={"dropout": jax.random.key(3)})["loss"][0]))(params)
            for m in (model(dropout=0.3), model(dropout=0.3, **fields))]
  close(*values, 1e-4)


@pytest.mark.parametrize("shared", [True, False])
def test_encoder_and_decoder_keep_arrays_of_different_types(shared):
  """Else XLA takes the zeros that both loops begin with for one array; see jtx/nn/kept.py."""
  module = model(shared, remat="cheap", dtype="bfloat16")
  text = str(jax.make_jaxpr(jax.grad(lambda p: OBJECTIVE(
      module, p, BATCH, train=True)["loss"][0]))(random(module)))
  kept = lambda kind: len(re.findall(rf"\b{kind}\[3,2,6,\d+\]", text))
  assert kept("i16") and kept("u16") > kept("i16")  # cross-attention has a residual of its own


def test_layers_have_dropout_of_their_own_in_each_stack():
  """With a bias of 1 for output, a layer adds 0 or 1 / (1 - rate)."""
  module = model(dropout=0.25, num_layers=1, final_norm=False)
  params = jax.tree.map(jnp.zeros_like, random(module))
  params["decoder"]["layers"]["ffn"]["out"]["bias"] += 1
  rows = {key: jnp.concatenate([x] * 40) for key, x in INPUTS.items()}

  @jax.jit
  def run(key):
    apply = functools.partial(module.apply, {"params": params}, rows, train=True,
                              rngs={"dropout": key})
    memory, _ = apply(method="encode")
    return memory, module.apply({"params": params}, rows, memory, True, method="decode",
                                rngs={"dropout": key})[0]

  encoded, decoded = run(jax.random.key(0))
  np.testing.assert_allclose(np.unique(encoded), [0, 4 / 3], rtol=1e-6)
  assert abs((encoded > 0).mean() - 0.75) < 0.02
  assert abs(((encoded > 0) == (decoded > 0)).mean() - (0.75**2 + 0.25**2)) < 0.03
  again, other = run(jax.random.key(0))[0], run(jax.random.key(1))[0]
  np.testing.assert_array_equal(again, encoded)
  assert (np.asarray(other) != encoded).any()


@pytest.mark.parametrize("axes", one_fast(dict(data=2, fsdp=2, tensor=2), dict(fsdp=4)), ids=str)
def test_sharded_equals_unsharded(axes):
  module = model()
  params = random(module)
  mesh = sharding.make_mesh({"data": 1, "fsdp": 1, "tensor": 1, "context": 1} | axes,
                            jax.devices()[:math.prod(axes.values())])
  boxed = shapes_of(module.init, jax.random.key(0), INPUTS)["params"]
  loss = jax.value_and_grad(lambda p, b: OBJECTIVE(module, p, b, train=True)["loss"][0])
  rows = batch(rows=4)
  expected = jax.jit(loss)(params, rows)
  placed = jax.device_put(params, sharding.param_shardings(boxed, mesh))
  with jax.set_mesh(mesh):
    found = jax.jit(loss)(placed, jax.device_put(rows, sharding.batch_sharding(mesh)))
  close(found, expected, 1e-4)


@pytest.mark.slow
def test_what_experts_tell_is_of_both_stacks():
  layer = block(num_heads=2, ffn_dim=12, norm_position="pre", dropout=0.0)
  layer = dataclasses.replace(layer, ffn=dataclasses.replace(
      layer.ffn, bias=False, experts=ExpertsConfig(number=4)))
  shared, apart = model(block=layer), model(shared=False, block=layer)
  params = random(shared)
  found, expected = (jax.jit(lambda p, m=m: sums_of(OBJECTIVE, m, p, BATCH, train=True))(p)
                     for m, p in ((shared, params), (apart, copied(params))))
  assert found[LOSS][0] > 0
  close(found, expected, 1e-4)


def test_parameters_and_operations():
  """It has those of the decoder alone, and the work of both stacks."""
  total = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))
  shared, apart = shapes(model()), shapes(model(shared=False))
  assert set(shared) == {"tgt_embed", "decoder"}
  assert total(shared) == total(apart) - total(apart["encoder"])
  assert total(apart["encoder"]) == 3 * (4 * 64 + 2 * 96 + 12 + 8 + 2 * 2 * 8) + 2 * 8 + 8 * 2
  work = lambda module, params: count(
      lambda p: OBJECTIVE(module, p, BATCH, train=True)["loss"][0], params)
  assert work(model(), shared) == work(model(shared=False), apart)


@pytest.mark.parametrize("fields, message", [
    (dict(num_decoder_layers=2), "share_stacks=True needs encoder.num_layers to be the decoder's"),
    (dict(decoder=dict(width=16, position=Learned()), tie=("output",)),
     "needs encoder.width and encoder.position to be the decoder's; set them, or leave"),
    (dict(decoder=dict(block=block(num_heads=4))), "needs encoder.block to be the decoder's"),
])
def test_stacks_that_can_not_share(fields, message):
  with pytest.raises(ConfigError, match=message):
    shapes(model(**fields))
