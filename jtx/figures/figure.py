"""Helpers of all figures: one size and style, axes labelled with tokens, files; without pyplot.

Every function of this folder returns a `matplotlib.figure.Figure` that needs no display and leaves
no global state behind; a notebook shows it as a cell's last value. matplotlib is imported when a
figure is drawn.
"""

from collections.abc import Callable, Sequence
import functools
import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jtx import storage

if TYPE_CHECKING:
  from matplotlib.figure import Figure

COLUMN, PAGE = 3.25, 6.75  # inches: the width of a paper's column, and of its two
DPI = 150
# Sizes in points are those of a figure that is printed as wide as it is drawn.
STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "figure.titlesize": 8,
    "figure.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "legend.title_fontsize": 7, "lines.linewidth": 1.2, "axes.linewidth": 0.6,
    "pdf.fonttype": 42,  # TrueType, since publishers refuse Type 3
    "svg.hashsalt": "jtx",  # without it ids are drawn at random
}
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
SEQUENTIAL_COLOURS = "Blues"
SIGNED_COLOURS = "RdBu_r"
MAX_LABELS = 60  # on one axis; longer sequences are labelled at every n-th position


def styled(draw: Callable[..., "Figure"]) -> Callable[..., "Figure"]:
  """A function that draws a figure, in the style of all; matplotlib's own stays as it is."""
  @functools.wraps(draw)
  def drawn(*args: Any, **kwargs: Any) -> "Figure":
    import matplotlib
    with matplotlib.rc_context(STYLE):
      return draw(*args, **kwargs)
  return drawn


def new_figure(size: tuple[float, float]) -> "Figure":
  """An empty figure of a width and height in inches."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=size, layout="constrained")
  # It is pyplot that teaches IPython to show figures, and pyplot isn't imported.
  figure._repr_png_ = functools.partial(_png, figure)
  return figure


def _png(figure: "Figure") -> bytes:
  buffer = io.BytesIO()
  figure.savefig(buffer, format="png", dpi=DPI)
  return buffer.getvalue()


def save_figure(figure: "Figure", path: str | os.PathLike) -> None:
  """Writes `figure` in the format that the suffix of `path` names; makes its folder.

  The same figure gives the same bytes.
  """
  import matplotlib
  path = storage.absolute(os.fspath(path))
  storage.make_folder(os.path.dirname(path))
  buffer = io.BytesIO()
  kind = os.path.splitext(path)[1].removeprefix(".")
  with matplotlib.rc_context(STYLE):  # which has what is decided only here: fonts and ids
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=UNDATED.get(kind))
  storage.write_bytes(path, buffer.getvalue())


def clip(value: float, low: float, high: float) -> float:
  return max(low, min(high, value))


def as_array(values: Any, rank: int) -> np.ndarray:
  """Values as float32; ValueError where their rank is another."""
  values = np.asarray(values, np.float32)  # bfloat16 is unknown to matplotlib
  if values.ndim != rank:
    raise ValueError(f"expected an array of rank {rank}, got shape {values.shape}")
  return values


def label_tokens(
    axis: Any, labels: Sequence[str], rotation: float = 0, size: float = 7,
    most: int = MAX_LABELS,
) -> None:
  """Writes tokens at their positions; `$` is a character here, not mathematics."""
  every = -(-len(labels) // most)
  shown = [label.replace("\n", "\\n").replace("\t", "\\t") for label in labels[::every]]
  axis.set_ticks(
      range(0, len(labels), every), shown, rotation=rotation, fontsize=size, parse_math=False)
  axis.set_tick_params(length=0)
