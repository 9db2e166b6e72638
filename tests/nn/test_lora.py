"""Low-rank adapters: their product for kernels of every shape, and in every family of models."""

import dataclasses

from flax import linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn import lora
from jtx.nn.layers import Dense
from jtx.nn.lora import Adapted, LoraConfig
from jtx.parallel.sharding import unbox
from tests.helpers import one_fast
from tests.models.test_contract import CASES, drawn, of_length

AXES = {"in": (("embed", "mlp"), (3,), (5,)), "query": (("embed", "heads", "kv"), (3,), (2, 4)),
        "out": (("heads", "kv", "embed"), (2, 4), (3,)),
        "patches": (("patch", "patch", "channels", "embed"), (2, 2, 3), (5,))}


class Layer(Adapted):
  name_of_kernel: str = "in"

  @nn.compact
  def __call__(self, x):
    axes, inputs, features = AXES[self.name_of_kernel]
    return Dense(features, axes, len(inputs), name=self.name_of_kernel)(x)


def layer(name, **fields):
  model = Layer(name_of_kernel=name, lora=LoraConfig(rank=2, names=(name,), **fields))
  x = np.random.default_rng(1).normal(size=(7, *AXES[name][1])).astype(np.float32)
  params = unbox(model.init(jax.random.key(0), x)["params"])
  return model, params, x


@pytest.mark.parametrize("name", AXES)
def test_the_product_is_added_and_merged(name):
  model, params, x = layer(name, alpha=3.0)
  _, inputs, features = AXES[name]
  own = params[name]
  assert own["lora_a"].shape == (*inputs, 2) and own["lora_b"].shape == (2, *features)
  assert not np.any(own["lora_b"])
  bound = np.prod(inputs)**-0.5
  assert 0.2 * bound < np.abs(own["lora_a"]).max() <= bound
  random = np.random.default_rng(0)
  params = {name: {k: jnp.asarray(random.normal(size=v.shape), jnp.float32)
                   for k, v in own.items()}}
  w, bias, a, b = (np.asarray(params[name][k], np.float64)
                   for k in ("kernel", "bias", "lora_a", "lora_b"))
  flat = x.reshape(7, -1).astype(np.float64)
  side = np.prod(inputs)
  wanted = (flat @ w.reshape(side, -1) + bias.reshape(-1)
            + 3.0 / 2 * (flat @ a.reshape(side, 2)) @ b.reshape(2, -1)).reshape(7, *features)
  np.testing.assert_allclose(model.apply({"params": params}, x), wanted, rtol=1e-5, atol=1e-5)
  plain, merged = lora.merged(model, params)
  assert plain.lora == LoraConfig() and set(merged[name]) == {"kernel", "bias"}
  np.testing.assert_allclose(plain.apply({"params": merged}, x), wanted, rtol=1e-5, atol=1e-5)


def test_dropout_is_of_the_input_of_the_adapters_alone():
  model, params, _ = layer("in", alpha=2.0, dropout=0.5)
  eye = np.eye(3, dtype=np.float32)[:, :2]
  params = {"in": {**params["in"], "lora_a": jnp.asarray(eye), "lora_b": jnp.ones((2, 5))}}
  x, variables = np.ones((400, 3), np.float32), {"params": params}
  bare = lora.plain(model).apply(variables, x)
  np.testing.assert_allclose(model.apply(variables, x) - bare, 2.0, rtol=1e-5)
  added = model.apply(variables, x, rngs={"dropout": jax.random.key(3)}) - bare
  values, counts = np.unique(np.round(np.asarray(added)[:, 0], 3), return_counts=True)
  np.testing.assert_array_equal(values, [0, 2, 4])  # each of two inputs is 0 or 2
  assert 70 < counts[0] < 130 and 160 < counts[1] < 240


def adapted(name, **fields):
  """A case of test_contract whose attention and feed-forward have adapters; its drawn params."""
  config = LoraConfig(rank=2, names=("attention/", "ffn/"), **fields)
  return CASES[name][0].clone(lora=config, dtype="float32")


@pytest.mark.parametrize("name", one_fast(
    "vit with a head", "mae", "decoder", "encdec", "encoder of two segments",
    "encoder of special tokens"))
