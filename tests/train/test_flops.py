"""FLOP counts against closed forms."""

import flax.linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import common, tag
from jtx.compile.declared import declared_data
from jtx.data import pipeline
from jtx.nn.attention import AttentionConfig
from jtx.nn.block import BlockConfig, Context
from jtx.nn.kernels import grouped
from jtx.nn.layers import FfnConfig
from jtx.nn.mixture import ExpertsConfig
from jtx.nn.positions import Places
from jtx.nn.shapes import shapes_of
from jtx.nn.stack import Stack, StackConfig
from jtx.train import flops
from tests.test_configs import make_program


def array(*shape):
  return jax.ShapeDtypeStruct(shape, jnp.float32)


def test_matmul():
  assert flops.count(jnp.matmul, array(3, 5), array(5, 7)) == 2 * 3 * 5 * 7


def test_element_wise_work_is_free():
  assert flops.count(lambda x: jax.nn.softmax(jnp.tanh(x)), array(8, 8)) == 0


def test_batched_einsum():
  B, T, S, N, H = 2, 5, 7, 3, 4
  scores = lambda q, k: jnp.einsum("BTNH,BSNH->BNTS", q, k)
  assert flops.count(scores, array(B, T, N, H), array(B, S, N, H)) == 2 * B * N * T * S * H


def test_outer_product():
  dims = (((), ()), ((), ()))
  assert flops.count(lambda x, y: lax.dot_general(x, y, dims), array(3), array(4)) == 24


@pytest.mark.parametrize("unroll", [1, 3, 12])
def test_scan_counts_every_step(unroll):
  def stack(x, kernels):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, kernels, unroll=unroll)[0]

  assert flops.count(stack, array(4, 8), array(12, 8, 8)) == 12 * 2 * 4 * 8 * 8


def test_nested_scan():
  def inner(h, w):
    return lax.scan(lambda h, _: (h @ w, None), h, None, length=3)[0], None

  fn = lambda x, kernels: lax.scan(inner, x, kernels)[0]
  assert flops.count(fn, array(4, 8), array(5, 8, 8)) == 5 * 3 * 2 * 4 * 8 * 8


def test_while_body_is_counted_once():
  fn = lambda x: lax.while_loop(lambda h: jnp.sum(h) < 9, lambda h: h @ h, x)
  assert flops.count(fn, array(8, 8)) == 2 * 8**3


def test_fori_loop_of_static_length_is_a_scan():
  fn = lambda x: lax.fori_loop(0, 6, lambda _, h: h @ h, x)
  assert flops.count(fn, array(8, 8)) == 6 * 2 * 8**3


def test_switch_is_the_mean_over_branches():
  branches = [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x]
  fn = lambda i, x: lax.switch(i, branches, x)
  index = jax.ShapeDtypeStruct((), jnp.int32)
  assert flops.count(fn, index, array(8, 8)) == (0 + 1 + 2) / 3 * 2 * 8**3


def test_gradient_of_dense_layers():
  """Twice the forward for the backward, less the input gradient of the first layer."""
  B, D, F = 16, 8, 32

  def loss(params, x):
    return jnp.sum(jnp.tanh(jnp.tanh(x @ params["in"]) @ params["out"]))

  params, x = {"in": array(D, F), "out": array(F, D)}, array(B, D)
  layer = 2 * B * D * F
  assert flops.count(loss, params, x) == 2 * layer
  assert flops.count(jax.grad(loss), params, x) == 6 * layer - layer
  assert flops.count(jax.grad(loss, argnums=(0, 1)), params, x) == 6 * layer
  assert flops.count(jax.jit(jax.value_and_grad(loss)), params, x) == 5 * layer


