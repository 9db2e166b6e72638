"""Layouts and rows: where the numbers of a tensor go, on arrays small enough to write out."""

import types

import numpy as np
import pytest

from jtx.errors import DataError
from jtx.interop import tables
from jtx.interop.huggingface import FAMILIES

X = np.arange(24, dtype=np.float32)


def test_a_matrix_of_heads_has_outputs_first_in_the_file():
  """query.weight [N * H, D] to [D, N, H]: x[n * H + h, d] is y[d, n, h]."""
  x = X.reshape(6, 4)  # N = 3, H = 2, D = 4
  y = tables.matrix(1).read(x, (4, 3, 2))
  for d, n, h in np.ndindex(4, 3, 2):
    assert y[d, n, h] == x[n * 2 + h, d]


def test_a_matrix_from_heads_has_two_input_axes():
  """out.weight [D, N * H] to [N, H, D]: x[d, n * H + h] is y[n, h, d]."""
  x = X.reshape(4, 6)
  y = tables.matrix(2).read(x, (3, 2, 4))
  for d, n, h in np.ndindex(4, 3, 2):
    assert y[n, h, d] == x[d, n * 2 + h]


@pytest.mark.parametrize("layout, shape", [
    (tables.TABLE, (4, 6)), (tables.VECTOR, (3, 8)), (tables.matrix(1), (4, 3, 2)),
    (tables.matrix(2), (3, 2, 4)), (tables.matrix(1), (4, 6))])
def test_layouts_are_undone_bit_by_bit(layout, shape):
  bits = np.random.default_rng(0).integers(0, 2**32, 24, dtype=np.uint32)  # NaNs too
  x = bits.view(np.float32).reshape(layout.shape(shape))
  again = layout.write(layout.read(x, shape))
  assert again.shape == x.shape and again.tobytes() == x.tobytes()


def test_a_joined_tensor_is_split_along_its_first_axis_and_stacked_by_layer():
  row = tables.dense("layers.{i}.Wqk", "e/{layers}/query", "e/{layers}/key")[0]
  segments = [types.SimpleNamespace(num_layers=n) for n in (1, 2)]
  shapes = {f"e/layers_{s}/{name}/kernel": (n, 2, 2)
            for s, n in ((0, 1), (1, 2)) for name in ("query", "key")}
  entries = list(tables.entries([row], segments, shapes))
  assert [e.name for e in entries] == ["layers.0.Wqk.weight", "layers.1.Wqk.weight",
                                       "layers.2.Wqk.weight"]
  params = {}
  tensors = [np.arange(8, dtype=np.float32).reshape(4, 2) + 10 * i for i in range(3)]
  for entry, tensor in zip(entries, tensors):
    tables.read(entry, tensor, shapes, params)
  np.testing.assert_array_equal(params["e/layers_0/query/kernel"], [[[0, 2], [1, 3]]])
  np.testing.assert_array_equal(params["e/layers_1/key/kernel"],
                                [[[14, 16], [15, 17]], [[24, 26], [25, 27]]])
  for entry, tensor in zip(entries, tensors):
    np.testing.assert_array_equal(tables.write(entry, params), tensor)


def test_rows_without_their_parameter_are_left_out():
  rows = tables.norm("n.{i}", "e/{layers}/norm")
  segments = [types.SimpleNamespace(num_layers=1), types.SimpleNamespace(num_layers=1)]
  entries = list(tables.entries(rows, segments, {"e/layers_1/norm/scale": (1, 4)}))
  assert entries == [tables.Entry("n.1.weight", (("e/layers_1/norm/scale", 0),), tables.VECTOR)]


def test_a_tensor_of_another_shape_is_refused():
  entry = tables.Entry("x.weight", (("a", None),), tables.matrix(1))
  with pytest.raises(DataError) as e:
    tables.read(entry, np.zeros((2, 3)), {"a": (2, 3)}, {})
  assert str(e.value) == "tensor 'x.weight' has shape [2, 3], and config.json asks for [3, 2]"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_names_each_tensor_and_parameter_once(model_type):
  family = FAMILIES[model_type]
  for mlm, task in family.architectures.values():
    rows = family.rows_for(mlm, task)
    assert len({r.name for r in rows}) == len(rows)
    paths = [p for r in rows for p in r.paths]
    assert len(set(paths)) == len(paths)
    assert task in ("none", *family.head_rows)
  names = {r.name for mlm, task in family.architectures.values()
           for r in family.rows_for(mlm, task)}
  assert set(family.tied.values()) <= names and not names & set(family.tied)