def test_models_begin_as_they_were_and_merge(name):
  model = adapted(name, dropout=0.1)
  bare, batch = lora.plain(model), of_length(model, 4)
  if "image" in batch:
    batch = model.example()
  run = lambda m, p, **more: m.apply({"params": p}, batch, **more)
  fresh = unbox(model.init(jax.random.key(0), model.example())["params"])
  base = unbox(bare.init(jax.random.key(0), bare.example())["params"])
  trained, frozen = lora.split(model, fresh)
  heads = {k for k in base if k == "task_head"}
  assert set(trained) >= heads and not heads & set(frozen)
  left = {p for p in flatten_dict(trained, sep="/") if p.split("/")[0] not in heads}
  assert left and all(p.endswith(("/lora_a", "/lora_b")) for p in left)
  assert set(flatten_dict(frozen)) | set(flatten_dict(trained)) == set(flatten_dict(fresh))
  # B is 0, so the model is as it was, bit for bit; it drops the same values, where XLA may fuse
  # the two programs in different ways and round the last bit otherwise.
  params = lora.joined(trained, {k: v for k, v in base.items() if k not in heads})
  np.testing.assert_array_equal(run(model, params), run(bare, params))
  drops = {"train": True, "rngs": {"dropout": jax.random.key(1)}}
  want = np.asarray(run(bare, params, **drops))
  np.testing.assert_allclose(run(model, params, **drops), want, rtol=0,
                             atol=5e-7 * np.abs(want).max())
  params = drawn(model)
  plain, merged = lora.merged(model, params)
  assert set(flatten_dict(merged)) == set(flatten_dict(base))
  want = np.asarray(run(model, params))
  np.testing.assert_allclose(run(plain, merged), want, rtol=1e-4, atol=3e-6 * np.abs(want).max())
  assert np.abs(want - run(plain, {**params})).max() > 0.01 * np.abs(want).max()


@pytest.mark.slow
def test_the_gradient_of_a_fresh_adapter_is_that_of_b():
  """dA is (x^T dY B^T), so 0 where B is; dB is not."""
  model = adapted("encoder")
  params = unbox(model.init(jax.random.key(0), model.example())["params"])
  batch = of_length(model, 4)
  batch["text"] = jnp.arange(4)[None] + 1
  trained, frozen = lora.split(model, params)
  loss = lambda p: (model.apply({"params": lora.joined(p, frozen)}, batch)**3).sum()
  found = flatten_dict(jax.grad(loss)(trained), sep="/")
  assert {p.split("/")[-1] for p in found} == {"lora_a", "lora_b"}
  assert all(np.any(g) == p.endswith("lora_b") for p, g in found.items() if "/ffn/" in p)


def test_further_parameters_are_trained_by_name():
  model = adapted("encoder", trained=("^embed/", "norm/scale$"))
  params = drawn(model)
  _, frozen = lora.split(model, params)
  paths = set(flatten_dict(frozen, sep="/"))
  assert "embed/embedding" not in paths and not any(p.endswith("norm/scale") for p in paths)
  assert "encoder/layers/ffn_norm/bias" in paths
  with pytest.raises(ConfigError, match="model.lora.trained: 'embd' matches no parameter; .*embed"):
    lora.split(adapted("encoder", trained=("embd",)), params)


def test_names_that_match_nothing_are_told_with_those_that_are_there():
  model = CASES["encoder with heads"][0].clone(lora=LoraConfig(rank=2, names=("query", "qury")))
  with pytest.raises(ConfigError) as error:
    model.init(jax.random.key(0), model.example())
  assert str(error.value).startswith(
      "model.lora.names: 'qury' matches no linear layer; their paths are"
      " encoder/layers/attention/query, encoder/layers/attention/key,")
  assert "task_head" not in str(error.value)  # which is trained whole


@pytest.mark.parametrize("fields, match", [
    (dict(names=("(",)), r"lora.names: '\(' is no regular expression"),
    (dict(rank=2, names=()), "lora.rank=2 needs lora.names"),
])
def test_fields_that_do_not_fit(fields, match):
  with pytest.raises(ConfigError, match=match):
    LoraConfig(**fields)


def test_a_model_with_adapters_is_not_bound():
  model = adapted("encoder")
  with pytest.raises(ValueError, match="merged"):
    model.bind({"params": {}})
  lora.plain(model).bind({"params": {}})
  assert lora.plain(3) == 3 and not lora.adapted(dataclasses)
