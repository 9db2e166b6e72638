"""Layouts and rows: where the numbers of a tensor go, on arrays small enough to write out."""

import types

import numpy as np
import pytest

from jtx.errors import DataError
from jtx.interop import tables
from jtx.interop.families import FAMILIES

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
    (tables.matrix(2), (3, 2, 4)), (tables.matrix(1), (4, 6)),
    (tables.untransposed(1), (4, 3, 2)), (tables.untransposed(2), (3, 2, 4))])
def test_layouts_are_undone_bit_by_bit(layout, shape):
  bits = np.random.default_rng(0).integers(0, 2**32, 24, dtype=np.uint32)  # NaNs too
  x = bits.view(np.float32).reshape(layout.shape(shape))
  again = layout.write(layout.read(x, shape))
  assert again.shape == x.shape and again.tobytes() == x.tobytes()


def stacks(**segments):
  """Stacks by name, each of segments of so many layers."""
  return {name: types.SimpleNamespace(segments=[types.SimpleNamespace(num_layers=n) for n in parts])
          for name, parts in segments.items()}


def test_a_joined_tensor_is_split_along_its_first_axis_and_stacked_by_layer():
  row = tables.dense("layers.{i}.Wqk", "e/{layers}/query", "e/{layers}/key")[0]
  shapes = {f"e/layers_{s}/{name}/kernel": (n, 2, 2)
            for s, n in ((0, 1), (1, 2)) for name in ("query", "key")}
  entries = list(tables.entries([row], stacks(e=(1, 2)), shapes))
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


D, N, H = 5, 3, 2
NAMES = ("query", "key", "value")


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_fused_projection(transposed, by_head):
  """[D, 3 * N * H] or its transpose; feature p, n, h or n, p, h of part p is ours[p][d, n, h]."""
  rows = tables.dense("qkv", *(f"a/{name}" for name in NAMES), transposed=transposed,
                      by_head=by_head)
  shapes = {f"a/{name}/kernel": (D, N, H) for name in NAMES}
  shapes |= {f"a/{name}/bias": (N, H) for name in NAMES}
  weight, bias = tables.entries(rows, {}, shapes)
  matrix = np.random.default_rng(0).normal(size=(D, 3 * N * H)).astype(np.float32)
  vector = np.arange(3 * N * H, dtype=np.float32)
  in_file = np.ascontiguousarray(matrix.T) if transposed else matrix
  params = {}
  tables.read(weight, in_file, shapes, params)
  tables.read(bias, vector, shapes, params)
  for p, n, h in np.ndindex(3, N, H):
    feature = (n * 3 + p) * H + h if by_head else (p * N + n) * H + h
    np.testing.assert_array_equal(params[f"a/{NAMES[p]}/kernel"][:, n, h], matrix[:, feature])
    assert params[f"a/{NAMES[p]}/bias"][n, h] == vector[feature]
  for entry, tensor in ((weight, in_file), (bias, vector)):
    again = tables.write(entry, params)
    assert again.shape == tensor.shape and again.tobytes() == tensor.tobytes()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_queries_are_fused_with_the_key_that_they_share(kv_heads):
  """Feature (k, g, h) of the 4 / K queries of a key, then that key and its value (Falcon)."""
  weight, _ = tables.dense("qkv", *(f"a/{name}" for name in NAMES), by_head=True)
  heads = dict(zip(NAMES, (4, kv_heads, kv_heads)))
  shapes = {f"a/{name}/kernel": (D, number, H) for name, number in heads.items()}
  entry = next(tables.entries([weight], {}, shapes))
  group = 4 // kv_heads
  matrix = np.arange((4 + 2 * kv_heads) * H * D, dtype=np.float32).reshape(-1, D)
  by_group = matrix.reshape(kv_heads, group + 2, H, D)
  params = {}
  tables.read(entry, matrix, shapes, params)
  for k in range(kv_heads):
    for g in range(group):
      np.testing.assert_array_equal(params["a/query/kernel"][:, k * group + g], by_group[k, g].T)
    np.testing.assert_array_equal(params["a/key/kernel"][:, k], by_group[k, group].T)
    np.testing.assert_array_equal(params["a/value/kernel"][:, k], by_group[k, group + 1].T)
  np.testing.assert_array_equal(tables.write(entry, params), matrix)


def test_a_tensor_of_the_first_layer_alone():
  rows = tables.norm("conv.norm", "e/{layers}/conv_norm")
  for parts, segment in (((1, 2), "layers_0"), ((1,), "layers")):
    shapes = {f"e/{segment}/conv_norm/scale": (1, D), f"e/{segment}/conv_norm/bias": (1, D)}
    weight, bias = tables.entries(rows, stacks(e=parts), shapes)
    assert weight.name == "conv.norm.weight" and bias.name == "conv.norm.bias"
    assert weight.places == ((f"e/{segment}/conv_norm/scale", (0,)),)
    params = {}
    tables.read(weight, np.arange(D, dtype=np.float32), shapes, params)
    np.testing.assert_array_equal(params[f"e/{segment}/conv_norm/scale"], [range(D)])


