"""Figures: values, labels, scales and files."""

import sys

import matplotlib
import numpy as np
import pytest

from jtx.figures.attention import (
    attention_grid, attention_map, heatmaps, position_heatmap, position_similarity)
from jtx.figures.curves import Line, bars, curve, curves, mean_line
from jtx.figures.figure import COLUMN, MAX_LABELS, save_figure


def attention(*shape):
  weights = np.random.default_rng(0).random(shape)
  return weights / weights.sum(-1, keepdims=True)


def tick_labels(axis):
  return [label.get_text() for label in axis.get_ticklabels()]


def test_attention_map_shows_weights_and_tokens():
  weights = attention(2, 3)
  rows, columns = ["Übung", "macht"], ["den", "Meister", "straße"]
  axes = attention_map(weights, rows, columns, title="head 1").axes[0]
  np.testing.assert_allclose(axes.images[0].get_array(), weights, rtol=1e-6)
  assert axes.images[0].get_clim() == (0, weights.max().astype(np.float32))
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("key", "query")
  named = attention_map(weights, rows, columns, xlabel="source", ylabel="target").axes[0]
  assert (named.get_xlabel(), named.get_ylabel()) == ("source", "target")
  assert tick_labels(axes.yaxis) == rows
  assert tick_labels(axes.xaxis) == columns
  assert axes.get_title() == "head 1"


def test_attention_grid_is_layers_by_heads():
  weights = attention(2, 3, 4, 5)
  figure = attention_grid(weights, list("abcd"), list("vwxyz"))
  *maps, _ = figure.axes
  assert len(maps) == 6
  for axes, expected in zip(maps, weights.reshape(6, 4, 5)):
    np.testing.assert_allclose(axes.images[0].get_array(), expected, rtol=1e-6)
    assert axes.images[0].get_clim() == (0, weights.max().astype(np.float32))  # one for all
  assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")
  assert [axes.get_title() for axes in maps[:3]] == ["head 1", "head 2", "head 3"]
  assert [axes.get_ylabel() for axes in maps[::3]] == ["layer 1", "layer 2"]


def test_long_sequences_are_labelled_at_true_positions():
  tokens = [f"t{i}" for i in range(150)]
  axes = attention_map(attention(150, 150), tokens, tokens).axes[0]
  assert len(axes.get_xticks()) <= MAX_LABELS
  assert tick_labels(axes.xaxis) == [f"t{i:.0f}" for i in axes.get_xticks()]


def test_tokens_are_not_mathematics(tmp_path):
  """Unbalanced `$x^` would raise when drawn, were it parsed."""
  tokens = ["$x^$", "\\frac$", "a\nb", "▁the", "Ġthe"]
  figure = attention_map(attention(5, 5), tokens, tokens, title="$^$")
  save_figure(figure, tmp_path / "map.png")
  assert tick_labels(figure.axes[0].xaxis)[2] == "a\\nb"
  save_figure(curve([0, 1], {"$^$": [1, 2], "b": [2, 1]}, "$^$", "$_$"), tmp_path / "c.png")


def test_bfloat16_weights():
  jnp = pytest.importorskip("jax.numpy")
  weights = jnp.full((2, 2), 0.5, jnp.bfloat16)
  axes = attention_map(weights, ["a", "b"], ["c", "d"]).axes[0]
  np.testing.assert_array_equal(axes.images[0].get_array(), 0.5)


def test_position_heatmap_is_centred_at_zero():
  table = np.array([[0.5, -2.0], [1.0, 0.0], [0.0, 0.25]])
  image = position_heatmap(table).axes[0].images[0]
  np.testing.assert_allclose(image.get_array(), table)
  assert image.get_clim() == (-2, 2)


def test_position_similarity_is_the_cosine():
  table = np.array([[1.0, 0.0], [3.0, 3.0], [-2.0, 0.0], [0.0, 0.0]])
  image = position_similarity(table).axes[0].images[0]
  r = np.sqrt(0.5)
  expected = [[1, r, -1, 0], [r, 1, -r, 0], [-1, -r, 1, 0], [0, 0, 0, 0]]
  np.testing.assert_allclose(image.get_array(), expected, atol=1e-6)
  assert image.get_clim() == (-1, 1)


