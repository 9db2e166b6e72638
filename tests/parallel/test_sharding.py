"""The sharding table on eight CPU devices."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
import pytest

from jtx.errors import ConfigError
from jtx.nn.numerics import product
from jtx.parallel import sharding


def mesh(data=1, fsdp=1, tensor=1, context=1, expert=1, devices=None):
  return sharding.make_mesh(dict(data=data, fsdp=fsdp, tensor=tensor, context=context,
                                 expert=expert), devices)


def boxed(shape, *names):
  return nn.LogicallyPartitioned(jax.ShapeDtypeStruct(shape, jnp.float32), names)


# ------------------------------------------------------------------------------- meshes


@dataclasses.dataclass(frozen=True)
class Chip:
  """A stand-in for one of a slice of 2x2, or of another size."""
  id: int
  slice_index: int
  device_kind: str = "TPU v5 lite"
  size: tuple[int, int] = (2, 2)
  platform: str = "tpu"
  core_on_chip: int = 0
  process_index = property(lambda self: self.slice_index)

  @property
  def coords(self):
    x, y = self.size
    return self.id % x, self.id // x % y, self.id // (x * y)


def test_slices_of_a_tpu_are_split_over_data():
  chips = [Chip(4 * s + i, s) for i in range(4) for s in range(2)]  # of both in turns
  for sizes in (dict(data=2, fsdp=4), dict(data=4, tensor=2), dict(data=8)):
    half = len(mesh(**sizes, devices=chips).devices) // 2
    found = mesh(**sizes, devices=chips).devices
    assert {d.slice_index for d in found[:half].flat} == {0}
    assert {d.slice_index for d in found[half:].flat} == {1}
  with pytest.raises(ConfigError, match="data must be a multiple of the 2 slices"):
    mesh(fsdp=8, devices=chips)


@pytest.mark.parametrize("sizes", [dict(data=8, fsdp=8), dict(data=2, fsdp=32),
                                   dict(fsdp=8, tensor=2, context=4), dict(fsdp=64)], ids=str)
def test_axes_need_not_be_those_of_the_chips_network(sizes):
  """Of a v5p's 4 x 4 x 4, of which JAX splits none by itself."""
  chips = [Chip(i, 0, "TPU v5", (4, 4)) for i in range(64)]
  found = mesh(**sizes, devices=chips)
  assert {axis: n for axis, n in found.shape.items() if n > 1} == {
      axis: n for axis, n in sizes.items() if n > 1}
  assert set(found.devices.flat) == set(chips)


def test_mesh_sizes():
  assert dict(mesh(2, 2, 1, 2).shape) == {"data": 2, "fsdp": 2, "expert": 1, "tensor": 1,
                                          "context": 2}
  assert mesh(2, 4).axis_names == sharding.AXES


@pytest.mark.parametrize("axis", sharding.AXES)
def test_one_axis_is_filled_in(axis):
  other = "data" if axis != "data" else "fsdp"
  assert mesh(**{axis: -1, other: 2}).shape[axis] == 4


def test_some_of_the_devices():
  assert mesh(data=-1, devices=jax.devices()[:3]).size == 3


@pytest.mark.parametrize("sizes, message", [
    (dict(data=3), r"data=3, fsdp=1.*: data=3 takes 3 devices, and there are 8; set one axis"),
    (dict(data=-1, fsdp=2, tensor=3), "fsdp=2 x tensor=3 takes a multiple of 6 .* there are 8$"),
    (dict(), "this takes 1 device, and there are 8; set one"),
    (dict(data=-1, fsdp=2, devices=jax.devices()[:1]), r"2 takes a multiple of 2 .* there is one$"),
    (dict(data=-1, fsdp=-1), "at most one is -1"),
    (dict(data=0), "sizes are positive"),
    (dict(data=-2), "sizes are positive"),
])
def test_mesh_errors(sizes, message):
  with pytest.raises(ConfigError, match=message) as error:
    mesh(**sizes)
  assert "config.mesh" in str(error.value) and "\n" not in str(error.value)


# -------------------------------------------------------------------------------- spec

SIZES = dict(data=2, fsdp=2, expert=1, tensor=4, context=2)


