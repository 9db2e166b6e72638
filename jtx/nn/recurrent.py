"""Recurrent layers: LSTM and GRU over rows of tokens, each a pure function of a step, and a scan.

A state goes through padding unchanged, and begins anew in every segment, so that rows may hold
several texts. Parameters of a direction of a layer, with D inputs, H units, G gates and R outputs:

    input/kernel [D, G, H], input/bias [G, H]   of what a layer reads
    recurrent [R, G * H]                        of the state before
    projection [H, R]                           of an LSTM whose outputs are projected
    reset_bias [H]                              of a GRU that resets after the product

Gates are in the order i, f, g, o (LSTM) and r, z, n (GRU), as PyTorch has them.
"""

import dataclasses
from typing import Any, Callable, Mapping, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jtx.errors import ConfigError, nearest
from jtx.nn import layers
from jtx.nn.dropout import Dropout
from jtx.nn.numerics import product
from jtx.ranges import Layers, Positive, Rate, Size

Weights = Mapping[str, jax.Array]


class State(NamedTuple):
  """What a layer remembers, float32 [B, ...]; with a time axis [B, T, ...], of every place."""
  hidden: jax.Array  # [B, R], also what it gives
  cell: jax.Array | None = None  # [B, H], of an LSTM


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellConfig:
  """The fields of a cell, which are an LSTM's but for the first and the last."""
  kind: str = "lstm"  # or "gru"
  projection: Size | None = None  # R, outputs of an LSTM (Sak et al. 2014); None is all H units
  forget_bias: float = 0.0  # added to the forget gate beside its parameter (ELMo has 1)
  cell_clip: Positive | None = None  # the cell stays within this of 0
  projection_clip: Positive | None = None  # and projected outputs within this
  reset_after: bool = True  # of a GRU: n = tanh(W x + r (U h + b)); else tanh(W x + U (r h))

  def __post_init__(self):
    if self.kind not in CELLS:
      raise ConfigError(f"cell.kind={self.kind!r}: {nearest(self.kind, CELLS)}")
    foreign = ("reset_after",) if self.kind == "lstm" else (
        "projection", "forget_bias", "cell_clip", "projection_clip")
    for name in foreign:
      if (value := getattr(self, name)) != getattr(CellConfig, name):
        raise ConfigError(f"cell.{name}={value} does nothing with cell.kind={self.kind!r}")
    if self.projection_clip and not self.projection:
      raise ConfigError(f"cell.projection_clip={self.projection_clip} goes with cell.projection")

  @property
  def gates(self) -> int:
    return CELLS[self.kind].gates

  def outputs(self, dim: int) -> int:
    """R of a cell of `dim` units."""
    return self.projection or dim

  def zeros(self, batch: int, dim: int) -> State:
    """The state before the first token, of `batch` rows."""
    hidden = jnp.zeros((batch, self.outputs(dim)), jnp.float32)
    return State(hidden, jnp.zeros((batch, dim), jnp.float32) if self.kind == "lstm" else None)


def lstm(config: CellConfig, weights: Weights, gates: jax.Array, state: State) -> State:
  """A step of a long short-term memory (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

  c' = sigmoid(f) c + sigmoid(i) tanh(g), h' = sigmoid(o) tanh(c').

  Args:
    config: of the cell.
    weights: of the layer.
    gates: float32 [B, 4, H], of the layer's input.
    state: of the token before.
  """
  i, f, g, o = jnp.moveaxis(gates + recurrent(weights["recurrent"], state.hidden, 4), 1, 0)
  cell = nn.sigmoid(f + config.forget_bias) * state.cell + nn.sigmoid(i) * jnp.tanh(g)
  if config.cell_clip:
    cell = jnp.clip(cell, -config.cell_clip, config.cell_clip)
  hidden = nn.sigmoid(o) * jnp.tanh(cell)
  if config.projection:
    hidden = matmul(hidden, weights["projection"])
  if config.projection_clip:
    hidden = jnp.clip(hidden, -config.projection_clip, config.projection_clip)
  return State(hidden, cell)


def gru(config: CellConfig, weights: Weights, gates: jax.Array, state: State) -> State:
  """A step of a gated recurrent unit: h' = (1 - z) n + z h.

  It resets after the product as PyTorch and cuDNN do, or before it as Cho et al. 2014 do.

  Args:
    config: of the cell.
    weights: of the layer.
    gates: float32 [B, 3, H], of the layer's input.
    state: of the token before.
  """
  h, U = state.hidden, weights["recurrent"]
  if config.reset_after:
    of_state = recurrent(U, h, 3)
    r, z = jnp.moveaxis(nn.sigmoid(gates[:, :2] + of_state[:, :2]), 1, 0)
    n = gates[:, 2] + r * (of_state[:, 2] + weights["reset_bias"])
  else:
    H = h.shape[-1]
    r, z = jnp.moveaxis(nn.sigmoid(gates[:, :2] + recurrent(U[:, :2 * H], h, 2)), 1, 0)
    n = gates[:, 2] + matmul(r * h, U[:, 2 * H:])
  return State((1 - z) * jnp.tanh(n) + z * h)


