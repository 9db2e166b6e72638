"""Parameters of layers that decode one by one."""

import jax
import numpy as np
import pytest

from jtx.nn import cache
from jtx.nn.apart import Turned, apart, of_layer, with_tables
from jtx.nn.numerics import FEW_ROWS, left_product

DRAW = np.random.default_rng(0)
KERNELS = {  # [layers, ...], and the matrix of a layer
    "attention": {"query": ((2, 6, 3, 2), (6, 6)), "out": ((2, 3, 2, 5), (5, 6))},
    "ffn": {"in": ((2, 6, 8), (8, 6)), "out": ((2, 8, 6), (6, 8))}}


def params():
  named = {part: {name: {"kernel": DRAW.normal(size=shape)} for name, (shape, _) in own.items()}
           for part, own in KERNELS.items()}
  return {"layers": {**named, "experts": {"kernel": DRAW.normal(size=(2, 4, 6, 8))},
                     "norm": {"scale": DRAW.normal(size=(2, 6))}},
          "final_norm": {"scale": DRAW.normal(size=6)}}


def test_kernels_lie_outputs_first_and_come_back(monkeypatch):
  monkeypatch.setattr(cache, "layers_apart", lambda: True)
  given = params()
  found = apart(given, share=False)
  for part, own in KERNELS.items():
    for name, (_, shape) in own.items():
      before, after = (x["layers"][part][name]["kernel"] for x in (given, found))
      for layer, kernel in enumerate(after):
        assert kernel.matrix.shape == shape
        np.testing.assert_array_equal(kernel.back(), before[layer])
  # What is no kernel of one product stays as it lies, and so does what is of no layer.
  for name, leaf in (("experts", "kernel"), ("norm", "scale")):
    before, after = (x["layers"][name][leaf] for x in (given, found))
    np.testing.assert_array_equal(np.stack(after), before)
  assert found["final_norm"] is given["final_norm"]
  own, kernel = of_layer(found["layers"], 1), given["layers"]["ffn"]["in"]["kernel"][1]
  np.testing.assert_array_equal(own["ffn"]["in"]["matrix"], kernel.T)
  np.testing.assert_array_equal(own["ffn"]["in"]["kernel"], kernel)
  assert set(own["experts"]) == {"kernel"} and set(own["norm"]) == {"scale"}
  again = apart(found, share=False)
  assert jax.tree.structure(again) == jax.tree.structure(found)
  assert all(isinstance(x, Turned) for x in again["layers"]["ffn"]["in"]["kernel"])


@pytest.mark.parametrize("on_cpu, share", [(False, False), (True, True)])
def test_layers_of_a_scan_stay_in_one_array(on_cpu, share, monkeypatch):
  monkeypatch.setattr(cache, "layers_apart", lambda: on_cpu)
  given = params()
  assert apart(given, share=share) is given


def test_embeddings_are_matrices_as_they_are(monkeypatch):
  monkeypatch.setattr(cache, "layers_apart", lambda: True)
  given = {"embed": {"embedding": DRAW.normal(size=(9, 6))}, "bias": DRAW.normal(size=9)}
  found = with_tables(given)
  assert found["embed"]["matrix"] is given["embed"]["embedding"]
  assert found["bias"] is given["bias"]
  monkeypatch.setattr(cache, "layers_apart", lambda: False)
  assert with_tables(given) is given


@pytest.mark.parametrize("rows, on_the_left", [
    ((1,), False), ((2,), True), ((3, 4), True), ((FEW_ROWS,), True), ((FEW_ROWS + 1,), False)])
def test_products_of_few_rows(rows, on_the_left):
  """Have the matrix on the left, in what the compiler makes of them, too."""
  x, matrix = DRAW.normal(size=(*rows, 16)), DRAW.normal(size=(200, 16))
  f = jax.jit(left_product)
  np.testing.assert_allclose(f(x, matrix), x @ matrix.T, rtol=1e-5, atol=1e-5)
  made = f"f32[200,{np.prod(rows)}]" in f.lower(*map(np.float32, (x, matrix))).compile().as_text()
  assert made == on_the_left