@pytest.mark.parametrize("names, shape, expected", [
    (("embed", "mlp"), (8, 16), P(("fsdp", "context"), "tensor")),
    (("vocab", "embed"), (16, 8), P("tensor", ("fsdp", "context"))),
    (("vocab", "embed"), (30_522, 8), P(None, ("fsdp", "context"))),  # 4 does not divide it
    (("embed", "mlp"), (6, 16), P("fsdp", "tensor")),  # nor 2 x 2 this: the second choice
    (("layers", "embed", "heads", "kv"), (4, 8, 8, 4),
     P(None, ("fsdp", "context"), "tensor", None)),
    (("embed", "kv_heads", "kv"), (8, 1, 4), P(("fsdp", "context"), None, None)),
    (("embed", "kv_heads", "kv"), (8, 4, 4), P(("fsdp", "context"), "tensor", None)),
    (("embed", "embed"), (8, 8), P(("fsdp", "context"), None)),  # an axis splits one dimension only
    (("lookups", "length", "embed"), (4, 8, 8), P("data", "context", "fsdp")),
    (("heads", "mlp"), (6, 8), P(None, "tensor")),  # left over by one that it does not divide
    (("batch", "length", None), (8, 6, 5), P(("data", "fsdp"), "context", None)),
    (("batch",), (2,), P(None)),
    (("norm",), (8,), P(None)),
])
def test_spec(names, shape, expected):
  assert sharding.spec(names, shape, SIZES) == expected


def test_experts_are_split_and_rows_by_the_same_axis():
  sizes = dict(data=2, fsdp=2, expert=4, tensor=2, context=1)
  assert sharding.spec(("experts", "embed", "mlp"), (8, 16, 32), sizes) == P(
      "expert", "fsdp", "tensor")
  assert sharding.spec(("batch", "length"), (16, 4), sizes) == P(("data", "fsdp", "expert"), None)


def test_axes_of_size_one_are_left_out():
  sizes = dict(data=4, fsdp=1, expert=1, tensor=1, context=2)
  assert sharding.spec(("batch", "length"), (8, 8), sizes) == P("data", "context")
  assert sharding.spec(("embed", "mlp"), (8, 8), sizes) == P("context", None)


def test_what_does_not_divide_is_not_split():
  sizes = dict(data=1, fsdp=2, expert=1, tensor=2, context=4)
  assert sharding.spec(("batch", "length"), (4, 13), sizes) == P("fsdp", None)
  assert sharding.spec(("batch", "residual"), (4, 16), sizes) == P("fsdp", ("context", "tensor"))
  assert sharding.spec(("batch", "residual"), (4, 12), sizes) == P("fsdp", "context")
  assert sharding.spec(("batch", "residual"), (4, 6), sizes) == P("fsdp", "tensor")


def test_parts_of_a_dimension_on_the_mesh_in_scope():
  names = ("length", "residual", "batch", "vocab", "norm", "layers")
  assert [sharding.parts(name) for name in names] == [1] * 6
  with jax.set_mesh(mesh(data=2, tensor=2, context=2)):
    assert [sharding.parts(name) for name in names] == [2, 4, 2, 2, 1, 1]


def test_spec_wants_a_name_a_dimension():
  with pytest.raises(ValueError):
    sharding.spec(("embed",), (8, 8), SIZES)


def test_the_table_names_mesh_axes():
  for choices in sharding.TABLE.values():
    for choice in choices:
      assert set((choice,) if isinstance(choice, str) else choice) <= set(sharding.AXES)


# -------------------------------------------------------------------------- parameters


def test_param_shardings_and_replicated_dimensions():
  tree = {"out": boxed((6, 8), "heads", "embed"), "in": boxed((8, 12), "embed", "mlp"),
          "layers": {"kernel": boxed((3, 8, 1, 4), "layers", "embed", "kv_heads", "kv")}}
  m = mesh(fsdp=2, tensor=4)
  placed = sharding.param_shardings(tree, m)
  assert placed["out"].spec == P(None, "fsdp") and placed["in"].spec == P("fsdp", "tensor")
  assert placed["layers"]["kernel"].spec == P(None, "fsdp", None, None)
  assert sharding.replicated_dimensions(tree, m) == [
      "kv_heads=1 (not divisible by tensor=4)", "heads=6 (not divisible by tensor=4)"]
  assert sharding.replicated_dimensions(tree, mesh(data=8)) == []
  tree = {"kernel": boxed((6, 8), "embed", "mlp")}
  assert sharding.replicated_dimensions(tree, mesh(data=2, fsdp=2, context=2)) == [
      "embed=6 (not divisible by fsdp=2 x context=2)"]


@pytest.mark.parametrize("leaf, message", [
    (jax.ShapeDtypeStruct((2,), jnp.float32), "parameter block/kernel has no logical axis names"),
    (boxed((2, 2), "embed"), "one a dimension"),
    (boxed((2,), "embeds"), r"has axis names \('embeds',\).*out of batch, lookups, length, "),
    (boxed((2,), None), "one a dimension"),
])
def test_parameters_need_names(leaf, message):
  with pytest.raises(ValueError, match=message):
    sharding.logical_axes({"block": {"kernel": leaf}})


