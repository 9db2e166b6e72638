"""Training curves and other lines over one axis, and bars."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jtx.figures.figure import COLUMN, label_tokens, new_figure, styled

if TYPE_CHECKING:
  from matplotlib.axes import Axes
  from matplotlib.figure import Figure


class Line(NamedTuple):
  """Points of a line, in order; `error` is half the height of the band around it."""
  xs: Sequence[float]
  ys: Sequence[float]
  error: Sequence[float] | None = None


def mean_line(runs: Sequence[Line]) -> Line:
  """The mean of runs that differ in their seeds, and its standard error as a band.

  It is over the xs that all runs have; a single run has no band.
  """
  xs = sorted(set.intersection(*(set(run.xs) for run in runs)))
  at = [dict(zip(run.xs, run.ys)) for run in runs]
  ys = np.array([[values[x] for x in xs] for values in at], np.float64)
  if len(runs) == 1:
    return Line(xs, ys[0])
  return Line(xs, ys.mean(0), ys.std(0, ddof=1) / np.sqrt(len(runs)))


@styled
def curve(
    xs: Sequence[float], ys: Mapping[str, Sequence[float]], xlabel: str, ylabel: str
) -> "Figure":
  """Lines over the same `xs`, one for each label of `ys`; NaN leaves a gap.

  Raises:
    ValueError: a line has another number of points than `xs`.
  """
  for label, values in ys.items():
    if len(values) != len(xs):
      raise ValueError(f"curve: {label!r} has {len(values)} points, xs has {len(xs)}")
  figure = new_figure((COLUMN, 0.65 * COLUMN))
  axes = figure.subplots()
  _draw_lines(axes, {label: Line(xs, values) for label, values in ys.items()}, xlabel, ylabel)
  if len(ys) > 1:
    _as_text(axes.legend(frameon=False))
  elif ys:
    axes.set_title(next(iter(ys)), parse_math=False)
  return figure


@styled
def curves(panels: Mapping[str, Mapping[str, Line]], xlabel: str) -> "Figure":
  """Panels one below the other, as wide as a paper's column, over the same x.

  Args:
    panels: by what their y is, the lines by their labels; the same label has the same colour.
    xlabel: of all.

  Raises:
    ValueError: there is no line.
  """
  labels = list(dict.fromkeys(label for lines in panels.values() for label in lines))
  if not labels:
    raise ValueError("curves: there is no line")
  several = len(labels) > 1
  figure = new_figure((COLUMN, 0.5 + 1.8 * len(panels) + 0.16 * several * len(labels)))
  grid = figure.subplots(len(panels), squeeze=False, sharex=True)[:, 0]
  for axes, (ylabel, lines) in zip(grid, panels.items()):
    _draw_lines(axes, lines, xlabel if axes is grid[-1] else "", ylabel, order=labels)
  banded = any(line.error is not None for lines in panels.values() for line in lines.values())
  title = "mean ± standard error over seeds" if banded else ""
  if several:
    drawn = {line.get_label(): line for axes in grid for line in axes.lines}
    _as_text(figure.legend(drawn.values(), drawn, loc="outside lower center", title=title,
                           frameon=False, borderaxespad=0.2))
  else:
    name = labels[0] if labels[0] not in panels else ""
    figure.suptitle(", ".join(filter(None, (name, title))), parse_math=False)
  return figure


def _draw_lines(axes: "Axes", lines: Mapping[str, Line], xlabel: str, ylabel: str,
                order: Sequence[str] = ()) -> None:
  for place, (label, line) in enumerate(lines.items()):
    place = order.index(label) if order else place
    ys = np.asarray(line.ys, np.float64)
    alone = _alone(ys)
    drawn, = axes.plot(line.xs, ys, label=label, color=f"C{place % 10}",
                       linestyle=("-", "--", ":", "-.")[place // 10 % 4],
                       marker="o" if alone else "", markersize=3, markevery=alone)
    if line.error is not None:
      axes.fill_between(line.xs, ys - line.error, ys + np.asarray(line.error), alpha=0.2,
                        color=drawn.get_color(), linewidth=0)
  axes.set_xlabel(xlabel, parse_math=False)
  axes.set_ylabel(ylabel, parse_math=False)
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)


def _alone(ys: np.ndarray) -> list[int]:
  """Places of points that no line reaches, since what is beside them is missing or NaN."""
  there = np.isfinite(np.concatenate([[np.nan], ys, [np.nan]]))
  return np.flatnonzero(there[1:-1] & ~there[:-2] & ~there[2:]).tolist()


def _as_text(legend) -> None:
  for text in legend.get_texts():
    text.set_parse_math(False)


@styled
def bars(values: Mapping[str, float], xlabel: str) -> "Figure":
  """A bar for each of `values`, the first on top, its value at its end.

  Raises:
    ValueError: there is no value.
  """
  if not values:
    raise ValueError("bars: there is no value")
  figure = new_figure((COLUMN, 0.6 + 0.22 * len(values)))
  axes = figure.subplots()
  drawn = axes.barh(range(len(values)), list(values.values()), height=0.7)
  axes.bar_label(drawn, fmt="{:,.6g}", padding=3)
  label_tokens(axes.yaxis, list(values))
  axes.invert_yaxis()
  axes.margins(x=0.2)
  axes.set_xlabel(xlabel, parse_math=False)
  axes.spines[["top", "right"]].set_visible(False)
  return figure
