"""Training curves and other lines over one axis, and bars."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jtx.figures.figure import label_tokens, new_figure

if TYPE_CHECKING:
  from matplotlib.figure import Figure


def curve(
    xs: Sequence[float], ys: Mapping[str, Sequence[float]], xlabel: str, ylabel: str
) -> "Figure":
  """Lines over the same `xs`, one for each label of `ys`; NaN leaves a gap.

  Raises:
    ValueError: a line has another number of points than `xs`.
  """
  figure = new_figure((6, 3.6))
  axes = figure.subplots()
  for label, values in ys.items():
    if len(values) != len(xs):
      raise ValueError(f"curve: {label!r} has {len(values)} points, xs has {len(xs)}")
    axes.plot(xs, values, label=label, linewidth=1.6)
  axes.set_xlabel(xlabel, parse_math=False)
  axes.set_ylabel(ylabel, parse_math=False)
  axes.grid(alpha=0.25)
  axes.spines[["top", "right"]].set_visible(False)
  if len(ys) > 1:
    for text in axes.legend(frameon=False).get_texts():
      text.set_parse_math(False)
  elif ys:
    axes.set_title(next(iter(ys)), parse_math=False)
  return figure


def bars(values: Mapping[str, float], xlabel: str) -> "Figure":
  """A bar for each of `values`, the first on top, its value at its end.

  Raises:
    ValueError: there is no value.
  """
  if not values:
    raise ValueError("bars: there is no value")
  figure = new_figure((6, 0.8 + 0.35 * len(values)))
  axes = figure.subplots()
  drawn = axes.barh(range(len(values)), list(values.values()), height=0.7)
  axes.bar_label(drawn, fmt="{:,.6g}", padding=3, fontsize=9)
  label_tokens(axes.yaxis, list(values))
  axes.invert_yaxis()
  axes.margins(x=0.12)
  axes.set_xlabel(xlabel, parse_math=False)
  axes.spines[["top", "right"]].set_visible(False)
  return figure