def matmul(x: jax.Array, kernel: jax.Array) -> jax.Array:
  """x W in the kernel's dtype, summed in float32."""
  return jnp.matmul(x.astype(kernel.dtype), kernel, preferred_element_type=jnp.float32)


def recurrent(kernel: jax.Array, hidden: jax.Array, gates: int) -> jax.Array:
  """[B, R] to [B, G, H]."""
  return matmul(hidden, kernel).reshape(len(hidden), gates, -1)


class Cell(NamedTuple):
  """A kind of recurrent layer."""
  step: Callable[[CellConfig, Weights, jax.Array, State], State]
  gates: int  # G


CELLS: dict[str, Cell] = {"lstm": Cell(lstm, 4), "gru": Cell(gru, 3)}


def begins(segment_ids: jax.Array, reverse: bool = False) -> jax.Array:
  """bool [B, T]: the first place of every segment, in the order of reading; never padding."""
  ids = segment_ids[:, ::-1] if reverse else segment_ids
  real = jnp.where(ids > 0, jnp.arange(ids.shape[1]), -1)
  last = jnp.pad(jax.lax.cummax(real, 1), ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
  before = jnp.where(last < 0, 0, jnp.take_along_axis(ids, jnp.maximum(last, 0), 1))
  first = (ids > 0) & (ids != before)
  return first[:, ::-1] if reverse else first


def over_time(step: Callable[[Any, Any], tuple[Any, Any]], zeros: Any, inputs: Any, *,
              segment_ids: jax.Array, starts: Any = None,
              reverse: bool = False) -> tuple[Any, Any, Any]:
  """Scans a step over the places of rows, from the first or from the last.

  Args:
    step: (state, inputs of a place) -> (state, outputs of the place).
    zeros: the state [B, ...] before a segment's first token.
    inputs: [B, T, ...].
    segment_ids: [B, T] int, 0 for padding.
    starts: states that segments begin from in place of zeros: [B, ...], of whatever segment, or
      [B, T, ...], of which those at the segments' first places count.
    reverse: from the last place to the first.

  Returns:
    The states of all places [B, T, ...], those of padding being the ones before it; their outputs;
    and the state behind the last token of each row.
  """
  by_place = starts is not None and starts_by_place(zeros, starts)
  constant = None if by_place else (zeros if starts is None else starts)
  scanned = (inputs, begins(segment_ids, reverse), segment_ids > 0, starts if by_place else None)

  def go_on(state, place):
    inputs, first, real, start = place
    state = where(first, start if by_place else constant, state)
    new, outputs = step(state, inputs)
    state = where(real, new, state)
    return state, (state, outputs)

  in_time = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tree)
  last, (states, outputs) = jax.lax.scan(go_on, zeros, in_time(scanned), reverse=reverse)
  in_rows = lambda tree: jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), tree)
  return in_rows(states), in_rows(outputs), last


def starts_by_place(zeros: Any, starts: Any) -> bool:
  """Whether states have an axis of time."""
  return jax.tree.leaves(starts)[0].ndim > jax.tree.leaves(zeros)[0].ndim


def where(flags: jax.Array, a: Any, b: Any) -> Any:
  """The states of `a` in the rows that bool [B] flags name, and else those of `b`."""
  return jax.tree.map(lambda x, y: jnp.where(flags[:, None], x, y), a, b)


class Input(nn.Module):
  """The kernel and the bias of what a layer reads."""
  features: int  # D
  gates: int
  dim: int  # H

  def setup(self):
    self.kernel = layers.param(self, "kernel", layers.kernel_init(None, 1, 3),
                               (self.features, self.gates, self.dim), ("embed", "gates", "lstm"))
    self.bias = layers.param(self, "bias", nn.initializers.zeros, (self.gates, self.dim),
                             ("gates", "lstm"))


