"""Vision transformers: published counts; tokens, heads, masking and skipping by closed forms."""

import dataclasses
import math

from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.models.image_head import ImageHeadConfig, PrefixConfig
from jtx.models.mae_decoder import DecoderConfig, MaeDecoder
from jtx.models.resnet import Conv, GroupNorm, ResnetConfig
from jtx.evals.pictures import join
from jtx.interop.trunks import resized_vit
from jtx.models import patches
from jtx.models.patches import ImageConfig, split
from jtx.models.vit import VIT_STACK
from jtx.nn.block import Context, ResidualConfig, skip_examples
from jtx.nn.grid_kinds import Learned2d, RelativeBias
from jtx.nn.grid_positions import GRID_POSITIONS, Grid, LearnedGrid, Sincos2d
from jtx.nn.positions import Places
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox
from tests.helpers import block, vit

BLOCK = block(VIT_STACK.block, num_heads=2, ffn_dim=24)
IMAGE = ImageConfig(size=12, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
CLASSES = ImageHeadConfig(task="classes", outputs=5)
SMALL = vit(image=IMAGE, patch_size=4, width=16, num_layers=2, block=BLOCK, head=CLASSES)
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 3)).astype(np.uint8)


def shapes_by_path(model):
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  return {path: x.shape for path, x in flatten_dict(unbox(boxed), sep="/").items()}


def drawn(model, seed=0, std=0.5):
  boxed = shapes_of(model.init, jax.random.key(0), model.example())["params"]
  leaves, tree = jax.tree.flatten(unbox(boxed))
  rng = np.random.default_rng(seed)
  return jax.tree.unflatten(tree, [rng.normal(0, std, x.shape).astype(np.float32) for x in leaves])


def published(width, num_layers, num_heads, patch, **fields):
  layer = block(VIT_STACK.block, num_heads=num_heads, ffn_dim=4 * width)
  fields = {"head": ImageHeadConfig(task="classes", outputs=1000), **fields}
  return vit(patch_size=patch, width=width, num_layers=num_layers, block=layer, **fields)


DISTILLED = dict(prefix=PrefixConfig(distillation=True))


@pytest.mark.parametrize("model, expected", [
    (published(768, 12, 12, 16), 86_567_656),
    (published(1024, 24, 16, 16), 304_326_632),
    (published(1280, 32, 16, 14), 632_045_800),
    (published(192, 12, 3, 16, **DISTILLED), 5_717_800),  # DeiTForImageClassification
    (published(384, 12, 6, 16, **DISTILLED), 22_051_432),
    (published(768, 12, 12, 16, **DISTILLED), 86_569_192),
], ids=["B/16", "L/16", "H/14", "DeiT-Ti", "DeiT-S", "DeiT-B"])
def test_published_models_have_their_number_of_parameters(model, expected):
  assert sum(map(math.prod, shapes_by_path(model).values())) == expected


def test_maes_trained_parameters():
  model = published(768, 12, 12, 16, head=ImageHeadConfig(), decoder=DecoderConfig(num_layers=8),
                    position=LearnedGrid(init="sincos", trained=False))
  shapes = shapes_by_path(model)
  fixed = [path for path in shapes if path.endswith("position_embedding")]
  assert len(fixed) == 2
  assert sum(math.prod(s) for p, s in shapes.items() if p not in fixed) == 111_655_680


def test_patches_are_split_and_joined_row_by_row():
  image = np.arange(2 * 4 * 6 * 2).reshape(2, 4, 6, 2)
  patches = np.asarray(split(jnp.asarray(image), 2))
  assert patches.shape == (2, 6, 2, 2, 2)
  for n in range(6):
    row, column = divmod(n, 3)
    np.testing.assert_array_equal(
        patches[:, n], image[:, 2 * row:2 * row + 2, 2 * column:2 * column + 2])
  square = np.arange(2 * 4 * 4 * 3).reshape(2, 4, 4, 3)
  flat = split(jnp.asarray(square), 2).reshape(2, 4, -1)
  np.testing.assert_array_equal(join(flat, 2, 3), square)


def test_bytes_are_normalised_and_floats_taken_as_they_are():
  expected = (PIXELS / 255 - IMAGE.mean) / IMAGE.std
  np.testing.assert_allclose(IMAGE.normalize(jnp.asarray(PIXELS)), expected, rtol=1e-5, atol=1e-5)
  params = drawn(SMALL)
  of_bytes, of_floats = (SMALL.apply({"params": params}, {"image": x}, method="predict")
                         for x in (PIXELS, expected.astype(np.float32)))
  np.testing.assert_allclose(of_bytes, of_floats, atol=1e-4)


