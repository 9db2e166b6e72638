"""The program that turns queries and keys, against the formula: values, gradients, on any mesh."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.nn import rope as ropes
from jtx.nn.kernels import rotary
from jtx.nn.rope import Yarn, rope, turn
from jtx.parallel import sharding
from tests.helpers import one_fast_row


def drawn(shape, dtype=jnp.float32, seed=0):
  return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), dtype)


def of_complex(x, angle):
  """Pairs (i, i + H/2) as complex numbers times e^(i angle), in float64."""
  x = np.asarray(x, np.float64)
  half = x.shape[-1] // 2
  z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.asarray(angle, np.float64))[:, :, None]
  return np.concatenate([z.real, z.imag], -1)


# Rows that are one block, and no multiple of one; heads that share registers, and that fill one.
@pytest.mark.parametrize("length, heads, width", one_fast_row(
    (70, 6, 64), (64, 4, 32), (600, 2, 128), (520, 12, 64), (64, 9, 128), (64, 128, 2)))
@pytest.mark.parametrize("rows", [1, 2], ids=["same_places", "own_places"])
def test_turn(length, heads, width, rows):
  x, angle = drawn((2, length, heads, width)), 9 * drawn((rows, length, width // 2), seed=1)
  assert rotary.supports(x.shape)
  found, back = jax.vjp(lambda x: rotary.turn(x, angle, 1.5, interpret=True), x)
  np.testing.assert_allclose(found, 1.5 * of_complex(x, angle), atol=1e-5)
  g = drawn(x.shape, seed=2)
  np.testing.assert_allclose(back(g)[0], 1.5 * of_complex(g, -angle), atol=1e-5)


def test_numbers_of_half_the_width_are_turned_in_float32():
  x, angle = drawn((2, 64, 4, 64), jnp.bfloat16), 9 * drawn((2, 64, 32), seed=1)
  found = rotary.turn(x, angle, interpret=True)
  assert found.dtype == jnp.bfloat16
  np.testing.assert_array_equal(found, turn(x, angle, "half"))


@pytest.mark.parametrize("mesh", [dict(tensor=2, fsdp=2), dict(context=4), dict(data=2, tensor=2)],
                         ids=str)
def test_every_device_turns_its_part(mesh):
  x, positions = drawn((4, 256, 4, 64)), jnp.arange(4 * 256).reshape(4, 256) % 300
  angle = positions[..., None] * ropes.rope_frequencies(64, 1e4)
  sizes = dict(data=1, fsdp=1, tensor=1, context=1) | mesh
  with jax.set_mesh(sharding.make_mesh(sizes, jax.devices()[:4])):
    found = jax.jit(functools.partial(rotary.turn, interpret=True))(x, angle)
  np.testing.assert_allclose(found, turn(x, angle, "half"), atol=1e-5)


def test_shapes_that_are_left_to_xla():
  assert rotary.supports((2, 64, 2, 64))
  for shape in ((2, 63, 2, 64),  # few rows, as in decoding
                (2, 64, 3, 64), (2, 64, 4, 80), (2, 64, 1, 256)):  # registers that are not full
    assert not rotary.supports(shape)
  with jax.set_mesh(sharding.make_mesh(dict(data=1, fsdp=1, tensor=4, context=1),
                                       jax.devices()[:4])):
    assert rotary.supports((2, 64, 8, 64))
    assert not rotary.supports((2, 64, 4, 64))  # half a register a device


def test_rope_takes_it_on_a_tpu(monkeypatch):
  """With a scaling's magnitude, and not for pairs that are neighbours."""
  x, positions, calls = drawn((2, 64, 2, 64)), jnp.arange(64), []
  real = rotary.turn
  expected = [rope(x, positions, pairing=p, scaling=Yarn()) for p in ("half", "interleaved")]
  monkeypatch.setattr(ropes, "platform", lambda: "tpu")
  monkeypatch.setattr(rotary, "turn", lambda *args: calls.append(1) or real(*args, interpret=True))
  for value, pairing in zip(expected, ("half", "interleaved")):
    found = rope(x, positions, pairing=pairing, scaling=Yarn())
    np.testing.assert_allclose(found, value, atol=1e-5)
  assert len(calls) == 1
