"""Colours, lines and grids that the pictures share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# Okabe and Ito 2008: colours that all kinds of colour vision tell apart.
BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, BLACK = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000")
LINES = (BLUE, RED, GREEN, ORANGE, PINK, SKY, BLACK)
STYLES = ("-", "--", "-.", ":", (0, (4, 1, 1, 1, 1, 1)), (0, (6, 2)), (0, (1, 2)))
FAINT = "#dddddd"


def lines(axes: Any, xs: Any, ys: Mapping[str, Any], *, drawstyle: str = "default") -> None:
  """Lines that differ in colour and in dashes; a line of an empty name is not in the legend."""
  for number, (name, values) in enumerate(ys.items()):
    axes.plot(xs, values, label=name, color=LINES[number % len(LINES)],
              linestyle=STYLES[number % len(STYLES)], drawstyle=drawstyle)
  plain(axes)


def plain(axes: Any) -> None:
  """A faint grid, and no frame above and to the right."""
  axes.grid(alpha=0.25, linewidth=0.5)
  axes.spines[["top", "right"]].set_visible(False)


def labels(axes: Any, xlabel: str = "", ylabel: str = "", title: str = "") -> None:
  """Texts of axes, in which `$` is a character."""
  axes.set_xlabel(xlabel, parse_math=False)
  axes.set_ylabel(ylabel, parse_math=False)
  axes.set_title(title, parse_math=False, pad=4)


def runs(row: np.ndarray) -> list[tuple[int, int]]:
  """First and past-the-last places of the longest runs of True in [S]."""
  edges = np.flatnonzero(np.diff(row.astype(int), prepend=0, append=0))
  return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


def squares(axes: Any, shares: Sequence[tuple[np.ndarray, str]]) -> None:
  """Bools [T, S] as filled squares of a colour each, a row a query, on a grid of thin lines."""
  from matplotlib.patches import PathPatch
  from matplotlib.path import Path
  rows, columns = shares[0][0].shape
  box = lambda left, top, width: Path(
      [(left, top), (left + width, top), (left + width, top + 1), (left, top + 1), (left, top)],
      [Path.MOVETO, *[Path.LINETO] * 3, Path.CLOSEPOLY])
  for cells, colour in shares:
    boxes = [box(start, t, stop - start) for t, row in enumerate(cells)
             for start, stop in runs(row)]
    if boxes:  # as one shape, which is a short text
      axes.add_patch(PathPatch(Path.make_compound_path(*boxes), facecolor=colour, linewidth=0))
  ends = [((0, t), (columns, t)) for t in range(1, rows)] + [
      ((s, 0), (s, rows)) for s in range(1, columns)]
  axes.add_patch(PathPatch(Path.make_compound_path(*map(Path, ends)), edgecolor="white",
                           fill=False, linewidth=0.5))
  axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[],
           facecolor="#eeeeee")
  axes.spines[:].set(color="#888888")


def picture(axes: Any, values: np.ndarray, **options: Any) -> Any:
  """An array of numbers or pixels, a pixel an entry; the file has no more of them."""
  return axes.imshow(values, interpolation="none", **options)
