"""What a layer keeps for the way back, as bits of another type: the same numbers and gradients."""

import math
import re

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn.block import Context
from jtx.nn.kept import keep, kept_as
from jtx.nn.positions import Places
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel import sharding
from jtx.parallel.sharding import unbox
from tests import helpers

LAYERS, B, T, D, F = 3, 2, 64, 8, 24
BLOCK = helpers.block(num_heads=2, ffn_dim=F, dropout=0.0)
X = jnp.asarray(np.random.default_rng(0).normal(size=(B, T, D)), jnp.bfloat16)
CONTEXT = Context(Places(jnp.broadcast_to(jnp.arange(T), (B, T))), train=True)


def loss_of(integer, remat="cheap"):
  """The loss of a stack's parameters, and the parameters."""
  module = Stack(StackConfig(num_layers=LAYERS, block=BLOCK, width=D, remat=remat),
                 dtype=jnp.bfloat16, kept_as=integer)
  shapes = unbox(shapes_of(lambda: module.init(jax.random.key(0), X, CONTEXT))["params"])
  leaves, tree = jax.tree.flatten(shapes)
  rngs = [np.random.default_rng(i) for i in range(len(leaves))]
  params = tree.unflatten([jnp.asarray(rng.normal(size=x.shape) / 3, jnp.float32)
                           for rng, x in zip(rngs, leaves)])
  return lambda params: jnp.sin(module.apply({"params": params}, X, CONTEXT)[0]).sum(), params


def of_all_layers(text):
  """The types of arrays of all layers' hidden units, and of all layers' hidden states."""
  types = {kind: text.count(f"{kind}[{LAYERS},{B},{T},") for kind in ("bf16", "u16", "i16")}
  return types, f"u16[{LAYERS},{B},{T},{F}]" in text, f"bf16[{LAYERS},{B},{T},{F}]" in text


def test_gradients_are_those_of_numbers_that_are_kept_as_they_are():
  results = [jax.value_and_grad(loss)(params)
             for loss, params in map(loss_of, (None, jnp.uint16, jnp.int16))]
  for result in results[1:]:
    jax.tree.map(np.testing.assert_array_equal, result, results[0])


def test_a_loop_has_what_it_keeps_in_the_type_that_it_was_given():
  (plain, *hidden), (bits, *hidden_bits) = (
      of_all_layers(str(jax.make_jaxpr(jax.grad(loss))(params)))
      for loss, params in map(loss_of, (None, jnp.uint16)))
  assert hidden == [False, True] and hidden_bits == [True, False]
  assert plain["u16"] == 0 and bits["i16"] == 0
  # The input of a layer is kept as it is, by `checkpoint` itself.
  assert 0 < bits["bf16"] < plain["bf16"]
  for remat in ("none", "projected"):
    text = str(jax.make_jaxpr(jax.grad(loss_of(jnp.uint16, remat)[0]))(loss_of(None)[1]))
    assert of_all_layers(text)[0]["u16"] == 0


def test_of_keys_a_device_keeps_those_of_its_part_of_a_row(capsys):
  """It gathers the others again on the way back, where it has a part of each row."""
  block = helpers.block(num_heads=2, ffn_dim=F, dropout=0.0, kernel="blocked")
  module = Stack(StackConfig(num_layers=LAYERS, block=block, width=D, remat="projected"))
  x = X.astype(jnp.float32)
  mesh = sharding.make_mesh({"data": 1, "context": 4}, jax.devices()[:4])
  with jax.set_mesh(mesh):
    params = unbox(shapes_of(lambda: module.init(jax.random.key(0), x, CONTEXT)))
    jax.ad_checkpoint.print_saved_residuals(
        lambda params: module.apply(params, x, CONTEXT)[0].sum(), params)
  kept = [math.prod(map(int, shape.split(","))) for shape in re.findall(
      r"^\w+\[([\d,]+)\] output of scan", capsys.readouterr().out, re.MULTILINE)]
  # Arrays that devices have for themselves count once for each of them.
  assert LAYERS * B * T * D in kept and max(kept) == LAYERS * B * T * F


def test_numbers_and_their_derivatives_pass_through():
  x, tangent = jnp.array([1.5, -0.0, jnp.inf], jnp.bfloat16), jnp.ones(3, jnp.bfloat16)
  with kept_as(jnp.int16):
    y, along = jax.jvp(lambda x: keep(x, "hidden"), (x,), (tangent,))
    in_rule = keep(x, "hidden", in_rule=True)
    assert keep(jnp.float32(0.1), "hidden") == jnp.float32(0.1)  # 32 bits stay as they are
  np.testing.assert_array_equal(along, tangent)
  for result in (y, in_rule):
    assert result.dtype == jnp.bfloat16
    np.testing.assert_array_equal(result.view(jnp.int16), x.view(jnp.int16))


def test_a_second_derivative_is_refused_where_it_would_get_lost():
  hessian = lambda f: jax.grad(jax.grad(f))(jnp.bfloat16(2))
  cube = lambda x: keep(x, "hidden") ** 3
  assert hessian(cube) == 12
  with kept_as(jnp.int16), pytest.raises(NotImplementedError, match="give their stack remat='n"):
    hessian(cube)