@pytest.mark.parametrize("mean", [(0.5,), (0.1, 0.4, 0.7)])
def test_patches_on_chips_are_those_of_a_cpu(mean, monkeypatch):
  config = ImageConfig(size=8, mean=mean, std=mean)
  image = jnp.asarray(np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)), jnp.uint8)
  expected = config.patches(image, 4)
  monkeypatch.setattr(patches, "platform", lambda: "tpu")
  np.testing.assert_array_equal(config.patches(image, 4), expected)
  np.testing.assert_array_equal(config.patches(config.normalize(image), 4), expected)


def test_the_stem_is_a_product_of_each_patch():
  model = vit(SMALL, prefix=PrefixConfig(registers=2), position=GRID_POSITIONS["none"]())
  params = drawn(model)
  x, places = model.apply({"params": params}, {"image": PIXELS}, False, method="embed")
  assert x.shape == (3, 3 + 9, 16) and (places == np.arange(12)).all()
  np.testing.assert_allclose(x[1, 0], params["cls_token"][0], rtol=1e-6)
  np.testing.assert_allclose(x[1, 1:3], params["registers"], rtol=1e-6)
  patch = np.asarray(IMAGE.normalize(jnp.asarray(PIXELS)))[1, 4:8, 8:12]
  stem = params["patches"]
  expected = np.einsum("ijc,ijcd->d", patch, stem["kernel"]) + stem["bias"]
  np.testing.assert_allclose(x[1, 3 + 5], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", GRID_POSITIONS)
def test_only_positions_tell_the_order_of_patches(name):
  model = vit(SMALL, position=GRID_POSITIONS[name]())
  params = drawn(model)
  mixed = np.asarray(join(jnp.asarray(np.asarray(split(jnp.asarray(PIXELS), 4))[
      :, [3, 1, 2, 0, 8, 5, 6, 7, 4]].reshape(3, 9, -1)), 4, 3))
  a, b = (model.apply({"params": params}, {"image": x}, method="predict") for x in (PIXELS, mixed))
  assert (abs(np.asarray(a) - b).max() < 1e-4) == (name == "none")


@pytest.mark.parametrize("at", ["layers", "shared"])
def test_positions_in_every_layer(at):
  model = vit(SMALL, position_at=at)
  params = drawn(model)
  own = params["encoder"]["layers"].get("position_embedding")
  table = params.get("position_embedding")
  assert (own is None) == (at == "shared") and (table is None) == (at == "layers")
  # The same, by a model without positions to which they are added before each layer.
  plain = vit(SMALL, position=GRID_POSITIONS["none"](), num_layers=1)
  rest = {k: v for k, v in params.items() if k != "position_embedding"}
  x, _ = vit(SMALL, position=GRID_POSITIONS["none"]()).apply(
      {"params": rest}, {"image": PIXELS}, False, method="embed")
  for i in range(2):
    layer = jax.tree.map(lambda p: p[i:i + 1], params["encoder"]["layers"])
    added = layer.pop("position_embedding")[0] if at == "layers" else table
    one = {**rest, "encoder": {**params["encoder"], "layers": layer}}
    x = plain.apply({"params": one}, x + added, method=lambda m, y: m.encoder(
        y, Context(Places(jnp.zeros((3, 10), int)), return_hidden=True))[1].hidden[0])
  out = model.apply({"params": params}, {"image": PIXELS}, method="hidden_states")
  y = np.asarray(x, np.float64)
  y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + BLOCK.norm.eps)
  norm = params["encoder"]["final_norm"]
  np.testing.assert_allclose(out[-1], y * norm["scale"] + norm["bias"], atol=2e-4)


def test_pooling(monkeypatch):
  hidden = np.random.default_rng(1).normal(size=(3, 10, 16)).astype(np.float32)
  for pool, expected in (("first", hidden[:, 0]), ("mean", hidden[:, 1:].mean(1))):
    model = SMALL.clone(head=dataclasses.replace(CLASSES, pool=pool))
    params = drawn(model)
    out = params["task_head"]["output"]
    got = model.apply({"params": params}, hidden, method="outputs")
    np.testing.assert_allclose(got[:, 0], expected @ out["kernel"] + out["bias"], atol=1e-4)
  headless = SMALL.clone(head=ImageHeadConfig())
  monkeypatch.setattr(type(headless), "__call__", lambda self, batch: hidden)
  np.testing.assert_allclose(headless.apply({"params": params}, {}, method="features"),
                             hidden[:, 1:].mean(1), atol=1e-6)


