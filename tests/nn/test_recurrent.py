"""LSTM and GRU against their equations in float64, on rows of several texts with padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.recurrent import CellConfig, Recurrent, RecurrentConfig, RecurrentStack, State, begins
from jtx.nn.shapes import shapes_of
from jtx.parallel.sharding import unbox

D, H = 5, 6
SEGMENTS = np.array([[1, 1, 1, 2, 2, 0, 0], [0, 1, 1, 0, 1, 1, 2]])
# Row, and the places of each text in it.
TEXTS = [(0, [0, 1, 2]), (0, [3, 4]), (1, [1, 2, 4, 5]), (1, [6])]
CELLS = {
    "lstm": CellConfig(),
    "projected": CellConfig(projection=3, forget_bias=1.0, cell_clip=0.3, projection_clip=0.2),
    "gru": CellConfig(kind="gru"),
    "gru, reset before": CellConfig(kind="gru", reset_after=False),
}


def sigmoid(a):
  return 1 / (1 + np.exp(-a))


def reference(config, p, x, hidden, cell):
  """The states (hidden, cell) of one text [T, D] in float64, from a first one."""
  clip = lambda a, most: np.clip(a, -most, most) if most else a
  U, found = p["recurrent"], []
  for row in np.asarray(x, np.float64):
    a = np.einsum("d,dgh->gh", row, p["input"]["kernel"]) + p["input"]["bias"]
    if config.kind == "lstm":
      i, f, g, o = a + (hidden @ U).reshape(4, H)
      cell = clip(sigmoid(f + config.forget_bias) * cell + sigmoid(i) * np.tanh(g),
                  config.cell_clip)
      hidden = sigmoid(o) * np.tanh(cell)
      hidden = hidden @ p["projection"] if config.projection else hidden
      hidden = clip(hidden, config.projection_clip)
    else:
      u = U.reshape(H, 3, H)
      r, z = (sigmoid(a[k] + hidden @ u[:, k]) for k in (0, 1))
      n = np.tanh(a[2] + (r * (hidden @ u[:, 2] + p["reset_bias"]) if config.reset_after
                          else (r * hidden) @ u[:, 2]))
      hidden = (1 - z) * n + z * hidden
    found.append((hidden, cell))
  return [np.array(part) for part in zip(*found)]


def drawn(module, *args, scale=0.7):
  shapes = unbox(shapes_of(module.init, jax.random.key(0), *args))["params"]
  rng = np.random.default_rng(1)
  return jax.tree.map(lambda s: rng.normal(0, scale, s.shape).astype(np.float32), shapes)


@pytest.mark.parametrize("name, reverse", [
    ("lstm", False), ("projected", True), ("gru", False), ("gru, reset before", True),
    *(pytest.param(name, name in ("lstm", "gru"), marks=pytest.mark.slow) for name in CELLS)])
def test_layers_are_their_recurrence_in_every_text(name, reverse):
  config, rng = CELLS[name], np.random.default_rng(0)
  x = rng.normal(size=(2, 7, D)).astype(np.float32)
  module = Recurrent(config, D, H, reverse)
  p = drawn(module, x, SEGMENTS)
  R = config.outputs(H)
  starts = State(rng.normal(size=(2, 7, R)).astype(np.float32), rng.normal(size=(2, 7, H)).astype(
      np.float32) if config.kind == "lstm" else None)
  run = jax.jit(lambda starts: module.apply({"params": p}, x, SEGMENTS, starts))
  turn = (lambda a: a[::-1]) if reverse else (lambda a: a)
  for given in (None, starts):
    states, last = jax.device_get(run(given))
    for row, places in TEXTS:
      first = turn(places)[0]
      hidden, cell = (np.zeros(n) if part is None or given is None else part[row, first]
                      for n, part in zip((R, H), starts))
      hidden, cell = reference(config, p, turn(x[row, places]), hidden, cell)
      np.testing.assert_allclose(states.hidden[row, places], turn(hidden), atol=2e-6)
      if config.kind == "lstm":
        np.testing.assert_allclose(states.cell[row, places], turn(cell), atol=2e-6)
    np.testing.assert_array_equal(states.hidden[0, 6], 0 if reverse else states.hidden[0, 4])
    ends = (states.hidden[:, 0] if reverse else states.hidden[:, -1])
    np.testing.assert_array_equal(last.hidden, ends)


@pytest.mark.parametrize("name", ["projected", "gru"])
def test_gradients_of_long_rows_in_bfloat16_are_those_of_float32(name):
  """Sums over time in bfloat16 would lose a tenth of them."""
  x = np.random.default_rng(0).normal(size=(8, 512, D)).astype(np.float32)
  ones, found = np.ones((8, 512), int), []
  slopes = np.float32(1 + np.random.default_rng(1).normal(size=CELLS[name].outputs(H)))
  for dtype in (jnp.float32, jnp.bfloat16):
    module = Recurrent(CELLS[name], D, H, dtype=dtype)
    loss = lambda p, module=module: (module.apply({"params": p}, x, ones)[0].hidden * slopes).sum()
    found.append(jax.jit(jax.grad(loss))(drawn(module, x, ones, scale=0.3)))
  close = lambda a, b: np.testing.assert_array_less(
      np.linalg.norm(b - a), 0.02 * np.linalg.norm(a))
  jax.tree.map(close, *map(jax.device_get, found))


def test_begins():
  np.testing.assert_array_equal(np.where(begins(jnp.asarray(SEGMENTS)))[1], [0, 3, 1, 6])
  np.testing.assert_array_equal(np.where(begins(jnp.asarray(SEGMENTS), True))[1], [2, 4, 5, 6])


def test_layers_stand_on_one_another_and_go_on():
  """Both directions, a residual, and a text in two parts."""
  config = RecurrentConfig(dim=H, num_layers=2, residual=True, cell=CellConfig(projection=D))
  x = np.random.default_rng(0).normal(size=(2, 6, D)).astype(np.float32)
  ones = np.ones((2, 6), int)
  module = RecurrentStack(config, D)
  p = drawn(module, x, ones)
  run = lambda *args: module.apply({"params": p}, *args)
  (first, second), whole = run(x, ones)
  alone = lambda i, x: Recurrent(config.cell, D, H).apply(
      {"params": p[f"forward_{i}"]}, x, ones)[0].hidden
  np.testing.assert_allclose(first, alone(0, x), atol=1e-6)
  np.testing.assert_allclose(second, first + alone(1, first), atol=1e-6)
  _, before = run(x[:, :4], ones[:, :4])
  (_, behind), after = run(x[:, 4:], ones[:, 4:], False, before.last)
  np.testing.assert_allclose(behind, second[:, 4:], atol=1e-6)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), after.last, whole.last)
  both = RecurrentStack(RecurrentConfig(dim=H, bidirectional=True, num_layers=2), D)
  (_, y), _ = both.apply({"params": drawn(both, x, ones)}, x, ones)
  assert y.shape == (2, 6, 2 * H)


@pytest.mark.parametrize("fields, message", [
    (dict(kind="rnn"), "cell.kind='rnn'"),
    (dict(kind="gru", projection=3), "cell.projection=3 does nothing with cell.kind='gru'"),
    (dict(reset_after=False), "cell.reset_after=False does nothing with cell.kind='lstm'"),
    (dict(projection_clip=3.0), "cell.projection_clip=3.0 goes with cell.projection"),
])
def test_refusals(fields, message):
  with pytest.raises(ConfigError, match=message):
    CellConfig(**fields)


@pytest.mark.parametrize("fields", [dict(residual=True), dict(dropout=0.5)])
def test_what_is_between_layers_needs_several(fields):
  with pytest.raises(ConfigError, match="is between recurrent layers, and num_layers is 1"):
    RecurrentConfig(**fields)
