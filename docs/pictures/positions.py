"""Position encodings: what they add, turn and count, over places and distances."""

import jax.numpy as jnp
import numpy as np

from docs.pictures.drawing import LINES, labels, lines, picture, plain
from jtx.figures.figure import (
    COLUMN, PAGE, SEQUENTIAL_COLOURS, SIGNED_COLOURS, new_figure, styled)
from jtx.nn.disentangled import Disentangled
from jtx.nn.encodings import distance_rows, relative_buckets
from jtx.nn.grid_positions import Grid, Sincos2d
from jtx.nn.positions import Places, Sinusoidal
from jtx.nn.relative import Alibi, T5Bias
from jtx.nn.rope import Rope

LENGTH, WIDTH = 64, 64  # of the table of sinusoids
GRID = 14  # patches to a side: images of 224 pixels, patches of 16
HEAD = 128  # dimensions of a head
PATCHES = ((0, 0), (3, 10), (7, 7), (13, 5))  # row and column
PAIRS = (0, 4, 16)  # of dimensions
FARTHEST = 512
BASES = (10_000.0, 500_000.0)


def at(positions: np.ndarray, **more) -> Places:
  """The places of one row, given its positions [T]."""
  return Places(jnp.asarray(positions)[None], **more)


def sinusoids() -> np.ndarray:
  """[LENGTH, WIDTH]: what is added to embeddings."""
  zeros = jnp.zeros((1, LENGTH, WIDTH))
  return np.asarray(Sinusoidal().embed(zeros, at(np.arange(LENGTH)), {})[0])


@styled
def draw_sinusoids():
  table = sinusoids()
  figure = new_figure((PAGE, 0.45 * PAGE))
  left, right = figure.subplots(1, 2)
  figure.colorbar(picture(left, table, cmap=SIGNED_COLOURS, vmin=-1, vmax=1), ax=left,
                  label="value", shrink=0.85)
  labels(left, "dimension", "position", "the encoding")
  figure.colorbar(picture(right, table @ table.T, cmap=SEQUENTIAL_COLOURS), ax=right,
                  label="dot product", shrink=0.85)
  labels(right, "position", "position", "how alike two positions are")
  return figure


def sincos_2d() -> np.ndarray:
  """[GRID, GRID, GRID, GRID]: dot products of a patch's encoding and of all, over the largest."""
  position = Sincos2d().bind(Grid(GRID, GRID))
  places = np.arange(GRID * GRID)
  table = np.asarray(position.embed(jnp.zeros((1, len(places), WIDTH)), at(places), {})[0])
  products = table @ table.T
  return (products / products.max()).reshape([GRID] * 4)


@styled
def draw_sincos_2d():
  found = sincos_2d()
  figure = new_figure((PAGE, 0.31 * PAGE))
  grid = figure.subplots(1, len(PATCHES), sharey=True)
  for number, (axes, (row, column)) in enumerate(zip(grid, PATCHES)):
    image = picture(axes, found[row, column], cmap=SEQUENTIAL_COLOURS, vmin=found.min(), vmax=1)
    labels(axes, "column", "" if number else "row", f"patch ({row}, {column})")
    axes.set(xticks=(0, 4, 8, 12), yticks=(0, 4, 8, 12))
  figure.colorbar(image, ax=grid, label="dot product\n/ the largest", shrink=0.8)
  return figure


def turned(places: np.ndarray, **options) -> np.ndarray:
  """[T, HEAD]: a vector of ones at places, as RoPE turns it."""
  ones = jnp.ones((1, len(places), 1, HEAD))
  return np.asarray(Rope(**options).rotate(ones, at(places), {})[0, :, 0])


def rotations() -> dict[int, np.ndarray]:
  """By the number of a pair of dimensions, its values [8, 2] at positions 0 to 7."""
  values = turned(np.arange(8), pairing="interleaved")
  return {pair: values[:, 2 * pair:2 * pair + 2] for pair in PAIRS}


