"""Attention maps of several heads side by side, at the width of a paper's column or page."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jtx.figures.figure import (
  COLUMN, PAGE, SEQUENTIAL_COLOURS, clip, label_tokens, new_figure, styled)

if TYPE_CHECKING:
  from matplotlib.figure import Figure

LABELS = 40  # on an axis


@styled
def attention_panels(maps: Mapping[str, Any], queries: Sequence[str], keys: Sequence[str], *,
                     xlabel: str = "key", ylabel: str = "query", most: int = 4) -> "Figure":
  """Maps of heads under their names, in one colour scale: a row a query, a column a key.

  Colours follow the square root of a weight, up to the largest, so that what is small is seen
  beside a token that gets nearly all, as separators often do.

  Args:
    maps: probabilities [T, S] by name.
    queries: T tokens.
    keys: S tokens.
    xlabel: what keys are.
    ylabel: what queries are.
    most: maps in a row of the figure.

  Raises:
    ValueError: there is no map, or tokens don't fit.
  """
  from matplotlib.colors import PowerNorm
  arrays = {name: np.asarray(x, np.float32) for name, x in maps.items()}
  for name, x in arrays.items():
    if x.shape != (len(queries), len(keys)):
      raise ValueError(f"{name} of shape {x.shape} doesn't fit {len(queries)} queries and"
                       f" {len(keys)} keys")
  if not arrays:
    raise ValueError("attention_panels: there is no map")
  across = min(most, len(arrays))
  down = -(-len(arrays) // across)
  width = COLUMN if across <= 2 else PAGE
  side = (width - 1.1) / across
  longest = 0.055 * max(map(len, keys))
  height = down * (clip(side * len(queries) / len(keys), 0.6, 3.5) + 0.2) + 0.45 + min(longest, 1)
  figure = new_figure((width, height))
  grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
  norm = PowerNorm(0.5, vmin=0, vmax=max(float(x.max()) for x in arrays.values()) or 1)
  size = 6 if side < 2 or len(keys) > 16 else 7
  for axes, (name, values) in zip(grid.flat, arrays.items()):
    image = axes.imshow(values, cmap=SEQUENTIAL_COLOURS, norm=norm, aspect="auto",
                        interpolation="nearest")
    label_tokens(axes.xaxis, keys, rotation=90, size=size, most=LABELS)
    label_tokens(axes.yaxis, queries, size=size, most=LABELS)
    axes.set_title(name, fontsize=7, pad=3, parse_math=False)
  for place, axes in list(enumerate(grid.flat))[len(arrays):]:
    axes.remove()
    if place >= across:  # what stands above is now the last of its column
      grid.flat[place - across].tick_params(labelbottom=True)
  figure.supxlabel(xlabel, parse_math=False)
  figure.supylabel(ylabel, parse_math=False)
  bar = figure.colorbar(image, ax=figure.axes, shrink=0.8, aspect=25, pad=0.02)
  bar.set_label("attention weight", fontsize=7)
  bar.ax.tick_params(labelsize=6)
  return figure
