"""Attention maps and rollout, tables of positions, and other matrices as heat maps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jtx.figures.figure import (
  COLUMN,
  SEQUENTIAL_COLOURS,
  SIGNED_COLOURS,
  as_array,
  clip,
  label_tokens,
  new_figure,
  styled,
)

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure


@styled
def attention_map(
    weights: Any, rows: Sequence[str], columns: Sequence[str], title: str = "", *,
    xlabel: str = "key", ylabel: str = "query",
) -> "Figure":
  """One head's attention: a row a query, a column a key; the largest weight is the darkest.

  Args:
    weights: probabilities `[T, S]`.
    rows: T labels, the query's tokens.
    columns: S labels, the key's tokens.
    title: above the figure.
    xlabel: what the columns are.
    ylabel: what the rows are.

  Raises:
    ValueError: the labels don't fit the weights.
  """
  weights = _labelled(weights, 2, rows, columns)
  # Cells are as small as their labels allow, so that a sentence fits in a paper's column.
  size = (clip(1.7 + 0.16 * len(columns), COLUMN, 14), clip(1.3 + 0.16 * len(rows), 2.4, 14))
  figure = new_figure(size)
  axes = figure.subplots()
  image = _draw_attention(axes, weights, weights.max(initial=0))
  label_tokens(axes.xaxis, columns, rotation=90)
  label_tokens(axes.yaxis, rows)
  axes.set_xlabel(xlabel, parse_math=False)
  axes.set_ylabel(ylabel, parse_math=False)
  axes.set_title(title, parse_math=False)
  figure.colorbar(image, ax=axes, shrink=0.8, label="attention weight")
  return figure


@styled
def attention_grid(weights: Any, rows: Sequence[str], columns: Sequence[str]) -> "Figure":
  """All heads of all layers: a row of maps a layer, a column a head, all in one colour scale.

  Args:
    weights: probabilities `[L, N, T, S]`.
    rows: T labels, the query's tokens.
    columns: S labels, the key's tokens.

  Raises:
    ValueError: the labels don't fit the weights.
  """
  weights = _labelled(weights, 4, rows, columns)
  layers, heads = weights.shape[:2]
  width = clip(0.13 * len(columns), 1.6, 4)
  height = clip(0.13 * len(rows), 1.6, 4)
  figure = new_figure((1.6 + width * heads, 1.2 + height * layers))
  grid = figure.subplots(layers, heads, sharex=True, sharey=True, squeeze=False)
  for layer, head in np.ndindex(layers, heads):
    axes = grid[layer, head]
    image = _draw_attention(axes, weights[layer, head], weights.max(initial=0))
    label_tokens(axes.xaxis, columns, rotation=90, size=6, most=24)
    label_tokens(axes.yaxis, rows, size=6, most=24)
    axes.tick_params(labelbottom=layer == layers - 1, labelleft=head == 0)
    if layer == 0:
      axes.set_title(f"head {head + 1}")
    if head == 0:
      axes.set_ylabel(f"layer {layer + 1}")
  figure.supxlabel("key")
  figure.supylabel("query")
  figure.colorbar(image, ax=grid, label="attention weight", shrink=0.6, aspect=30)
  return figure


def attention_rollout(weights: Any) -> np.ndarray:
  """How much of each input a token's last hidden state is made of (Abnar and Zuidema 2020).

  The heads' mean, half of it the residual, multiplied from the first layer to the last.

  Args:
    weights: probabilities [L, N, T, T], or [L, B, N, T, T].

  Returns:
    [T, T] or [B, T, T]; rows sum to 1.
  """
  mean = np.asarray(weights, np.float64).mean(-3)
  mixed = (mean + np.eye(mean.shape[-1])) / 2
  mixed /= mixed.sum(-1, keepdims=True)
  result = mixed[0]
  for layer in mixed[1:]:
    result = layer @ result
  return result


@styled
def heatmaps(
    panels: Mapping[str, Any], xlabel: str, ylabel: str, *, label: str = "value",
    rows: Sequence[str] | None = None, columns: Sequence[str] | None = None, most: int = 4,
    numbers: bool = False,
) -> "Figure":
  """Arrays side by side under their names, in one colour scale, so that they compare by eye.

  Where a value is negative the scale is centred at zero, which is white; else it starts there.

  Args:
    panels: arrays `[T, S]` by title; bool counts as 0 and 1, and NaN is left blank.
    xlabel: of the last axis.
    ylabel: of the first axis.
    label: of the values.
    rows: T labels; without them the axis is numbered.
    columns: S labels; without them the axis is numbered.
    most: panels in a row of the figure.
    numbers: write the values into their cells.

  Raises:
    ValueError: there is no panel, or one that is no matrix or doesn't fit the labels.
  """
  if not panels:
    raise ValueError("heatmaps: there is no panel")
  arrays = {title: _panel(title, values, rows, columns) for title, values in panels.items()}
  low, high = _limits(arrays.values())
  across = min(most, len(arrays))
  down = -(-len(arrays) // across)
  width = clip(max(0.25 * a.shape[1] for a in arrays.values()), 2.4, 4)
  height = clip(max(0.25 * a.shape[0] for a in arrays.values()), 2.2, 3.6)
  figure = new_figure((1.4 + width * across, 0.6 + height * down))
  grid = figure.subplots(down, across, squeeze=False)
  for axes, (title, values) in zip(grid.flat, arrays.items()):
    image = axes.imshow(
        values, cmap=SIGNED_COLOURS if low < 0 else SEQUENTIAL_COLOURS, vmin=low, vmax=high,
        aspect="auto", interpolation="nearest")
    axes.set_title(title, parse_math=False)
    if columns is not None:
      label_tokens(axes.xaxis, columns, rotation=90)
    if rows is not None:
      label_tokens(axes.yaxis, rows)
    if numbers:
      _write_values(axes, image)
  for axes in grid.flat[len(arrays):]:
    axes.remove()
  figure.supxlabel(xlabel, parse_math=False)
  figure.supylabel(ylabel, parse_math=False)
  figure.colorbar(image, ax=figure.axes, label=label, shrink=0.8)
  return figure


@styled
def position_heatmap(table: Any) -> "Figure":
  """Position embeddings `[T, D]` as they are, zero in white."""
  table = as_array(table, 2)
  figure = new_figure((COLUMN, 0.65 * COLUMN))
  axes = figure.subplots()
  limit = float(np.abs(table).max()) or 1.0
  image = axes.imshow(
      table, cmap=SIGNED_COLOURS, vmin=-limit, vmax=limit, aspect="auto",
      interpolation="nearest")
  axes.set_xlabel("embedding dimension")
  axes.set_ylabel("position")
  figure.colorbar(image, ax=axes, label="value")
  return figure


@styled
def position_similarity(table: Any) -> "Figure":
  """Cosine similarity of every two positions of a table of embeddings `[T, D]`."""
  table = as_array(table, 2)
  norms = np.linalg.norm(table, axis=-1, keepdims=True)
  unit = table / np.where(norms == 0, 1, norms)
  figure = new_figure((COLUMN, 0.8 * COLUMN))
  axes = figure.subplots()
  image = axes.imshow(
      unit @ unit.T, cmap=SIGNED_COLOURS, vmin=-1, vmax=1, interpolation="nearest")
  axes.set_xlabel("position")
  axes.set_ylabel("position")
  figure.colorbar(image, ax=axes, label="cosine similarity")
  return figure


def _labelled(
    weights: Any, rank: int, rows: Sequence[str], columns: Sequence[str]
) -> np.ndarray:
  weights = as_array(weights, rank)
  if weights.shape[-2:] != (len(rows), len(columns)):
    raise ValueError(
        f"weights of shape {weights.shape} don't fit {len(rows)} row labels and "
        f"{len(columns)} column labels")
  return weights


def _panel(
    title: str, values: Any, rows: Sequence[str] | None, columns: Sequence[str] | None
) -> np.ndarray:
  values = np.asarray(values, np.float32)
  if values.ndim != 2 or not values.size:
    raise ValueError(f"heatmaps: {title!r} has shape {values.shape}, and is no matrix")
  for size, labels, axis in zip(values.shape, (rows, columns), ("row", "column")):
    if labels is not None and len(labels) != size:
      raise ValueError(
          f"heatmaps: {title!r} of shape {values.shape} doesn't fit {len(labels)} {axis} labels")
  return values


def _limits(arrays: Iterable[np.ndarray]) -> tuple[float, float]:
  """The ends of one colour scale for all; around zero, or from it if nothing is negative."""
  values = np.concatenate([array[np.isfinite(array)] for array in arrays])
  high = float(np.abs(values).max(initial=0)) or 1.0
  return (-high if (values < 0).any() else 0.0), high


def _write_values(axes: "Axes", image: Any) -> None:
  """Each cell's value, in white where the cell is dark."""
  values = np.asarray(image.get_array().filled(np.nan))
  for (row, column), value in np.ndenumerate(values):
    if np.isfinite(value):
      red, green, blue, _ = image.cmap(image.norm(value))
      dark = 0.3 * red + 0.6 * green + 0.1 * blue < 0.5
      axes.text(column, row, f"{value:.3g}", ha="center", va="center",
                color="white" if dark else "black")


def _draw_attention(axes: "Axes", weights: np.ndarray, most: float) -> Any:
  return axes.imshow(
      weights, cmap=SEQUENTIAL_COLOURS, vmin=0, vmax=most or 1, aspect="auto",
      interpolation="nearest")