def test_experts_have_tensors_of_their_own():
  """Expert e of layer i is the matrix [i, e] of one parameter [L, E, D, F]."""
  row = tables.Row("l.{i}.experts.{e}.weight", ("d/{layers}/kernel",), tables.matrix(1))
  shapes = {"d/layers/kernel": (2, 3, D, H)}
  entries = list(tables.entries([row], stacks(d=(2,)), shapes))
  assert [e.name for e in entries] == [f"l.{i}.experts.{e}.weight" for i, e in np.ndindex(2, 3)]
  tensors = np.random.default_rng(0).normal(size=(6, H, D)).astype(np.float32)
  params = {}
  for entry, tensor in zip(entries, tensors):
    tables.read(entry, tensor, shapes, params)
    np.testing.assert_array_equal(tables.write(entry, params), tensor)
  for i, e in np.ndindex(2, 3):
    np.testing.assert_array_equal(params["d/layers/kernel"][i, e], tensors[3 * i + e].T)
  assert not list(tables.entries([row], stacks(d=(2,)), {}))


def test_heads_that_do_not_divide_are_not_fused():
  weight, _ = tables.dense("qkv", "a/query", "a/key", by_head=True)
  shapes = {"a/query/kernel": (D, 3, H), "a/key/kernel": (D, 2, H)}
  entry = next(tables.entries([weight], {}, shapes))
  with pytest.raises(DataError) as e:
    tables.read(entry, np.zeros((5 * H, D), np.float32), shapes, {})
  assert str(e.value) == "tensor 'qkv.weight' is joined by heads, of which its parts have 3 and 2"


def test_a_model_of_two_stacks():
  rows = (*tables.norm("encoder.block.{i}.norm", "encoder/{layers}/norm"),
          *tables.norm("decoder.block.{i}.norm", "decoder/{layers}/norm"))
  shapes = {f"{stack}/layers/norm/scale": (n, D) for stack, n in (("encoder", 2), ("decoder", 1))}
  entries = list(tables.entries(rows, stacks(encoder=(2,), decoder=(1,)), shapes))
  assert [(e.name, e.places) for e in entries] == [
      ("encoder.block.0.norm.weight", (("encoder/layers/norm/scale", (0,)),)),
      ("encoder.block.1.norm.weight", (("encoder/layers/norm/scale", (1,)),)),
      ("decoder.block.0.norm.weight", (("decoder/layers/norm/scale", (0,)),))]
  assert len(list(tables.entries(rows, stacks(encoder=(2,)), shapes))) == 2


def test_rows_without_their_parameter_are_left_out():
  rows = tables.norm("n.{i}", "e/{layers}/norm")
  entries = list(tables.entries(rows, stacks(e=(1, 1)), {"e/layers_1/norm/scale": (1, 4)}))
  assert entries == [tables.Entry("n.1.weight", (("e/layers_1/norm/scale", (0,)),), tables.VECTOR)]


def test_a_tensor_of_another_shape_is_refused():
  entry = tables.Entry("x.weight", (("a", ()),), tables.matrix(1))
  with pytest.raises(DataError) as e:
    tables.read(entry, np.zeros((2, 3)), {"a": (2, 3)}, {})
  assert str(e.value) == "tensor 'x.weight' has shape [2, 3], and config.json asks for [3, 2]"


@pytest.mark.parametrize("model_type", FAMILIES)
def test_a_family_names_each_tensor_and_parameter_once(model_type):
  names = FAMILIES[model_type].names
  architectures = FAMILIES[model_type].architectures.values()
  for heads in architectures:
    rows = names.rows_for(heads)
    assert len({r.name for r in rows}) == len(rows)
    paths = [p for r in rows for p in r.paths]
    joined = {p for r in rows if len(r.paths) > 1 for p in r.paths}
    alone = [r.paths[0] for r in rows if len(r.paths) == 1]  # which one that is joined stands for
    assert len(set(alone)) == len(alone)
    assert len(paths) - len(set(paths)) == len(joined & set(alone))
    assert heads <= names.heads.keys()
  every = {r.name for heads in architectures for r in names.rows_for(heads)}
  assert set(names.tied.values()) <= every
  # Output weights of their own have the name of those that are tied.
  of_lm = {r.name for head in ("lm", "seq2seq") if head in names.heads for r in names.heads[head]}
  assert not (every - of_lm) & set(names.tied)
