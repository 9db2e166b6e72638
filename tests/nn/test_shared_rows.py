"""Stacks on meshes with `tensor`, whose devices share rows between sub-layers."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jtx.nn.block import Context, Memory
from jtx.nn.convolution import ConvolutionConfig
from jtx.nn.layers import Embed
from jtx.nn.positions import Places
from jtx.nn.rope import Rope
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import Stack, StackConfig
from jtx.parallel import sharding
from jtx.parallel.sharding import unbox
from tests import helpers
from tests.helpers import one_fast_row

B, D, LAYERS = 4, 16, 2
MESHES = {"tensor": (dict(tensor=4), P(None, None, "tensor", None)),
          "all": (dict(data=2, tensor=2, context=2), P(None, "data", ("context", "tensor"), None)),
          "fsdp": (dict(fsdp=2, tensor=4), P(None, "fsdp", "tensor", None))}
BLOCKS = {"post": dict(norm_position="post"),
          "pre": dict(norm_position="pre", num_kv_heads=2),
          "sandwich": dict(norm_position="sandwich"),
          "parallel": dict(norm_position="pre", parallel="own_norms"),
          "convolution": dict(norm_position="post", convolution=ConvolutionConfig(size=3)),
          "cross": dict(norm_position="pre")}


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def on(sizes):
  devices = int(np.prod(list(sizes.values())))
  return sharding.make_mesh(dict.fromkeys(sharding.AXES, 1) | sizes, jax.devices()[:devices])


def stack_and_context(kind, length):
  fields = BLOCKS[kind] | dict(num_heads=4, ffn_dim=24, dropout=0.1)
  cross = kind == "cross"
  stack = Stack(StackConfig(width=D, num_layers=LAYERS, position=Rope(), remat="cheap",
                            block=helpers.block(**fields)), cross=cross)
  places = Places(jnp.broadcast_to(jnp.arange(length), (B, length)))
  memory = {"memory": Memory(normal(9, B, 6, D), jnp.ones((B, 6), jnp.int32), None)}
  return stack, Context(places, train=True, return_hidden=True, **memory if cross else {})


@pytest.mark.parametrize("kind, mesh, length", one_fast_row(
    ("post", "tensor", 8), ("pre", "all", 8), ("parallel", "fsdp", 8), ("convolution", "tensor", 8),
    ("sandwich", "all", 8), ("cross", "fsdp", 8), ("pre", "tensor", 7)))
def test_values_are_those_of_one_device_and_residuals_are_shared(kind, mesh, length):
  """Also the gradients and what is dropped; a length that does not divide is whole everywhere."""
  stack, ctx = stack_and_context(kind, length)
  sizes, shared = MESHES[mesh]
  x, mixed = normal(0, B, length, D), normal(1, B, length, D)
  shapes = unbox(shapes_of(stack.init, jax.random.key(0), x, ctx.replace(train=False)))["params"]
  leaves, tree = jax.tree.flatten(shapes)
  params = tree.unflatten([normal(i, *leaf.shape) / 2 for i, leaf in enumerate(leaves)])

  @jax.jit
  def step(params, x):
    def loss(params, x):
      y, out = stack.apply({"params": params}, x, ctx, rngs={"dropout": jax.random.key(5)})
      return (y * mixed).sum(), out.hidden
    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)

  expected = step(params, x)
  m = on(sizes)
  with jax.set_mesh(m):
    found = step(params, jax.device_put(x, jax.sharding.NamedSharding(m, P())))
  assert np.abs(expected[0][1]).max() > 1
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4 * np.abs(b).max())
  hidden = found[0][1]
  layout = shared if length == 8 else P()
  assert hidden.sharding.is_equivalent_to(jax.sharding.NamedSharding(m, layout), 4), hidden.sharding


@pytest.mark.parametrize("sizes", [dict(tensor=4), dict(fsdp=2, tensor=4)], ids=str)
def test_rows_are_shared_for_a_vocabulary_that_tensor_does_not_divide(sizes):
  """No device has the logits of all 12 tokens of a row, and none are summed over devices."""
  embed, x = Embed(10, D, 1.0), normal(0, B, 12, D)
  table = normal(1, 10, D)

  def loss(table, x):
    logits = embed.apply({"params": {"embedding": table}}, x, method="attend")
    return jnp.sin(logits).sum(), logits

  step = jax.value_and_grad(loss, (0, 1), has_aux=True)
  (expected, logits), gradients = step(table, x)
  m = on(sizes)
  with jax.set_mesh(m):
    # As the transform before it leaves them: shared by their width.
    place = lambda *axes: jax.sharding.NamedSharding(m, P(*axes))
    args = jax.device_put(table, place()), jax.device_put(x, place("fsdp", None, "tensor"))
    step = jax.jit(step, out_shardings=place())
    (value, found), of = step(*args)
    program = step.lower(*args).compile().as_text()
  np.testing.assert_allclose(value, expected, rtol=1e-5)
  for a, b in zip((found, *of), (logits, *gradients), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
  rows = B // sizes.get("fsdp", 1)
  assert f"f32[{rows},3,10]" in program
  sums = [line for line in program.splitlines() if " all-reduce(" in line]
  assert not any("12,10]" in line.split(" all-reduce(")[0] for line in sums), sums


@pytest.mark.parametrize("sizes", [dict(fsdp=2, context=2), dict(data=2, fsdp=2, context=2)],
                         ids=str)
def test_no_device_has_the_whole_vectors_of_all_tokens_that_are_looked_up(sizes):
  """Of a table shared by its width over two axes, devices exchange parts over one at a time."""
  embed, tokens, table = Embed(10, D, 1.0), jnp.arange(B * 8).reshape(B, 8) % 10, normal(1, 10, D)
  mixed = normal(2, B, 8, D)
  step = jax.value_and_grad(lambda table, tokens, mixed: (
      embed.apply({"params": {"embedding": table}}, tokens) * mixed).sum())
  expected, gradient = step(table, tokens, mixed)
  m = on(sizes)
  with jax.set_mesh(m):
    place = lambda *axes: jax.sharding.NamedSharding(m, P(*axes))
    args = (jax.device_put(table, place(None, ("fsdp", "context"))),
            jax.device_put(tokens, place(("data", "fsdp"))),
            jax.device_put(mixed, place(("data", "fsdp"), "context")))
    step = jax.jit(step, out_shardings=(place(), place(None, ("fsdp", "context"))))
    found, of_table = step(*args)
    program = step.lower(*args).compile().as_text()
  np.testing.assert_allclose(found, expected, rtol=1e-5)
  np.testing.assert_allclose(of_table, gradient, rtol=1e-5, atol=1e-5)
  rows = B // sizes.get("data", 1)
  assert f"f32[{rows},8,{D // 4}]" in program
  assert f"f32[{rows},8,{D}]" not in program
