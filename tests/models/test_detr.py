"""DETR: its size, what padding may change, positions of all kinds, and what is refused."""

import dataclasses
import functools
import math

from flax import linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models import backbone
from jtx.models.backbone import Backbone, BackboneConfig, ConvNorm, convolve
from jtx.models.box_head import BoxHeadConfig
from jtx.models.detr import STACK, Detr, PlacesConfig
from jtx.models.resnet import max_pool
from jtx.nn.positions import Learned
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import FIXED, logical_axes, unbox
from tests.helpers import block, one_fast, stack_of

SIZE = dict(width=8, num_layers=2, block=block(STACK.block, num_heads=2, ffn_dim=12))
SMALL = Detr(
    backbone=BackboneConfig(stages=(1, 1), width=4, stem="strided"), num_queries=4,
    encoder=stack_of(STACK, dict(SIZE)), decoder=stack_of(STACK, dict(SIZE)),
    head=BoxHeadConfig(outputs=3))
RNG = np.random.default_rng(0)
IMAGE = RNG.normal(size=(2, 16, 24, 3)).astype(np.float32)


def drawn(model, std=0.8):
  """Random parameters, of which no variance is negative."""
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  random = np.random.default_rng(0)
  values = lambda path, x: jnp.abs(x) if path[-1].key == "variance" else x
  return jax.tree_util.tree_map_with_path(values, jax.tree.map(
      lambda x: jnp.asarray(std * random.normal(size=x.shape), jnp.float32), unbox(boxed)))


def run(model, batch):
  return jitted(model)(drawn(model), batch)


@functools.cache
def jitted(model):
  return jax.jit(lambda params, batch: model.apply({"params": params}, batch, method="boxes"))


def test_parameters_of_resnet50():
  """41,524,768 are trained, as in the paper; four for each channel of a norm are constants."""
  model = Detr(head=BoxHeadConfig(outputs=91))
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  numbers = {path: math.prod(x.shape) for path, x in flatten_dict(unbox(boxed)).items()}
  fixed = {path for path, axes in flatten_dict(logical_axes(boxed)).items() if FIXED & set(axes)}
  assert sum(n for path, n in numbers.items() if path not in fixed) == 41_524_768
  assert sum(numbers[path] for path in fixed) == 4 * 26_560
  assert {path[-1] for path in fixed} == {"scale", "bias", "mean", "variance"}


@pytest.mark.parametrize("config, shape", [
    (BackboneConfig(), (2, 3, 2048)), (BackboneConfig(kind="basic", stages=(2, 2)), (6, 11, 128)),
    (BackboneConfig(stages=(1, 1), width=8, groups=4, stem="strided"), (12, 21, 64))],
    ids=["50", "basic", "small"])