def test_remat_counts_what_is_recomputed():
  B, D, L = 4, 8, 6

  def loss(kernels, x, layer):
    return jnp.sum(lax.scan(lambda h, w: (layer(h, w), None), x, kernels)[0])

  layer = lambda h, w: jnp.tanh(h @ w)
  grad = lambda f: flops.count(jax.grad(lambda ks, x: loss(ks, x, f)), array(L, D, D), array(B, D))
  one = 2 * B * D * D * L
  assert grad(layer) == 3 * one
  assert grad(jax.checkpoint(layer, prevent_cse=False)) == 4 * one
  saved = jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable)
  assert grad(saved) == 3 * one


def test_custom_derivatives_are_entered():
  @jax.custom_vjp
  def square(x):
    return x @ x

  square.defvjp(lambda x: (x @ x, x), lambda x, g: (g @ x.T + x.T @ g,))
  assert flops.count(square, array(8, 8)) == 2 * 8**3
  assert flops.count(jax.grad(lambda x: jnp.sum(square(x))), array(8, 8)) == 3 * 2 * 8**3

  @jax.custom_jvp
  def double(x):
    return x @ x

  double.defjvp(lambda p, t: (double(*p), 2 * t[0]))
  assert flops.count(double, array(8, 8)) == 2 * 8**3


