"""Shapes of parameters that are not drawn; those of every family: see tests/models."""

import jax
import jax.numpy as jnp
import pytest

from jtx.nn.shapes import alone, shapes_of
from tests.helpers import block, encoder

KEY = jax.random.key(0)


def model(share=False):
  return encoder(vocab_size=11, width=8, num_layers=3, share_layers=share,
                 block=block(num_heads=2, ffn_dim=12))


@pytest.mark.parametrize("share", [False, True])
def test_layers_are_those_that_are_drawn(share):
  module = model(share)
  expected = jax.eval_shape(module.init, KEY, module.example())
  assert shapes_of(module.init, KEY, module.example()) == expected


def test_it_leaves_nothing_behind():
  """A program that is made of the same function draws, also after an error."""
  module = model()
  shapes = shapes_of(module.init, KEY, module.example())
  drawn = jax.jit(module.init)(KEY, module.example())
  assert jax.tree.map(jnp.shape, drawn) == jax.tree.map(lambda x: x.shape, shapes)
  assert drawn["params"]["encoder"]["layers"]["ffn"]["in"]["kernel"].value.std() > 0
  with pytest.raises(ZeroDivisionError):
    shapes_of(lambda: 1 / (not alone()))
  assert not alone()
