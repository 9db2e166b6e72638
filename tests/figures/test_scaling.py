"""Exponents of powers, and lines on logarithmic axes."""

import numpy as np
import pytest

from jtx.figures.curves import Line
from jtx.figures.scaling import exponent, scaling


def test_an_exponent_is_that_of_a_power():
  xs = np.array([2.0, 5.0, 11.0])
  assert exponent(xs, 3 * xs**1.7) == pytest.approx(1.7)
  xs, ys = [1, 2, 4, 8], [1.1, 1.9, 4.2, 7.8]
  assert exponent(xs, ys) == pytest.approx(np.polyfit(np.log(xs), np.log(ys), 1)[0])
  for xs, ys in (([1, 1], [1, 2]), ([1, 2], [0, 1]), ([-1, 2], [1, 2]), ([1], [1])):
    with pytest.raises(ValueError, match="an exponent needs positive numbers"):
      exponent(xs, ys)


def test_a_figure_of_powers():
  line = Line([1, 2, 4, 8], [9, 4, 16, 64])
  figure = scaling({"tokens": {"a": line}, "width": {"b": Line([1, 2], [1, 2]), "a": line}}, "ms")
  left, right = figure.axes
  assert [left.get_xscale(), left.get_yscale(), left.get_xlabel(), left.get_ylabel()] == [
      "log", "log", "tokens", "ms"]
  assert [t.get_text() for t in right.get_legend().get_texts()] == ["b: power 1.0", "a: power 2.0"]
  assert left.lines[0].get_color() == right.lines[1].get_color() != right.lines[0].get_color()
  np.testing.assert_array_equal(left.lines[0].get_ydata(), line.ys)
  with pytest.raises(ValueError, match="there is no line"):
    scaling({}, "ms")