def test_patch_embedding_convolution():
  B, size, patch, C, D = 2, 32, 8, 3, 16

  def embed(image, kernel):
    return lax.conv_general_dilated(
        image, kernel, (patch, patch), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

  args = array(B, size, size, C), array(patch, patch, C, D)
  forward = 2 * B * (size // patch) ** 2 * D * patch * patch * C
  assert flops.count(embed, *args) == forward
  loss = lambda image, kernel: jnp.sum(jnp.tanh(embed(image, kernel)))
  assert flops.count(jax.grad(loss, argnums=1), *args) == 2 * forward
  assert flops.count(jax.grad(loss, argnums=(0, 1)), *args) == 3 * forward


def test_grouped_convolution():
  """Depthwise: each output feature sees one input feature."""
  B, T, C, width = 2, 16, 8, 3
  conv = lambda x, k: lax.conv_general_dilated(
      x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=C)
  assert flops.count(conv, array(B, T, C), array(width, 1, C)) == 2 * B * T * C * width


def test_shard_map_counts_all_shards():
  mesh = jax.sharding.AbstractMesh((4, 2), ("data", "tensor"))
  fn = jax.shard_map(
      lambda x, w: x @ w, mesh=mesh, in_specs=(jax.P("data", None), jax.P(None, "tensor")),
      out_specs=jax.P("data", "tensor"))
  assert flops.count(fn, array(8, 16), array(16, 32)) == 2 * 8 * 16 * 32


def test_pallas_kernel_counts_its_grid():
  from jax.experimental import pallas as pl

  def kernel(x, y, out):
    out[...] = x[...] @ y[...]

  spec = lambda index: pl.BlockSpec((8, 8), index)
  product = pl.pallas_call(
      kernel, grid=(4, 2), out_shape=array(32, 16), interpret=True,
      in_specs=[spec(lambda i, j: (i, 0)), spec(lambda i, j: (0, j))],
      out_specs=spec(lambda i, j: (i, j)))
  assert flops.count(product, array(32, 8), array(8, 16)) == 2 * 32 * 8 * 16


def test_a_kernel_may_say_what_it_takes():
  from jax.experimental import pallas as pl

  def kernel(x, out):
    out[...] = x[...] @ x[...]

  product = pl.pallas_call(
      kernel, out_shape=array(8, 8), interpret=True,
      cost_estimate=pl.CostEstimate(flops=77, transcendentals=0, bytes_accessed=0))
  assert flops.count(product, array(8, 8)) == 77


@pytest.mark.parametrize("kernel", ["auto", "blocked", "xla"])
def test_attention_counts_the_same_by_every_kernel(kernel):
  """All pairs of global layers, causal or not; of local ones, those of the window."""
  B, T, N, H, layers = 2, 64, 2, 8, 6
  block = dict(attention=AttentionConfig(num_heads=N, kernel=kernel), ffn=FfnConfig(dim=32))
  config = StackConfig(width=N * H, num_layers=layers, window=3, block=BlockConfig(**block),
                       pattern=("global", "local", "local"))

  class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Stack(config)(x, Context(Places(jnp.zeros(x.shape[:2], jnp.int32))))[0]

  params = shapes_of(Model().init, jax.random.key(0), array(B, T, N * H))
  forward = lambda params, batch, extra: Model().apply(params, batch["x"])
  products = 2 * B * T * N * H * (4 * N * H + 2 * 32)  # with weights, of a layer
  keys = 2 * T + 4 * 7  # of the layers, that a query sees
  expected = 3 * (layers * products + 2 * 2 * B * N * T * keys * H)
  assert flops.StepFlops(forward, params, {})({"x": array(B, T, N * H)}) == expected


def test_a_token_takes_the_products_of_its_experts_alone():
  """In layers that are scanned, which flax tries before: what it computes then counts nothing."""
  B, T, D, F, layers = 2, 16, 8, 12, 3
  ffn = FfnConfig(dim=F, bias=False, gated=True, experts=ExpertsConfig(number=5, active=2))
  config = StackConfig(width=D, num_layers=layers, block=BlockConfig(
      attention=AttentionConfig(num_heads=2), ffn=ffn))

  class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
      return Stack(config)(x, Context(Places(jnp.zeros(x.shape[:2], jnp.int32))))[0]

  params = shapes_of(Model().init, jax.random.key(0), array(B, T, D))
  forward = lambda params, batch, extra: Model().apply(params, batch["x"])
  products = 2 * B * T * (4 * D * D + 2 * T * D + 2 * 3 * D * F + 5 * D)
  assert flops.StepFlops(forward, params, {})({"x": array(B, T, D)}) == 3 * layers * products


@pytest.mark.parametrize("edits", [
    {"optim.lr_mults": ((r"^(?!task_head)", 0.0),)},
    {"optim.frozen": ((r"^(?!task_head)", 0.0, 1.0),)}])
def test_a_step_goes_back_no_further_than_to_what_is_trained(edits):
  """A head alone needs one product more than the forward pass, which the count knows, too."""
  made = lambda edits: make_program(common.apply(tag.get_config("tiny").unlock(), edits).lock(),
                                    {"data": 1}, vocab_size=200, outputs=5)
  products = {}
  for name, program in (("all", made({})), ("head", made(edits))):
    example = pipeline.example_batch(declared_data(program.config, 200, 5)[0], 8)
    products[name] = program.flops_per_step
    counted = flops.count(program.jitted_step, program.abstract_state, example, {}, 0)
    assert counted == products[name]
  tokens, width, tags = 8 * 24, 32, 5
  assert products["head"] == products["all"] / 3 + 2 * tokens * width * tags


@pytest.mark.parametrize("product", [
    jax.lax.ragged_dot, lambda *args: grouped.product(*args, "tpu"),
    lambda *args: grouped.product(*args, "gpu")], ids=["ragged_dot", "tpu", "gpu"])
def test_grouped_products_and_their_gradients(product):
  """A row goes through the kernel of its group alone, forward and in both of the way back."""
  M, D, F, groups = 256, 32, 48, 4
  loss = lambda x, kernels, sizes: (product(x, kernels, sizes) ** 2).sum()
  args = array(M, D), array(groups, D, F), jax.ShapeDtypeStruct((groups,), jnp.int32)
  assert flops.count(loss, *args) == 2 * M * D * F
  assert flops.count(jax.grad(loss, (0, 1)), *args) == 3 * 2 * M * D * F


def test_concrete_arguments_and_float_result():
  result = flops.count(jnp.dot, np.ones((4, 4), np.float32), np.ones(4))
  assert isinstance(result, float) and result == 2 * 4 * 4
