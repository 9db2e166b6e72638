"""Averages of weighted sums."""

import numpy as np

from jtx.objectives.sums import summarize


def test_summarize():
  result = summarize({
      "loss": (np.float32(3.0), np.float32(4.0)),
      "accuracy": np.array([1.0, 3.0], np.float32),
      "none": (0.0, 0.0),
  })
  assert result == {"loss": 0.75, "accuracy": 1 / 3}
  assert all(type(x) is float for x in result.values())