def test_attention_pooling_sees_every_token_and_no_order():
  model = SMALL.clone(head=dataclasses.replace(CLASSES, pool="attention"))
  params = drawn(model)
  hidden = np.random.default_rng(1).normal(size=(3, 10, 16)).astype(np.float32)
  run = lambda x: np.asarray(model.apply({"params": params}, x, method="outputs"))
  np.testing.assert_allclose(run(hidden[:, ::-1]), run(hidden), atol=1e-4)
  for token in range(10):
    changed = hidden.copy()
    changed[:, token] += 1
    assert abs(run(changed) - run(hidden)).max() > 1e-4, token
  ffn = params["task_head"]["pool"]["ffn"]
  ffn["out"] = jax.tree.map(np.zeros_like, ffn["out"])
  assert abs(run(changed) - run(hidden)).max() > 1e-4  # the layer is beside what is pooled


def test_a_norm_after_pooling_takes_the_place_of_the_one_before():
  model = SMALL.clone(head=dataclasses.replace(CLASSES, pool="mean", norm=True))
  shapes = shapes_by_path(model)
  assert "task_head/norm/scale" in shapes and "encoder/final_norm/scale" not in shapes


def test_a_distilled_head_answers_with_the_mean_of_two():
  model = SMALL.clone(prefix=PrefixConfig(distillation=True),
                      head=dataclasses.replace(CLASSES, distilled=True))
  params = drawn(model)
  scores = model.apply({"params": params}, {"image": PIXELS}, method="scores")
  hidden = np.asarray(model.apply({"params": params}, {"image": PIXELS}))
  for i, name in enumerate(("output", "distillation_output")):
    out = params["task_head"][name]
    np.testing.assert_allclose(scores[:, i], hidden[:, i] @ out["kernel"] + out["bias"], atol=1e-4)
  np.testing.assert_allclose(model.apply({"params": params}, {"image": PIXELS}, method="predict"),
                             scores.mean(1, keepdims=True), atol=1e-5)


@pytest.mark.slow
def test_layer_scale_and_skipped_examples():
  scaled = dataclasses.replace(BLOCK, residual=ResidualConfig(layer_scale=0.0))
  model = vit(SMALL, block=scaled)
  params = unbox(model.init(jax.random.key(0), {"image": PIXELS}))["params"]
  states = model.apply({"params": params}, {"image": PIXELS}, method="hidden_states")
  np.testing.assert_array_equal(states[1], states[0])  # all that layers add is multiplied by 0

  y = jnp.ones((20_000, 1, 1))
  kept = np.asarray(skip_examples(y, jnp.float32(0.3), jax.random.key(0))).reshape(-1)
  assert set(np.unique(kept)) == {0.0, np.float32(1 / 0.7)}
  assert abs((kept == 0).mean() - 0.3) < 3 * math.sqrt(0.21 / 20_000)
  rates = ResidualConfig(drop_path=0.4)
  np.testing.assert_allclose(rates.skipped(1, 2, 5), [0.1, 0.2], rtol=1e-6)
  np.testing.assert_allclose(dataclasses.replace(rates, uniform=True).skipped(1, 2, 5), [0.4, 0.4])
  assert ResidualConfig().skipped(0, 2, 2) is None


def test_skipping_is_for_training_alone():
  model = vit(SMALL, block=dataclasses.replace(
      BLOCK, residual=ResidualConfig(drop_path=0.5, uniform=True)))
  params = drawn(model)
  run = lambda train, seed=0: np.asarray(model.apply(
      {"params": params}, {"image": PIXELS}, 1, train, rngs={"dropout": jax.random.key(seed)},
      method="predict"))
  plain = SMALL.apply({"params": params}, {"image": PIXELS}, method="predict")
  np.testing.assert_array_equal(run(False), plain)
  assert any(abs(run(True, seed) - run(False)).max() > 1e-3 for seed in range(3))


