"""benchmarks/attention.py: what its calls compute."""

import numpy as np
import pytest

from benchmarks import attention


@pytest.mark.parametrize("rate", attention.RATES)
def test_kernels_compute_the_same_from_the_same_operands(rate):
  ours = attention.Jtx(attention.SIZES["tiny"])
  assert ours.names(rate) == ["blocked", "xla"]  # of a CPU
  found = [{what: call() for what, call in ours.calls(name, rate)} for name in ours.names(rate)]
  for what in ("forward", "gradients"):
    for a, b in zip(*(np.atleast_1d(result[what]) for result in found), strict=True):
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def test_times_are_of_every_kernel_and_rate(monkeypatch):
  monkeypatch.setattr(attention, "Torch", raising)
  found = attention.run(attention.SIZES["tiny"])["seconds"]
  assert {rate: set(names) for rate, names in found.items()} == {
      "0.1": {"blocked", "xla"}, "0.0": {"blocked", "xla"}}
  assert all(0 < times["forward"] < 1 and 0 < times["gradients"] < 1
             for names in found.values() for times in names.values())


def raising(size):
  raise ImportError("no torch")
