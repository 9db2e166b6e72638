"""The confusion matrix of a classifier as a heat map."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jtx.figures.figure import (
  COLUMN, PAGE, SEQUENTIAL_COLOURS, as_array, clip, label_tokens, new_figure, styled)

if TYPE_CHECKING:
  from matplotlib.figure import Figure

MOST_NUMBERS = 12  # classes whose counts are written into the cells
MOST_UPRIGHT = 4  # characters of names that stand side by side


@styled
def confusion_matrix(counts: Any, names: Sequence[str]) -> "Figure":
  """Shares of each class's examples by the class that is predicted; counts are in the cells.

  Args:
    counts: [C, C], a row a class, a column a prediction.
    names: of the C classes.

  Raises:
    ValueError: there are not as many names as classes.
  """
  counts = as_array(counts, 2)
  if counts.shape != (len(names), len(names)):
    raise ValueError(f"counts {list(counts.shape)} of {len(names)} classes")
  totals = counts.sum(1, keepdims=True)
  shares = counts / totals.clip(1)
  width = clip(2.4 + 0.16 * len(names), COLUMN, PAGE)
  figure = new_figure((width, 0.85 * width))
  axes = figure.subplots()
  size = 8 if len(names) <= MOST_NUMBERS // 2 else 6.5 if len(names) <= MOST_NUMBERS else 5
  image = axes.imshow(shares, vmin=0, vmax=1, cmap=SEQUENTIAL_COLOURS)
  if len(names) <= MOST_NUMBERS:
    for (row, column), share in zip(_places(len(names)), shares.flat):
      axes.text(column, row, f"{counts[row, column]:.0f}", ha="center", va="center",
                color="white" if share > 0.6 else "black", fontsize=size)
    edges = [place - 0.5 for place in range(1, len(names))]
    axes.hlines(edges, -0.5, len(names) - 0.5, colors="white", linewidth=1)
    axes.vlines(edges, -0.5, len(names) - 0.5, colors="white", linewidth=1)
  rotation = 0 if max(map(len, names)) <= MOST_UPRIGHT and len(names) <= MOST_NUMBERS else 90
  label_tokens(axes.xaxis, names, rotation=rotation, size=size)
  label_tokens(axes.yaxis, names, size=size)
  axes.set_xlabel("predicted")
  axes.set_ylabel("true")
  bar = figure.colorbar(image, ax=axes, shrink=0.8)
  bar.set_label("share of the true class", fontsize=7)
  bar.ax.tick_params(labelsize=7)
  return figure


def _places(number: int) -> list[tuple[int, int]]:
  return [(row, column) for row in range(number) for column in range(number)]