MAE = vit(SMALL, head=ImageHeadConfig(), position=LearnedGrid(init="sincos", trained=False),
          decoder=DecoderConfig(num_layers=1, width=8, num_heads=2, ffn_dim=12, masked=0.6))


def test_kept_patches_take_their_places_along():
  params, kept = drawn(SMALL), jnp.array([[2, 0], [8, 3], [5, 5]])
  embed = lambda *kept: SMALL.apply({"params": params}, {"image": PIXELS}, False, *kept,
                                    method="embed")
  (every, _), (some, numbers) = embed(), embed(kept)
  assert numbers.tolist() == [[0, 3, 1], [0, 9, 4], [0, 6, 6]]
  np.testing.assert_array_equal(some, np.take_along_axis(every, numbers[..., None], 1))


def test_maes_decoder_puts_patches_back_into_their_places():
  config = DecoderConfig(num_layers=0, width=8, num_heads=2, position=LearnedGrid())
  decoder = MaeDecoder(config, SMALL.stack, Grid(1, 4, 1), outputs=3)
  hidden = np.random.default_rng(0).normal(size=(1, 3, 16)).astype(np.float32)
  restore = jnp.array([[3, 1, 0, 2]])  # the second and the third patch were seen
  boxed = shapes_of(decoder.init, jax.random.key(0), hidden, restore)["params"]
  rng = np.random.default_rng(1)
  params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), unbox(boxed))
  x = hidden[0] @ params["embed"]["kernel"] + params["embed"]["bias"]
  x = np.stack([params["mask_token"][0], x[2], x[1], params["mask_token"][0]])
  x = x + params["position_embedding"][1:]
  x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + BLOCK.norm.eps)
  norm, output = params["decoder"]["final_norm"], params["output"]
  x = (x * norm["scale"] + norm["bias"]) @ output["kernel"] + output["bias"]
  np.testing.assert_allclose(decoder.apply({"params": params}, hidden, restore)[0], x, atol=1e-4)


@pytest.mark.slow
def test_the_encoder_of_mae_sees_only_what_is_kept():
  params = drawn(MAE)
  noise = np.random.default_rng(2).permuted(np.tile(np.arange(9.0), (3, 1)), axis=1)
  run = lambda image: MAE.apply({"params": params}, {"image": image}, jnp.asarray(noise),
                                method="reconstruct")
  predicted, hidden = map(np.asarray, run(PIXELS))
  assert predicted.shape == (3, 9, 4 * 4 * 3)
  np.testing.assert_array_equal(hidden, noise >= 3)  # 0.4 of 9, rounded down, are seen
  patches = np.array(split(jnp.asarray(PIXELS), 4)).reshape(3, 9, -1)
  for seen in (True, False):
    changed = patches.copy()
    changed[(hidden == 0) == seen] = 255 - changed[(hidden == 0) == seen]
    again, _ = run(np.asarray(join(jnp.asarray(changed), 4, 3)))
    assert (abs(np.asarray(again) - predicted).max() > 1e-3) == seen
  np.testing.assert_allclose(
      MAE.apply({"params": params}, {"image": PIXELS}, method="pixels"),
      np.asarray(split(IMAGE.normalize(jnp.asarray(PIXELS)), 4)).reshape(3, 9, -1), atol=1e-6)


def test_an_encoder_of_mae_that_hides_nothing_sees_all():
  model = MAE.clone(decoder=dataclasses.replace(MAE.decoder, masked=0.0))
  params, noise = drawn(model), np.tile(np.arange(9.0), (3, 1))
  predicted, hidden = model.apply({"params": params}, {"image": PIXELS}, jnp.asarray(noise),
                                  method="reconstruct")
  assert not hidden.any()
  for i in range(9):  # a change of any patch shows
    changed = np.array(split(jnp.asarray(PIXELS), 4)).reshape(3, 9, -1)
    changed[:, i] = 255 - changed[:, i]
    again, _ = model.apply({"params": params}, {"image": join(jnp.asarray(changed), 4, 3)},
                           jnp.asarray(noise), method="reconstruct")
    assert abs(np.asarray(again) - np.asarray(predicted)).max() > 1e-3


