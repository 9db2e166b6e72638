"""The device mesh, and the one table that places every array on it.

Parameters and activations carry logical axis names. `TABLE` maps each name to mesh axes
in order of preference; a dimension takes the first that divides it and that no earlier
dimension of the same array has taken, else it is replicated. Only the batch must divide.
"""

import functools
import math
from typing import Any, Callable, Mapping, Sequence

import flax.linen as nn
import jax
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from jtx.errors import ConfigError

Batch = Mapping[str, jax.Array]

AXES = ("data", "fsdp", "expert", "tensor", "context")
BATCH_AXES = ("data", "fsdp", "expert")  # that split the rows of a batch

# logical axis -> choices, each one mesh axis or several that split the dimension together
TABLE: dict[str, tuple[str | tuple[str, ...], ...]] = {
    "batch": (BATCH_AXES,),
    "lookups": (("data", "expert"), "data"),
    "length": ("context",),
    "residual": (("context", "tensor"), "context", "tensor"),  # length, between sub-layers
    "vocab": ("tensor",),
    "heads": ("tensor",),
    "kv_heads": ("tensor",),
    "mlp": ("tensor",),
    "embed": (("fsdp", "context"), "fsdp"),
    "experts": ("expert",),
    "routes": (),
    "layers": (),
    "kv": (),
    "norm": (),
    "positions": (),
    "fixed_positions": (),
    "fixed_norm": (),
    "prefix": (),
    "patch": (),
    "channels": (),
    "conv": ("tensor",),
    "buckets": (),
    "types": (),
    "factors": (),
    "rank": (),
    "transform": ("tensor",),
    "outputs": (),
    "states": (),
    "gates": (),
    "lstm": (),
}

# Axes of parameters that no run trains: they are read from files, or keep their first values.
FIXED = frozenset({"fixed_positions", "fixed_norm"})