class Recurrent(nn.Module):
  """A layer in one direction."""
  config: CellConfig
  inputs: int  # D
  dim: int  # H
  reverse: bool = False  # from the last place to the first
  dtype: jnp.dtype = jnp.float32  # of products; states are float32

  def setup(self):
    c, H = self.config, self.dim
    self.input = Input(self.inputs, c.gates, H)
    self.recurrent = layers.param(self, "recurrent", nn.initializers.orthogonal(),
                                  (c.outputs(H), c.gates * H), ("lstm", "gates"))
    if c.projection:
      self.projection = layers.param(self, "projection", layers.kernel_init(None, 1, 2),
                                     (H, c.projection), ("lstm", "factors"))
    if c.kind == "gru" and c.reset_after:
      self.reset_bias = layers.param(self, "reset_bias", nn.initializers.zeros, (H,), ("lstm",))

  def weights(self) -> dict[str, jax.Array]:
    """Parameters that `CELLS[kind].step` takes, in their own type."""
    found = {"recurrent": self.recurrent}
    if self.config.projection:
      found["projection"] = self.projection
    if self.config.kind == "gru" and self.config.reset_after:
      found["reset_bias"] = self.reset_bias
    return found

  # Both cast in every step: of what is cast before a loop, gradients are summed over time in the
  # type that it is cast to, which of bfloat16 loses a fifth of them in 2,048 places.

  def reader(self) -> Callable[[jax.Array], jax.Array]:
    """A function of the layer's input [..., D] to its gates, float32 [..., G, H], for a loop."""
    kernel, bias, cast = self.input.kernel, self.input.bias, lambda x: x.astype(self.dtype)
    return lambda x: product(cast(x), cast(kernel), cast(bias), 1).astype(jnp.float32)

  def stepper(self) -> Callable[[jax.Array, State], State]:
    """A function of the gates [B, G, H] of a token and the state before it, for a loop."""
    step, weights = CELLS[self.config.kind].step, self.weights()
    cast = lambda: {name: x if name == "reset_bias" else x.astype(self.dtype)
                    for name, x in weights.items()}
    return lambda gates, state: step(self.config, cast(), gates, state)

  def __call__(self, x: jax.Array, segment_ids: jax.Array,
               starts: State | None = None) -> tuple[State, State]:
    """The states of all places of x [B, T, D], and that behind the last token; see `over_time`."""
    step = self.stepper()
    states, _, last = over_time(
        lambda state, gates: (step(gates, state), None), self.config.zeros(len(x), self.dim),
        self.reader()(x), segment_ids=segment_ids, starts=starts, reverse=self.reverse)
    return states, last


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig:
  """The fields of recurrent layers, one on another."""
  cell: CellConfig = CellConfig()  # LSTM or GRU
  dim: Size = 256  # H, units of a layer in each direction
  num_layers: Layers = 1  # one on another
  bidirectional: bool = False  # a layer gives what both directions do, [h forward; h backward]
  residual: bool = False  # from the second layer on a layer's input is added to what it gives
  dropout: Rate = 0.0  # of the input of every layer but the first, where there are several

  def __post_init__(self):
    for name in ("residual", "dropout"):
      if self.num_layers == 1 and (value := getattr(self, name)):
        raise ConfigError(f"{name}={value} is between recurrent layers, and num_layers is 1")

  @property
  def directions(self) -> tuple[str, ...]:
    return ("forward", "backward") if self.bidirectional else ("forward",)

  @property
  def width(self) -> int:
    """Of what the layers give."""
    return len(self.directions) * self.cell.outputs(self.dim)


class Carried(NamedTuple):
  """The states of layers, by layer and direction."""
  states: tuple[tuple[State, ...], ...]  # of all places, [B, T, ...]
  last: tuple[tuple[State, ...], ...]  # behind the last token of each row, [B, ...]


class RecurrentStack(nn.Module):
  """Layers of RecurrentConfig: parameters are forward_0, backward_0, forward_1 and so on."""
  config: RecurrentConfig
  inputs: int  # D of the first layer
  reverse: bool = False  # all layers read from the last place to the first
  dtype: jnp.dtype = jnp.float32

  def setup(self):
    c = self.config
    if c.bidirectional and self.reverse:
      raise ValueError("layers that read in both directions have no other one")
    names = [f"{way}_{i}" for i in range(c.num_layers) for way in c.directions]
    self.parts = [
        Recurrent(c.cell, c.width if i >= len(c.directions) else self.inputs, c.dim,
                  reverse=self.reverse or name.startswith("backward"), dtype=self.dtype, name=name)
        for i, name in enumerate(names)]
    self.dropout = Dropout(c.dropout)

  def __call__(self, x: jax.Array, segment_ids: jax.Array, train: bool = False,
               starts: Any = None) -> tuple[tuple[jax.Array, ...], Carried]:
    """What every layer gives, each [B, T, width], and the states.

    Args:
      x: [B, T, D].
      segment_ids: [B, T] int, 0 for padding.
      train: dropout on.
      starts: as `Carried.last`, states that rows go on from; None is zeros.
    """
    given, states, last, ways = [], [], [], len(self.config.directions)
    for i in range(self.config.num_layers):
      y = self.dropout(x, train) if i else x
      found = [part(y, segment_ids, starts and starts[i][way])
               for way, part in enumerate(self.parts[i * ways:(i + 1) * ways])]
      y = jnp.concatenate([s.hidden for s, _ in found], -1).astype(self.dtype)
      x = x + y if i and self.config.residual else y
      given.append(x)
      states.append(tuple(s for s, _ in found))
      last.append(tuple(end for _, end in found))
    return tuple(given), Carried(tuple(states), tuple(last))
