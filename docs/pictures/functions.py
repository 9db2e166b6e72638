"""Activations, norms and learning-rate schedules."""

import jax
import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import FAINT, LINES, labels, lines, plain
from jtx.figures.figure import PAGE, new_figure, styled
from jtx.nn.activations import activate
from jtx.nn.layers import FeedForward, FfnConfig, NormConfig
from jtx.train.schedules import SCHEDULES

XS = np.linspace(-4, 4, 161)
ACTIVATIONS = ("relu", "gelu", "silu", "tanh")
GATES = {"relu": "ReGLU", "gelu": "GEGLU", "silu": "SwiGLU"}  # by Shazeer's names
TIMES = (-1.0, 0.5, 1.0, 2.0)  # the number that is gated
VECTOR = np.array([1.0, 3.0, 2.0, 5.0, -1.0, 4.0, 2.5, 3.5])
STEPS = 100_000
OPTIONS = {"constant": dict(warmup=0.05), "linear": dict(warmup=0.05), "cosine": dict(warmup=0.05),
           "wsd": dict(warmup=0.05, decay=0.2), "noam": dict(warmup=4000), "rsqrt": {}}


def activations() -> dict[str, tuple[np.ndarray, np.ndarray]]:
  """Values and gradients at XS, by name."""
  xs = jnp.asarray(XS)
  return {name: tuple(map(np.asarray, jax.vmap(jax.value_and_grad(
      lambda x, name=name: activate(name, x)))(xs))) for name in ACTIVATIONS}


def gated(activation: str, other: float) -> np.ndarray:
  """activation(x) times the other number at XS, by a feed-forward layer of hidden width 1.

  Its gate reads the first of two inputs, its other product the second.
  """
  kernels = {"gate": jnp.array([[1.0], [0.0]]), "in": jnp.array([[0.0], [1.0]]),
             "out": jnp.array([[1.0, 0.0]])}
  layer = FeedForward(FfnConfig(dim=1, activation=activation, gated=True, bias=False))
  x = jnp.stack([jnp.asarray(XS, jnp.float32), jnp.full(XS.shape, other)], -1)
  params = {name: {"kernel": kernel} for name, kernel in kernels.items()}
  return np.asarray(layer.apply({"params": params}, x)[:, 0])


@styled
def draw_activations():
  figure = new_figure((PAGE, 0.36 * PAGE))
  left, right = figure.subplots(1, 2)
  found = activations()
  lines(left, XS, {name: values for name, (values, _) in found.items()})
  lines(right, XS, {name: gradients for name, (_, gradients) in found.items()})
  labels(left, "x", "activation(x)", "value")
  labels(right, "x", "derivative", "gradient")
  left.legend(frameon=False)
  return figure


@styled
def draw_gates():
  figure = new_figure((PAGE, 0.36 * PAGE))
  grid = figure.subplots(1, 3, sharey=True)
  for axes, (activation, title) in zip(grid, GATES.items()):
    lines(axes, XS, {f"y = {y:g}": gated(activation, y) for y in TIMES})
    labels(axes, "x, the gate's input", "", f"{title}: {activation}(x) y")
  grid[0].set_ylabel("output")
  grid[0].legend(frameon=False)
  return figure


def norms() -> dict[str, np.ndarray]:
  """VECTOR and what norms make of it, before training, by name."""
  apply = lambda kind: np.asarray(NormConfig(kind=kind).make(None).init_with_output(
      jax.random.key(0), jnp.asarray(VECTOR, jnp.float32))[0])
  return {"input": VECTOR, "RMSNorm": apply("rmsnorm"), "LayerNorm": apply("layernorm")}


@styled
def draw_norms():
  figure = new_figure((PAGE, 0.34 * PAGE))
  for axes, colour, (name, values) in zip(figure.subplots(1, 3), LINES, norms().items()):
    axes.bar(np.arange(len(values)), values, color=colour, width=0.7)
    axes.axhline(values.mean(), color="black", linestyle="--", linewidth=1)
    mean, root = abs(values.mean()), np.sqrt(np.square(values).mean())  # no "-0.00"
    labels(axes, "dimension", "value" if name == "input" else "",
           f"{name}\nmean {mean:.2f}, RMS {root:.2f}")
    plain(axes)
    axes.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
  return figure


def schedules(points: int = 401) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Updates [points] and, by name, learning rates over the highest of them."""
  steps = np.linspace(0, STEPS - 1, points).round()
  found = {}
  for name, options in OPTIONS.items():
    schedule = SCHEDULES[name](1.0, STEPS, 512, **options)
    rates = np.broadcast_to(np.asarray(schedule(jnp.asarray(steps))), steps.shape)
    found[name] = rates / rates.max()
  return steps, found


@styled
def draw_schedules():
  steps, found = schedules()
  figure = new_figure((PAGE, 0.36 * PAGE))
  groups = (("constant", "linear", "cosine", "wsd"), ("noam", "rsqrt"))
  for number, (axes, names) in enumerate(zip(figure.subplots(1, 2, sharey=True), groups)):
    lines(axes, steps / 1000, {name: found[name] for name in names})
    labels(axes, "updates, in thousands", "" if number else "learning rate / its highest")
    where = dict(loc="upper right") if number else dict(loc="lower left", bbox_to_anchor=(0.08, 0))
    axes.legend(frameon=False, **where)
    axes.set_ylim(0, 1.08)
  return figure


FIGURES = {"activations": draw_activations, "gates": draw_gates, "norms": draw_norms,
           "schedules": draw_schedules}
