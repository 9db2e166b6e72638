"""Gradients in bfloat16 of what many rows share: sums made in that type would lose their end."""

import dataclasses

import flax.linen as nn
from flax.traverse_util import flatten_dict
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.models.features import FeatureConfig, Features
from jtx.models.image_head import AttentionPool
from jtx.models.mae_decoder import DecoderConfig, MaeDecoder
from jtx.models.patches import ImageConfig
from jtx.models.vit import VIT_STACK, Vit
from jtx.models.xlnet import Xlnet
from jtx.nn.additive import Source, additive
from jtx.nn.characters import CharacterCnn, CharacterConfig
from jtx.nn.convolution import Convolution, ConvolutionConfig
from jtx.nn.grid_positions import Grid
from jtx.nn.layers import Dense
from jtx.nn.mbconv import MbConv, MbConvConfig
from jtx.nn.positions import Places
from jtx.nn.residual import ResidualConfig
from jtx.nn.transformer_xl import TransformerXl
from jtx.parallel.sharding import unbox
from tests.helpers import block, encoder, one_fast

RNG = np.random.default_rng(0)
D = 8
BLOCK = block(num_heads=2, ffn_dim=12, dropout=0.0)
POSITIONS = np.broadcast_to(np.arange(64), (64, 64))


def normal(*shape):
  return RNG.normal(0.2, 1.0, shape).astype(np.float32)


class Scale(nn.Module):
  """Layer scale alone."""

  @nn.compact
  def __call__(self, x):
    return ResidualConfig(layer_scale=1.0).layer_scaled(self, "scale", x)


class Distances(nn.Module):
  """The part of attention's logits that positions of Transformer-XL make."""

  @nn.compact
  def __call__(self, q):
    sizes = dict(content_bias=(2, D), distance_bias=(2, D), type_bias=(2, D), key=(D, 2, D),
                 type=(2, 2, D))
    params = {name: self.param(name, nn.initializers.normal(0.5), shape)
              for name, shape in sizes.items()}
    places = Places(jnp.asarray(POSITIONS), types=jnp.asarray(POSITIONS % 2))
    return TransformerXl().bias(q, q, places, places, params=params, project=None, scale=1.0)


class Attended(nn.Module):
  """Additive attention to many places, of a query that is a parameter."""

  @nn.compact
  def __call__(self, keys):
    query = self.param("query", nn.initializers.normal(1.0), (len(keys), D))
    ones = jnp.ones(keys.shape[:2], jnp.int32)
    context, _ = additive(query, Source(keys, keys, ones), jnp.ones(D, keys.dtype), ones[:, 0])
    return context


class Streams(nn.Module):
  """The query stream of an XLNet without layers."""
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, tokens):
    texts = encoder(vocab_size=7, width=D, num_layers=0, position=TransformerXl(), block=BLOCK)
    model = Xlnet(vocab_size=7, stack=texts.stack, dtype=self.dtype.name, name="xlnet")
    batch = {"text": tokens, "text_segment_ids": jnp.ones_like(tokens),
             "text_positions": jnp.asarray(POSITIONS),
             "text_pairs": jnp.ones((64, 64, 64), bool)}
    return model.streams(batch, jnp.asarray(POSITIONS))[1]


class Embedded(nn.Module):
  """A ViT's tokens, of which some are hidden."""
  dtype: jnp.dtype

  @nn.compact
  def __call__(self, images):
    stack = dataclasses.replace(VIT_STACK, width=D, num_layers=0, block=BLOCK)
    model = Vit(image=ImageConfig(size=4), patch_size=2, stack=stack, mask_token=True,
                dtype=self.dtype.name, name="vit")
    hidden = jnp.asarray(np.arange(len(images) * 4).reshape(-1, 4) % 3 > 0)
    return model.embed({"image": images, "image_masked": hidden}, False)[0]


ROWS, MAPS = normal(64, 64, D), normal(16, 32, 32, D)
RESTORE = np.stack([np.random.default_rng(i).permutation(1024) for i in range(64)])
# How to make the module of a type, what it reads, and what of its parameters many rows share.
SHARED = {
    "a dense layer": (lambda t: Dense((D,), ("embed", "mlp"), dtype=t), (ROWS,), "bias"),
    "a mix of layers": (lambda t: Features(FeatureConfig(
        layers=(0, 1), combine="scalar_mix", lstm_layers=0), t),
                        (normal(2, 64, 64, D), np.ones((64, 64), int)), "scale"),
    "layer scale": (lambda t: Scale(), (ROWS,), "scale"),
    "distances": (lambda t: Distances(), (normal(64, 64, 2, D),), "distance_bias"),
    "types": (lambda t: Distances(), (normal(64, 64, 2, D),), "type_bias"),
    "characters": (lambda t: CharacterCnn(CharacterConfig(dim=4, filters=((2, D),), highways=0),
                                          D, t),
                   (RNG.integers(0, 256, (2048, 64, 6)),), "filter_bias_0"),
    "a convolution": (lambda t: Convolution(ConvolutionConfig(size=3), dtype=t), (ROWS,), "bias"),
    "squeeze and excitation": (lambda t: MbConv(MbConvConfig(squeeze=0.5), D, dtype=t), (MAPS,),
                               "excite/bias"),
    "additive attention": (lambda t: Attended(), (normal(4, 4096, D),), "query"),
    "a class token": (Embedded, (normal(2**15, 4, 4, 3),), "vit/cls_token"),
    "hidden patches": (Embedded, (normal(2**15, 4, 4, 3),), "vit/mask_token"),
    "a probe": (lambda t: AttentionPool(BLOCK, t), (normal(2**15, 2, D),), "probe"),
    "a query stream": (Streams, (RNG.integers(0, 7, (64, 64)),), "xlnet/mask_embedding"),
    "MAE's decoder": (lambda t: MaeDecoder(DecoderConfig(num_layers=0, width=D, num_heads=2),
                                           VIT_STACK, Grid(32, 32), 12, t),
                      (normal(64, 256, D), RESTORE), "mask_token"),
}


def gradient_of(make, inputs, name, dtype):
  """The gradient of the parameter for a loss of float32 outputs, whose slopes have a mean."""
  module = make(jnp.dtype(dtype))
  cast = lambda x: jnp.asarray(x, dtype if x.dtype == np.float32 else None)
  inputs = [cast(np.asarray(x)) for x in inputs]
  drawn = unbox(jax.eval_shape(module.init, jax.random.key(0), *inputs)["params"])
  rng = np.random.default_rng(1)
  # Of few digits, which both types have.
  params = jax.tree.map(lambda s: jnp.asarray(rng.normal(0, 0.5, s.shape), jnp.bfloat16).astype(
      jnp.float32), drawn)

  run = lambda params, inputs: module.apply({"params": params}, *inputs).astype(jnp.float32)
  shape = jax.eval_shape(run, params, inputs).shape
  slopes = np.float32(rng.normal(size=shape) + rng.normal(1, 0.5, shape[-1:]))
  loss = lambda params, inputs, slopes: (run(params, inputs) * slopes).sum()
  return np.float64(flatten_dict(jax.jit(jax.grad(loss))(params, inputs, slopes), sep="/")[name])


@pytest.mark.parametrize("name", one_fast(*SHARED))
def test_what_many_rows_share_has_the_gradient_of_float32(name):
  expected = gradient_of(*SHARED[name], "float32")
  off = np.linalg.norm(gradient_of(*SHARED[name], "bfloat16") - expected)
  assert off < 0.005 * np.linalg.norm(expected)