def test_curve_draws_every_line():
  figure = curve([0, 10], {"train": [3.0, 2.0], "valid": [3.5, np.nan]}, "step", "loss")
  axes = figure.axes[0]
  assert [line.get_label() for line in axes.lines] == ["train", "valid"]
  np.testing.assert_array_equal(axes.lines[1].get_ydata(), [3.5, np.nan])
  assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "loss")


def test_points_without_neighbours_are_seen():
  nan = np.nan
  figure = curve(range(5), {"one": [nan, nan, 2.0, nan, nan], "some": [1.0, nan, 2.0, 3.0, nan]},
                 "step", "loss")
  assert [line.get_markevery() for line in figure.axes[0].lines] == [[2], [0]]
  assert {line.get_marker() for line in figure.axes[0].lines} == {"o"}


def test_panels_of_curves(tmp_path):
  labels = [f"$^{i}" for i in range(12)]
  lines = {label: Line([1, 2], [i, i + 1]) for i, label in enumerate(labels)}
  figure = curves({"loss": lines, "bleu": {labels[11]: Line([1], [30.0], [0.5])}}, "step")
  save_figure(figure, tmp_path / "curves.png")
  loss, bleu = figure.axes
  assert (loss.get_ylabel(), bleu.get_ylabel(), bleu.get_xlabel()) == ("loss", "bleu", "step")
  look = lambda line: (line.get_color(), line.get_linestyle())
  assert len({look(line) for line in loss.lines}) == 12
  assert look(bleu.lines[0]) == look(loss.lines[11])
  legend, = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == labels
  assert legend.get_title().get_text() == "mean ± standard error over seeds"
  with pytest.raises(ValueError, match="no line"):
    curves({"loss": {}}, "step")


def test_a_mean_line_is_over_the_steps_of_all():
  line = mean_line([Line([1, 2, 3], [1.0, 2.0, 9.0]), Line([3, 1], [5.0, 3.0])])
  assert line.xs == [1, 3]
  np.testing.assert_allclose(line.ys, [2, 7])
  np.testing.assert_allclose(line.error, [1, 2])
  assert mean_line([Line([1], [2.0])]).error is None


def test_heatmaps_share_a_scale_from_zero():
  panels = {"a": [[0, 1, 2]], "$^$": np.array([[True], [False]])}
  figure = heatmaps(panels, "key", "query", label="$_$")
  first, second, bar = figure.axes
  np.testing.assert_array_equal(first.images[0].get_array(), [[0, 1, 2]])
  np.testing.assert_array_equal(second.images[0].get_array(), [[1], [0]])
  assert [axes.get_title() for axes in (first, second)] == ["a", "$^$"]
  assert {axes.images[0].get_clim() for axes in (first, second)} == {(0, 2)}
  assert (figure.get_supxlabel(), figure.get_supylabel()) == ("key", "query")
  assert bar.get_ylabel() == "$_$"


def test_heatmaps_of_signed_values_are_centred_and_nan_is_left_out():
  figure = heatmaps({"a": [[1, -3]], "b": [[np.nan, 2]]}, "x", "y")
  assert {axes.images[0].get_clim() for axes in figure.axes[:2]} == {(-3, 3)}
  np.testing.assert_array_equal(figure.axes[1].images[0].get_array().mask, [[True, False]])
  figure = heatmaps({"all zero": np.zeros((2, 2))}, "x", "y")
  assert figure.axes[0].images[0].get_clim() == (0, 1)


def test_heatmaps_break_into_rows():
  panels = {str(i): np.eye(2) for i in range(5)}
  figure = heatmaps(panels, "x", "y", most=3)
  *maps, _ = figure.axes
  assert [axes.get_title() for axes in maps] == list("01234")
  grid = maps[0].get_subplotspec().get_gridspec()
  assert (grid.nrows, grid.ncols) == (2, 3)


