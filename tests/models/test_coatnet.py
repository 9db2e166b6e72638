"""CoAtNet: published sizes; its convolutions and stages by closed forms, on any mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import coatnet as config_file
from jtx.build import make_model
from jtx.errors import ConfigError
from jtx.interop.trunks import param_shapes, resized
from jtx.models.coatnet import CoAtNet, LayersConfig, StagesConfig, StemConfig
from jtx.models.image_head import ImageHeadConfig
from jtx.models.patches import ImageConfig
from jtx.nn import mbconv
from jtx.nn.grid_kinds import RelativeBias
from jtx.nn.grid_positions import Grid, Sincos2d
from jtx.nn.layers import NormConfig
from jtx.nn.mbconv import Conv, MbConv, MbConvConfig, depthwise, max_pool
from jtx.nn.positions import Places
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from tests.models.test_vit import drawn

SMALL = CoAtNet(
    image=ImageConfig(size=16), stem=StemConfig(width=6),
    stages=StagesConfig(kinds="CT", num_layers=(2, 2), widths=(8, 12), strides=(2, 2)),
    attention=LayersConfig(head_dim=4),
    head=ImageHeadConfig(task="classes", outputs=5, pool="mean"))
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3)).astype(np.uint8)
edited = lambda **stages: SMALL.clone(stages=dataclasses.replace(SMALL.stages, **stages))


@pytest.mark.parametrize("size, number, million", [
    ("0", 25_553_300, 25), ("1", 42_742_256, 42), ("2", 75_619_272, 75), ("3", 169_068_472, 168)])
def test_published_sizes(size, number, million):
  """Table 3 and table 4 of the paper, which round them, and have norms of as many parameters."""
  model, _ = make_model(config_file.get_config(size), {"head.outputs": 1000})
  assert sum(int(np.prod(s)) for s in param_shapes(model).values()) == number
  assert abs(number / 1e6 - million) < 1.1


def of_places(x, kernel):
  """A depthwise convolution in float64, place by place."""
  side = kernel.shape[0] // 2
  padded = np.pad(x.astype(np.float64), ((0, 0), (side, side), (side, side), (0, 0)))
  H, W = x.shape[1:3]
  return np.stack([[(padded[:, i:i + 2 * side + 1, j:j + 2 * side + 1] * kernel).sum((1, 2))
                    for j in range(W)] for i in range(H)]).transpose(2, 0, 1, 3)


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("on", ["cpu", "tpu"])
def test_a_depthwise_convolution_and_its_gradients(size, on, monkeypatch):
  monkeypatch.setattr(mbconv, "platform", lambda: on)
  random = np.random.default_rng(0)
  x, y = random.normal(size=(2, 2, 6, 5, 4)).astype(np.float32)
  kernel = random.normal(size=(size, size, 4)).astype(np.float32)
  out, vjp = jax.vjp(depthwise, x, kernel)
  np.testing.assert_allclose(out, of_places(x, kernel), rtol=1e-5, atol=1e-5)
  # It is linear in both, so <y, f(a, k)> is <a, gradient of x> and <y, f(x, b)> is that of kernels.
  of_x, of_kernel = vjp(y)
  other, b = (random.normal(size=s).astype(np.float32) for s in (x.shape, kernel.shape))
  np.testing.assert_allclose((y * of_places(other, kernel)).sum(), (other * of_x).sum(), rtol=1e-4)
  np.testing.assert_allclose((y * of_places(x, b)).sum(), (b * of_kernel).sum(), rtol=1e-4)


def normed(x, p):
  x = x - x.mean(-1, keepdims=True)
  return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


@pytest.mark.parametrize("stride, squeeze", [(1, 0.5), (2, 0.0)])
def test_an_inverted_bottleneck(stride, squeeze):
  """Equation 5 in float64; without a change of shape the input is added as it is."""
  config = MbConvConfig(expansion=2, squeeze=squeeze, activation="relu")
  module = MbConv(config, width=4, stride=stride, norm=NormConfig(position="pre"))
  x = np.random.default_rng(0).normal(size=(2, 4, 4, 4 if stride == 1 else 3)).astype(np.float32)
  p = drawn_of(module, x)
  y = normed(x, p["norm"])[:, ::stride, ::stride] @ p["in"]["kernel"]
  y = np.maximum(normed(y, p["in_norm"]), 0)
  y = np.maximum(normed(of_places(y, p["depthwise"]["kernel"]), p["depthwise_norm"]), 0)
  product = lambda name, x: x @ p[name]["kernel"] + p[name]["bias"]
  if squeeze:
    gate = product("excite", np.maximum(product("squeeze", y.mean((1, 2), keepdims=True)), 0))
    y = y / (1 + np.exp(-gate))
  pooled = x if stride == 1 else product("shortcut", np.stack(
      [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]).max(0))
  np.testing.assert_allclose(module.apply({"params": p}, x), pooled + product("out", y),
                             rtol=1e-4, atol=1e-4)


def drawn_of(module, x):
  shapes = unbox(shapes_of(module.init, jax.random.key(0), x)["params"])
  random = np.random.default_rng(1)
  return jax.tree.map(lambda s: random.normal(size=s.shape).astype(np.float32), shapes)


def test_the_stem_s_convolution_has_as_many_zeros_on_each_side():
  x = np.random.default_rng(0).normal(size=(1, 4, 4, 2)).astype(np.float32)
  module = Conv(3, stride=2)
  kernel = drawn_of(module, x)["kernel"]
  padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
  expected = [[np.einsum("hwc,hwcd->d", padded[0, i:i + 3, j:j + 3], kernel) for j in (0, 2)]
              for i in (0, 2)]
  np.testing.assert_allclose(module.apply({"params": {"kernel": kernel}}, x)[0], expected,
                             rtol=1e-4, atol=1e-5)
  assert (max_pool(x, 2)[0, 1, 0] == x[0, 2:, :2].max((0, 1))).all()


def test_an_image_s_result_is_its_own():
  """There are no statistics of the batch."""
  run = jax.jit(lambda params, image: SMALL.apply({"params": params}, {"image": image},
                                                  method="predict"))
  params = drawn(SMALL, std=0.3)
  together, alone = run(params, PIXELS), run(params, PIXELS[:1])
  np.testing.assert_allclose(together[:1], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_layers_are_skipped_more_the_deeper_they_are():
  model = SMALL.clone(drop_path=0.9)
  rates = [model.stacks["stage_1"].block.residual.skipped(first, 2, 4) for first in (0, 2)]
  np.testing.assert_allclose(np.concatenate(rates), 0.9 * np.arange(4) / 3, rtol=1e-6)
  params = drawn(model, std=0.3)
  apply = jax.jit(lambda image, key, train: model.apply(
      {"params": params}, {"image": image}, train, rngs={"dropout": key}), static_argnums=2)
  key = jax.random.key(0)
  np.testing.assert_array_equal(apply(PIXELS, key, False), SMALL.apply(
      {"params": params}, {"image": PIXELS}))
  assert abs(apply(PIXELS, key, True) - apply(PIXELS, key, False)).max() > 1e-2


def test_features_of_places():
  params = drawn(SMALL, std=0.3)
  places, pooled = (SMALL.apply({"params": params}, {"image": PIXELS}, method=name)
                    for name in ("patch_features", "features"))
  assert places.shape == (3, 2, 2, 12)
  np.testing.assert_allclose(places.mean((1, 2)), pooled, rtol=1e-5, atol=1e-5)


def test_tables_for_images_of_another_size():
  """A linear function of rows and columns stays one inside of the grid."""
  larger = SMALL.clone(image=ImageConfig(size=32))
  params = {path: np.zeros(shape, np.float32) for path, shape in param_shapes(SMALL).items()}
  path = "stage_1/layers/attention/position_bias"
  assert params[path].shape == (2, 9, 3)  # layers, offsets of 2 x 2 places, heads
  params[path] += 3.0
  result = resized(larger, params, SMALL)
  assert result[path].shape == (2, 49, 3)
  np.testing.assert_allclose(result[path], 3.0, rtol=1e-6)
  with pytest.raises(ConfigError, match="positions of the kind Sincos2d can't be taken"):
    fixed = LayersConfig(head_dim=4, position=Sincos2d())
    resized(larger.clone(attention=fixed), params, SMALL.clone(attention=fixed))


def test_a_table_of_each_layer_is_that_of_all():
  grid, q = Grid(2, 2), jnp.zeros((1, 4, 2, 3))
  table = np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32)
  places = Places(jnp.arange(4)[None])
  biases = [RelativeBias(per_layer=own).bind(grid).bias(
      q, q, places, places, params={name: table}, project=None, scale=1.0)
            for own, name in ((True, "bias"), (False, "position_bias"))]
  np.testing.assert_array_equal(*biases)
  assert biases[0].shape == (1, 2, 4, 4)
  np.testing.assert_array_equal(biases[0][0, :, 1, 2], table[2 * 3 + 0])  # one down, one left


@pytest.mark.parametrize("model, said", [
    (SMALL.clone(image=ImageConfig(size=20)), "image.size=20 is not a multiple of 8, the product"),
    (SMALL.clone(norm=NormConfig()), "a CoAtNet has norm.position='pre'"),
    (SMALL.clone(head=ImageHeadConfig(task="embedding")), "has no tokens before the patches"),
    (SMALL.clone(attention=LayersConfig(head_dim=5)), "attention.head_dim=5 does not divide 12"),
])
def test_fields_that_do_not_fit(model, said):
  with pytest.raises(ConfigError, match=said):
    param_shapes(model)


@pytest.mark.parametrize("edits, said", [
    (dict(kinds="TC"), r"stages of convolutions \(C\) come before"),
    (dict(kinds="CX"), "not a row of C and T"),
    (dict(widths=(8,)), "must have a number for each of the 2 stages"),
])
def test_stages_that_do_not_fit(edits, said):
  with pytest.raises(ConfigError, match=said):
    edited(**edits)
  with pytest.raises(ConfigError, match="convolution.size=4 must be odd"):
    MbConvConfig(size=4)