def test_unbox():
  tree = {"a": nn.LogicallyPartitioned(jnp.ones(2), ("embed",)), "b": jnp.zeros(3)}
  plain = sharding.unbox(tree)
  np.testing.assert_array_equal(plain["a"], 1)
  assert plain["b"].shape == (3,)


# --------------------------------------------------------------------------- activations


def test_constrain_places_activations():
  m = mesh(data=2, tensor=2, context=2)
  with jax.set_mesh(m):
    out = jax.jit(lambda x: sharding.constrain(x + 1, "batch", "length", "heads", "kv"))(
        jnp.zeros((4, 6, 2, 3)))
  assert out.sharding.is_equivalent_to(
      jax.sharding.NamedSharding(m, P("data", "context", "tensor", None)), 4)


def test_constrain_without_a_mesh_is_nothing():
  x = jnp.ones((3, 5))
  assert sharding.constrain(x, "batch", "length") is x


@pytest.mark.parametrize("sizes, names, num_in", [
    (dict(fsdp=8), ("embed", "heads", "kv"), 1),
    (dict(data=2, fsdp=4), ("heads", "kv", "embed"), 2),
    (dict(data=2, fsdp=2, tensor=2), ("embed", "heads", "kv"), 1),
    (dict(data=2, fsdp=2, context=2), ("heads", "kv", "embed"), 2),
    (dict(data=4, tensor=2), ("embed", "heads", "kv"), 1),  # whose width is not split
])
def test_a_product_gathers_the_parts_of_its_kernel(sizes, names, num_in):
  """Values and gradients are as on one device, and of the gradient each device has its part."""
  m, rng = mesh(**sizes), np.random.default_rng(0)
  shape = {1: (8, 2, 4), 2: (2, 4, 8)}[num_in]
  x = jnp.asarray(rng.normal(size=(8, 6, *shape[:num_in])), jnp.float32)
  kernel = jnp.asarray(rng.normal(size=shape), jnp.float32)

  def loss(x, kernel):
    return jnp.sin(product(x, kernel, None, num_in, axes=names)).sum()

  expected = jax.value_and_grad(loss, (0, 1))(x, kernel)
  place = jax.sharding.NamedSharding(m, sharding.spec(names, shape, m.shape))
  rows = jax.sharding.NamedSharding(m, sharding.spec(("batch", "length"), (8, 6), m.shape))
  with jax.set_mesh(m):
    step = jax.jit(jax.value_and_grad(loss, (0, 1)))
    found = step(jax.device_put(x, rows), jax.device_put(kernel, place))
    program = str(jax.make_jaxpr(loss)(x, kernel))
  for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)
  assert found[1][1].sharding.is_equivalent_to(place, 3)
  assert ("custom_vjp" in program) == ("fsdp" in sizes)


def test_a_process_by_itself_has_kernels_whole():
  """Its mesh, of `processes.alone`, has one device, and not all axes."""
  alone = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,),
                        devices=jax.devices()[:1])
  x, kernel = jnp.ones((2, 8)), jnp.ones((8, 3))
  with jax.set_mesh(alone):
    np.testing.assert_array_equal(product(x, kernel, None, 1, axes=("embed", "mlp")), 8)
  np.testing.assert_array_equal(product(x, kernel, None, 1, axes=("embed", "mlp")), 8)


def test_no_kernel_is_kept_whole_for_the_way_back():
  with jax.set_mesh(mesh(fsdp=8)):
    x, kernel = jnp.ones((8, 8)), jnp.ones((8, 12))
    pull = jax.vjp(lambda x, k: product(x, k, None, 1, axes=("embed", "mlp")), x, kernel)[1]
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape == (8, 12)]
  assert [leaf is kernel for leaf in kept] == [True]


# -------------------------------------------------------------------------------- batches


def test_check_batch():
  m = mesh(data=2, fsdp=2, tensor=2)
  sharding.check_batch(8, m, "config.batch_size")
  for size in (6, 0, -4):
    message = f"config.batch_size={size} must be a positive multiple of the 4 ways"
    with pytest.raises(ConfigError, match=message):
      sharding.check_batch(size, m, f"config.batch_size={size}")
  assert [sharding.padded_batch(size, m) for size in (1, 4, 5, 8)] == [4, 4, 8, 8]


def test_rows_of_this_process_make_the_global_batch():
  placed = sharding.batch_sharding(mesh(data=4, context=2))
  assert sharding.local_rows(8, placed) == list(range(8))
  rows = np.arange(16).reshape(8, 2)
  batch = sharding.to_device({"src": rows}, 8, placed)
  np.testing.assert_array_equal(batch["src"], rows)
  assert batch["src"].sharding.is_equivalent_to(placed, 2)