def decay() -> tuple[np.ndarray, dict[float, np.ndarray]]:
  """Distances and, by RoPE's base, q k / HEAD for a query and a key of ones."""
  distances, found = np.arange(0, FARTHEST + 1, 2), {}
  for base in BASES:
    values = turned(distances, base=base)
    found[base] = values @ values[0] / HEAD
  return distances, found


@styled
def draw_rope():
  figure = new_figure((PAGE, 0.29 * PAGE))
  axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.7))
  for place, (pair, points) in zip(axes, rotations().items()):
    for position, (x, y) in enumerate(points):
      place.annotate("", (x, y), (0, 0), arrowprops=dict(
          arrowstyle="->", color=LINES[0], alpha=1 - 0.09 * position, shrinkA=0, shrinkB=0))
      if pair < max(PAIRS) or position in (0, len(points) - 1):  # else they'd cover each other
        place.text(1.25 * x, 1.25 * y, str(position), ha="center", va="center", fontsize=7)
    place.set(xlim=(-2, 2), ylim=(-2, 2), aspect="equal", xticks=[], yticks=[])
    labels(place, f"dimension {2 * pair}", f"dimension {2 * pair + 1}", f"pair {pair}")
  distances, found = decay()
  lines(axes[3], distances, {f"base {base:,.0f}": products for base, products in found.items()})
  axes[3].legend(frameon=False)
  labels(axes[3], "distance in tokens", "q k / 128, of ones")
  return figure


def alibi(heads: int = 8) -> np.ndarray:
  """[heads, 65]: the bias of a query for the key 0 to 64 places before it."""
  last, distances = 64, np.arange(65)
  bias = Alibi().bias(jnp.zeros((1, 1, heads, 1)), jnp.zeros((1, 65, heads, 1)),
                      at(np.array([last])), at(last - distances), params={}, project=None,
                      scale=1.0)
  return np.asarray(bias.materialize())[0, :, 0]


@styled
def draw_alibi():
  figure = new_figure((COLUMN, 0.72 * COLUMN))
  axes = figure.subplots()
  for head, bias in enumerate(alibi()):
    axes.plot(bias, color=LINES[0], alpha=1 - 0.1 * head)
    if head < 4:  # the lines of later heads end too close to each other
      axes.text(65, bias[-1], f"head {head}", fontsize=6, va="center")
  axes.text(65, 0, "4 to 7", fontsize=6, va="center")
  labels(axes, "distance of the key before the query, in tokens", "added to the logit")
  plain(axes)
  axes.set(xlim=(0, 76))
  return figure


def t5_buckets(distances: np.ndarray, bidirectional: bool) -> np.ndarray:
  """The bucket of each distance, key minus query, with T5's own sizes."""
  return np.asarray(relative_buckets(
      jnp.asarray(distances), num_buckets=T5Bias.num_buckets, max_distance=T5Bias.max_distance,
      bidirectional=bidirectional))


def deberta_rows(distances: np.ndarray) -> np.ndarray:
  """The row of DeBERTa's table for each distance, key minus query, as version 3 has them."""
  return np.asarray(distance_rows(jnp.asarray(-distances), span=Disentangled.span,
                                  max_distance=Disentangled.max_distance))


@styled
def draw_buckets():
  figure = new_figure((PAGE, 0.36 * PAGE))
  left, right = figure.subplots(1, 2)
  distances = np.arange(-150, 151)
  lines(left, distances, {name: t5_buckets(distances, both) for name, both in
                          (("encoder", True), ("decoder", False))}, drawstyle="steps-mid")
  labels(left, "key minus query, in tokens", "bucket", "T5: 32 buckets")
  left.legend(frameon=False)
  distances = np.arange(-600, 601, 4)
  lines(right, distances, {"": deberta_rows(distances)})
  labels(right, "key minus query, in tokens", "row of the table", "DeBERTa v3: 512 rows")
  return figure


FIGURES = {"sinusoids": draw_sinusoids, "sincos_2d": draw_sincos_2d, "rope": draw_rope,
           "alibi": draw_alibi, "buckets": draw_buckets}
