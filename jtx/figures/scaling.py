"""Measurements that grow as powers, on logarithmic axes, with the exponents that fit them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jtx.figures.curves import Line
from jtx.figures.figure import PAGE, new_figure, styled

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
  """The a of y = c x^a that fits best, by least squares of the logarithms.

  Raises:
    ValueError: there are fewer than two different xs, or a number is not positive.
  """
  xs, ys = np.asarray(xs, np.float64), np.asarray(ys, np.float64)
  if len(set(xs.tolist())) < 2 or (xs <= 0).any() or (ys <= 0).any():
    raise ValueError("an exponent needs positive numbers, at two or more different xs")
  x = np.log(xs) - np.log(xs).mean()
  return float((x * np.log(ys)).sum() / (x * x).sum())


@styled
def scaling(panels: Mapping[str, Mapping[str, Line]], ylabel: str, last: int = 3) -> "Figure":
  """Panels side by side, as wide as a page, with logarithmic axes.

  Args:
    panels: by what their x is, the lines by their labels; the same label has the same colour.
    ylabel: of all.
    last: points of a line, from the largest x, whose exponent is beside its label.

  Raises:
    ValueError: there is no line, or a number is not positive.
  """
  labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
  if not labels:
    raise ValueError("scaling: there is no line")
  figure = new_figure((PAGE, 0.42 * PAGE))
  grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
  for axes, (xlabel, lines) in zip(grid, panels.items()):
    for label, line in lines.items():
      power = exponent(line.xs[-last:], line.ys[-last:])
      axes.loglog(line.xs, line.ys, color=f"C{labels.index(label) % 10}", marker="o", markersize=3,
                  label=f"{label}: power {power:.1f}", base=2)
    axes.set_yscale("log", base=10)
    axes.set_xlabel(xlabel, parse_math=False)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
  grid[0].set_ylabel(ylabel, parse_math=False)
  return figure
