"""Shares of devices among processes."""

import pytest

from jtx.errors import ConfigError
from jtx.launch.shares import Share, divide, shares


def test_devices_are_divided_equally():
  assert [s.cores for s in divide("cpu", [0, 2, 3, 5, 7], 2)] == [{0, 2}, {3, 5}]
  assert [s.env for s in divide("gpu", ["4", "5", "6", "7"], 2)] == [
      {"CUDA_VISIBLE_DEVICES": "4,5"}, {"CUDA_VISIBLE_DEVICES": "6,7"}]
  tpu = divide("tpu", range(8), 2)
  assert [s.env["TPU_VISIBLE_CHIPS"] for s in tpu] == ["0,1,2,3", "4,5,6,7"]
  assert tpu[0].env["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
  assert [s.env["TPU_VISIBLE_CHIPS"] for s in divide("tpu", range(6), 2)] == ["0,1", "2,3"]
  assert all(s.cores is None for s in tpu)
  assert shares(1) == [Share()]


def test_more_jobs_than_devices():
  for platform, noun in (("cpu", "CPU cores"), ("gpu", "GPUs"), ("tpu", "TPU chips")):
    with pytest.raises(ConfigError, match=f"--jobs=3 is more than the {noun} .* are 2"):
      divide(platform, [0, 1], 3)
  with pytest.raises(ConfigError, match="platform 'quantum' can't be divided"):
    divide("quantum", [0, 1], 2)