def test_shapes_of_backbones(config, shape):
  image = jnp.zeros((1, 45, 81, 3))
  out = jax.eval_shape(lambda: Backbone(config).init_with_output(jax.random.key(0), image)[0])
  assert out.shape == (1, *shape)
  assert config.features == shape[-1]
  assert all(-(-side // config.stride) == n for side, n in zip((45, 81), shape))


def test_outputs():
  out = run(SMALL, {"image": IMAGE, "size": np.array([[16, 24], [9, 17]], np.int32)})
  assert out["logits"].shape == (2, 2, 4, 4) and out["boxes"].shape == (2, 2, 4, 4)
  assert (out["boxes"] > 0).all() and (out["boxes"] < 1).all()
  assert np.abs(out["boxes"][0] - out["boxes"][1]).max() > 1e-3  # of two layers
  without = SMALL.clone(head=BoxHeadConfig(task="none"))
  assert without.heads == frozenset()
  boxed = shapes_of(without.init, jax.random.key(0), without.example())["params"]
  assert "task_head" not in boxed
  hidden = jax.eval_shape(lambda p: without.apply({"params": p}, {"image": IMAGE}), unbox(boxed))
  assert hidden.shape == (2, 4, 8)


@pytest.mark.parametrize("places", one_fast(PlacesConfig(), PlacesConfig(kind="learned"),
                                            PlacesConfig(at="input", queries_at="input")))
def test_padding_is_not_seen(places):
  """Whatever it holds, and however much of it there is.

  At its edge the backbone's norms have made something of zeros, as in the paper's model, so that a
  picture without padding differs a little.
  """
  model, size = SMALL.clone(places=places), np.full((2, 2), (8, 16), np.int32)
  zeros = np.pad(IMAGE[:, :8, :16], ((0, 0), (0, 16), (0, 24), (0, 0)))
  padded, more = (run(model, {"image": image, "size": size}) for image in (IMAGE, zeros))
  for key in padded:
    np.testing.assert_allclose(padded[key], more[key], rtol=2e-5, atol=2e-6)
  whole = run(model, {"image": IMAGE, "size": np.full((2, 2), (16, 24), np.int32)})
  assert np.abs(whole["logits"] - padded["logits"]).max() > 1e-2


def test_bytes_are_normalised_and_their_padding_is_zero():
  picture = RNG.integers(256, size=(2, 16, 24, 3), dtype=np.uint8)
  sizes = np.array([[16, 13], [10, 24]], np.int32)
  mean, std = (np.array(x, np.float32) for x in (SMALL.image.mean, SMALL.image.std))
  floats = (picture / np.float32(255) - mean) / std
  for i, (h, w) in enumerate(sizes):
    floats[i, h:] = floats[i, :, w:] = 0
  out, same = run(SMALL, {"image": picture, "size": sizes}), run(
      SMALL, {"image": floats, "size": sizes})
  for key in out:
    np.testing.assert_allclose(out[key], same[key], rtol=1e-5, atol=1e-6)


def test_sines_run_to_two_pi_at_the_last_valid_place():
  sizes = jnp.array([[2, 3], [1, 1]])
  out = np.asarray(SMALL.apply({"params": drawn(SMALL)}, sizes, 2, 3, method="vectors"))
  for b, row, column in np.ndindex(2, 2, 3):
    expected = []
    for place, number in ((row, sizes[b, 0]), (column, sizes[b, 1])):
      angle = 2 * np.pi * (place + 1) / (float(number) + 1e-6)
      expected += [f(angle / 10_000 ** (i / 2)) for i in range(2) for f in (np.sin, np.cos)]
    np.testing.assert_allclose(out[b, 3 * row + column], expected, atol=1e-5)


# Table 3: kind and place of positions, whether the encoder's inputs, its attention and the
# decoder's keys have them, and whether the decoder's inputs are zeros.
ABLATION = [
    (PlacesConfig(kind="none", queries_at="input"), False, False, False, False),
    (PlacesConfig(at="input", queries_at="input"), True, False, False, False),
    (PlacesConfig(kind="learned"), False, True, True, True),
    (PlacesConfig(in_encoder=False), False, False, True, True),
    (PlacesConfig(), False, True, True, True),
]


def read_by_stacks(model, params):
  """The inputs of encoder and decoder, and the contexts that they have them in."""
  kept = {}

  def spy(method, args, kwargs, context):
    if context.method_name == "__call__" and context.module.name in model.stacks:
      kept[context.module.name] = args
    return method(*args, **kwargs)

  with nn.intercept_methods(spy):
    model.apply({"params": params}, {"image": IMAGE})
  return (*kept["encoder"], *kept["decoder"])


@pytest.mark.parametrize("places, at_input, in_encoder, in_decoder, zeros", ABLATION)
def test_where_positions_are_added(places, at_input, in_encoder, in_decoder, zeros):
  model, seen = SMALL.clone(places=places), []
  jax.eval_shape(lambda params: seen.append(read_by_stacks(model, params)), drawn(model))
  (_, encoder, _, decoder), = seen
  assert (encoder.places.vectors is not None) == in_encoder
  assert (decoder.memory.places.vectors is not None) == in_decoder
  assert (decoder.places.vectors is not None) == zeros
  assert (places.at == "input") == at_input


def test_positions_at_the_input():
  """Those of places are added to features, and queries are the decoder's input."""
  model = SMALL.clone(places=PlacesConfig(at="input", queries_at="input"))

  def inputs(params):
    x, _, queries, _ = read_by_stacks(model, params)
    features, sizes = model.apply({"params": params}, {"image": IMAGE}, method="features")
    vectors = model.apply({"params": params}, sizes, 4, 6, method="vectors")
    return x, queries, features.reshape(2, 24, -1), vectors

  params = drawn(model)
  x, queries, features, vectors = jax.jit(inputs)(params)
  projection = params["projection"]
  expected = features @ projection["kernel"] + projection["bias"] + vectors
  np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
  np.testing.assert_array_equal(queries, np.stack(2 * [params["query_embedding"]]))


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_batch_norms_are_constants(platform, monkeypatch):
  monkeypatch.setattr(backbone, "platform", lambda: platform)
  x, kernel = RNG.normal(size=(2, 3, 3, 4)), RNG.normal(size=(1, 1, 4, 5))
  layer = ConvNorm(5, 1, 1, groups=0, relu=False)
  params = {name: np.abs(RNG.normal(size=5)) for name in ("scale", "bias", "mean", "variance")}
  call = jax.jit(lambda params, x: layer.apply({"params": {"kernel": kernel, "norm": params}}, x))
  y = x @ kernel[0, 0]
  expected = (y - params["mean"]) / np.sqrt(params["variance"] + 1e-5) * params["scale"]
  np.testing.assert_allclose(call(params, x), expected + params["bias"], rtol=1e-5, atol=1e-5)
  gradient = jax.jit(jax.grad(lambda params: call(params, x).sum()))(params)
  assert all((g == 0).all() for g in gradient.values())


REFUSED = [
    (dict(encoder=dataclasses.replace(SMALL.encoder, width=12)), "width=12 and decoder.width=8"),
    (dict(encoder=dataclasses.replace(SMALL.encoder, width=6),
          decoder=dataclasses.replace(SMALL.decoder, width=6)), "must be divisible by 4"),
    (dict(decoder=dataclasses.replace(SMALL.decoder, position=Learned())),
     "decoder.position must be 'none'"),
    (dict(decoder=dataclasses.replace(SMALL.decoder, causal=True)), "decoder.causal"),
    (dict(decoder=dataclasses.replace(SMALL.decoder, final_norm=False)), "leave it True"),
    (dict(places=PlacesConfig(kind="learned", max_side=3)), "max_side=3: the image has 4 x 6"),
    (dict(head=BoxHeadConfig()), "head.outputs must be set"),
]


@pytest.mark.parametrize("fields, message", REFUSED)
def test_a_model_that_does_not_fit_together(fields, message):
  model = SMALL.clone(**fields)
  with pytest.raises(ConfigError, match=message):
    shapes_of(model.init, jax.random.key(0), {"image": IMAGE})


@pytest.mark.parametrize("make, message", [
    (lambda: BackboneConfig(stages=()), "has no stage"),
    (lambda: BackboneConfig(groups=7), "multiple of backbone.groups=7"),
    (lambda: PlacesConfig(kind="none", at="input"), "places.at='input' has no meaning"),
    (lambda: PlacesConfig(max_side=9), "places.max_side=9 has no meaning with places.kind='sine'"),
    (lambda: PlacesConfig(at="input", in_encoder=False), "would leave them out"),
    (lambda: BoxHeadConfig(task="classes"), "head.task='classes'"),
    (lambda: BoxHeadConfig(task="none", outputs=3), "go with head.task='boxes'")])
def test_fields_that_do_not_go_together(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


@pytest.mark.parametrize("size, stride", [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_a_convolution_is_a_sum_over_the_places_around(size, stride, platform, monkeypatch):
  monkeypatch.setattr(backbone, "platform", lambda: platform)
  random = np.random.default_rng(0)
  x, kernel = random.normal(size=(2, 7, 10, 3)), random.normal(size=(size, size, 3, 4))
  found = convolve(jnp.array(x, jnp.float32), jnp.array(kernel, jnp.float32), stride)
  around = [(0, 0), *[(size // 2, size // 2)] * 2, (0, 0)]
  windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), (size, size), (1, 2))
  expected = np.einsum("bhwcij,ijcd->bhwd", windows[:, ::stride, ::stride], kernel)
  np.testing.assert_allclose(found, expected, atol=1e-4)


def test_images_are_convolved_alone_on_a_cpu(monkeypatch):
  random = np.random.default_rng(1)
  x, kernel = random.normal(size=(3, 8, 10, 3)), random.normal(size=(7, 7, 3, 4))
  way = jax.value_and_grad(lambda kernel, x: jnp.square(convolve(x, kernel, 2)).sum())
  found, convolutions = {}, {}
  for most in (backbone.APART, 2):
    monkeypatch.setattr(backbone, "APART", most)
    call = jax.jit(lambda *args: way(*args)).lower(jnp.float32(kernel), jnp.float32(x))
    convolutions[most] = call.as_text().count("stablehlo.convolution")
    found[most] = call.compile()(jnp.float32(kernel), jnp.float32(x))
  assert convolutions == {64: 6, 2: 2}  # of each image one, and one of the way back
  for a, b in zip(*found.values(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)


def windows_of(x, around, fill):
  padded = np.pad(x, ((0, 0), *around, (0, 0)), constant_values=fill)
  return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]


@pytest.mark.parametrize("around", [((1, 1), (1, 1)), ((0, 1), (1, 0))])
@pytest.mark.parametrize("shape", [(7, 10), (8, 3)])
def test_pooling_and_its_gradient_are_those_of_windows(around, shape):
  """The first of the largest places has the gradient; what is no number is not passed over."""
  random = np.random.default_rng(0)
  x = jnp.array(random.integers(-2, 3, (2, *shape, 3)), jnp.float32)  # many are equal
  windows = windows_of(x, around, -np.inf)
  found, back = jax.vjp(lambda x: max_pool(x, around), x)
  np.testing.assert_array_equal(found, windows.max((-2, -1)))
  given = random.normal(size=found.shape).astype(np.float32)
  expected = np.zeros((2, shape[0] + sum(around[0]), shape[1] + sum(around[1]), 3))
  for b, h, w, c in np.ndindex(found.shape):
    i, j = np.unravel_index(windows[b, h, w, c].argmax(), (3, 3))
    expected[b, 2 * h + i, 2 * w + j, c] += given[b, h, w, c]
  (top, _), (left, _) = around
  expected = expected[:, top:top + shape[0], left:left + shape[1]]
  np.testing.assert_allclose(back(given)[0], expected, atol=1e-6)
  nan = x.at[0, 1, 1, 0].set(jnp.nan)
  seen = windows_of(np.isnan(nan), around, False).any((-2, -1))
  assert seen.any()
  np.testing.assert_array_equal(np.isnan(max_pool(nan, around)), seen)
