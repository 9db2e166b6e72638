"""Whole runs with the fused kernel, interpreted, and with what chips keep for the backward pass."""

import functools

import jax
import pytest

from configs import bert, common
from jtx.nn.kernels import choose, fused
from jtx.train import loop
from tests.helpers import logged, tiny_config


def translator():
  return tiny_config(**{"steps": 20, "checkpoint.every": 20,
                        "model.encoder.block.attention.dropout": 0.1})


def masked_tokens():
  config = bert.get_config("tiny")
  config.evals = {}
  common.apply(config, {"steps": 20, "log_every": 1, "model.stack.block.attention.dropout": 0.1})
  return config


def set_kernel(config, kernel, remat):
  for name in ("stack", "encoder", "decoder"):
    if name in config.model:
      stack = config.model[name]
      if "block" in stack:
        stack.block.attention.kernel = kernel
      stack.remat = remat


@pytest.mark.slow
@pytest.mark.parametrize("make", [translator, masked_tokens], ids=lambda make: make.__name__)
def test_twenty_losses_are_those_of_plain_attention(make, monkeypatch, tmp_path):
  """Dropout is on, of the weights too, whose bits are the same."""
  there = choose.KERNELS["fused"]
  monkeypatch.setitem(choose.KERNELS, "fused", there._replace(
      run=functools.partial(fused.attend, interpret=True), platforms=None))
  monkeypatch.setattr(fused, "platform", lambda: "tpu")
  for kernel, remat in (("xla", "none"), ("fused", "cheap")):
    config = make()
    set_kernel(config, kernel, remat)
    loop.run(config.lock(), str(tmp_path / kernel), jax.devices()[:1])
  plain, ours = (logged(tmp_path / kernel) for kernel in ("xla", "fused"))
  assert [line["step"] for line in ours] == list(range(1, 21))
  for a, b in zip(ours, plain, strict=True):
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