def test_weights_are_for_images_of_another_size():
  larger = SMALL.clone(image=dataclasses.replace(IMAGE, size=20))
  flat = flatten_dict(drawn(SMALL), sep="/")
  params = resized_vit(larger, flat, SMALL)
  assert {p: x.shape for p, x in params.items()} == shapes_by_path(larger)
  np.testing.assert_array_equal(params["position_embedding"][0], flat["position_embedding"][0])
  same = resized_vit(SMALL, flat, SMALL)
  assert all(same[p] is flat[p] for p in flat)
  assert resized_vit(vit(larger, position=Sincos2d()), {}, vit(SMALL, position=Sincos2d())) == {}
  model = vit(SMALL, position=Learned2d())
  with pytest.raises(ConfigError, match="positions of the kind Learned2d"):
    resized_vit(vit(larger, position=Learned2d()), flatten_dict(drawn(model), sep="/"), model)
  model = vit(SMALL, position=RelativeBias())  # whose three numbers of the prefix stay
  flat = flatten_dict(drawn(model), sep="/")
  params, path = resized_vit(vit(larger, position=RelativeBias()), flat, model), (
      "encoder/position_bias")
  assert params[path].shape == (9 * 9 + 3, 2) and flat[path].shape == (5 * 5 + 3, 2)
  np.testing.assert_array_equal(params[path][-3:], flat[path][-3:])


def test_the_stem_of_a_hybrid():
  config = ResnetConfig(stages=(1, 2, 1), width=8, groups=4)
  assert config.stride == 16 and ResnetConfig().stride == 1
  model = vit(image=ImageConfig(size=64), patch_size=1, width=16, num_layers=1, block=BLOCK,
              stem=config, head=CLASSES)
  shapes = shapes_by_path(model)
  assert model.grid[:2] == (4, 4) and shapes["patches/kernel"] == (1, 1, 8 * 4 * 4, 16)
  x = np.random.default_rng(0).normal(size=(2, 6, 6, 8)).astype(np.float32)
  norm = GroupNorm(4)
  y = np.asarray(norm.apply({"params": {"scale": np.ones(8), "bias": np.zeros(8)}}, x))
  grouped = y.reshape(2, 36, 4, 2)
  np.testing.assert_allclose(grouped.mean((1, 3)), 0, atol=1e-5)
  np.testing.assert_allclose(grouped.var((1, 3)), 1, atol=1e-4)
  kernel = np.random.default_rng(1).normal(3, 2, (1, 1, 8, 5)).astype(np.float32)
  out = Conv(5, 1, 1).apply({"params": {"kernel": kernel}}, x)
  standard = (kernel - kernel.mean((0, 1, 2))) / kernel.std((0, 1, 2))
  np.testing.assert_allclose(out, x @ standard[0, 0], atol=1e-4)


@pytest.mark.parametrize("fields, message", [
    (dict(patch_size=5), "image.size=12 is not a multiple of the 5 pixels of a patch"),
    (dict(stem=ResnetConfig((1,), 8, 4), patch_size=2), "8 pixels of a patch"),
    (dict(prefix=PrefixConfig(cls=False)), "head.pool='first' takes the"),
    (dict(head=dataclasses.replace(CLASSES, distilled=True)), "needs prefix.cls=True and"),
    (dict(position_at="top"), "position_at='top'"),
    (dict(position_at="layers", decoder=DecoderConfig(num_layers=1)),
     "MAE's decoder needs patches"),
    (dict(head=ImageHeadConfig(task="classes")), "head.outputs must be set"),
])
def test_fields_that_do_not_fit(fields, message):
  with pytest.raises(ConfigError, match=message):
    shapes_by_path(vit(SMALL, **fields))


@pytest.mark.parametrize("make, message", [
    (lambda: ImageHeadConfig(task="class"), "did you mean 'classes'"),
    (lambda: ImageHeadConfig(pool="max"), "head.pool='max'"),
    (lambda: ImageHeadConfig(outputs=3), "go with head.task='classes', not 'none'"),
    (lambda: ImageConfig(channels=1), "a number for each of the 1 channels"),
    (lambda: ResnetConfig((1,), 10), "a multiple of stem.groups=32"),
])
def test_values_that_do_not_fit(make, message):
  with pytest.raises(ConfigError, match=message):
    make()


def test_images_that_do_not_fit():
  params = drawn(SMALL)
  for image, said in ((PIXELS[:, :8], "8 x 12 x 3"), (PIXELS[..., :1], "12 x 12 x 1")):
    with pytest.raises(ConfigError, match=f"images of {said} do not fit the model's image.size=12"):
      SMALL.apply({"params": params}, {"image": image})