def make_mesh(shape: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
  """A mesh over `devices` with the axes of `AXES`; one size may be -1 (what is left).

  Of several slices of a TPU, which the slow network of the data centre joins, `data` takes the
  slices first, so that only the sum of gradients goes from one to another.

  Raises:
    ConfigError: the sizes do not multiply to the number of devices, or the slices do not divide
      `data`.
  """
  devices = jax.devices() if devices is None else devices
  sizes = {axis: int(shape.get(axis, 1)) for axis in AXES}
  text = ", ".join(f"{a}={s}" for a, s in sizes.items())
  free = [a for a, s in sizes.items() if s == -1]
  if len(free) > 1 or any(s < 1 and s != -1 for s in sizes.values()):
    raise ConfigError(f"config.mesh ({text}): sizes are positive, and at most one is -1")
  fixed = math.prod(s for s in sizes.values() if s != -1)
  if free and len(devices) % fixed == 0:
    sizes[free[0]] = len(devices) // fixed
  if math.prod(sizes.values()) != len(devices):
    asked = " x ".join(f"{a}={s}" for a, s in sizes.items() if s > 1) or "this"
    number = f"{'a multiple of ' * bool(free)}{fixed} device{'s' * (fixed > 1)}"
    there = f"there are {len(devices)}" if len(devices) > 1 else "there is one"
    raise ConfigError(
        f"config.mesh ({text}): {asked} takes {number}, and {there}"
        + ("" if free else "; set one axis to -1 to fill in what is left"))
  types, slices = (AxisType.Auto,) * len(AXES), _slices(devices)
  if slices == 1:  # `jax.make_mesh` takes axes of a v4 or v5p only that whole axes of it make up
    placed = mesh_utils.create_device_mesh(tuple(sizes.values()), devices,
                                           allow_split_physical_axes=True)
    return Mesh(placed, AXES, axis_types=types)
  if sizes["data"] % slices:
    raise ConfigError(f"config.mesh ({text}): data must be a multiple of the {slices} slices, which"
                      " only the data centre's network joins")
  inside = (sizes["data"] // slices, *(sizes[axis] for axis in AXES[1:]))
  across = (slices, *[1] * len(AXES[1:]))
  placed = mesh_utils.create_hybrid_device_mesh(inside, across, devices,
                                                allow_split_physical_axes=True)
  return Mesh(placed, AXES, axis_types=types)


def _slices(devices: Sequence[jax.Device]) -> int:
  # Of GPUs a slice would be a host, which the mesh need not know of; one slice alone has no index.
  return len({getattr(d, "slice_index", 0) for d in devices}) if devices[0].platform == "tpu" else 1


def spec(names: Sequence[str | None], shape: Sequence[int],
         sizes: Mapping[str, int]) -> PartitionSpec:
  """The partition of an array with logical axis `names` on mesh axes of `sizes`."""
  used, partition = set(), []
  for name, size in zip(names, shape, strict=True):
    part = None
    for choice in TABLE[name] if name is not None else ():
      axes = _wider_than_one(choice, sizes)
      even = size % math.prod(sizes[a] for a in axes) == 0
      if axes and used.isdisjoint(axes) and even:
        part = axes if len(axes) > 1 else axes[0]
        used.update(axes)
        break
    partition.append(part)
  return PartitionSpec(*partition)


def _wider_than_one(choice: str | tuple[str, ...], sizes: Mapping[str, int]) -> tuple[str, ...]:
  axes = choice if isinstance(choice, tuple) else (choice,)
  return tuple(a for a in axes if sizes[a] > 1)


def _meant_for(name: str, sizes: Mapping[str, int]) -> tuple[str, ...]:
  """The mesh axes that split a dimension of this name if all of them together divide it."""
  return _wider_than_one(TABLE[name][0], sizes) if TABLE[name] else ()


def constrain(x: jax.Array, *names: str | None) -> jax.Array:
  """Asks XLA to lay out activation `x` by its logical axis names, inside `jax.set_mesh`.

  What does not divide is not split: XLA would pad it, and gets gradients of lookups wrong then.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.empty or mesh.size == 1:
    return x
  return jax.lax.with_sharding_constraint(x, spec(names, x.shape, dict(mesh.shape)))


def parts(name: str) -> int:
  """Into how many parts the mesh in scope splits a dimension of this name, if it divides."""
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.size <= 1:
    return 1
  return math.prod(mesh.shape[a] for a in _meant_for(name, mesh.shape))


def gather_rows(x: jax.Array) -> jax.Array:
  """Residuals [B, T, D], for a sub-layer whose kernels `tensor` splits: each device has whole rows.

  Between sub-layers devices share rows by their length (Korthikanti et al. 2022, section 4.2.2),
  so that norms, dropout and what is kept for the way back are not the same on all of them.
  """
  return _exchanged(x, ("batch", "residual", None), ("batch", "length", None))


def scatter_rows(x: jax.Array) -> jax.Array:
  """A sub-layer's output [B, T, D]: of the sum over `tensor` a device has its part of each row."""
  return _exchanged(x, ("batch", "length", None), ("batch", "residual", None))


def _exchanged(x, names, then):
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.size <= 1 or spec(names, x.shape, mesh.shape) == spec(then, x.shape, mesh.shape):
    return x
  # Both are told, since the gradient is asked for the same in turn.
  return constrain(constrain(x, *names), *then)


def with_whole(function: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array,
               kernel: jax.Array, names: Sequence[str]) -> jax.Array:
  """function(x, kernel), for which devices among which the kernel's width is split gather it.

  Else a TPU's compiler splits the product likewise: into one for each device's part, whose results
  it sums in x's type, one after the other. What is kept for the way back is the part, which is
  gathered there once more, and of the gradient a device keeps its part.

  For a vocabulary that `tensor` does not divide, devices share the rows of x by their length.

  Args:
    function: linear in both, such as a product.
    x: activations [..., D].
    kernel: a parameter, in the type of x.
    names: logical, of the kernel.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if mesh.size <= 1:  # 0 is none; that of a process by itself has not all axes
    return function(x, kernel)
  placed, needed = (spec(n, kernel.shape, mesh.shape) for n in (names, whole(names)))
  if "vocab" in names and x.ndim == 3 and needed[list(names).index("vocab")] is None:
    # Devices of `tensor` would else share the product by x's width, and sum all tokens' logits.
    x = _exchanged(x, ("batch", "length", None), ("batch", "residual", None))
  if placed == needed:
    return function(x, kernel)
  return _with_whole(function, tuple(names), x, kernel)


def whole(names: Sequence[str]) -> tuple[str | None, ...]:
  """The names of a kernel that no devices share by its width."""
  return tuple(None if name == "embed" else name for name in names)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _with_whole(function, names, x, kernel):
  return function(x, constrain(kernel, *whole(names)))


def _gradients(function, names, kept, gradient):
  x, kernel = kept
  gathered = constrain(kernel, *whole(names))
  of_x, = jax.linear_transpose(lambda x: function(x, gathered), x)(gradient)
  of_kernel, = jax.linear_transpose(lambda kernel: function(x, kernel), gathered)(gradient)
  # One product for the whole of it, too, and then a sum of which each device takes its part.
  return of_x, constrain(constrain(of_kernel, *whole(names)), *names)


_with_whole.defvjp(lambda function, names, x, kernel: (
    _with_whole(function, names, x, kernel), (x, kernel)), _gradients)


def platform() -> str:
  """The platform that a program is traced for: the mesh's in scope, which need not be this one."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  return jax.default_backend() if device is None else device.platform


def unbox(tree: Any) -> Any:
  """`tree` without Flax's axis metadata: plain arrays."""
  is_box = lambda x: isinstance(x, nn.meta.AxisMetadata)
  return jax.tree.map(lambda x: x.value if is_box(x) else x, tree, is_leaf=is_box)


def logical_axes(boxed: Any) -> Any:
  """A tuple of logical axis names for every parameter of a boxed tree.

  Raises:
    ValueError: a parameter was created without names, or with a name not in `TABLE`.
  """
  def names(path, x):
    where = jax.tree_util.keystr(path, simple=True, separator="/")
    if not isinstance(x, nn.Partitioned):
      raise ValueError(f"parameter {where} has no logical axis names")
    if len(x.names) != len(x.value.shape) or any(n not in TABLE for n in x.names):
      raise ValueError(f"parameter {where} of shape {x.value.shape} has axis names {x.names};"
                       f" one a dimension, out of {', '.join(TABLE)}")
    return tuple(x.names)

  return jax.tree_util.tree_map_with_path(
      names, boxed, is_leaf=lambda x: isinstance(x, nn.meta.AxisMetadata))


def param_shardings(boxed: Any, mesh: Mesh) -> Any:
  """A NamedSharding for every parameter of a boxed (abstract) tree."""
  axes, plain = logical_axes(boxed), unbox(boxed)
  return jax.tree.map(lambda x, n: NamedSharding(mesh, spec(n, x.shape, mesh.shape)), plain, axes)


def replicated_dimensions(boxed: Any, mesh: Mesh) -> list[str]:
  """Dimensions that mesh axes are meant for but do not divide, for the banner."""
  axes, plain = logical_axes(boxed), unbox(boxed)
  found = {}
  for names, x in zip(jax.tree.leaves(axes, is_leaf=lambda n: isinstance(n, tuple)),
                      jax.tree.leaves(plain), strict=True):
    for name, size in zip(names, x.shape, strict=True):
      axes = _meant_for(name, mesh.shape)
      if size % math.prod(mesh.shape[a] for a in axes):
        ways = " x ".join(f"{a}={mesh.shape[a]}" for a in axes)
        found[f"{name}={size} (not divisible by {ways})"] = None
  return list(found)


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows of a batch over the axes that split it."""
  return NamedSharding(mesh, PartitionSpec(BATCH_AXES))


def batch_ways(mesh: Mesh) -> int:
  """The number of parts that the mesh splits a batch into."""
  return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def check_batch(batch_size: int, mesh: Mesh, what: str) -> None:
  """Raises ConfigError where `batch_size` rows can't be split over the mesh; `what` says whose."""
  ways = batch_ways(mesh)
  if batch_size < 1 or batch_size % ways:
    raise ConfigError(
        f"{what} must be a positive multiple of the {ways} ways that the mesh splits"
        f" a batch ({' x '.join(f'{axis}={mesh.shape[axis]}' for axis in BATCH_AXES)})")


def padded_batch(batch_size: int, mesh: Mesh) -> int:
  """The next size from `batch_size` on that `mesh` can split, for batches that are padded."""
  ways = batch_ways(mesh)
  return -(-batch_size // ways) * ways


def local_rows(batch_size: int, sharding: NamedSharding) -> list[int]:
  """Indices of the rows of a global batch that this process's devices hold, in order."""
  slices = sharding.addressable_devices_indices_map((batch_size,)).values()
  return sorted({i for (s,) in slices for i in range(*s.indices(batch_size))})


def spread(batch: Mapping[str, Any], batch_size: int,
           sharding: NamedSharding) -> dict[str, jax.Array]:
  """Global arrays from a batch of which every process has all `batch_size` rows."""
  rows = local_rows(batch_size, sharding)
  return to_device({k: np.asarray(v)[rows] for k, v in batch.items()}, batch_size, sharding)


def to_device(batch: Mapping[str, Any], batch_size: int,
              sharding: NamedSharding) -> dict[str, jax.Array]:
  """Global arrays from this process's rows of a batch of `batch_size` rows."""
  return {
      k: jax.make_array_from_process_local_data(sharding, v, (batch_size, *v.shape[1:]))
      for k, v in batch.items()
  }