def test_heatmaps_label_and_number_cells():
  values = [[0.0, 1.0, np.nan], [0.25, 0.5, 12.345]]
  figure = heatmaps({"a": values}, "x", "y", rows=["r", "s"], columns=["u", "$^$", "w"],
                    numbers=True)
  axes = figure.axes[0]
  assert tick_labels(axes.yaxis) == ["r", "s"]
  assert tick_labels(axes.xaxis) == ["u", "$^$", "w"]
  texts = {text.get_position(): text for text in axes.texts}
  assert {place: text.get_text() for place, text in texts.items()} == {
      (0, 0): "0", (1, 0): "1", (0, 1): "0.25", (1, 1): "0.5", (2, 1): "12.3"}
  assert texts[2, 1].get_color() == "white" and texts[0, 0].get_color() == "black"


def test_bars_are_in_order_from_the_top():
  axes = bars({"$^$ heads": 12288.0, "one": 0.5}, "numbers").axes[0]
  assert [bar.get_width() for bar in axes.patches] == [12288, 0.5]
  assert tick_labels(axes.yaxis) == ["$^$ heads", "one"]
  assert [text.get_text() for text in axes.texts] == ["12,288", "0.5"]
  top, bottom = sorted(axes.get_ylim())
  assert axes.get_ylim() == (bottom, top)
  assert axes.get_xlabel() == "numbers"


@pytest.mark.parametrize("draw, message", [
    (lambda: heatmaps({}, "x", "y"), "no panel"),
    (lambda: heatmaps({"a": [1, 2]}, "x", "y"), r"'a' has shape \(2,\)"),
    (lambda: heatmaps({"a": [[1, 2]]}, "x", "y", rows=["r", "s"]), "2 row labels"),
    (lambda: heatmaps({"a": [[1, 2]]}, "x", "y", columns=["u"]), "1 column labels"),
    (lambda: bars({}, "x"), "no value"),
    (lambda: attention_map(attention(2, 3), ["a"], list("xyz")), "1 row labels"),
    (lambda: attention_map(attention(2, 2, 2), ["a"], ["b"]), "rank 2"),
    (lambda: attention_grid(attention(2, 3), list("ab"), list("xyz")), "rank 4"),
    (lambda: curve([0, 1], {"train": [1.0]}, "step", "loss"), "'train' has 1 points"),
])
def test_shapes_that_do_not_fit_are_named(draw, message):
  with pytest.raises(ValueError, match=message):
    draw()


@pytest.mark.parametrize("suffix, magic", [
    ("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF"),
])
def test_save_makes_the_folder(tmp_path, suffix, magic):
  path = tmp_path / "figures" / f"positions.{suffix}"
  save_figure(position_heatmap(np.eye(4)), path)
  assert path.read_bytes().startswith(magic)


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_the_same_figure_gives_the_same_bytes(tmp_path, suffix):
  for name in "ab":
    save_figure(curve([0, 1], {"a": [1, 2], "b": [2, 1]}, "x", "y"), tmp_path / f"{name}.{suffix}")
  first, second = (tmp_path / f"{name}.{suffix}" for name in "ab")
  assert first.read_bytes() == second.read_bytes()
  assert b"Date" not in first.read_bytes()


def test_figures_have_one_width_and_style():
  before = dict(matplotlib.rcParams)
  figures = [curve([0], {"a": [1]}, "x", "y"), curves({"y": {"a": Line([0], [1])}}, "x"),
             bars({"a": 1.0}, "x"), position_heatmap(np.eye(4)), position_similarity(np.eye(4)),
             attention_map(np.eye(2), ["a", "b"], ["a", "b"])]
  assert dict(matplotlib.rcParams) == before
  for figure in figures:
    axes = figure.axes[0]
    assert figure.get_size_inches()[0] == COLUMN == 3.25
    assert axes.xaxis.label.get_size() == 8 and axes.get_xticklabels()[0].get_size() == 7


def test_notebooks_show_a_figure():
  assert position_heatmap(np.eye(4))._repr_png_().startswith(b"\x89PNG")


def test_pyplot_is_not_used(monkeypatch):
  monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
  position_heatmap(np.eye(4))
  assert "matplotlib.pyplot" not in sys.modules
